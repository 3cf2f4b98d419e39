#pragma once
#include <gdpo/advantage/stat.hpp>

GDPO_BEGIN_NAMESPACE

/// Baselines: what is subtracted from a value x_i, in units of the reward.
/// A baseline is a type with `double operator()(const BaselineArgs&) const`, which may return
/// `Split<double>` instead; what it may declare about itself stands in advantage/stat.hpp. It is
/// called for groups with two or more used members. A group of one follows
/// `GroupAdvantage::singleton`, except under `None`, which is called for it too.
namespace baseline {

/// The mean of the group: x_i - mean_j x_j. GRPO (arXiv 2402.03300), GDPO (arXiv 2601.05242, eq.
/// 4).
struct Mean {
  static constexpr bool per_group = true,  ///< One value for the group.
      takes_lanes = true,                  ///< Several rewards in one call.
      from_group = true,                   ///< A degenerate group gets exactly 0.
      zero_sum = true;                     ///< The centred values of a group sum to 0.
  /// It reads the group alone.
  bool reads_batch() const { return false; }
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
      from_group = true,                   ///< A degenerate group gets exactly 0.
      zero_sum = true;                     ///< The centred values of a group sum to 0.
  /// It reads the group alone.
  bool reads_batch() const { return false; }
  GDPO_DEVICE Split<double> operator()(const BaselineArgs& a) const {
    if (a.own < 0) return {a.group.mean, a.group.mean_low};
    const Moments others = a.group.without(a.value);
    return {others.mean, others.mean_low};
  }
};

/// No baseline: the value itself.
struct None {
  static constexpr bool per_group = true,  ///< One value for the group.
      takes_lanes = true;                  ///< Several rewards in one call.
  /// It reads nothing.
  bool reads_batch() const { return false; }
  /// 0.
  template <class Args>
  GDPO_DEVICE double operator()(const Args&) const {
    return 0.0;
  }
};

}  // namespace baseline
GDPO_END_NAMESPACE
