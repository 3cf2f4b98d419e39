#pragma once
// Whether the rewards of a group vary, and how much, as the estimators see it.
#include <algorithm>
#include <gdpo/advantage/shared/group_rules.hpp>
#include <gdpo/advantage/shared/reward_reader.hpp>
#include <vector>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The spread of a group: of one reward or of the sum, or of several rewards together.
struct GroupSpread {
  bool any = false, unknown = false, flat = true;
  double variance = 0;
  double value_rounding = 0;  ///< How far rounding can move a value that the variance is made of.
  index_t values = 0;         ///< The most values of a reward.

  /// Adds the values of a reward that stand in the group with this weight.
  void add(const GroupStat& stat, double weight) {
    any = any || stat.n > 0;
    unknown = unknown || stat.unknown;
    flat = flat && (stat.n == 0 || stat.degenerate);
    variance += math::mul(math::mul(weight, weight), gdpo::variance(stat));
    values = (std::max)(values, stat.n);
  }
  double std() const { return math::sqrt(variance); }
  /// How far rounding can move std(). Values that are off by e move it by at most sqrt(2) e. The
  /// deviations, their squares and the sum of the squares are each off by 2^-53 of themselves an
  /// operation, all squares being positive; the mean's own rounding is taken out of the sum.
  double rounding() const {
    return math::mul(2.0, value_rounding) +
           math::mul(static_cast<double>(values + 8) * 0x1p-53, std());
  }
};

/// Reads the groups of a batch as an estimator with these weights, gates and missing would.
template <class T, class Groups>
class SpreadReader {
 public:
  SpreadReader(const char* function, const RewardBatch<T, Groups>& batch,
               const List<double>& weights, const List<Gate, 16>& gates, const Missing& missing)
      : batch_(batch), reader_(function, batch, settings(weights, gates, missing), work_) {}

  /// The rewards with a weight, each by itself.
  GroupSpread of_rewards(index_t g) {
    GroupSpread all;
    for (std::size_t j = 0; j < work_.used_rewards.size(); ++j) {
      const index_t c = work_.used_rewards[j];
      all.add(stat(g, [&](index_t i) { return reader_(i, c); }), work_.reward_weights[j]);
    }
    return all;
  }
  /// Reward c, whatever its weight.
  GroupSpread of_reward(index_t g, index_t c) {
    GroupSpread one;
    one.add(stat(g, [&](index_t i) { return reader_(i, c); }), 1.0);
    return one;
  }
  /// The weighted sum.
  GroupSpread of_sum(index_t g) {
    double largest = 0;
    GroupStat sums = stat(g, [&](index_t i) {
      double magnitude;
      const double sum = reader_.weighted_sum(i, magnitude);
      largest = (math::max)(largest, magnitude);
      return sum;
    });
    equate_sums(sums, reader_.terms(), largest);
    GroupSpread one;
    one.add(sums, 1.0);
    // A product and a sum for each term; a reward of weight 1 alone is what is stored.
    const bool stored = work_.used_rewards.size() == 1 && work_.reward_weights[0] == 1.0;
    if (!stored)
      one.value_rounding = math::mul(2.0 * static_cast<double>(reader_.terms()) * 0x1p-53, largest);
    return one;
  }

 private:
  static RewardSettings settings(const List<double>& weights, const List<Gate, 16>& gates,
                                 const Missing& missing) {
    RewardSettings e;
    e.weights = weights, e.gates = gates, e.missing = missing;
    return e;
  }
  /// Statistics of value(row) over the used rows of group g that have it.
  template <class Value>
  GroupStat stat(index_t g, const Value& value) {
    values_.clear();
    for (index_t k = 0; k < batch_.groups.length(g); ++k) {
      const index_t i = batch_.groups.row(g, k);
      if (batch_.valid && math::is_zero(batch_.valid(i))) continue;
      const double x = value(i);
      if (!reader_.skips() || !math::is_nan(x)) values_.push_back(x);
    }
    return group_stat(typename Groups::Order{}, values_.data(),
                      static_cast<index_t>(values_.size()));
  }

  const RewardBatch<T, Groups>& batch_;
  EstimatorScratch work_;  // before reader_, which fills it in
  RewardReader<T, Groups> reader_;
  std::vector<double> values_;
};

}  // namespace detail
GDPO_END_NAMESPACE
