#pragma once
// The vocabulary of the formulas on scalars. lanes/pack.hpp has the same words on packs of lanes.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <gdpo/core/config.hpp>
#include <limits>
#include <type_traits>

GDPO_BEGIN_NAMESPACE
namespace math {

/// The same value, opaque to the optimiser: what follows cannot be fused, re-associated or folded with what came
/// before.
template <class T>
GDPO_INLINE T opaque(T x) {
  static_assert(std::is_floating_point_v<T>, "opaque is for float and double");
#if defined(__CUDA_ARCH__)  // the device compiler does not re-associate
#elif defined(__GNUC__) && defined(__x86_64__)
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
GDPO_INLINE float mul(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return opaque(a * b);
#endif
}

/// a * b + c: rounded once where the machine has the instruction, twice where it has not, and the same in every build of
/// either kind. The products of the loss kernels go through it.
GDPO_INLINE double fma(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(a, b, c);
#elif GDPO_HAS_FMA
  return std::fma(a, b, c);
#else
  return opaque(mul(a, b) + c);
#endif
}
GDPO_INLINE float fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#elif GDPO_HAS_FMA
  return std::fma(a, b, c);
#else
  return opaque(mul(a, b) + c);
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
GDPO_INLINE bool is_nan(double x) {
  return (bits_of(x) & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
}
GDPO_INLINE bool is_inf(double x) {
  return (bits_of(x) & 0x7fffffffffffffffu) == 0x7ff0000000000000u;
}
GDPO_INLINE bool is_zero(double x) { return (bits_of(x) & 0x7fffffffffffffffu) == 0; }

GDPO_INLINE std::uint32_t bits_of(float x) {
  const float kept = opaque(x);
  std::uint32_t bits;
  std::memcpy(&bits, &kept, sizeof bits);
  return bits;
}
GDPO_INLINE float from_bits(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return opaque(x);
}
GDPO_INLINE bool is_nan(float x) { return (bits_of(x) & 0x7fffffffu) > 0x7f800000u; }
GDPO_INLINE bool is_inf(float x) { return (bits_of(x) & 0x7fffffffu) == 0x7f800000u; }
GDPO_INLINE bool is_zero(float x) { return (bits_of(x) & 0x7fffffffu) == 0; }

/// 2^n of t = n + 1.5 2^52 + 1023 (double), n + 1.5 2^23 + 127 (float): n and the bias of the exponent stand in the low bits of
/// such a sum.
GDPO_INLINE double pow2_of_shifted(double t) { return from_bits(bits_of(t) << 52); }
GDPO_INLINE float pow2_of_shifted(float t) { return from_bits(bits_of(t) << 23); }

GDPO_INLINE bool not_finite(double x) {
  return (bits_of(x) & 0x7ff0000000000000u) == 0x7ff0000000000000u;
}
GDPO_INLINE bool not_finite(float x) { return (bits_of(x) & 0x7f800000u) == 0x7f800000u; }

// Answers of comparisons.
GDPO_INLINE bool both(bool a, bool b) { return a && b; }
GDPO_INLINE bool either(bool a, bool b) { return a || b; }

/// a < b or a > b: not where one is NaN.
GDPO_INLINE bool differ(double a, double b) { return a < b || a > b; }
GDPO_INLINE bool differ(float a, float b) { return a < b || a > b; }

GDPO_INLINE double select(bool mask, double a, double b) { return mask ? a : b; }
GDPO_INLINE float select(bool mask, float a, float b) { return mask ? a : b; }
GDPO_INLINE double sqrt(double x) { return std::sqrt(x); }
GDPO_INLINE double abs(double x) { return x < 0 ? -x : x; }
GDPO_INLINE float abs(float x) { return x < 0 ? -x : x; }
// A NaN in the first operand stays; the second is none (the one instruction of a device would return it).
GDPO_INLINE double(min)(double a, double b) { return b < a ? b : a; }
GDPO_INLINE double(max)(double a, double b) { return a < b ? b : a; }
GDPO_INLINE float(min)(float a, float b) {
#if defined(__CUDA_ARCH__)
  float x;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
  return x;
#else
  return b < a ? b : a;
#endif
}
GDPO_INLINE float(max)(float a, float b) {
#if defined(__CUDA_ARCH__)
  float x;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
  return x;
#else
  return a < b ? b : a;
#endif
}

/// A quiet NaN that the optimiser does not see: -ffinite-math-only would reason a visible one away.
template <class T = double>
GDPO_INLINE T nan() {
  if constexpr (std::is_same_v<T, float>) {
    return from_bits(std::uint32_t{0x7fc00000u});
  } else {
    return from_bits(std::uint64_t{0x7ff8000000000000u});
  }
}

constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace math
GDPO_END_NAMESPACE
