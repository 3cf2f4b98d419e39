#pragma once
// log(1 + y) in vector lanes.
#include <gdpo/lanes/lanes.hpp>
#include <gdpo/math/log1p.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// math::log1p in the lanes of V, with the bits of the scalar in each; y > -1 or NaN.
template <class V>
GDPO_INLINE V log1p_of(const V& y) {
  if constexpr (math::Lanes<V>::width == 1) {
    return math::log1p(y);
  } else {
    using math::constant, math::fma, math::mul, math::select;
    using Bits = typename math::Lanes<V>::Bits;
    using Value = decltype(y.v);
    constexpr double ln2_hi = 6.93147180369123816490e-01, ln2_lo = 1.90821492927058770002e-10;
    constexpr std::int64_t exponent_of_1 = std::int64_t{1023} << 52;
    const V one = constant<V>(1.0), sum = one + y;
    const V low = constant<V>(0.70710678118654752), high = constant<V>(1.4142135623730951);
    V n = constant<V>(0.0), rest = y;
    if (math::any(math::either(sum <= low, sum >= high))) {
      const auto about_one = math::either(math::both(sum > low, sum < high), math::is_nan(y));
      const Bits bits = reinterpret_cast<Bits>(math::opaque(sum).v);
      const Bits fraction = (bits & 0xfffffffffffff) | exponent_of_1;
      // The exponent as the last digits of a number of the size of 2^52.
      const Bits exponent = ((bits >> 52) & 0x7ff) | 0x4330000000000000;
      const V f{reinterpret_cast<Value>(fraction)}, k{reinterpret_cast<Value>(exponent)};
      const auto upper = f > high;
      const V halved = select(upper, mul(f, constant<V>(0.5)), f);
      const V power = math::opaque(k) - constant<V>(4503599627370496.0 + 1023);
      n = select(about_one, n, V(select(upper, V(power + one), power)));
      rest = select(about_one, y, V(halved - one));
    }
    const V s = rest / (constant<V>(2.0) + rest), z = mul(s, s);
    V p = constant<V>(1.0 / 23);
    p = fma(p, z, constant<V>(1.0 / 21)), p = fma(p, z, constant<V>(1.0 / 19));
    p = fma(p, z, constant<V>(1.0 / 17)), p = fma(p, z, constant<V>(1.0 / 15));
    p = fma(p, z, constant<V>(1.0 / 13)), p = fma(p, z, constant<V>(1.0 / 11));
    p = fma(p, z, constant<V>(1.0 / 9)), p = fma(p, z, constant<V>(1.0 / 7));
    p = fma(p, z, constant<V>(1.0 / 5)), p = fma(p, z, constant<V>(1.0 / 3));
    const V twice = s + s;
    const V rest_of_log = fma(twice, mul(z, p), mul(n, constant<V>(ln2_lo)));
    return mul(n, constant<V>(ln2_hi)) + math::opaque(V(twice + rest_of_log));
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
