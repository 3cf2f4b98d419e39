#pragma once
// e^x, e^x - 1 and e^x - 1 - x together. For a log ratio x these are the ratio, its distance from
// 1, and the k3 estimate of a KL divergence.
#include <gdpo/lanes/pack.hpp>

GDPO_BEGIN_NAMESPACE
namespace math {

/// The results of exp_parts(x). Each is accurate relative to its own size also near x = 0, where
/// the plain differences cancel.
template <class V>
struct ExpParts {
  V exp;    ///< e^x
  V expm1;  ///< e^x - 1
  V k3;     ///< e^x - 1 - x >= 0
};

/// The constants of exp_parts in one precision.
///   limit           x is cut to -limit .. limit: e^limit times an advantage of a few thousand is
///                   still finite
///   shift           1.5 * 2^m + bias, where m is the number of mantissa bits and `bias` belongs to
///                   the exponent. Adding it to a number rounds that to an integer n, and the low
///                   bits of the sum are n + bias.
///   ln2_hi, ln2_lo  two parts whose sum is ln 2; n * ln2_hi is exact
///   polynomial      coefficients of (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2, highest power first
template <class S>
struct ExpNumbers;
template <>
struct ExpNumbers<float> {
  static constexpr double limit = 80, shift = 12582912 + 127, ln2_hi = 0.693359375,
                          ln2_lo = -2.12194440e-4;
  static constexpr double polynomial[] = {1.3905488e-3, 8.3629331e-3, 4.1666765e-2, 1.6666579e-1,
                                          0.5};  // minimax polynomial
};
template <>
struct ExpNumbers<double> {
  static constexpr double limit = 700, shift = 6755399441055744 + 1023,
                          ln2_hi = 6.93147180369123816490e-01, ln2_lo = 1.90821492927058770002e-10;
  static constexpr double polynomial[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800,
                                          1.0 / 3628800,    1.0 / 362880,    1.0 / 40320,
                                          1.0 / 5040,       1.0 / 720,       1.0 / 120,
                                          1.0 / 24,         1.0 / 6,         0.5};  // Taylor series
};
/// exp_parts saturates beyond this |x|: 80 for float, 700 for double.
template <class S>
constexpr double exp_limit = ExpNumbers<S>::limit;
template <class Numbers>
constexpr std::size_t coefficients = sizeof(Numbers::polynomial) / sizeof(double);

template <class V, class Numbers, std::size_t i>
GDPO_INLINE V coefficient() {
  constexpr double value = Numbers::polynomial[i];
  return constant<V>(value);
}

/// Evaluates Numbers::polynomial as a polynomial in r^2 whose coefficients are pairs, linear in r.
/// The chain of dependent operations is half as long as with Horner's rule in r. p is the value so
/// far, and `Next` the first coefficient that it does not contain.
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

/// The range reduction x = n ln 2 + r with an integer n and |r| <= ln 2 / 2. `square` is r^2, s is
/// 2^n, and p is the polynomial, so e^r - 1 = r + r^2 p.
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

/// Returns e^x, e^x - 1 and e^x - 1 - x.
///
/// V is float, double or a pack of them; every lane has the bits of the scalar.
///
/// Accuracy for |x| <= exp_limit, with and without fma: exp and expm1 within 2 ULP (units in the
/// last place; a relative error of at most 2^-22 for float, 2^-51 for double), k3 within 6 ULP for
/// double and 4e-7 relative for float. At x = 0 the results are exactly 1, 0 and 0, and k3 is never
/// below 0.
///
/// Every finite x gives finite results. For x > exp_limit, +inf included, all three keep their
/// values at exp_limit. For x < -exp_limit, exp keeps its value at -exp_limit, which is tiny but
/// above 0, expm1 is -1, and k3 goes on as -1 - x, so -inf gives k3 = inf. NaN gives NaN in all
/// three.
///
/// One range reduction and one polynomial serve all three (names as in Reduced):
///     e^x         = s (e^r - 1) + s
///     e^x - 1     = s (e^r - 1) + (s - 1)
///     e^x - 1 - x = s (e^r - 1 - r) + (s - 1) r + (s - 1 - n ln 2)
/// Near 0, n = 0 and s = 1. The terms in s - 1 and n are then exactly 0, so nothing cancels.
template <class V>
GDPO_INLINE ExpParts<V> exp_parts(const V& x) {
  const V limit = constant<V>(exp_limit<scalar_t<V>>),
          minus_limit = constant<V>(-exp_limit<scalar_t<V>>);
  const V high = (math::min)(x, limit), bounded = (math::max)(high, minus_limit);
  const auto [n, r, square, p, s] = reduced(bounded);
  const V rest = s - constant<V>(1.0);
  const V k3_r = mul(square, p), expm1_r = fma(square, p, r);
  const V k3 = fma(s, k3_r, fma(rest, r, fma(n, constant<V>(-0.693147180559945309), rest)));
  // bounded - high is -limit - x below the range, else 0: it continues k3 linearly.
  return {fma(s, expm1_r, s), fma(s, expm1_r, rest), k3 + opaque(bounded - high)};
}

/// Returns e^x for an x that the caller has bounded.
///
/// x must be at most exp_limit and at least -127 ln 2 (float) or -1023 ln 2 (double); at these
/// lower bounds the result is exactly 0. For |x| <= exp_limit it has the bits of exp_parts(x).exp.
/// NaN gives NaN.
template <class V>
GDPO_INLINE V exp_bounded(const V& x) {
  const auto [n, r, square, p, s] = reduced(x);
  return fma(s, V(fma(square, p, r)), s);
}

/// Returns e^x, and exactly 0 where x is so small that e^x is no normal number.
///
/// Above exp_limit it keeps its value there, as exp_parts does; below about -88 (float) or -709
/// (double) it is 0, where exp_parts keeps a tiny number. NaN gives NaN.
template <class V>
GDPO_INLINE V exp_or_zero(const V& x) {
  constexpr double lowest = sizeof(scalar_t<V>) == 4 ? -127 : -1023;
  const V limit = constant<V>(exp_limit<scalar_t<V>>),
          lower = constant<V>(lowest * 0.693147180559945309);
  return exp_bounded(V((math::max)(V((math::min)(x, limit)), lower)));
}

}  // namespace math
GDPO_END_NAMESPACE
