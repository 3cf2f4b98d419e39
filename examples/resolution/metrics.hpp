#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "clusters.hpp"
#include "estimators.hpp"
#include "input/rollouts.hpp"
#include "slices.hpp"

namespace resolution {

/// Advantages that differ by at most this count as equal.
constexpr double advantage_tolerance = 1e-6;

/// Whether an advantage counts as 0.
bool is_zero(double advantage);

/// Statistics of the rewards alone, after the conditions of --given. Missing rewards are left out
/// of every statistic. What concerns several rewards, such as the reward vector of a completion,
/// leaves out those of weight 0, which no estimator sees. A completion without any reward that has
/// a weight counts in nothing: it is in no pair and in no group, and a group of such completions is
/// none. Only `group_sizes` and the numbers of missing values are those of the whole log.
struct RewardSummary {
  struct Reward {
    std::string name;
    /// Over the completions; the std has the divisor n - 1. NaN where there are too few values.
    double min, max, mean, std;
    std::size_t distinct;  ///< number of different values, rounded to 1e-9
    std::size_t missing;   ///< number of missing values in the log
    /// Share of the groups with a value of the reward in which it does not vary; NaN: there is
    /// none.
    double zero_variance_groups;
  };
  std::vector<Reward> per_reward;
  /// Pairs (size, number of groups of this size), ascending.
  std::vector<std::pair<std::size_t, std::size_t>> group_sizes;
  std::size_t groups = 0;               ///< groups that have a completion with a reward
  std::size_t single_groups = 0;        ///< of those, the groups with only one such completion
  double zero_variance_groups_sum = 0;  ///< share of groups whose weighted sum does not vary
  double zero_variance_groups_all = 0;  ///< share of groups in which no reward varies
  /// Groups whose weighted sum is constant although a reward varies.
  std::vector<std::size_t> equal_sum_groups;
  std::size_t uniform_groups = 0;    ///< groups in which all completions have the same rewards
  std::size_t distinct_vectors = 0;  ///< different reward vectors of a completion
  std::size_t excluded_rows = 0;     ///< completions that count in nothing
  /// Different multisets of a group's reward vectors: in the log, and in each batch, added up.
  std::size_t distinct_multisets = 0;
  std::size_t distinct_multisets_within_batches = 0;
  std::size_t pairs = 0;                         ///< pairs of completions that share a group
  std::size_t pairs_with_different_vectors = 0;  ///< of those, the pairs with different rewards
  double mean_vectors_per_group = 0;             ///< different reward vectors in a group, mean

  /// The number of missing values of all rewards.
  std::size_t missing() const;
};

/// The number of groups per size as text, "540 of 4, 74 of 8": the first six sizes and the largest.
std::string group_sizes_text(const RewardSummary& rewards);

/// What is counted for one estimator; the reports and examples/data/README.md have the definitions.
/// As in RewardSummary, completions without any reward count in nothing, but for `not_finite`.
struct Metrics {
  std::size_t distinct_values = 0;                 ///< different advantages in the log
  std::size_t distinct_values_within_batches = 0;  ///< in each batch, added up
  std::size_t distinct_group_vectors_sorted = 0;   ///< different multisets of a group's advantages
  std::size_t distinct_group_vectors_within_batches = 0;  ///< in each batch, added up
  std::size_t zero_groups = 0;                            ///< groups in which every advantage is 0
  double mean_levels_per_group = 0;                       ///< different advantages in a group, mean
  /// Ties: pairs of completions of a group with different rewards and equal advantages.
  std::size_t pairs_collapsed = 0;
  double collapse_rate = 0;  ///< share of the pairs with different rewards that are ties
  std::vector<double> collapse_rate_of_batch;  ///< the same in each batch; NaN without such pairs
  std::vector<std::size_t> canceled_groups;    ///< reward vectors differ, every advantage is 0
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

/// The course of the rewards over the batches. Every list has an entry per batch; a number that
/// does not exist is NaN.
struct BatchCurves {
  struct Reward {
    std::vector<double> mean;
    std::vector<double> std;  ///< divisor n - 1
  };
  std::vector<Reward> rewards;                   ///< per reward, over the completions that have it
  std::vector<double> zero_variance_groups_sum;  ///< share of groups whose sum does not vary
  std::vector<double> zero_variance_groups_all;  ///< share of groups in which no reward varies
  std::vector<double> length;                    ///< mean; empty where the log has no lengths
};

/// Is told how many rows have been worked on.
using OnRows = std::function<void(std::size_t)>;

/// Measures estimators on one log. What depends on the rewards alone is computed once, by the
/// constructor.
class Measure {
 public:
  Measure(const Rollouts& rollouts, const Settings& settings, const OnRows& on_rows = {});

  const RewardSummary& rewards() const { return summary_; }
  BatchCurves curves() const;
  /// What is counted of the advantages (N) of all completions of the log.
  Metrics of(const std::vector<double>& advantages, const OnRows& on_rows = {}) const;

  /// Whether a completion has a reward that estimators see (N). The others count in nothing.
  const std::vector<char>& rewarded() const { return rewarded_; }

  /// The rewards (N, C) after the conditions of --given; a missing reward is NaN.
  const std::vector<double>& gated() const { return gated_.empty() ? rollouts_.rewards : gated_; }

 private:
  void gate(const Settings& settings);
  void leave_out_unrewarded();
  void number_reward_vectors();
  void count_pairs();
  void summarize();
  void summarize_groups(const OnRows& on_rows);
  /// The completions that count, and their rewards after the conditions.
  const Rollouts& counted() const { return counted_ ? *counted_ : rollouts_; }
  const std::vector<double>& counted_rewards() const {
    return counted_ ? counted_->rewards : gated();
  }
  double reward(std::size_t row, std::size_t k) const {
    return counted_rewards()[row * rollouts_.reward_count() + k];
  }
  /// The number in the log of a group of counted().
  std::size_t group_of_log(std::size_t group) const {
    return counted_ ? group_of_log_[group] : group;
  }
  /// The values of the completions that count, from those (N) of all; only where counted_ is set.
  std::vector<double> values_that_count(const std::vector<double>& values) const;
  /// Puts the values of a reward in some rows that are not missing into `values`, in row order.
  void present(Range rows, std::size_t k, std::vector<double>& values) const;
  bool varying(std::size_t group, std::size_t k) const {
    return varying_[group * rollouts_.reward_count() + k] != 0;
  }

  const Rollouts& rollouts_;
  std::vector<double> weights_;      ///< (C)
  std::vector<char> rewarded_;       ///< (N)
  std::vector<double> gated_;        ///< empty where there are no conditions
  std::optional<Rollouts> counted_;  ///< empty where every completion counts

  // From here on rows and groups are those of counted().
  std::vector<std::size_t> group_of_log_;
  /// (rows) number of the row's reward vector among those of its group, from 0.
  std::vector<std::uint32_t> vector_in_group_;
  std::vector<std::size_t> levels_;           ///< (groups) different reward vectors in the group
  std::vector<std::size_t> different_pairs_;  ///< (groups) pairs with different reward vectors
  SliceNumbers multisets_;                    ///< of the reward vectors of each group
  std::vector<char> varying_;                 ///< (groups, C) whether the reward varies
  std::vector<char> sum_varies_;              ///< (groups) whether the weighted sum varies
  RewardSummary summary_;
};

}  // namespace resolution
