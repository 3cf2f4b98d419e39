#pragma once
// What a Baseline and a Scale see, and what they may declare about themselves.
#include <gdpo/core/declares.hpp>
#include <gdpo/math/settings.hpp>
#include <gdpo/stats/moments.hpp>

GDPO_BEGIN_NAMESPACE

/// A number in two doubles (or lanes of them), high + low: a baseline that returns it is subtracted without rounding, so
/// that an offset of the rewards costs the centred values nothing.
template <class V>
struct Split {
  V high, low;
  GDPO_INLINE constexpr operator V() const { return high; }
};

/// Moments of the used values of one group in one column (a reward, or the weighted sum of all).
struct GroupStat : Moments {
  /// Second largest and second smallest value, with multiplicity: {1, 1, 0} has second_max 1.
  double second_max = -math::infinity, second_min = math::infinity;
  /// All used values equal. For a stored reward: max == min. For a sum of C terms: max - min is rounding noise,
  /// at most 4 C 2^-53 max_i sum_c |w_c r_ic|. Then m2 is exactly 0.
  bool degenerate = false;
  /// A used value is infinite, or NaN (MissingEntry::Propagate): the moments are NaN.
  bool unknown = false;

  /// The moments of the others, of a member with value x. Whether they are all equal is decided by order statistics,
  /// never by the residue of m2 - d^2 n/(n-1). Only n, mean and m2 are filled in (min and max where the others are all
  /// equal).
  GDPO_DEVICE Moments without(double x) const {
    Moments others;
    if (n < 2) return others;
    others.n = n - 1;
    others.weight = static_cast<double>(n - 1);
    const double low = x == min ? second_min : min, high = x == max ? second_max : max;
    if (degenerate || low == high) {
      others.mean = others.min = others.max = degenerate ? mean : low;
      return others;
    }
    const double d = (x - mean) - mean_low, rest = others.weight, step = d / rest;
    others.mean = mean - step;
    const double back =
        math::opaque(others.mean - mean);  // the rounding of that difference, by TwoSum
    others.mean_low =
        mean_low + ((mean - math::opaque(others.mean - back)) - math::opaque(step + back));
    others.m2 = (math::max)(m2 - math::mul(math::mul(d, d), static_cast<double>(n) / rest), 0.0);
    others.min = low;
    others.max = high;
    return others;
  }
};

namespace detail {

/// second_max and second_min of a group, from its used values one by one.
struct OrderStatistics {
  double max, min, below = -math::infinity, above = math::infinity;
  int at_max = 0, at_min = 0;
  GDPO_INLINE explicit OrderStatistics(const GroupStat& stat) : max{stat.max}, min{stat.min} {}
  GDPO_INLINE void add(double x) {
    x < max ? below = (math::max)(below, x) : ++at_max;
    x > min ? above = (math::min)(above, x) : ++at_min;
  }
  GDPO_INLINE void write(GroupStat& stat) const {
    stat.second_max = at_max > 1 ? stat.max : below;
    stat.second_min = at_min > 1 ? stat.min : above;
  }
};
inline void order_statistics(GroupStat& stat, const double* values, index_t n) {
  OrderStatistics of(stat);
  for (index_t k = 0; k < n; ++k) of.add(values[k]);
  of.write(stat);
}

}  // namespace detail

/// Moments over all used values of a column, before and after the baseline.
struct BatchStat {
  Moments raw, centred;
  index_t used = 0, nonzero = 0;  ///< used values; those of them that are not 0
};

/// The used members of a group in one column. The views hold one number a member, in the grouping's row order; `tokens`,
/// `weights` and `external` are empty where the batch has no such column.
struct UsedMembers {
  const GroupStat& group;
  const BatchStat&
      batch;  ///< filled when the policy reads the batch (below); `centred` only for a Scale
  View<const double, 1> values{};
  View<const double, 1> tokens{};  ///< completion length, in tokens (RewardBatch::tokens)
  View<const double, 1>
      weights{};  ///< the caller's row weights (RewardBatch::weights); no shipped policy reads them
  View<const double, 1> external{};  ///< the caller's baseline (RewardBatch::baseline)
};
/// One member of a group as a policy sees it.
struct MemberArgs : UsedMembers {
  index_t own =
      -1;  ///< position in the views; -1: the row is unused (RewardBatch::valid) and in no statistic
  double value = 0;  ///< the member's own value
};
using BaselineArgs = MemberArgs;
struct ScaleArgs : MemberArgs {
  double centred = 0;  ///< value minus baseline
};
/// What a policy with `per_group_values` sees instead of MemberArgs: the group as a whole, once.
struct GroupArgs : UsedMembers {
  View<double, 1>
      scratch;  ///< as many numbers as `values`, to overwrite: a copy to sort, say. What is in it means nothing
};

/// What a policy with `takes_lanes` also sees instead of MemberArgs: the moments of L rewards of one group in lanes
/// (the same names; every reward has all n members), and an empty `batch`.
template <int L>
struct GroupLanes {
  struct Stat {
    index_t n;
    math::Pack<L> mean, mean_low, m2;
  };
  const Stat& group;
  const BatchStat& batch;
};

// A policy may declare, as static members:
//   per_group    the result depends on `group` and `batch` alone: it is computed once a group
//   per_group_values  the result is one number a group that depends on its values too (and on its tokens, weights and
//                external baselines): the operator takes GroupArgs and is called once a group, with scratch memory of the
//                group's size where it may sort the values. A median, a quantile, a trimmed mean. The values are finite,
//                and two or more, except under baseline::None and Singleton::Raw
//   own_value    the result depends on `group`, `batch`, whether `own` is -1, and `value` (and `centred`) alone: no view is
//                read, which spares a device from writing them (per_group says as much)
//   takes_lanes  a per_group policy whose operator is a template over the argument and takes GroupLanes as well
//   from_group   (Baseline) comes from inside the group: a degenerate group then gets exactly 0
//   zero_sum     (Baseline) the centred values of a group sum to 0: renormalisation need not subtract their mean
//   reads_batch()  (a const member function; true where absent) whether `batch` must be computed
// A policy that declares nothing is called for every member and gets everything.
namespace detail {

GDPO_DECLARED(per_group);
GDPO_DECLARED(per_group_values);
GDPO_DECLARED(own_value);
GDPO_DECLARED(takes_lanes);
GDPO_DECLARED(from_group);
GDPO_DECLARED(zero_sum);

/// One call gives what all members of a group need.
template <class P>
constexpr bool one_a_group_v = per_group_v<P> || per_group_values_v<P>;

/// What the policy says of a group, or of a member. scratch: of per_group_values, a number for each of the values.
GDPO_CALLS_ANY
template <class P, class Args>
GDPO_INLINE auto ask(const P& policy, const Args& args, double* scratch) {
  if constexpr (per_group_values_v<P>) {
    return policy(
        GroupArgs{static_cast<const UsedMembers&>(args), view(scratch, args.values.extent[0])});
  } else {
    static_cast<void>(scratch);
    return policy(args);
  }
}

template <class P, class = void>
struct ReadsBatch {
  static bool of(const P&) { return true; }
};
template <class P>
struct ReadsBatch<P, std::void_t<decltype(std::declval<const P&>().reads_batch())>> {
  static bool of(const P& policy) { return policy.reads_batch(); }
};
/// Whether a policy reads the batch: any of the two, and the scale, which may ask for centred values.
struct BatchReaders {
  bool any = false, scale = false;
  template <class Baseline, class Scale>
  static BatchReaders of(const Baseline& baseline, const Scale& scale) {
    BatchReaders read;
    read.scale = ReadsBatch<Scale>::of(scale);
    read.any = read.scale || ReadsBatch<Baseline>::of(baseline);
    return read;
  }
};

/// (value - baseline), the baseline a V or a Split of V.
template <class V>
GDPO_INLINE V centre(const V& value, const V& baseline) {
  return value - baseline;
}
template <class V>
GDPO_INLINE V centre(const V& value, const Split<V>& baseline) {
  return (value - baseline.high) - baseline.low;
}

template <class P, class Args>
constexpr bool returns_double_v = std::is_invocable_r_v<double, const P&, const Args&>;

}  // namespace detail

template <class P>
constexpr bool is_baseline_v = detail::returns_double_v<
    P, std::conditional_t<detail::per_group_values_v<P>, GroupArgs, BaselineArgs>>;
template <class P>
constexpr bool is_scale_v = detail::returns_double_v<
    P, std::conditional_t<detail::per_group_values_v<P>, GroupArgs, ScaleArgs>>;

GDPO_END_NAMESPACE
