#pragma once
// log1p: log(1 + y), with the same bits from every compiler.
#include <gdpo/math/scalar.hpp>

GDPO_BEGIN_NAMESPACE
namespace math {

/// log(1 + y) for -1 < y < 2^1000, accurate to a few units in the last place also near 0 (of
/// subnormal numbers the last digit is lost).
///
/// It is made of math::fma, math::mul and divisions alone: all builds with fma give the same bits,
/// and so do all without. With 1 + y = 2^k f and f in [1/sqrt 2, sqrt 2):
///
///     log(1 + y) = k ln 2 + 2 atanh(s),  s = (f - 1) / (f + 1),  |s| < 0.172
///
/// Near 0, k = 0 and f - 1 is y itself, so nothing cancels. NaN gives NaN; y <= -1 has no meaning.
GDPO_INLINE double log1p(double y) {
  constexpr double ln2_hi = 6.93147180369123816490e-01, ln2_lo = 1.90821492927058770002e-10;
  const double sum = 1 + y;
  int k = 0;
  double rest = y;
  if (!(sum > 0.70710678118654752 && sum < 1.4142135623730951) && !is_nan(y)) {
    const std::uint64_t bits = bits_of(sum), fraction = bits & 0xfffffffffffffu;
    k = static_cast<int>((bits >> 52) & 0x7ff) - 1023;
    double f = from_bits(fraction | (std::uint64_t{1023} << 52));  // in [1, 2)
    if (f > 1.4142135623730951) f = mul(f, 0.5), ++k;
    rest = f - 1;
  }
  const double s = rest / (2 + rest), z = mul(s, s);
  // The series of atanh(s) / s - 1, over z.
  double p = 1.0 / 23;
  p = fma(p, z, 1.0 / 21), p = fma(p, z, 1.0 / 19), p = fma(p, z, 1.0 / 17);
  p = fma(p, z, 1.0 / 15), p = fma(p, z, 1.0 / 13), p = fma(p, z, 1.0 / 11);
  p = fma(p, z, 1.0 / 9), p = fma(p, z, 1.0 / 7), p = fma(p, z, 1.0 / 5), p = fma(p, z, 1.0 / 3);
  const double twice = s + s, n = k;
  const double rest_of_log = fma(twice, mul(z, p), mul(n, ln2_lo));
  return mul(n, ln2_hi) + (twice + rest_of_log);
}

}  // namespace math
GDPO_END_NAMESPACE
