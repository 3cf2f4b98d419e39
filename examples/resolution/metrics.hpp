#pragma once

#include <optional>
#include <string>
#include <vector>

#include "clusters.hpp"
#include "estimators.hpp"
#include "rollouts.hpp"

namespace resolution {

/// Advantages that differ by at most this count as equal.
constexpr double advantage_tolerance = 1e-6;

/// Statistics of the rewards alone, after the conditions of --given. Missing rewards are left out
/// of every statistic.
struct RewardSummary {
  struct Channel {
    std::string name;
    /// Over all completions; the std has the divisor n - 1. NaN where there are too few values.
    double min, max, mean, std;
    std::size_t distinct;         ///< number of different values, rounded to 1e-9
    std::size_t missing;          ///< number of missing values
    double zero_variance_groups;  ///< share of groups in which the reward does not vary
  };
  std::vector<Channel> channels;
  /// Pairs (size, number of groups of this size), ascending.
  std::vector<std::pair<std::size_t, std::size_t>> group_sizes;
  double zero_variance_groups_sum = 0;  ///< share of groups whose weighted sum does not vary
  double zero_variance_groups_all = 0;  ///< share of groups in which no reward varies
  /// Groups whose weighted sum is constant although a reward varies.
  std::vector<std::size_t> equal_sum_groups;
  std::size_t uniform_groups = 0;    ///< groups in which all completions have the same rewards
  std::size_t distinct_vectors = 0;  ///< different reward vectors of a completion
  std::size_t excluded_rows = 0;     ///< completions without any reward

  /// The number of missing rewards of all columns.
  std::size_t missing() const;
};

/// The number of groups per size as text, "540 of 4, 74 of 8": the first six sizes and the largest.
std::string group_sizes_text(const RewardSummary& rewards);

/// What is counted for one estimator; the reports and examples/data/README.md have the definitions.
struct Metrics {
  std::size_t distinct_values = 0;                ///< different advantages in the log
  std::size_t distinct_group_vectors_sorted = 0;  ///< different multisets of a group's advantages
  std::size_t zero_groups = 0;                    ///< groups in which every advantage is 0
  double mean_levels_per_group = 0;               ///< different advantages in a group, mean
  double mean_distinct_reward_vectors_per_group = 0;
  std::size_t pairs = 0;  ///< pairs of completions that share a group
  std::size_t pairs_with_different_reward_vectors = 0;
  std::size_t pairs_collapsed = 0;  ///< pairs of those whose advantages are equal: ties
  double collapse_rate = 0;         ///< share of the pairs with different rewards that are ties
  std::vector<std::size_t> cancelled_groups;  ///< reward vectors differ, every advantage is 0
  std::size_t distinct_reward_multisets = 0;  ///< different multisets of a group's reward vectors
  /// Share of the pairs of different reward multisets that get the same multiset of advantages.
  double cross_group_collapse_rate = 0;
  std::size_t not_finite = 0;  ///< advantages that are NaN or infinite
  double adv_std = 0;          ///< std of the advantages, divisor N - 1
  double adv_absmax = 0;       ///< largest |advantage|
  /// Per reward, the mean over groups of its correlation with the advantage inside the group.
  /// Groups in which one of them does not vary are left out; NaN where no group remains.
  std::vector<double> mean_corr_with_each_reward;
  Clusters clusters;  ///< distinct advantages, counted by gaps instead of rounding
};

/// Measures estimators on one log. What depends on the rewards alone is computed once, by the
/// constructor.
class Measure {
 public:
  Measure(const Rollouts& rollouts, const Settings& settings);

  const RewardSummary& rewards() const { return summary_; }
  Metrics of(const std::vector<double>& advantages) const;

  /// The rewards (N, C) after the conditions of --given; a missing reward is NaN.
  const std::vector<double>& gated() const { return gated_; }

 private:
  void gate(const Settings& settings);
  void number_reward_vectors();
  void summarise(const Settings& settings);
  /// The values of a reward in a group that are not missing, in row order.
  std::vector<double> present(std::size_t group, std::size_t channel) const;

  const Rollouts& rollouts_;
  std::vector<double> gated_;
  std::vector<std::size_t> vector_of_;      ///< (N) number of the row's reward vector
  std::vector<std::size_t> multiset_of_;    ///< (groups) number of the multiset of reward vectors
  std::vector<std::size_t> levels_;         ///< (groups) different reward vectors in the group
  std::size_t multisets_ = 0;               ///< different multisets of reward vectors
  std::vector<std::vector<bool>> varying_;  ///< (groups)(C) whether the reward varies in the group
  RewardSummary summary_;
};

}  // namespace resolution
