#pragma once
// The steps from stored rewards to what the statistics see, for host and device: weights, gates,
// missing rewards, penalty.
#include <gdpo/advantage/combine.hpp>
#include <gdpo/advantage/missing.hpp>
#include <gdpo/core/list.hpp>
#include <gdpo/math/bounds.hpp>
#include <gdpo/storage/storage.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The tree_sum of eight numbers in memory. V: double, or lanes.
template <class V>
GDPO_INLINE V tree_of(const V* t) {
  return ((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7]));
}

/// A reward; NaN where it is missing.
GDPO_INLINE double known(const Missing& missing, double value) {
  return missing.infinite == InfiniteEntry::Missing && math::is_inf(value) ? math::nan() : value;
}
/// A reward as its statistics see it; NaN where it is missing and stays missing.
GDPO_INLINE double settled(const Missing& missing, double value) {
  value = known(missing, value);
  return missing.entry == MissingEntry::Zero && math::is_nan(value) ? 0.0 : value;
}

/// The settings by which an estimator reads rewards, and what it reads of a batch besides. They are
/// values, so that what takes them is compiled once for all estimators.
struct RewardSettings {
  bool sums_first = true,      ///< sums_first_v of its Combine.
      reads_tokens = false,    ///< A policy reads RewardBatch::tokens,
      reads_external = false;  ///< or RewardBatch::baseline.
  Missing missing{};
  Singleton singleton = Singleton::Zero;
  penalty::Row penalty{};
  List<double> weights{};
  List<Gate, 16> gates{};
  Bounds reward_clip{}, clip{};
};

/// How the settings of an estimator read the rewards. With sums_first the bounds and the penalty
/// are on the weighted sum; otherwise on each reward, and on the one that the penalty names.
/// PerRow: a column of the batch. UsedRewards: the size() rewards whose weight is not 0;
/// used_rewards(j) is the index of the j-th of them in a row of the array, weight(j) its weight.
template <class T, class PerRow, class UsedRewards>
struct RewardRules {
  View<const T, 2> rewards;
  PerRow penalties;
  UsedRewards used_rewards;
  Missing missing;
  penalty::Row penalty;
  Bounds clip;
  List<Gate, 16> gates;
  bool sums_first, clips;

  RewardRules(View<const T, 2> reward_array, const PerRow& row_penalties, const UsedRewards& used,
              const RewardSettings& e)
      : rewards(reward_array),
        penalties(row_penalties),
        used_rewards(used),
        missing(e.missing),
        penalty(e.penalty),
        clip(e.reward_clip),
        gates(e.gates),
        sums_first(e.sums_first),
        clips(!is_off(e.reward_clip)) {}

  /// Missing rewards are left out.
  GDPO_INLINE bool skips() const { return missing.entry == MissingEntry::Skip; }
  /// Some rows without a reward are excluded.
  GDPO_INLINE bool excludes() const { return skips() && missing.row != MissingRow::Keep; }
  /// Whether a row is excluded whose rewards of a weight other than 0 are all missing.
  GDPO_CALLS_ANY
  GDPO_DEVICE bool excludes(index_t row) const {
    if (!excludes() || missing.row == MissingRow::Exclude) return excludes();
    for (index_t c = 0; c < rewards.extent[1]; ++c) {
      if (!math::is_nan(settled(missing, gated(load(rewards(row, c)), row, c)))) return false;
    }
    return true;
  }
  /// Rows that are not used get 0.
  GDPO_INLINE bool excludes_unused() const { return missing.unused == UnusedRow::Exclude; }
  /// What is NaN because of an infinite reward counts as 0.
  GDPO_INLINE bool replaces_nan() const { return missing.infinite == InfiniteEntry::NanToNum; }
  /// adjusted() changes finite rewards, or NaN.
  GDPO_INLINE bool adjusts() const {
    return (!sums_first && (clips || penalty.coef != 0)) || missing.entry == MissingEntry::Zero;
  }
  /// No setting changes a stored reward.
  GDPO_INLINE bool plain() const {
    return gates.empty() && (sums_first || (penalty.coef == 0 && !clips)) &&
           (missing.entry == MissingEntry::Skip || missing.entry == MissingEntry::Propagate) &&
           (missing.infinite == InfiniteEntry::Propagate ||
            missing.infinite == InfiniteEntry::NanToNum);
  }
  /// Number of products in a weighted sum, the penalty included, from which its rounding can
  /// come.
  GDPO_CALLS_ANY
  GDPO_INLINE index_t terms() const { return used_rewards.size() + (penalty.coef != 0 ? 1 : 0); }

  /// Reward c of a row after gates; NaN where it is missing. stored: the number in the array.
  GDPO_DEVICE double gated(double stored, index_t row, index_t c) const {
    for (index_t g = 0; g < gates.size(); ++g) {
      if (gates[g].reward != c) continue;
      const double given = load(rewards(row, gates[g].given));
      if (math::is_nan(given)) return math::nan();
      if (given < gates[g].at_least) stored = 0;
    }
    return stored;
  }
  /// Reward c as its statistics see it; NaN where it is missing and stays missing. value: after
  /// gates.
  GDPO_DEVICE double adjusted(double value, index_t row, index_t c) const {
    value = settled(missing, value);
    if (!sums_first && clips) value = clamped(clip, value);
    if (!sums_first && penalty.coef != 0 && penalty.reward == c) value -= penalty_of(row);
    return value;
  }

  /// The penalty of a row. A NaN is not a missing reward: it becomes infinite and shows as an
  /// infinite reward does.
  GDPO_CALLS_ANY
  GDPO_DEVICE double penalty_of(index_t row) const {
    const double term = math::mul(penalty.coef, penalties(row));
    return math::is_nan(term) ? math::infinity : term;
  }

  /// The weighted sum of a row over the rewards that are there, within its bounds, minus the
  /// penalty. The terms of a block of 8 rewards are added as a tree. NaN: the row is excluded, or a
  /// NaN flows. magnitude: the sum of the |terms|. read(first, lanes, x) writes the rewards
  /// used_rewards(first) .. used_rewards(first + lanes - 1) of the row to x.
  GDPO_CALLS_ANY
  template <class Read>
  GDPO_DEVICE double weighted_sum(index_t row, const Read& read, double& magnitude) const {
    const index_t n = used_rewards.size();
    double sum = 0;
    index_t absent = 0;
    magnitude = 0;
    for (index_t first = 0; first < n; first += 8) {
      const index_t lanes = n - first < 8 ? n - first : 8;
      double values[8], terms[8], sizes[8];
      read(first, lanes, values);
      for (index_t j = 0; j < 8; ++j) {
        double term = 0;
        if (j < lanes) {
          if (skips() && math::is_nan(values[j])) {
            ++absent;
          } else {
            term = math::mul(used_rewards.weight(first + j), values[j]);
          }
        }
        terms[j] = term;
        sizes[j] = math::abs(term);
      }
      sum += tree_of(terms);
      magnitude += tree_of(sizes);
    }
    if (absent == n && excludes(row)) return math::nan();
    return changed_sum(row, sum, magnitude);
  }

  /// The weighted sum is bounded, or carries a penalty.
  GDPO_INLINE bool changes_sums() const { return sums_first && (clips || penalty.coef != 0); }
  /// The weighted sum of a row within its bounds, minus its penalty, by which magnitude grows. A
  /// bound is not rounded.
  GDPO_DEVICE double changed_sum(index_t row, double sum, double& magnitude) const {
    if (sums_first && clips && (sum < clip.lo || sum > clip.hi)) {
      sum = clamped(clip, sum);
      magnitude = math::abs(sum);
    }
    if (sums_first && penalty.coef != 0) {
      const double term = penalty_of(row);
      sum -= term;
      magnitude += math::abs(term);
    }
    // Here NaN comes from inf - inf. Unless it is to be a missing sum, it becomes infinite, and the
    // group has no moments.
    return skips() && !replaces_nan() && math::is_nan(sum) ? math::infinity : sum;
  }
};

}  // namespace detail
GDPO_END_NAMESPACE
