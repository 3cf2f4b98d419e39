#pragma once
// Baselines that outliers do not move: the median and trimmed means.
#include <gdpo/advantage/order_values.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// A share of the values that is taken off each end must leave some.
/// floor(fraction n), the number of values that are taken off each end; one at least is left.
GDPO_DEVICE inline index_t number_cut(double fraction, index_t n) {
  const auto cut = static_cast<index_t>(math::mul(fraction, static_cast<double>(n)));
  const index_t most = (n - 1) / 2;
  return cut < most ? cut : most;
}

/// The mean of sorted values without `cut` at each end, where each of the two outermost values that
/// are left counts `more` times more. The sum is of differences from the upper middle value, in
/// ascending order; an offset of the values costs it no digits, and neither does an outlier that is
/// cut off.
GDPO_CALLS_ANY
template <class Sorted>
GDPO_DEVICE Split<number_in_t<Sorted>> mean_of_middle(const Sorted& x, index_t cut, index_t more) {
  using math::mul;
  using V = number_in_t<Sorted>;
  const index_t n = x.extent[0];
  const V center = x(n / 2);
  const V ends = (x(cut) - center) + (x(n - 1 - cut) - center);
  V sum = mul(math::constant<V>(static_cast<double>(more)), ends);
  for (index_t k = cut; k < n - cut; ++k) sum = sum + (x(k) - center);
  return {center, sum / math::constant<V>(static_cast<double>(n - 2 * cut + 2 * more))};
}

}  // namespace detail

/// These baselines follow the bulk of a group, where a mean follows its outliers. A reward model
/// that is hacked, or a reward without bounds, gives such outliers: one value of 1e12 in a group
/// moves the mean by 1e12 / n, a median by no more than to the next value.
///
/// They are computed once for a group, from its used values in ascending order, so that rows in
/// another order give the same bits. A group of equal values gets exactly 0, and so do values that
/// equal the baseline. The centered values do not sum to 0, so a second normalization over the
/// batch subtracts their mean; use RenormOver::None to keep the zeros.
namespace baseline {

/// The median: the middle one of the values or, of an even number, the mean of the two in the
/// middle, in two doubles without an error. Fewer than half of the values, however large, cannot
/// move it beyond the others. A group of binary rewards has the median 0, 1/2 or 1: the majority
/// gets 0, and only the minority is told apart.
struct Median {
  static constexpr bool per_group_values = true,  ///< Once for a group, from its values.
      takes_lanes = true,                         ///< Several rewards in one call.
      from_group = true;                          ///< A degenerate group gets exactly 0.
  /// It reads the group alone.
  bool reads_batch() const { return false; }
  /// What it is, in a phrase (advantage/explain.hpp).
  constexpr const char* phrase() const { return "the median of the group"; }
  /// The median of the values.
  GDPO_CALLS_ANY
  template <class Args>
  GDPO_DEVICE auto operator()(const Args& a) const {
    return detail::median_of_sorted(detail::sorted_values(a));
  }
};

/// The mean of the values without the floor(fraction n) smallest and as many largest ones
/// (`scipy.stats.trim_mean`). With fraction 0 it is the mean, and close to 0.5 the median. A group
/// of n < 1 / fraction values loses none: with 0.25 those of up to 3. The sum of n numbers rounds
/// by at most n 2^-53 times the range of the values that are left.
struct TrimmedMean {
  static constexpr bool per_group_values = true,  ///< Once for a group, from its values.
      takes_lanes = true,                         ///< Several rewards in one call.
      from_group = true;                          ///< A degenerate group gets exactly 0.
  double fraction = 0.25;  ///< The share that is left out at each end; at least 0, below 0.5.
  /// It reads the group alone.
  bool reads_batch() const { return false; }
  /// What it is, in a phrase (advantage/explain.hpp).
  constexpr const char* phrase() const { return "the trimmed mean of the group"; }
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("fraction", s.fraction, at_least(0).below(0.5), "the share at each end");
  }
  /// The trimmed mean of the values.
  GDPO_CALLS_ANY
  template <class Args>
  GDPO_DEVICE auto operator()(const Args& a) const {
    return detail::mean_of_middle(detail::sorted_values(a),
                                  detail::number_cut(fraction, a.values.extent[0]), 0);
  }
};

/// The mean of the values after the floor(fraction n) smallest ones were replaced by the smallest
/// value that is left, and as many largest ones by the largest that is left
/// (`scipy.stats.mstats.winsorize`). An outlier thus counts as a value at the end of the bulk,
/// where TrimmedMean leaves it out. Settings and accuracy are those of TrimmedMean.
struct WinsorizedMean {
  static constexpr bool per_group_values = true,  ///< Once for a group, from its values.
      takes_lanes = true,                         ///< Several rewards in one call.
      from_group = true;                          ///< A degenerate group gets exactly 0.
  double fraction = 0.25;  ///< The share that is replaced at each end; at least 0, below 0.5.
  /// It reads the group alone.
  bool reads_batch() const { return false; }
  /// What it is, in a phrase (advantage/explain.hpp).
  constexpr const char* phrase() const { return "the winsorized mean of the group"; }
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("fraction", s.fraction, at_least(0).below(0.5), "the share at each end");
  }
  /// The winsorized mean of the values.
  GDPO_CALLS_ANY
  template <class Args>
  GDPO_DEVICE auto operator()(const Args& a) const {
    const index_t cut = detail::number_cut(fraction, a.values.extent[0]);
    return detail::mean_of_middle(detail::sorted_values(a), cut, cut);
  }
};

}  // namespace baseline
GDPO_END_NAMESPACE
