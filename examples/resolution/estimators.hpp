#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rollouts.hpp"

namespace resolution {

/// A reward that counts only where another reaches a threshold: r_reward := 0 unless r_given >= at_least.
struct Condition {
  std::size_t reward;
  std::size_t given;
  double at_least;
};

/// What is set on every estimator.
struct Settings {
  std::vector<double> weights;  ///< one per reward; empty: all 1
  std::vector<Condition> given;
  double eps =
      0;  ///< added to every standard deviation of the five built-in estimators; presets keep their own
};

/// How an estimator treats several rewards; the reports colour and compare by it.
enum class Family { SumFirst, NormaliseFirst };

struct EstimatorInfo {
  std::string name;         ///< as given on the command line
  std::string label;        ///< for people
  std::string description;  ///< one sentence
  Family family = Family::SumFirst;
  bool needs_lengths = false;  ///< weights rows by their number of tokens
};

/// The five that are compared by default.
const std::vector<std::string>& default_estimators();

/// The five and every name of gdpo::runtime. Throws UserError for another name and lists the names.
EstimatorInfo describe(const std::string& name);

/// All names that describe() knows.
std::vector<std::string> all_estimators();

/// Advantages (N) of a log by the library. Throws UserError where the library refuses the input.
std::vector<double> advantages(const std::string& name, const Settings& settings,
                               const Rollouts& rollouts);

/// Advantages of complete rewards (N, channels) of N / group_size consecutive groups, before any batch step: what one
/// group gets whatever else is in the batch.
std::vector<double> advantages_before_batch_step(const std::string& name,
                                                 const std::vector<double>& rewards,
                                                 std::size_t channels, std::size_t group_size);

/// GDPO with the batch step weighted by completion length, eps in the root (verl's whitening over tokens).
std::vector<double> length_weighted_gdpo(const Settings& settings, const Rollouts& rollouts,
                                         double eps);

}  // namespace resolution
