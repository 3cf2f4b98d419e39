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

/// Beyond this |x| the exponential saturates: e^x times an advantage of a few thousand stays finite. `k3` goes on
/// linearly below (there it is -1 - x).
template <class V>
constexpr double exp_limit = std::is_same_v<V, double> ? 700.0 : 80.0;

/// In single precision: error <= 2 ulp of exp and expm1, <= 4e-7 relative of k3 for |x| <= 80. NaN stays NaN, +inf
/// saturates, -inf gives k3 = inf. One range reduction, x = n ln 2 + r, |r| <= ln 2 / 2, and one polynomial, of
/// (e^r - 1 - r) / r^2. With s = 2^n:  e^x - 1 = s (e^r - 1) + (s - 1)  and
///   e^x - 1 - x = s (e^r - 1 - r) + (s - 1) r + (s - 1 - n ln 2):
/// n = 0 leaves e^r - 1 and e^r - 1 - r alone, so nothing cancels near 0.
GDPO_INLINE ExpParts<float> exp_parts(float x) {
  const float limit = constant<float>(exp_limit<float>);
  const float high = (math::min)(x, limit), bounded = (math::max)(high, -limit);
  const float shifted = fma(bounded, 1.44269504f, 12582912.0f);  // n stands in the low bits of the sum with 1.5 2^23
  const float n = opaque(shifted) - 12582912.0f;
  const float r = fma(n, 2.12194440e-4f, fma(n, -0.693359375f, bounded));
  const float p = fma(r, fma(r, fma(r, fma(r, 1.3905488e-3f, 8.3629331e-3f), 4.1666765e-2f), 1.6666579e-1f), 0.5f);
  const float square = mul(r, r);
  const float s = from_bits((bits_of(shifted) + 127u) << 23), rest = s - 1.0f;
  const float k3_r = mul(square, p), expm1_r = fma(square, p, r);
  const float k3 = fma(s, k3_r, fma(rest, r, fma(n, -0.693147181f, rest)));
  return {fma(s, expm1_r, s), fma(s, expm1_r, rest), k3 + opaque(bounded - high)};
}

/// In double precision: the C library's exp and expm1, and the series of k3 below |x| = 0.01 (error <= 1e-13 relative).
GDPO_INLINE ExpParts<double> exp_parts(double x) {
  const double high = (math::min)(x, exp_limit<double>), bounded = (math::max)(high, -exp_limit<double>);
  const double expm1 = std::expm1(bounded);
  double k3 = expm1 - bounded;
  if (abs(bounded) < 0.01) {
    double series = 1.0 / 3628800;
    for (int k = 9; k >= 2; --k) {
      constexpr double inverse_factorial[] = {1,         1,         1.0 / 2,    1.0 / 6,     1.0 / 24,
                                              1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880};
      series = fma(series, bounded, inverse_factorial[k]);
    }
    k3 = mul(mul(bounded, bounded), series);
  }
  return {std::exp(bounded), expm1, k3 + opaque(bounded - high)};
}

}  // namespace math
GDPO_END_NAMESPACE
