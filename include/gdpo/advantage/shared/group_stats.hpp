#pragma once
// Mean and spread of the values of one group, in two passes.
#include <gdpo/advantage/stat.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Mean and m2 from the sums about a center that is the mean up to rounding: rest = sum (x -
/// center), square = sum (x - center)^2. With correction = rest / n, the mean is center +
/// correction, and m2 = square - n correction^2 = square - rest correction. Both are exact where
/// all values are equal: mean = center, m2 = 0. V: double, or lanes of several columns.
/// reciprocal: 1 / n.
template <class V, class Reciprocal, class Stat, class Mask>
GDPO_INLINE void finish_moments(const V& rest, const V& square, const V& center,
                                const Reciprocal& reciprocal, const Mask& equal, Stat& m) {
  using math::mul, math::opaque, math::select;
  const V zero = math::constant<V>(0.0),
          correction = select(equal, zero, mul(rest, math::constant<V>(reciprocal)));
  m.mean = center + correction;
  m.mean_low = opaque(correction - opaque(m.mean - center));
  m.m2 = select(equal, zero, (math::max)(square - mul(rest, correction), zero));
}

/// The first pass over the used values of one column of a group: their sum, range and number.
/// `Order` says how the sum is added (stats/reduce.hpp).
template <class Order>
struct ValuesSum {
  typename Order::template Sum<double> sum{};
  double min = math::infinity, max = -math::infinity;
  index_t n = 0;
  bool unknown = false,  ///< A value is infinite, or NaN under MissingEntry::Propagate.
      has_nan = false;   ///< A value is NaN.
  GDPO_INLINE void add(double x) {
    unknown = unknown || math::not_finite(x);
    has_nan = has_nan || math::is_nan(x);
    min = (math::min)(min, x);
    max = (math::max)(max, x);
    sum.add(x);
    ++n;
  }
  /// The mean of values that hold an infinity: that infinity, or NaN where they hold both or a NaN.
  GDPO_INLINE double infinite_mean() const {
    const bool both = math::is_inf(min) && math::is_inf(max) && min < max;
    return has_nan || both ? math::nan() : math::is_inf(min) ? min : max;
  }
};

/// The second pass: sums about the mean of the first pass, which is rounded.
template <class Order>
struct SquaresSum {
  typename Order::template Sum<double> rest{}, square{};
  double center = 0, reciprocal = 0;
  GDPO_INLINE explicit SquaresSum(const ValuesSum<Order>& values)
      : reciprocal(1.0 / static_cast<double>(values.n)) {
    center = values.min == values.max ? values.min : math::mul(values.sum.value(), reciprocal);
  }
  GDPO_INLINE void add(double x) {
    const double d = x - center;
    rest.add(d);
    square.add(math::mul(d, d));
  }
  /// The statistics of the group.
  GDPO_INLINE GroupStat stat(const ValuesSum<Order>& values) const {
    GroupStat s;
    s.n = values.n;
    if (s.n == 0) return s;
    s.weight = static_cast<double>(s.n);
    if (values.unknown) {
      s.mean_low = s.m2 = s.min = s.max = math::nan();
      s.mean = values.infinite_mean();
      s.unknown = true;
      return s;
    }
    s.min = values.min;
    s.max = values.max;
    s.degenerate = s.min == s.max;
    finish_moments(rest.value(), square.value(), center, reciprocal, s.degenerate, s);
    return s;
  }
};

/// Statistics of the n used values of one column of a group.
template <class Order>
GroupStat group_stat(Order, const double* x, index_t n) {
  ValuesSum<Order> values;
  for (index_t k = 0; k < n; ++k) values.add(x[k]);
  SquaresSum<Order> squares(values);
  for (index_t k = 0; k < n && !values.unknown; ++k) squares.add(x[k]);
  return squares.stat(values);
}

/// The same statistics, bit for bit, of L columns side by side, without the range. x: (rows, L)
/// row-major. equal: the columns whose values are all equal. Returns false where a sum is not
/// finite (an entry is NaN or infinite, or the sum overflows); m is then of no use.
template <class Order, int L>
GDPO_NOINLINE bool lane_stat(Order, const double* x, index_t rows, typename GroupLanes<L>::Stat& m,
                             math::Mask<L>& equal) {
  using Lanes = math::Pack<L>;
  using Sum = typename Order::template Sum<Lanes>;
  const Lanes first = Lanes::load(x);
  Lanes differences = Lanes::all(0.0);
  Sum sum{};
  for (index_t k = 0; k < rows; ++k) {
    const Lanes value = Lanes::load(x + k * L);
    differences = collect_differences(differences, value, first);
    sum.add(value);
  }
  const Lanes total = sum.value();
  if (any(not_finite(total))) return false;
  equal = has_no_bit(differences);  // 0 and -0 differ here, but their m2 is 0 as well
  const double reciprocal = 1.0 / static_cast<double>(rows);
  const Lanes center = select(equal, first, mul(total, Lanes::all(reciprocal)));
  Sum rest{}, square{};
  for (index_t k = 0; k < rows; ++k) {
    const Lanes d = Lanes::load(x + k * L) - center;
    rest.add(d);
    square.add(mul(d, d));
  }
  m.n = rows;
  finish_moments(rest.value(), square.value(), center, reciprocal, equal, m);
  return true;
}

/// The same of the values that are not NaN, `count` of them in each lane. In the first `known` rows
/// none is. A lane whose values are not all finite gets a mean or m2 that is not, one without any a
/// mean of NaN. Adding 0 for a value that is not there changes no bit of a sum that began with 0.
template <class Order, int L>
GDPO_NOINLINE void lane_stat_of_known(Order, const double* x, index_t rows, index_t known,
                                      typename GroupLanes<L>::Stat& m, math::Pack<L>& count,
                                      math::Mask<L>& equal) {
  using Lanes = math::Pack<L>;
  using Sum = typename Order::template Sum<Lanes>;
  const Lanes zero = Lanes::all(0.0), one = Lanes::all(1.0);
  Lanes first = Lanes::load(x);
  for (index_t k = 1; k < rows && any(is_nan(first)); ++k)
    first = select(is_nan(first), Lanes::load(x + k * L), first);
  Lanes differences = zero, members = Lanes::all(static_cast<double>(known));
  Sum sum{};
  for (index_t k = 0; k < known; ++k) {
    const Lanes value = Lanes::load(x + k * L);
    differences = collect_differences(differences, value, first);
    sum.add(value);
  }
  for (index_t k = known; k < rows; ++k) {
    const Lanes value = Lanes::load(x + k * L);
    const auto missing = is_nan(value);
    differences = collect_differences(differences, select(missing, first, value), first);
    members = members + select(missing, zero, one);
    sum.add(select(missing, zero, value));
  }
  count = members;
  equal = has_no_bit(differences);
  const Lanes reciprocal = one / members,
              center = select(equal, first, mul(sum.value(), reciprocal));
  Sum rest{}, square{};
  for (index_t k = 0; k < known; ++k) {
    const Lanes d = Lanes::load(x + k * L) - center;
    rest.add(d);
    square.add(mul(d, d));
  }
  for (index_t k = known; k < rows; ++k) {
    const Lanes value = Lanes::load(x + k * L), d = select(is_nan(value), zero, value - center);
    rest.add(d);
    square.add(mul(d, d));
  }
  m.n = rows;
  finish_moments(rest.value(), square.value(), center, reciprocal, equal, m);
}

/// The largest max - min that rounding alone can give to equal sums of `terms` products.
/// magnitude: the largest sum of their |products|.
GDPO_INLINE double rounding_of_sum(index_t terms, double magnitude) {
  return terms < 2 ? 0.0 : 4.0 * static_cast<double>(terms) * 0x1p-53 * magnitude;
}

}  // namespace detail
GDPO_END_NAMESPACE
