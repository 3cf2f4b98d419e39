#pragma once

#include <optional>
#include <string>
#include <vector>

#include "clusters.hpp"
#include "estimators.hpp"
#include "rollouts.hpp"

namespace resolution {

/// Advantages count as one value when they agree to this.
constexpr double advantage_tolerance = 1e-6;

/// What the rewards alone say, after gating. Missing rewards are left out of every statistic.
struct RewardSummary {
  struct Channel {
    std::string name;
    double min, max, mean, std;  ///< over all completions, ddof 1; NaN where there are too few
    std::size_t distinct;        ///< values rounded to 1e-9
    std::size_t missing;
    double zero_variance_groups;  ///< share of groups in which it does not vary
  };
  std::vector<Channel> channels;
  std::vector<std::pair<std::size_t, std::size_t>>
      group_sizes;                      ///< (size, number of groups), ascending
  double zero_variance_groups_sum = 0;  ///< share of groups whose (weighted) sum does not vary
  double zero_variance_groups_all = 0;  ///< share of groups in which no reward varies
  std::vector<std::size_t>
      equal_sum_groups;              ///< groups whose sum does not vary though a reward does
  std::size_t uniform_groups = 0;    ///< all completions have the same rewards
  std::size_t distinct_vectors = 0;  ///< of a completion
  std::size_t excluded_rows = 0;     ///< completions without any reward

  std::size_t missing() const;
};

/// "540 of 4, 74 of 8": groups per size, the first six sizes and the largest.
std::string group_sizes_text(const RewardSummary& rewards);

/// Counts for one estimator; definitions in the README of the data and in the reports.
struct Metrics {
  std::size_t distinct_values = 0;
  std::size_t distinct_group_vectors_sorted = 0;
  std::size_t zero_groups = 0;
  double mean_levels_per_group = 0;
  double mean_distinct_reward_vectors_per_group = 0;
  std::size_t pairs = 0;
  std::size_t pairs_with_different_reward_vectors = 0;
  std::size_t pairs_collapsed = 0;
  double collapse_rate = 0;
  std::vector<std::size_t> cancelled_groups;  ///< reward vectors differ, every advantage is 0
  std::size_t distinct_reward_multisets = 0;
  double cross_group_collapse_rate = 0;
  std::size_t not_finite = 0;  ///< advantages that are NaN or infinite
  double adv_std = 0;
  double adv_absmax = 0;
  std::vector<double> mean_corr_with_each_reward;  ///< NaN where no group has both varying
  Clusters clusters;
};

/// Measures estimators on one log; what depends on the rewards alone is worked out once.
class Measure {
 public:
  Measure(const Rollouts& rollouts, const Settings& settings);

  const RewardSummary& rewards() const { return summary_; }
  Metrics of(const std::vector<double>& advantages) const;

  /// Rewards (N, C) after gating, missing as NaN.
  const std::vector<double>& gated() const { return gated_; }

 private:
  void gate(const Settings& settings);
  void number_reward_vectors();
  void summarise(const Settings& settings);
  std::vector<double> present(std::size_t group, std::size_t channel) const;

  const Rollouts& rollouts_;
  std::vector<double> gated_;
  std::vector<std::size_t> vector_of_;  ///< (N) number of the row's reward vector
  std::vector<std::size_t>
      multiset_of_;                  ///< (groups) number of the group's multiset of reward vectors
  std::vector<std::size_t> levels_;  ///< (groups) different reward vectors in it
  std::size_t multisets_ = 0;
  std::vector<std::vector<bool>> varying_;  ///< (groups)(C)
  RewardSummary summary_;
};

}  // namespace resolution
