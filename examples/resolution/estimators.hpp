#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "input/rollouts.hpp"

namespace resolution {

/// A condition on a reward: it counts only where another reward reaches a threshold. It is 0 unless
/// r_given >= at_least.
struct Condition {
  std::size_t reward;  ///< the reward that depends
  std::size_t given;   ///< the reward that it depends on
  double at_least;     ///< threshold
};

/// What the rewards of the log are to every estimator. All other settings are in its line.
struct Settings {
  std::vector<double> weights;  ///< one per reward; empty: all 1
  std::vector<Condition> given;
};

/// How an estimator treats several rewards: it sums them and normalizes the sum (GRPO), or
/// normalizes each and sums the results (GDPO). Reports color and compare estimators by this.
enum class Family { SumFirst, NormalizeFirst };

/// What reports say of an estimator.
struct EstimatorInfo {
  std::string name;         ///< its line as given, with one blank between two words
  std::string label;        ///< name in reports
  std::string description;  ///< what it computes, in one sentence
  Family family = Family::SumFirst;
  std::string preset;  ///< the library's name; with all of `settings` it is the same estimator
  std::vector<std::pair<std::string, std::string>> settings;  ///< name and value of each

  /// The value of the setting of this name; empty where the estimator does not have it.
  std::string value(const std::string& setting) const;
  /// The line that repeats the estimator whatever the defaults are: `preset` and all `settings`.
  std::string whole_line() const;
};

// An estimator is given by a line, NAME [SETTING=VALUE ...], such as "trl::gdpo scale.eps=1e-6",
// which gdpo::runtime::configured_estimator reads. A few names of the tool's own stand for lines.

/// The lines that are compared by default.
std::vector<std::string> default_estimators();

/// The names of all estimators: the default ones, then those of the library.
std::vector<std::string> all_estimators();

/// Describes an estimator. Throws UserError with the library's reason for a name or a setting that
/// there is not, and for a value that does not fit.
EstimatorInfo describe(const std::string& line);

/// All names, and the settings of the estimators of these lines: name, value, what fits, meaning.
std::string listing(const std::vector<std::string>& lines);

/// The advantages (N) of a log, computed by the library batch by batch. Throws UserError where the
/// library refuses the input.
std::vector<double> advantages(const std::string& line, const Settings& settings,
                               const Rollouts& rollouts);

/// The numbers of one group of the log, stage by stage, as a table (gdpo/advantage/explain.hpp).
/// Throws UserError where the library refuses the input.
std::string explanation(const std::string& line, const Settings& settings, const Rollouts& rollouts,
                        std::size_t group);

/// The advantages before any batch step: what a group gets whatever else is in the batch. `rewards`
/// is (N, reward_count) without missing values, in N / group_size groups of consecutive rows.
std::vector<double> advantages_before_batch_step(const std::string& line,
                                                 const std::vector<double>& rewards,
                                                 std::size_t reward_count, std::size_t group_size);

}  // namespace resolution
