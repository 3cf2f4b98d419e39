#pragma once
// e^x, e^x - 1 and e^x - 1 - x together: ratios, their distance from 1, and the k3 estimate of a KL divergence.
#include <gdpo/lanes/pack.hpp>

GDPO_BEGIN_NAMESPACE
namespace math {

/// The three of one x; each keeps its relative accuracy near x = 0, where e^x - 1 - x as written has none.
template <class V>
struct ExpParts {
  V exp;    ///< e^x
  V expm1;  ///< e^x - 1
  V k3;     ///< e^x - 1 - x >= 0
};

/// Numbers of exp_parts in one precision.
///   limit        beyond this |x| the exponential saturates: e^x times an advantage of a few thousand stays finite
///   shift        1.5 times 2^(bits of the mantissa), plus the bias of the exponent: both stand in the low bits of n + shift
///   ln2_hi, _lo  ln 2 in two parts; n ln2_hi is exact
///   polynomial   of (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2, highest power first
template <class S>
struct ExpNumbers;
template <>
struct ExpNumbers<float> {
  static constexpr double limit = 80, shift = 12582912 + 127, ln2_hi = 0.693359375,
                          ln2_lo = -2.12194440e-4;
  static constexpr double polynomial[] = {1.3905488e-3, 8.3629331e-3, 4.1666765e-2, 1.6666579e-1,
                                          0.5};  // minimax
};
template <>
struct ExpNumbers<double> {
  static constexpr double limit = 700, shift = 6755399441055744 + 1023,
                          ln2_hi = 6.93147180369123816490e-01, ln2_lo = 1.90821492927058770002e-10;
  static constexpr double polynomial[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800,
                                          1.0 / 3628800,    1.0 / 362880,    1.0 / 40320,
                                          1.0 / 5040,       1.0 / 720,       1.0 / 120,
                                          1.0 / 24,         1.0 / 6,         0.5};  // Taylor's
};
template <class S>
constexpr double exp_limit = ExpNumbers<S>::limit;
template <class Numbers>
constexpr std::size_t coefficients = sizeof(Numbers::polynomial) / sizeof(double);

template <class V, class Numbers, std::size_t i>
GDPO_INLINE V coefficient() {
  constexpr double value = Numbers::polynomial[i];
  return constant<V>(value);
}

/// Numbers::polynomial as pairs, each linear in r, of a polynomial in r^2: half the latency of one in r. `Next`: the first
/// coefficient that is not in p.
template <class Numbers, std::size_t Next, class V>
GDPO_INLINE V in_pairs(const V& r, const V& square, const V& p) {
  if constexpr (Next == coefficients<Numbers>) {
    return p;
  } else {
    const V pair = fma(coefficient<V, Numbers, Next>(), r, coefficient<V, Numbers, Next + 1>());
    return in_pairs<Numbers, Next + 2>(r, square, V(fma(square, p, pair)));
  }
}
template <class Numbers, class V>
GDPO_INLINE V polynomial(const V& r, const V& square) {
  const V first = coefficient<V, Numbers, 0>();
  if constexpr (coefficients<Numbers> % 2 == 1) {
    return in_pairs<Numbers, 1>(r, square, first);
  } else {
    return in_pairs<Numbers, 2>(r, square, V(fma(first, r, coefficient<V, Numbers, 1>())));
  }
}

/// x = n ln 2 + r with |r| <= ln 2 / 2, s = 2^n; e^r - 1 = r + r^2 p.
template <class V>
struct Reduced {
  V n, r, square, p, s;
};
template <class V>
GDPO_INLINE Reduced<V> reduced(const V& x) {
  using Numbers = ExpNumbers<scalar_t<V>>;
  const V shift = constant<V>(Numbers::shift);
  const V shifted = fma(x, constant<V>(1.44269504088896341), shift);
  const V n = opaque(shifted) - shift;
  const V r = fma(n, constant<V>(-Numbers::ln2_lo), fma(n, constant<V>(-Numbers::ln2_hi), x));
  const V square = mul(r, r);
  return {n, r, square, polynomial<Numbers>(r, square), pow2_of_shifted(shifted)};
}

/// V is float, double or lanes of them: the same operations, the same bits in every lane. Error <= 2 ulp of exp and expm1,
/// <= 6 ulp of k3 (4e-7 relative in float) for |x| <= the limit. NaN stays NaN, +inf saturates; below -limit k3 goes on
/// linearly (there it is -1 - x), so -inf gives k3 = inf. One range reduction and one polynomial:
///   e^x - 1 = s (e^r - 1) + (s - 1)    and    e^x - 1 - x = s (e^r - 1 - r) + (s - 1) r + (s - 1 - n ln 2):
/// n = 0 leaves e^r - 1 and e^r - 1 - r alone, so nothing cancels near 0.
template <class V>
GDPO_INLINE ExpParts<V> exp_parts(const V& x) {
  const V limit = constant<V>(exp_limit<scalar_t<V>>),
          minus_limit = constant<V>(-exp_limit<scalar_t<V>>);
  const V high = (math::min)(x, limit), bounded = (math::max)(high, minus_limit);
  const auto [n, r, square, p, s] = reduced(bounded);
  const V rest = s - constant<V>(1.0);
  const V k3_r = mul(square, p), expm1_r = fma(square, p, r);
  const V k3 = fma(s, k3_r, fma(rest, r, fma(n, constant<V>(-0.693147180559945309), rest)));
  return {fma(s, expm1_r, s), fma(s, expm1_r, rest), k3 + opaque(bounded - high)};
}

/// e^x alone of an x that the caller has bounded, from below by -127 ln 2 (float) or -1023 ln 2 (double), where it is 0, from
/// above by exp_limit. The bits of exp_parts(x).exp within exp_limit.
template <class V>
GDPO_INLINE V exp_bounded(const V& x) {
  const auto [n, r, square, p, s] = reduced(x);
  return fma(s, V(fma(square, p, r)), s);
}

}  // namespace math
GDPO_END_NAMESPACE
