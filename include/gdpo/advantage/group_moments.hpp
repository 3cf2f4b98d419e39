#pragma once
#include <gdpo/advantage/stat.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// V: double, or lanes of several columns. From the sums about a center that is the mean up to rounding: the mean in two
/// numbers, and m2 (exactly 0 where `equal`).
template <class V, class Stat, class Mask>
GDPO_INLINE void finish_moments(const V& rest, const V& square, const V& center, double reciprocal, const Mask& equal,
                                Stat& m) {
  using math::mul, math::opaque, math::select;
  const V zero = math::constant<V>(0.0), correction = select(equal, zero, mul(rest, math::constant<V>(reciprocal)));
  m.mean = center + correction;
  m.mean_low = opaque(correction - opaque(m.mean - center));
  m.m2 = select(equal, zero, (math::max)(square - mul(rest, correction), zero));
}

/// Statistics of the n used values of one column of a group. Two passes; sums in row order, or compensated, as `Order` says.
template <class Order>
GroupStat group_stat(Order, const double* x, index_t n) {
  using Sum = typename Order::template Sum<double>;
  GroupStat s;
  s.n = n;
  if (n == 0) return s;
  s.weight = static_cast<double>(n);
  Sum sum{};
  for (index_t k = 0; k < n; ++k) {
    if (math::is_nan(x[k]) || math::is_inf(x[k])) {  // NaN under MissingEntry::Propagate; infinite rewards: it flows
      s.mean = s.mean_low = s.m2 = s.min = s.max = math::nan();
      s.unknown = true;
      return s;
    }
    s.min = (math::min)(s.min, x[k]);
    s.max = (math::max)(s.max, x[k]);
    sum.add(x[k]);
  }
  s.degenerate = s.min == s.max;
  const double reciprocal = 1.0 / s.weight, center = s.degenerate ? s.min : math::mul(sum.value(), reciprocal);
  Sum rest{}, square{};
  for (index_t k = 0; k < n; ++k) {
    const double d = x[k] - center;
    rest.add(d);
    square.add(math::mul(d, d));
  }
  finish_moments(rest.value(), square.value(), center, reciprocal, s.degenerate, s);
  return s;
}

/// The same bits for L columns side by side, x: (rows, L) row-major, without the range. Returns false, and nothing else of
/// use, where a sum is not finite: some entry is NaN or infinite, or the sum overflows. equal: all values of the column are.
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
  equal = has_no_bit(differences);  // 0 and -0 differ here, and give an m2 of 0 as well
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

/// max - min that rounding alone can give to equal sums of `terms` products, `magnitude` the largest sum of their |terms|.
GDPO_INLINE double rounding_of_sum(index_t terms, double magnitude) {
  return terms < 2 ? 0.0 : 4.0 * static_cast<double>(terms) * 0x1p-53 * magnitude;
}

}  // namespace detail
GDPO_END_NAMESPACE
