#pragma once
// The operations that formulas are written with, for float and double. lanes/pack.hpp has functions
// of the same names for packs of lanes, so one template serves numbers and packs.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <gdpo/core/config.hpp>
#include <limits>
#include <type_traits>

GDPO_BEGIN_NAMESPACE

/// Operations of the formulas, on float, double and packs of lanes of them.
namespace math {

/// Returns x, and hides from the optimizer how it was computed.
///
/// The compiler can then not fuse, re-associate or fold what follows with what came before. It
/// costs no instruction.
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

/// a * b, rounded once.
///
/// It never becomes part of an fma, whatever -ffp-contract says. Formulas use it in place of `*`,
/// so that every build gives the same bits.
GDPO_INLINE double mul(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return opaque(a * b);
#endif
}
/// a * b for float, rounded once.
GDPO_INLINE float mul(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return opaque(a * b);
#endif
}

/// a * b + c, rounded once in a build for a machine with the instruction (GDPO_HAS_FMA), else
/// twice.
///
/// All builds with the instruction give the same bits, and so do all builds without it.
GDPO_INLINE double fma(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(a, b, c);
#elif GDPO_HAS_FMA
  return std::fma(a, b, c);
#else
  return opaque(mul(a, b) + c);
#endif
}
/// a * b + c for float, rounded as for double.
GDPO_INLINE float fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#elif GDPO_HAS_FMA
  return std::fma(a, b, c);
#else
  return opaque(mul(a, b) + c);
#endif
}

/// The bits of x, taken from its register, so that -ffast-math cannot reason about the value.
GDPO_INLINE std::uint64_t bits_of(double x) {
  const double kept = opaque(x);
  std::uint64_t bits;
  std::memcpy(&bits, &kept, sizeof bits);
  return bits;
}
/// The double with these bits; the optimizer does not see its value.
GDPO_INLINE double from_bits(std::uint64_t bits) {
  double x;
  std::memcpy(&x, &bits, sizeof x);
  return opaque(x);
}

// These look at the bits, so they are right under -ffast-math too. There the compiler may take x !=
// x as false and NaN == 0 as true.

/// Whether x is NaN, also under -ffast-math.
GDPO_INLINE bool is_nan(double x) {
  return (bits_of(x) & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
}
/// Whether x is infinite, of either sign, also under -ffast-math.
GDPO_INLINE bool is_inf(double x) {
  return (bits_of(x) & 0x7fffffffffffffffu) == 0x7ff0000000000000u;
}
/// Whether x is 0 or -0, also under -ffast-math; false for NaN.
GDPO_INLINE bool is_zero(double x) { return (bits_of(x) & 0x7fffffffffffffffu) == 0; }

/// The bits of x, taken from its register, so that -ffast-math cannot reason about the value.
GDPO_INLINE std::uint32_t bits_of(float x) {
  const float kept = opaque(x);
  std::uint32_t bits;
  std::memcpy(&bits, &kept, sizeof bits);
  return bits;
}
/// The float with these bits; the optimizer does not see its value.
GDPO_INLINE float from_bits(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return opaque(x);
}
/// Whether x is NaN, also under -ffast-math.
GDPO_INLINE bool is_nan(float x) { return (bits_of(x) & 0x7fffffffu) > 0x7f800000u; }
/// Whether x is infinite, of either sign, also under -ffast-math.
GDPO_INLINE bool is_inf(float x) { return (bits_of(x) & 0x7fffffffu) == 0x7f800000u; }
/// Whether x is 0 or -0, also under -ffast-math; false for NaN.
GDPO_INLINE bool is_zero(float x) { return (bits_of(x) & 0x7fffffffu) == 0; }

/// 2^n for the integer n with t = n + 1.5 * 2^52 + 1023; exact for -1022 <= n <= 1023, and 0 for
/// n = -1023.
///
/// Numbers of that size have a spacing of 1, so the low bits of t hold n + 1023, which is the
/// exponent field of 2^n. One shift moves it into place.
GDPO_INLINE double pow2_of_shifted(double t) { return from_bits(bits_of(t) << 52); }
/// 2^n for the integer n with t = n + 1.5 * 2^23 + 127; exact for -126 <= n <= 127, and 0 for
/// n = -127.
GDPO_INLINE float pow2_of_shifted(float t) { return from_bits(bits_of(t) << 23); }

/// Whether x is NaN or infinite, also under -ffast-math.
GDPO_INLINE bool not_finite(double x) {
  return (bits_of(x) & 0x7ff0000000000000u) == 0x7ff0000000000000u;
}
/// Whether x is NaN or infinite, also under -ffast-math.
GDPO_INLINE bool not_finite(float x) { return (bits_of(x) & 0x7f800000u) == 0x7f800000u; }

/// Whether x is a number, also under -ffast-math.
GDPO_INLINE bool is_finite(double x) { return !not_finite(x); }
/// Whether x is a number, also under -ffast-math.
GDPO_INLINE bool is_finite(float x) { return !not_finite(x); }

/// The logical and of two comparisons.
GDPO_INLINE bool both(bool a, bool b) { return a && b; }
/// The logical or of two comparisons.
GDPO_INLINE bool either(bool a, bool b) { return a || b; }

/// Whether a < b or a > b; false if one of them is NaN.
GDPO_INLINE bool differ(double a, double b) { return a < b || a > b; }
/// Whether a < b or a > b; false if one of them is NaN.
GDPO_INLINE bool differ(float a, float b) { return a < b || a > b; }

/// a if `mask` is true, else b.
GDPO_INLINE double select(bool mask, double a, double b) { return mask ? a : b; }
/// a if `mask` is true, else b.
GDPO_INLINE float select(bool mask, float a, float b) { return mask ? a : b; }
/// The square root, correctly rounded.
GDPO_INLINE double sqrt(double x) { return std::sqrt(x); }
/// |x|; the sign of a zero or a NaN stays as it is.
GDPO_INLINE double abs(double x) { return x < 0 ? -x : x; }
/// |x|; the sign of a zero or a NaN stays as it is.
GDPO_INLINE float abs(float x) { return x < 0 ? -x : x; }

/// The smaller one; a if one of them is NaN.
GDPO_INLINE double(min)(double a, double b) { return b < a ? b : a; }
/// The larger one; a if one of them is NaN.
GDPO_INLINE double(max)(double a, double b) { return a < b ? b : a; }
/// The smaller one; a if one of them is NaN. On a device NaN if one of them is NaN.
GDPO_INLINE float(min)(float a, float b) {
#if defined(__CUDA_ARCH__)
  float x;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
  return x;
#else
  return b < a ? b : a;
#endif
}
/// The larger one; a if one of them is NaN. On a device NaN if one of them is NaN.
GDPO_INLINE float(max)(float a, float b) {
#if defined(__CUDA_ARCH__)
  float x;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
  return x;
#else
  return a < b ? b : a;
#endif
}

/// A quiet NaN that the optimizer does not see; -ffinite-math-only would let it drop a visible one.
template <class T = double>
GDPO_INLINE T nan() {
  if constexpr (std::is_same_v<T, float>) {
    return from_bits(std::uint32_t{0x7fc00000u});
  } else {
    return from_bits(std::uint64_t{0x7ff8000000000000u});
  }
}

/// Plus infinity; as a bound or a limit it means that there is none.
constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace math

/// The result of comparing two V: bool, or one flag for each lane.
template <class V>
using mask_t = std::decay_t<decltype(std::declval<const V&>() < std::declval<const V&>())>;

GDPO_END_NAMESPACE
