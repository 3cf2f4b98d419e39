#pragma once
// Reads the rewards of a batch on the host as the settings of an estimator say.
#include <gdpo/advantage/shared/check_rewards.hpp>
#include <gdpo/advantage/workspace.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Reads the rewards of a batch as the settings of an estimator say: weights, gates, missing
/// rewards, penalty. Construction checks the call.
template <class T, class Groups>
class RewardReader {
  struct UsedRewards {
    const EstimatorScratch& work;
    index_t size() const { return static_cast<index_t>(work.used_rewards.size()); }
    index_t operator()(index_t j) const { return work.used_rewards[as_size(j)]; }
    double weight(index_t j) const { return work.reward_weights[as_size(j)]; }
  };

 public:
  RewardReader(const char* function, const RewardBatch<T, Groups>& batch, const RewardSettings& e,
               EstimatorScratch& work)
      : batch_(batch),
        function_(function),
        work_(work),
        rules_(batch.rewards, batch.penalty, UsedRewards{work}, e) {
    check_rewards(function, batch, e,
                  [&](const char* name, index_t rows) { batch.groups.check(name, rows); });
    check_counts(function, batch);
    work.used_rewards.clear();
    work.reward_weights.clear();
    for (index_t c = 0; c < batch.rewards.extent[1]; ++c) {
      const double weight = e.weights.empty() ? 1.0 : e.weights[c];
      if (weight == 0) continue;  // the reward is not read, so NaN in it changes no bit
      work.used_rewards.push_back(c);
      work.reward_weights.push_back(weight);
    }
    stored_.plain = rules_.plain();
    stored_.dense = batch.rewards.stride[1] == 1 &&
                    static_cast<index_t>(work.used_rewards.size()) == batch.rewards.extent[1];
    stored_.packed = batch.rewards.stride[0] == batch.rewards.extent[1];
  }

  /// There is one column, the weighted sum.
  bool sums_first() const { return rules_.sums_first; }
  bool skips() const { return rules_.skips(); }
  bool excludes(index_t row) const { return rules_.excludes(row); }
  bool excludes_unused() const { return rules_.excludes_unused(); }
  bool replaces_nan() const { return rules_.replaces_nan(); }
  bool rejects() const {
    return rejects_infinite() || rules_.missing.entry == MissingEntry::Reject;
  }
  bool rejects_infinite() const { return rules_.missing.infinite == InfiniteEntry::Reject; }
  index_t terms() const { return rules_.terms(); }

  /// Reward c of a row after gates; NaN where it is missing.
  double gated(index_t row, index_t c) const {
    return rules_.gated(load(batch_.rewards(row, c)), row, c);
  }
  /// No setting changes a stored reward.
  bool plain() const { return stored_.plain; }
  /// gated() is the reward as it is stored.
  bool gives_stored() const { return rules_.gates.empty(); }
  /// after_gate() changes finite rewards, or NaN.
  bool adjusts() const { return rules_.adjusts(); }
  /// A gated reward; NaN where it counts as missing.
  double known(double value) const { return detail::known(rules_.missing, value); }
  /// A gated reward of a row after missing rewards and penalty. It refuses no reward, so a report
  /// can also describe rewards that the estimator does not read.
  double after_gate(double value, index_t row, index_t c) const {
    return rules_.adjusted(value, row, c);
  }

  /// Reward c of a row as its statistics see it; NaN where it is missing and stays missing.
  GDPO_HOST_INLINE double operator()(index_t row, index_t c) const {
    return stored_.plain ? load(batch_.rewards(row, c)) : adjusted(row, c);
  }

  /// RewardRules::weighted_sum of a row. Not inlined, because g++ 12 with -O3 and AVX-512 crashes
  /// when it inlines this into fill_report.
  GDPO_NOINLINE double weighted_sum(index_t row, double& magnitude) const {
    const auto read = [&](index_t first, index_t lanes, double* x) {
      for (index_t j = 0; j < lanes; ++j)
        x[j] = (*this)(row, work_.used_rewards[as_size(first + j)]);
    };
    return rules_.weighted_sum(row, read, magnitude);
  }

  /// What the penalty takes off a row.
  double penalty_of(index_t row) const { return rules_.penalty_of(row); }
  bool changes_sums() const { return rules_.changes_sums(); }
  double changed_sum(index_t row, double sum, double& magnitude) const {
    return rules_.changed_sum(row, sum, magnitude);
  }

 protected:
  /// Reward c of a row after gates, missing rewards and penalty. Throws for a reward that is to be
  /// rejected.
  double adjusted(index_t row, index_t c) const {
    const double value = gated(row, c);
    if (!batch_.valid || batch_.valid(row) != 0)
      check_reward(function_, rules_.missing, value, row, c);
    return after_gate(value, row, c);
  }

  const RewardBatch<T, Groups>& batch_;
  const char* function_;
  const EstimatorScratch& work_;
  RewardRules<T, Column, UsedRewards> rules_;
  struct {
    bool plain = false;   // no setting changes a stored reward
    bool dense = false;   // all rewards are read, which are next to each other in a row
    bool packed = false;  // the rows are next to each other
  } stored_;
};

}  // namespace detail
GDPO_END_NAMESPACE
