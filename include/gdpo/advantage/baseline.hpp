#pragma once
// Baselines: what is subtracted from a reward before it is scaled.
#include <gdpo/advantage/stat.hpp>

GDPO_BEGIN_NAMESPACE

/// Baselines: what is subtracted from a value x_i, in units of the reward.
/// A baseline is a type with `double operator()(const BaselineArgs&) const`, which may return
/// `Split<double>` instead; what it may declare about itself stands in advantage/stat.hpp. It is
/// called for groups with two or more used members. A group of one follows
/// `GroupAdvantage::singleton`, except under `None`,
/// `External` and `BatchMean`, which are called for it too.
namespace baseline {

/// The mean of the group: x_i - mean_j x_j. GRPO (arXiv 2402.03300), GDPO (arXiv 2601.05242, eq.
/// 4).
struct Mean {
  static constexpr bool per_group = true,  ///< One value for the group.
      takes_lanes = true,                  ///< Several rewards in one call.
      from_group = true,                   ///< A degenerate group gets exactly 0.
      zero_sum = true;                     ///< The centered values of a group sum to 0.
  /// It reads the group alone.
  bool reads_batch() const { return false; }
  /// What it is, in a phrase (advantage/explain.hpp).
  constexpr const char* phrase() const { return "the mean of the group"; }
  /// The mean in two doubles.
  template <class Args>
  GDPO_DEVICE auto operator()(const Args& a) const {
    return Split<std::decay_t<decltype(a.group.mean)>>{a.group.mean, a.group.mean_low};
  }
};

/// The mean of the other members: x_i - (sum_{j != i} x_j) / (n - 1). RLOO (arXiv 2402.14740).
/// An unused row (RewardBatch::valid) is compared with all used members.
struct LeaveOneOut {
  static constexpr bool own_value = true,  ///< Depends on the group and the member's own value.
      takes_lanes = true,                  ///< Several rewards in one call.
      from_group = true,                   ///< A degenerate group gets exactly 0.
      zero_sum = true;                     ///< The centered values of a group sum to 0.
  /// It reads the group alone.
  bool reads_batch() const { return false; }
  /// What it is, in a phrase (advantage/explain.hpp).
  constexpr const char* phrase() const { return "the mean of the other members"; }
  /// The mean in two doubles.
  template <class Args>
  GDPO_DEVICE auto operator()(const Args& a) const {
    using V = std::decay_t<decltype(a.group.mean)>;
    if constexpr (std::is_same_v<V, double>) {
      if (a.own < 0) return Split<V>{a.group.mean, a.group.mean_low};
    }
    const auto others = a.group.without(a.value);
    return Split<V>{others.mean, others.mean_low};
  }
};

/// The second largest value for the best member, and the own value for every other: only the best
/// member is told apart, by its lead. verl's compute_grpo_passk_outcome_advantage, which optimizes
/// pass at k. With ties at the top (for weighted sums also up to rounding) every member gets 0. An
/// unused row (RewardBatch::valid) gets what it would get as one more member: its lead over the
/// best used one, or 0.
struct SecondBest {
  static constexpr bool own_value = true,  ///< Depends on the group and the member's own value.
      takes_lanes = true,                  ///< Several rewards in one call.
      from_group = true;                   ///< A degenerate group gets exactly 0.
  /// It reads the group alone.
  bool reads_batch() const { return false; }
  /// What it is, in a phrase (advantage/explain.hpp).
  constexpr const char* phrase() const {
    return "the second largest value for the best member, else the own value";
  }
  /// The best of the others if the value is above it, else the value.
  template <class Args>
  GDPO_DEVICE auto operator()(const Args& a) const {
    using V = std::decay_t<decltype(a.group.mean)>;
    V best = a.group.second_max;
    if constexpr (std::is_same_v<V, double>) {
      if (a.own < 0) best = a.group.max;
    }
    return V(math::select(a.value - best > a.group.rounding, best, a.value));
  }
};

/// The mean of the group weighted by length: sum_j l_j x_j / sum_j l_j over the used members, l_j
/// being `RewardBatch::tokens`, which the batch must have. OPO (arXiv 2505.23585): the baseline
/// with the smallest variance of the gradient, if its squared norm grows with the length; verl's
/// compute_opo_outcome_advantage. Where all lengths are 0 (verl divides by 0) it is the plain mean,
/// as for any other equal lengths.
///
/// The differences from the smallest value are summed, by TwoSum: an offset of the values costs no
/// digits, rows in another order give the same bits, and the result is within 2^-51 (max - min).
struct LengthWeighted {
  static constexpr bool per_group_values = true,  ///< Once for a group, from values and tokens.
      reads_tokens = true,                        ///< A batch without tokens is refused.
      from_group = true;                          ///< A degenerate group gets exactly 0.
  /// It reads the group alone.
  bool reads_batch() const { return false; }
  /// What it is, in a phrase (advantage/explain.hpp).
  constexpr const char* phrase() const { return "the mean of the group weighted by length"; }
  /// The weighted mean in two parts, the second of which is what it is above the smallest value.
  GDPO_DEVICE Split<double> operator()(const GroupArgs& a) const {
    TwoSum<double> above, tokens;
    for (index_t j = 0; j < a.values.extent[0]; ++j) {
      above.add(math::mul(a.tokens(j), a.values(j) - a.group.min));
      tokens.add(a.tokens(j));
    }
    const double total = tokens.value();
    if (!(total > 0)) return {a.group.mean, a.group.mean_low};
    return {a.group.min, above.value() / total};
  }
};

/// The caller's baseline of the row, `RewardBatch::baseline`, which the batch must have: the reward
/// of a greedy completion (ReMax, arXiv 2310.10505), the value of a critic, a running mean. It is
/// in units of the reward, and of the weighted sum with SumThenNormalize; with NormalizeThenSum
/// every reward is compared with it. A row is compared with its own number and not with its group,
/// so groups of one are no special case, equal rewards need not get 0, and an unused row beside a
/// used one gets its reward minus its own baseline. NaN gives NaN.
struct External {
  static constexpr bool own_value = true,  ///< It reads no member of the group.
      reads_external = true,               ///< A batch without the column `baseline` is refused.
      needs_no_group = true;               ///< It is called for groups of one as well.
  /// It reads the row alone.
  bool reads_batch() const { return false; }
  /// What it is, in a phrase (advantage/explain.hpp).
  constexpr const char* phrase() const { return "the caller's baseline of the row"; }
  /// The number of the row.
  GDPO_DEVICE double operator()(const BaselineArgs& a) const { return a.own_external; }
};

/// The mean of the group plus a constant: x_i - (mean_j x_j + shift). ASYMRE (arXiv 2506.20520);
/// Trinity-RFT's ASYMREGroupAdvantage. A baseline below the mean (shift < 0) gives good completions
/// more weight than bad ones. A group of equal values gets -shift times the scale, and not 0.
struct ShiftedMean {
  static constexpr bool per_group = true,  ///< One value for the group.
      takes_lanes = true;                  ///< Several rewards in one call.
  double shift = 0;                        ///< Added to the mean; in units of the reward, finite.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("shift", s.shift, finite(), "added to the mean, in units of the reward");
  }
  /// It reads the group alone.
  bool reads_batch() const { return false; }
  /// What it is, in a phrase (advantage/explain.hpp).
  constexpr const char* phrase() const { return "the mean of the group + shift"; }
  /// The mean, and what is added to it.
  template <class Args>
  GDPO_DEVICE auto operator()(const Args& a) const {
    using V = std::decay_t<decltype(a.group.mean)>;
    return Split<V>{a.group.mean, a.group.mean_low + math::constant<V>(shift)};
  }
};

/// The mean of all used values of the column in the batch: x_i - mean_j x_j over all groups.
/// OpenRLHF's flash_reinforce; AReaL's mean_level="batch". With `leave_one_out` it is the mean of
/// all of them but the member's own, and 0 if there is no other.
///
/// A row is not compared with its group, so groups of one are no special case and equal rewards
/// need not get 0. An unused row (RewardBatch::valid) is compared with all used rows. A value that
/// is infinite, or NaN under MissingEntry::Propagate, makes the batch NaN.
struct BatchMean {
  static constexpr bool own_value = true,  ///< Depends on the batch and the member's own value.
      takes_lanes = true,                  ///< Several rewards in one call.
      needs_no_group = true;               ///< It is called for groups of one as well.
  bool leave_one_out = false;              ///< The mean of the others.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("leave_one_out", s.leave_one_out, "the mean of the others");
  }
  /// It reads the moments of the batch.
  BatchParts reads_batch() const { return {true, false, false, false}; }
  /// What it is, in a phrase (advantage/explain.hpp).
  constexpr const char* phrase() const { return "the mean of the batch"; }
  /// The mean in two doubles, and the number of values.
  GDPO_DEVICE BatchNumbers<double, 3> of_batch(const BatchStat& batch) const {
    return {{batch.raw.mean, batch.raw.mean_low, static_cast<double>(batch.raw.n)}};
  }
  /// The mean in two doubles: mean_others = mean - (x - mean) / (n - 1).
  template <class Args>
  GDPO_DEVICE auto operator()(const Args& a) const {
    using math::select;
    using V = std::decay_t<decltype(a.group.mean)>;
    const auto of_all = numbers_of_batch(*this, a);
    const auto &mean = of_all[0], &low = of_all[1], &n = of_all[2];
    bool all = !leave_one_out;
    if constexpr (std::is_same_v<V, double>) all = all || a.own < 0;
    if (all) return Split<V>{mean, low};
    const V zero = math::constant<V>(0.0), one = math::constant<V>(1.0);
    const auto alone = n <= one;
    const V above = (a.value - mean) - low;
    return Split<V>{select(alone, zero, mean), select(alone, zero, low - above / (n - one))};
  }
};

/// No baseline: the value itself.
struct None {
  static constexpr bool per_group = true,  ///< One value for the group.
      takes_lanes = true,                  ///< Several rewards in one call.
      needs_no_group = true;               ///< It is called for groups of one as well.
  /// It reads nothing.
  bool reads_batch() const { return false; }
  /// What it is, in a phrase (advantage/explain.hpp).
  constexpr const char* phrase() const { return "0"; }
  /// 0.
  template <class Args>
  GDPO_DEVICE double operator()(const Args&) const {
    return 0.0;
  }
};

}  // namespace baseline
GDPO_END_NAMESPACE
