#pragma once
// The vocabulary of the formulas on scalars. lanes/pack.hpp has the same words on packs of lanes.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <gdpo/core/config.hpp>
#include <limits>

GDPO_BEGIN_NAMESPACE
namespace math {

/// The same value, opaque to the optimiser: what follows cannot be fused, re-associated or folded with what came
/// before.
GDPO_INLINE double opaque(double x) {
#if defined(__GNUC__) && defined(__x86_64__)
  asm("" : "+x"(x));
#elif defined(__GNUC__) && defined(__aarch64__)
  asm("" : "+w"(x));
#endif
  return x;
}

/// a * b, rounded once: never contracted into an fma, whatever -ffp-contract says. Statistics use it, so that every
/// build gives the same bits.
GDPO_INLINE double mul(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return opaque(a * b);
#endif
}

/// The bits, of the value as it stands in a register or in memory: what -ffast-math cannot reason about.
GDPO_INLINE std::uint64_t bits_of(double x) {
  const double kept = opaque(x);
  std::uint64_t bits;
  std::memcpy(&bits, &kept, sizeof bits);
  return bits;
}
GDPO_INLINE double from_bits(std::uint64_t bits) {
  double x;
  std::memcpy(&x, &bits, sizeof x);
  return opaque(x);
}

/// Decided by the bits: right under -ffast-math as well, where x != x is not, and NaN == 0 may hold.
GDPO_INLINE bool is_nan(double x) { return (bits_of(x) & 0x7fffffffffffffffu) > 0x7ff0000000000000u; }
GDPO_INLINE bool is_inf(double x) { return (bits_of(x) & 0x7fffffffffffffffu) == 0x7ff0000000000000u; }
GDPO_INLINE bool is_zero(double x) { return (bits_of(x) & 0x7fffffffffffffffu) == 0; }

GDPO_INLINE double select(bool mask, double a, double b) { return mask ? a : b; }
GDPO_INLINE double sqrt(double x) { return std::sqrt(x); }
GDPO_INLINE double abs(double x) { return x < 0 ? -x : x; }
GDPO_INLINE double(min)(double a, double b) { return b < a ? b : a; }
GDPO_INLINE double(max)(double a, double b) { return a < b ? b : a; }

/// A quiet NaN that the optimiser does not see: -ffinite-math-only would reason a visible one away.
GDPO_INLINE double nan() { return from_bits(0x7ff8000000000000u); }

constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace math
GDPO_END_NAMESPACE
