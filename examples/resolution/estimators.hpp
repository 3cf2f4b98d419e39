#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "input/rollouts.hpp"

namespace resolution {

/// A condition on a reward: it counts only where another reward reaches a threshold. It is 0 unless
/// r_given >= at_least.
struct Condition {
  std::size_t reward;  ///< column of the reward that depends
  std::size_t given;   ///< column of the reward that it depends on
  double at_least;     ///< threshold
};

/// The settings that every estimator is given.
struct Settings {
  std::vector<double> weights;  ///< one per reward; empty: all 1
  std::vector<Condition> given;
  /// Added to every standard deviation of the five built-in estimators; presets keep their own.
  double eps = 0;
};

/// How an estimator treats several rewards: it sums them and normalises the sum (GRPO), or
/// normalises each and sums the results (GDPO). Reports colour and compare estimators by this.
enum class Family { SumFirst, NormaliseFirst };

/// What reports say of an estimator.
struct EstimatorInfo {
  std::string name;         ///< as given on the command line
  std::string label;        ///< name in reports
  std::string description;  ///< what it computes, in one sentence
  Family family = Family::SumFirst;
  bool needs_lengths = false;  ///< weights rows by their number of tokens
};

/// The names of the five built-in estimators, which are compared by default.
const std::vector<std::string>& default_estimators();

/// Describes one of the five built-in estimators or a preset of gdpo::runtime. Throws UserError for
/// another name; the message lists the names.
EstimatorInfo describe(const std::string& name);

/// All names that describe() knows.
std::vector<std::string> all_estimators();

/// The advantages (N) of a log, computed by the library batch by batch. Throws UserError where the
/// library refuses the input.
std::vector<double> advantages(const std::string& name, const Settings& settings,
                               const Rollouts& rollouts);

/// The advantages before any batch step: what a group gets whatever else is in the batch. `rewards`
/// is (N, channels) without missing values, in N / group_size groups of consecutive rows.
std::vector<double> advantages_before_batch_step(const std::string& name,
                                                 const std::vector<double>& rewards,
                                                 std::size_t channels, std::size_t group_size);

/// GDPO with the step over each batch weighted by completion length, as verl whitens over tokens;
/// eps is added to the variance.
std::vector<double> length_weighted_gdpo(const Settings& settings, const Rollouts& rollouts,
                                         double eps);

}  // namespace resolution
