#pragma once
// Moments: count, mean, spread and range of numbers, which merge.
#include <gdpo/stats/reduce.hpp>
#include <limits>

// Plain data, which crosses ranks and checkpoints: it stands outside the inline namespace.
namespace gdpo {

/// Count, mean, spread and range of a set of numbers.
/// `merge` gives the moments of the union of two sets. The mean is held in two doubles, so an
/// offset of the numbers (1e5 or 1e8, say) costs the spread no digits.
struct Moments {
  index_t n = 0;  ///< Number of members; a number of weight 0 is no member.
  /// Sum of the weights: n where every weight is 1, tokens where rows are weighted by tokens.
  double weight = 0;
  double mean = 0;      ///< sum w x / sum w, rounded to a double; 0 in an empty set.
  double mean_low = 0;  ///< What the rounding of `mean` lost: mean + mean_low is the mean.
  double m2 = 0;        ///< sum w (x - mean)^2; exactly 0 where all members are equal.
  double min = std::numeric_limits<double>::infinity(),  ///< Smallest member; +inf in an empty set.
      max = -std::numeric_limits<double>::infinity();    ///< Largest member; -inf in an empty set.
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// Whether all members are equal. Decided by max == min, never by a small m2. An empty set and
/// one with a NaN are not degenerate.
GDPO_INLINE bool degenerate(const Moments& m) {
  return m.n > 0 && m.min == m.max && !math::is_nan(m.min);
}

/// The variance m2 / (n - ddof); 0 where the spread is unknown (n <= ddof).
/// It is computed as m2 times the rounded 1 / (n - ddof). M: Moments, or the moments of several
/// columns in lanes.
template <class M>
GDPO_INLINE auto variance(const M& m, index_t ddof = 1) {
  using math::mul;
  using V = std::decay_t<decltype(m.m2)>;
  return m.n > ddof ? mul(m.m2, math::constant<V>(1.0 / static_cast<double>(m.n - ddof)))
                    : math::constant<V>(0.0);
}
/// The standard deviation, sqrt(variance(m, ddof)); 0 where the spread is unknown.
GDPO_INLINE double stddev(const Moments& m, index_t ddof = 1) {
  return std::sqrt(variance(m, ddof));
}

namespace detail {
/// Adds the members of b to a (merge below).
GDPO_INLINE void merge_into(Moments& a, const Moments& b) {
  if (b.n == 0) return;
  if (a.n == 0) {
    a = b;
    return;
  }
  const double a_weight = a.weight;
  a.n += b.n;
  a.weight = a_weight + b.weight;
  a.min = (math::min)(a.min, b.min);
  a.max = (math::max)(a.max, b.max);
  if (math::is_nan(a.mean) || math::is_nan(b.mean)) {
    a.mean = a.mean_low = a.m2 = a.min = a.max = math::nan();
    return;
  }
  if (degenerate(a)) {
    a.mean = a.min, a.mean_low = a.m2 = 0;
    return;
  }
  const double delta = (b.mean - a.mean) + (b.mean_low - a.mean_low);
  const double share = a.weight > 0 ? b.weight / a.weight : 0.0;
  const double low = a.mean_low + math::mul(delta, share), mean = a.mean + low;
  a.mean_low = math::opaque(low - math::opaque(mean - a.mean));
  a.mean = mean;
  a.m2 = (a.m2 + b.m2) + math::mul(math::mul(delta, delta), math::mul(a_weight, share));
}
}  // namespace detail

/// The moments of the union of two sets (Chan, Golub, LeVeque 1979, with the mean in two
/// doubles).
///
///     w = w_a + w_b,  delta = mean_b - mean_a
///     mean = mean_a + delta w_b / w,  m2 = m2_a + m2_b + delta^2 w_a w_b / w
///
/// An empty operand changes nothing. If one mean is NaN, the result's mean, m2, min and max are
/// NaN. Mean and standard deviation agree with those of the whole within 2^-44 relative; n,
/// weight, min, max and `degenerate` are exact. The last bits depend on the order of the merges:
/// merge ranks in rank order, so that every rank gets the same numbers.
GDPO_DEVICE GDPO_NOINLINE inline Moments merge(const Moments& a, const Moments& b) {
  Moments r = a;
  detail::merge_into(r, b);
  return r;
}

namespace detail {

/// Writes n and the range of x_0..x_{n-1} into m, which is fresh. Returns whether a member is
/// NaN. w: weights (null: all 1); a number of weight 0 is left out.
GDPO_NOINLINE inline bool range_of(const double* x, const double* w, index_t n, Moments& m) {
  using Lanes = math::Pack<8>;
  const Lanes zero = Lanes::all(0.0), one = Lanes::all(1.0);
  Lanes low = Lanes::all(m.min), high = Lanes::all(m.max), members = zero;
  auto nan = is_nan(low);
  index_t i = 0;
  for (; i + 8 <= n; i += 8) {  // eight at a time
    const Lanes value = Lanes::load(x + i);
    if (w) {
      const auto absent = Lanes::load(w + i) == zero;
      members = members + select(absent, zero, one);
      low = (math::min)(low, select(absent, low, value));
      high = (math::max)(high, select(absent, high, value));
      nan = either(nan, is_nan(select(absent, zero, value)));
    } else {
      low = (math::min)(low, value);
      high = (math::max)(high, value);
      nan = either(nan, is_nan(value));
    }
  }
  bool has_nan = any(nan);
  Moments range;
  range.min = tree_min(low);
  range.max = -tree_min(zero - high);
  range.n = w ? static_cast<index_t>(tree_sum(members)) : i;
  // Which of 0 and -0 is the smallest of weighted numbers is decided in their order.
  if (w && (range.min == 0 || range.max == 0)) range = m, has_nan = false, i = 0;
  for (; i < n; ++i) {
    if (w && w[i] == 0) continue;
    ++range.n;
    has_nan = has_nan || math::is_nan(x[i]);
    range.min = (math::min)(range.min, x[i]);
    range.max = (math::max)(range.max, x[i]);
  }
  m = range;
  return has_nan;
}

/// Weight, mean and m2 from three sums: weight = sum w, rest = sum w d, square = sum w d^2, d = x
/// - center. The mean is center + rest / weight. m2 = square - rest^2 / weight, since sum w (d -
/// e)^2 = sum w d^2 - weight e^2 with e = rest / weight. n and the range are not filled in.
GDPO_INLINE Moments moments_of_sums(double weight, double rest, double square, double center) {
  Moments m;
  m.weight = weight;
  if (weight == 0) return m;
  const double low = rest / weight;
  m.mean = center + low;
  m.mean_low = math::opaque(low - math::opaque(m.mean - center));
  const double m2 = square - math::mul(rest, low);
  m.m2 = math::is_nan(m2) ? m2 : (math::max)(m2, 0.0);
  return m;
}

/// The sums of w, w d and w d^2 over x_0..x_{n-1}, with d = x - center. w: weights (null: all 1).
template <class Order>
std::array<double, 3> sums_about(Order order, const double* x, const double* w, index_t n,
                                 double center) {
  using math::mul;
  if (w) {
    return sum_rows<3>(order, x, w, n, [center](const auto& value, const auto& weight) {
      const auto d = value - std::decay_t<decltype(value)>::all(center);
      return std::array{weight, mul(weight, d), mul(weight, mul(d, d))};
    });
  }
  const auto sums = sum_rows<2>(order, x, w, n, [center](const auto& value, const auto&) {
    const auto d = value - std::decay_t<decltype(value)>::all(center);
    return std::array{d, mul(d, d)};
  });
  return {static_cast<double>(n), sums[0], sums[1]};
}

}  // namespace detail

/// Weight, mean and m2 of x_0..x_{n-1} in one pass, about a center that is the mean up to
/// rounding. w: weights (n); null: all 1. The sums are those of sum_rows in `order`
/// (stats/reduce.hpp). n and the range are not filled in. A NaN member gives NaN.
template <class Order>
Moments moments_about(Order order, const double* x, const double* w, index_t n, double center) {
  const std::array<double, 3> sums = detail::sums_about(order, x, w, n, center);
  return detail::moments_of_sums(sums[0], sums[1], sums[2], center);
}

/// The moments of x_0..x_{n-1} by two passes of sums, the second about the mean of the first.
/// w: weights (n); null: all 1; a number of weight 0 is no member. The sums are those of sum_rows
/// in `order` (stats/reduce.hpp). If a member is NaN, every field but n and weight is NaN.
template <class Order>
Moments moments_of(Order order, const double* x, const double* w, index_t n) {
  Moments range;
  const bool has_nan = detail::range_of(x, w, n, range);
  if (range.n == 0) return range;
  // About 0 these are the sums of w and of w x. The third sum is not needed here, but one
  // function for both passes is compiled once.
  const std::array<double, 3> sums = detail::sums_about(order, x, w, n, 0.0);
  const double weight = sums[0];
  Moments m;
  if (has_nan) {
    m.weight = weight;
    m.mean = m.mean_low = m.m2 = m.min = m.max = math::nan();
  } else if (degenerate(range)) {
    m = range;
    m.weight = weight;
    m.mean = range.min;
  } else {
    m = moments_about(order, x, w, n, sums[1] / weight);
    m.min = range.min;
    m.max = range.max;
  }
  m.n = range.n;
  return m;
}

namespace detail {

/// Mean and variance of a set with some moments, n being the sum of its weights:
///
///     mean     = sum x / (n + count_eps)
///     variance = sum (x - mean)^2 / (n + count_eps) * n / (n - ddof)
struct Spread {
  double mean = 0, variance = 0;
  bool known = false;  ///< Whether n > ddof. If not, the variance is 0.
};
/// The spread of m. count_eps moves the mean by m.mean - mean, so the sum of squares about the
/// new mean is m2 + n (m.mean - mean)^2.
GDPO_DEVICE inline Spread spread_of(const Moments& m, int ddof, double count_eps) {
  const double count = m.weight + count_eps;
  if (!(count > 0)) return {};
  if (math::is_nan(m.m2)) return {math::nan(), math::nan(), true};
  const double mean = count_eps == 0 ? m.mean : math::mul(m.mean, m.weight / count),
               moved = m.mean - mean;
  const double square = m.m2 + math::mul(m.weight, math::mul(moved, moved));
  const double dof = m.weight - ddof;
  if (!(dof > 0)) return {mean, 0, false};
  return {mean, count_eps == 0 ? square / dof : math::mul(square / count, m.weight / dof), true};
}

}  // namespace detail
GDPO_END_NAMESPACE
