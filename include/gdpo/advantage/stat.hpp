#pragma once
// What a Baseline and a Scale see, and what they may declare about themselves. Users who write
// their own need this header; examples/custom_estimator.cpp has one.
#include <gdpo/core/declares.hpp>
#include <gdpo/math/check_fields.hpp>
#include <gdpo/stats/moments.hpp>

GDPO_BEGIN_NAMESPACE

/// A number in two doubles (or in two packs of lanes), high + low.
/// A baseline that returns it is subtracted part by part, so that the rounding of the mean does
/// not enter the centered values: an offset of the rewards costs them no digits.
template <class V>
struct Split {
  V high,   ///< The number, rounded.
      low;  ///< What the rounding lost.
  /// The number, rounded.
  GDPO_INLINE constexpr operator V() const { return high; }
};

/// Moments of the used values of one group in one column (a reward, or the weighted sum of all).
struct GroupStat : Moments {
  // These two are computed only where a policy does not declare takes_lanes, or has own_value.
  double second_max = -math::infinity,  ///< Second largest, with multiplicity: 1 of {1, 1, 0}.
      second_min = math::infinity;      ///< Second smallest, with multiplicity.
  /// All used values are equal; m2 is then exactly 0. A stored reward is judged by max == min.
  /// The weighted sums of C rewards count as equal where they differ by rounding alone: max - min
  /// is at most 4 C 2^-53 max_i sum_c |w_c r_ic|.
  bool degenerate = false;
  /// A used value is infinite, or NaN under MissingEntry::Propagate. The moments are then NaN,
  /// except the mean of values whose infinities have one sign: it is infinite.
  bool unknown = false;
  /// The largest difference that rounding alone can give to equal values: 0 for a stored reward,
  /// the bound above for weighted sums. A policy that divides by another measure of spread than m2
  /// takes one up to this bound for 0.
  double rounding = 0;

  /// The moments of the other members, of a member with value x:
  ///
  ///     mean_others = mean - d / (n - 1),  m2_others = m2 - d^2 n / (n - 1),  d = x - mean
  ///
  /// Whether the others are all equal is decided by min, max and the second ones: the residue of
  /// that difference would not be exactly 0. An empty set for n < 2.
  GDPO_DEVICE Moments without(double x) const;
};

namespace detail {

/// GroupStat::without where n >= 2, for V = double or lanes. equal: degenerate. others: its n is
/// that of the group less one.
template <class V, class Stat, class Mask, class Others>
GDPO_INLINE void write_others(const Stat& stat, const Mask& equal, const V& x, Others& others) {
  using math::mul, math::opaque, math::select;
  const V zero = math::constant<V>(0.0);
  const V low = select(x == stat.min, stat.second_min, stat.min),
          high = select(x == stat.max, stat.second_max, stat.max);
  const auto same = math::either(equal, low == high);
  const double rest = static_cast<double>(others.n);
  const V d = (x - stat.mean) - stat.mean_low, step = d / math::constant<V>(rest);
  const V mean = stat.mean - step, only = select(equal, stat.mean, low);
  // mean_low keeps what the rounding of mean - step lost, by TwoSum.
  const V back = opaque(mean - stat.mean),
          mean_low = stat.mean_low + ((stat.mean - opaque(mean - back)) - opaque(step + back));
  const V ratio = math::constant<V>(static_cast<double>(stat.n) / rest);
  const V m2 = (math::max)(stat.m2 - mul(mul(d, d), ratio), zero);
  others.mean = select(same, only, mean);
  others.mean_low = select(same, zero, mean_low);
  others.m2 = select(same, zero, m2);
  others.min = select(same, only, low);
  others.max = select(same, only, high);
}

/// Finds second_max and second_min of a group from its used values, one by one. At construction
/// `stat` has its max and min.
struct OrderStatistics {
  double max, min, below = -math::infinity, above = math::infinity;
  int max_count = 0, min_count = 0;
  GDPO_INLINE explicit OrderStatistics(const GroupStat& stat) : max{stat.max}, min{stat.min} {}
  GDPO_INLINE void add(double x) {
    x < max ? below = (math::max)(below, x) : ++max_count;
    x > min ? above = (math::min)(above, x) : ++min_count;
  }
  GDPO_INLINE void write(GroupStat& stat) const {
    stat.second_max = max_count > 1 ? stat.max : below;
    stat.second_min = min_count > 1 ? stat.min : above;
  }
};
inline void order_statistics(GroupStat& stat, const double* values, index_t n) {
  OrderStatistics order(stat);
  for (index_t k = 0; k < n; ++k) order.add(values[k]);
  order.write(stat);
}

}  // namespace detail

GDPO_DEVICE inline Moments GroupStat::without(double x) const {
  Moments others;
  if (n < 2) return others;
  others.n = n - 1;
  others.weight = static_cast<double>(n - 1);
  detail::write_others(*this, degenerate, x, others);
  return others;
}

/// How the used values of a column in the batch lie about the means of their groups. Group g has
/// n_g of them, d_g = n_g - 1 degrees of freedom, and the sum of squares m2_g. Only groups of two
/// or more enter, since a single value has no spread.
struct GroupSpreads {
  /// How many groups there are, and what their degrees of freedom add up to.
  struct Count {
    index_t groups = 0,   ///< Number of groups.
        dof = 0,          ///< sum d_g
        dof_squares = 0;  ///< sum d_g^2
    /// Adds a group of n values.
    GDPO_INLINE void add(index_t n) {
      ++groups;
      dof += n - 1;
      dof_squares += (n - 1) * (n - 1);
    }
    /// Adds other groups.
    GDPO_INLINE void add(const Count& o) {
      groups += o.groups;
      dof += o.dof;
      dof_squares += o.dof_squares;
    }
    /// sum (n_g - ddof)
    GDPO_INLINE index_t degrees(int ddof) const { return dof + groups * (1 - index_t{ddof}); }
  };
  Count all,           ///< All of these groups.
      unequal;         ///< Those whose m2 is not 0, as it is where all values of a group are equal.
  double squares = 0,  ///< sum m2_g; NaN where a group is `unknown`.
      /// sum (m2_g / squares)^2 / (d_g + 2), the second moment of the groups' variances. As shares
      /// of `squares` they have no unit and do not overflow. 0 where `squares` is 0 or not finite.
      shares = 0;

  /// The variance squares / dof on so many degrees of freedom; 0 if dof <= 0.
  GDPO_INLINE double variance(index_t dof) const {
    return dof > 0 ? math::mul(squares, 1.0 / static_cast<double>(dof)) : 0.0;
  }
};

/// The parts of BatchStat that a policy reads.
struct BatchParts {
  bool raw = false,      ///< The moments before the baseline.
      nonzero = false,   ///< The number of values that are not 0.
      centered = false,  ///< Of a Scale: the moments after the baseline.
      within = false;    ///< Of a Scale: the spreads inside the groups.
  /// Whether it reads any of them.
  constexpr explicit operator bool() const { return raw || nonzero || centered || within; }
};

/// Moments over all used values of a column in the batch.
/// A policy gets filled in what it reads (`reads_batch`), and `used`; the rest is empty.
struct BatchStat {
  Moments raw,          ///< Before the baseline.
      centered;         ///< After the baseline; computed for a Scale only.
  index_t used = 0,     ///< Number of used values.
      nonzero = 0;      ///< Those of them that are not 0.
  GroupSpreads within;  ///< Inside the groups; computed for a Scale only.
};

/// N numbers that a policy takes from the statistics of the batch, the same for every group: what
/// its `of_batch` returns. V: double, or lanes with one column each.
template <class V, int N>
struct BatchNumbers {
  V number[N];  ///< The numbers.
  /// Number i.
  GDPO_INLINE const V& operator[](int i) const { return number[i]; }
};

/// The used members of a group in one column.
/// The views hold one number for each used member that has a value, in row order. `tokens`,
/// `weights` and `external` are empty where the batch has no such column.
struct UsedMembers {
  const GroupStat& group;          ///< Moments of the values of the group.
  const BatchStat& batch;          ///< Moments of the column over the batch.
  View<const double, 1> values{};  ///< The values, after gates and penalties.
  View<const double, 1> tokens{};  ///< Completion lengths in tokens (RewardBatch::tokens).
  /// Row weights of the caller (RewardBatch::weights); no policy of the library reads them.
  View<const double, 1> weights{};
  View<const double, 1> external{};  ///< Baselines of the caller (RewardBatch::baseline).
};
/// One member of a group, as a policy sees it.
struct MemberArgs : UsedMembers {
  /// Its position in the views; -1: the row is unused (RewardBatch::valid), in no statistic.
  index_t own = -1;
  double value = 0;  ///< Its own value.
  /// The caller's baseline of its row (RewardBatch::baseline), whether the row is used or not. It
  /// is filled in for a policy that declares reads_external.
  double own_external = 0;
};
/// What a Baseline sees.
using BaselineArgs = MemberArgs;
/// What a Scale sees.
struct ScaleArgs : MemberArgs {
  double centered = 0;  ///< The value minus its baseline.
};
/// What a policy with `per_group_values` sees instead of MemberArgs: the group as a whole, once.
struct GroupArgs : UsedMembers {
  /// Room for as many numbers as `values`, to be overwritten: a copy to sort, say. Its content on
  /// entry means nothing.
  View<double, 1> scratch;
};

/// What a policy with `takes_lanes` sees as well: the moments of L columns of a group, one in a
/// lane. The names are those of MemberArgs. Every column has all n members.
template <int L>
struct GroupLanes {
  /// The moments, by lane.
  struct Stat {
    index_t n;           ///< Members of the group, in every lane.
    math::Pack<L> mean,  ///< As in Moments.
        mean_low,        ///< As in Moments.
        m2;              ///< As in Moments.
  };
  const Stat& group;       ///< The moments of the columns.
  const BatchStat& batch;  ///< Empty: see numbers_of_batch.
  /// The numbers of the policy's `of_batch` in these columns; null where it reads no batch. From
  /// one number to the next are `of_batch_stride` doubles.
  const double* of_batch = nullptr;
  index_t of_batch_stride = 0;  ///< See of_batch.
};

/// What a policy with `takes_lanes` and `own_value` sees as well: one member in each column. It is
/// used, and the column has two values or more. The names are those of MemberArgs and ScaleArgs.
template <int L>
struct MemberLanes {
  /// The moments of the group, by lane.
  struct Stat : GroupLanes<L>::Stat {
    math::Pack<L> min;         ///< As in Moments.
    math::Pack<L> max;         ///< As in Moments.
    math::Pack<L> second_max;  ///< As in GroupStat.
    math::Pack<L> second_min;  ///< As in GroupStat.
    math::Pack<L> rounding;    ///< As in GroupStat.
    math::Mask<L> degenerate;  ///< As in GroupStat.
    /// The moments of the other members, of a member with value x, as GroupStat::without.
    GDPO_INLINE Stat without(const math::Pack<L>& x) const {
      Stat others = *this;
      others.n = this->n - 1;
      detail::write_others(*this, degenerate, x, others);
      return others;
    }
  };
  const Stat& group;        ///< The moments of the columns.
  const BatchStat& batch;   ///< Empty: see numbers_of_batch.
  math::Pack<L> value,      ///< The values of the member.
      centered;             ///< Of a scale: the values minus their baselines.
  const double* of_batch;   ///< As in GroupLanes.
  index_t of_batch_stride;  ///< As in GroupLanes.
};

/// Numbers in L columns, each in a lane: x(k) is number k of every column.
template <int L>
struct LaneValues {
  double* data;       ///< Number 0.
  index_t extent[1],  ///< How many numbers a column has.
      stride;         ///< Doubles from one number to the next.
  /// Number k of every column.
  GDPO_INLINE math::Pack<L> operator()(index_t k) const {
    return math::Pack<L>::load(data + k * stride);
  }
};
/// What a policy with `takes_lanes` and `per_group_values` sees as well: a group in each lane. The
/// names are those of GroupArgs.
template <int L>
struct GroupValueLanes {
  const typename MemberLanes<L>::Stat& group;  ///< The moments of the columns.
  const BatchStat& batch;                      ///< Empty: see numbers_of_batch.
  LaneValues<L> values,  ///< The values of each column in ascending order; not to be overwritten.
      scratch;           ///< Room for as many, to be overwritten.
};

namespace detail {

/// Whether the policy says what it takes from the batch.
template <class P, class = void>
constexpr bool has_of_batch_v = false;
template <class P>
constexpr bool has_of_batch_v<
    P, std::void_t<decltype(std::declval<const P&>().of_batch(std::declval<const BatchStat&>()))>> =
    true;
/// How many numbers that are.
template <class P>
constexpr int numbers_in_v = static_cast<int>(
    sizeof(std::declval<const P&>().of_batch(std::declval<const BatchStat&>())) / sizeof(double));

/// Loads N numbers of L columns.
template <int L, int N>
GDPO_INLINE BatchNumbers<math::Pack<L>, N> load_numbers(const double* numbers, index_t stride) {
  BatchNumbers<math::Pack<L>, N> lanes;
  for (int i = 0; i < N; ++i) lanes.number[i] = math::Pack<L>::load(numbers + i * stride);
  return lanes;
}

}  // namespace detail

/// The numbers that a policy takes from the batch, policy.of_batch(batch), as its formula needs
/// them: computed from the statistics of one column, or loaded for several columns in lanes.
template <class P, class Args>
GDPO_DEVICE auto numbers_of_batch(const P& policy, const Args& a) {
  return policy.of_batch(a.batch);
}
template <class P, int L>
GDPO_INLINE auto numbers_of_batch(const P&, const GroupLanes<L>& a) {
  return detail::load_numbers<L, detail::numbers_in_v<P>>(a.of_batch, a.of_batch_stride);
}
template <class P, int L>
GDPO_INLINE auto numbers_of_batch(const P&, const MemberLanes<L>& a) {
  return detail::load_numbers<L, detail::numbers_in_v<P>>(a.of_batch, a.of_batch_stride);
}

// A policy may say the following about itself, as `static constexpr bool name = true`. One that
// says nothing is called for every member and gets everything.
//
//   per_group
//       The result depends on `group` and `batch` alone. It is computed once for a group.
//   per_group_values
//       The result is one number for a group and depends on the values of its members too (or on
//       their tokens, weights and external baselines): a median, a quantile, a trimmed mean. The
//       operator takes GroupArgs and is called once for a group, with scratch memory in which it
//       may sort the values. The values are finite, and two or more, except under a Baseline with
//       needs_no_group and Singleton::Raw.
//   own_value
//       The result depends on `group`, `batch`, `value` (and `centered`), and on whether `own` is
//       -1. It reads no view, so a device need not write the views. per_group implies this. It may
//       also read `own_external`, if it declares reads_external.
//   reads_tokens
//       It reads `tokens`: a batch without that column is refused.
//   reads_external
//       It reads `own_external`: a batch without the column `baseline` is refused.
//   takes_lanes
//       The policy has per_group, own_value or per_group_values, and its operator is a template
//       over the argument that also takes GroupLanes, with own_value MemberLanes, or with
//       per_group_values GroupValueLanes: one call then serves several columns. It is not asked for
//       unused members in lanes. If it reads the batch as well, it is called in lanes only if it
//       has of_batch. With per_group_values it gets the values in ascending order, and
//       no other column of the batch.
//   from_group (Baseline)
//       The baseline comes from inside the group. A degenerate group then gets exactly 0.
//   zero_sum (Baseline)
//       The centered values of a group sum to 0. A renormalization then need not subtract their
//       mean.
//   needs_no_group (Baseline)
//       A value is not compared with the members of its group. The baseline is then called for
//       groups of one as well (`Singleton` does not apply), and a value that is NaN or infinite
//       stays in its row.
//
// A const member function `reads_batch()` says whether `batch` must be computed, which takes a
// second reading of the rewards: as a bool, or as the BatchParts that are needed. Where a policy
// has no such function, `batch` is computed.
//
// A const member function `BatchNumbers<double, N> of_batch(const BatchStat&)` gives all that the
// policy takes from the batch. Its operator gets it by numbers_of_batch, also in lanes. A Baseline
// with of_batch and needs_no_group reads nothing of the group.
namespace detail {

GDPO_DECLARED(per_group);
GDPO_DECLARED(per_group_values);
GDPO_DECLARED(own_value);
GDPO_DECLARED(reads_external);
GDPO_DECLARED(takes_lanes);
GDPO_DECLARED(from_group);
GDPO_DECLARED(zero_sum);
GDPO_DECLARED(needs_no_group);

/// Whether one call gives what all members of a group need.
template <class P>
constexpr bool one_a_group_v = per_group_v<P> || per_group_values_v<P>;

/// Whether the policy reads the second largest and smallest value of a group.
template <class P>
constexpr bool reads_order_v = !takes_lanes_v<P> || !per_group_v<P>;

/// Calls a policy for a group or a member. scratch: for per_group_values, room for as many
/// numbers as there are values.
GDPO_CALLS_ANY
template <class P, class Args>
GDPO_INLINE auto ask(const P& policy, const Args& args, double* scratch) {
  if constexpr (per_group_values_v<P>) {
    return policy(GroupArgs{static_cast<const UsedMembers&>(args),
                            gdpo::view(scratch, args.values.extent[0])});
  } else {
    static_cast<void>(scratch);
    return policy(args);
  }
}

/// The policy's reads_batch() as parts: all of them for true, and where it has no such function.
template <class P, class = void>
struct ReadsBatch {
  static BatchParts of(const P&) { return {true, true, true, true}; }
};
template <class P>
struct ReadsBatch<P, std::void_t<decltype(std::declval<const P&>().reads_batch())>> {
  static BatchParts of(const P& policy) {
    const auto reads = policy.reads_batch();
    if constexpr (std::is_same_v<decltype(reads), const BatchParts>) {
      return reads;
    } else {
      return {reads, reads, reads, reads};
    }
  }
};
/// Which policies read the batch: `any` of the two, the `baseline`, or the `scale`, which may need
/// the centered values too.
struct BatchReaders {
  bool any = false, baseline = false, scale = false;
  BatchParts parts;  ///< What the two read.
  template <class Baseline, class Scale>
  static BatchReaders of(const Baseline& baseline, const Scale& scale) {
    BatchReaders read;
    read.parts = ReadsBatch<Scale>::of(scale);
    read.scale = bool(read.parts);
    const BatchParts before = ReadsBatch<Baseline>::of(baseline);
    read.baseline = bool(before);
    read.parts.raw |= before.raw;
    read.parts.nonzero |= before.nonzero;
    read.any = read.baseline || read.scale;
    return read;
  }
};

/// value - baseline; the baseline is a V or a Split of V. V: double or lanes.
template <class V>
GDPO_INLINE V center(const V& value, const V& baseline) {
  return value - baseline;
}
template <class V>
GDPO_INLINE V center(const V& value, const Split<V>& baseline) {
  return (value - baseline.high) - baseline.low;
}

template <class P, class Args>
constexpr bool returns_double_v = std::is_invocable_r_v<double, const P&, const Args&>;

}  // namespace detail

/// Whether P can be a Baseline: it gives a double for BaselineArgs (GroupArgs if
/// per_group_values).
template <class P>
constexpr bool is_baseline_v = detail::returns_double_v<
    P, std::conditional_t<detail::per_group_values_v<P>, GroupArgs, BaselineArgs>>;
/// Whether P can be a Scale: it gives a double for ScaleArgs (GroupArgs if per_group_values).
template <class P>
constexpr bool is_scale_v = detail::returns_double_v<
    P, std::conditional_t<detail::per_group_values_v<P>, GroupArgs, ScaleArgs>>;

GDPO_END_NAMESPACE
