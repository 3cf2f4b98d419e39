#pragma once
// One vector register of L lanes of S, by the vector extension of GCC and Clang, and the operations
// for which that extension needs an instruction by name.
#include <cstdint>
#include <gdpo/math/scalar.hpp>
#if GDPO_LANE_BYTES > 0 && defined(__x86_64__)
#if defined(__AVX__)
#include <immintrin.h>
#else
#include <emmintrin.h>  // SSE2 only: immintrin.h takes a compiler half as long as all of Eigen
#endif
#elif GDPO_LANE_BYTES > 0 && defined(__aarch64__)
#include <arm_neon.h>
#endif

GDPO_BEGIN_NAMESPACE
namespace math {

// The types of one register of L lanes of S:
//   Value    the lanes
//   Memory   the lanes within an array: aligned as one element is, and allowed to alias. With
//            std::memcpy in its place, g++ does not keep sums in registers.
//   Bits     the bits of the lanes, as integers
//   Mask     the result of a comparison: each lane has all its bits set or none; with AVX-512 it is
//            a mask register with one bit a lane
//   Single   L floats, for conversions
// A single lane is a plain number. g++ ignores a vector_size that depends on a template parameter,
// so each width has a line of its own.
template <int L, class S>
struct Register {};
template <class S>
struct Register<1, S> {
  using Value = S;
  using Mask = bool;
};
#define GDPO_REGISTER(lanes, Scalar, Integer, bytes, MaskType)                                     \
  template <>                                                                                      \
  struct Register<lanes, Scalar> {                                                                 \
    typedef Scalar Value __attribute__((vector_size(bytes)));                                      \
    typedef Scalar Memory __attribute__((vector_size(bytes), aligned(sizeof(Scalar)), may_alias)); \
    typedef Integer Bits __attribute__((vector_size(bytes)));                                      \
    typedef MaskType Mask;                                                                         \
    typedef float Single __attribute__((vector_size(4 * lanes)));                                  \
  };
#if GDPO_LANE_BYTES >= 16
GDPO_REGISTER(2, double, std::int64_t, 16, Bits)
GDPO_REGISTER(4, float, std::int32_t, 16, Bits)
#endif
#if GDPO_LANE_BYTES >= 32
GDPO_REGISTER(4, double, std::int64_t, 32, Bits)
GDPO_REGISTER(8, float, std::int32_t, 32, Bits)
#endif
#if GDPO_LANE_BYTES >= 64
GDPO_REGISTER(8, double, std::int64_t, 64, __mmask8)
GDPO_REGISTER(16, float, std::int32_t, 64, __mmask16)
#endif
#undef GDPO_REGISTER

/// Whether L lanes of S fit into one register. One lane always does.
template <int L, class S>
constexpr bool fits_register = L == 1 || L* static_cast<int>(sizeof(S)) <= GDPO_LANE_BYTES;
/// The number of lanes of S in one register. If it is 1 there are no vectors, and formulas run on S
/// itself.
template <class S>
constexpr int native_width = GDPO_LANE_BYTES >= 16 ? GDPO_LANE_BYTES / static_cast<int>(sizeof(S))
                                                   : 1;

/// Whether the masks of such packs are AVX-512 mask registers, with one bit a lane.
template <int L, class S>
constexpr bool has_bit_mask = L* static_cast<int>(sizeof(S)) == 64 && fits_register<L, S>;

// Functions of one register. They name the instruction where the general expression would cost one
// more. register_bits gives 0 if a mask is false in every lane, else another number.
#if GDPO_LANE_BYTES > 0 && defined(__x86_64__)
// min(a, b) means b < a ? b : a, and max(a, b) means a < b ? b : a. If an operand is NaN, both
// expressions give a, and the instructions give their second operand. So a is passed second.
GDPO_INLINE __m128 register_min(__m128 a, __m128 b) { return _mm_min_ps(b, a); }
GDPO_INLINE __m128 register_max(__m128 a, __m128 b) { return _mm_max_ps(b, a); }
GDPO_INLINE __m128d register_min(__m128d a, __m128d b) { return _mm_min_pd(b, a); }
GDPO_INLINE __m128d register_max(__m128d a, __m128d b) { return _mm_max_pd(b, a); }
GDPO_INLINE int register_bits(__m128 a) { return _mm_movemask_ps(a); }
GDPO_INLINE int register_bits(__m128d a) { return _mm_movemask_pd(a); }
GDPO_INLINE __m128 register_sqrt(__m128 a) { return _mm_sqrt_ps(a); }
GDPO_INLINE __m128d register_sqrt(__m128d a) { return _mm_sqrt_pd(a); }
#if GDPO_HAS_FMA
GDPO_INLINE __m128 register_fma(__m128 a, __m128 b, __m128 c) { return _mm_fmadd_ps(a, b, c); }
GDPO_INLINE __m128d register_fma(__m128d a, __m128d b, __m128d c) { return _mm_fmadd_pd(a, b, c); }
#endif
#if GDPO_LANE_BYTES == 16
/// A mask of the lanes whose byte is not 0, from 4 bytes.
GDPO_INLINE Register<4, float>::Bits register_load_mask(const unsigned char* p) {
  std::int32_t bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  const __m128i zero = _mm_setzero_si128();
  const __m128i wide = _mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(bytes), zero), zero);
  return reinterpret_cast<Register<4, float>::Bits>(_mm_cmpgt_epi32(wide, zero));
}
/// The doubles that are NaN or infinite, from their bits without the sign. Their upper halves tell;
/// SSE2 does not compare integers of 64 bits.
GDPO_INLINE Register<2, double>::Bits register_not_finite(Register<2, double>::Bits magnitude) {
  const __m128i above =
      _mm_cmpgt_epi32(reinterpret_cast<__m128i>(magnitude), _mm_set1_epi32(0x7fefffff));
  return reinterpret_cast<Register<2, double>::Bits>(_mm_shuffle_epi32(above, 0xf5));
}
#endif
#if GDPO_LANE_BYTES >= 32
GDPO_INLINE __m256 register_min(__m256 a, __m256 b) { return _mm256_min_ps(b, a); }
GDPO_INLINE __m256 register_max(__m256 a, __m256 b) { return _mm256_max_ps(b, a); }
GDPO_INLINE __m256d register_min(__m256d a, __m256d b) { return _mm256_min_pd(b, a); }
GDPO_INLINE __m256d register_max(__m256d a, __m256d b) { return _mm256_max_pd(b, a); }
GDPO_INLINE int register_bits(__m256 a) { return _mm256_movemask_ps(a); }
GDPO_INLINE int register_bits(__m256d a) { return _mm256_movemask_pd(a); }
GDPO_INLINE __m256 register_sqrt(__m256 a) { return _mm256_sqrt_ps(a); }
GDPO_INLINE __m256d register_sqrt(__m256d a) { return _mm256_sqrt_pd(a); }
#if GDPO_HAS_FMA
GDPO_INLINE __m256 register_fma(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
GDPO_INLINE __m256d register_fma(__m256d a, __m256d b, __m256d c) {
  return _mm256_fmadd_pd(a, b, c);
}
#endif
#endif
#if GDPO_LANE_BYTES >= 64
// These are the forms with a zeroing mask, all lanes on: in the plain forms, g++ 12 warns about its
// own header.
GDPO_INLINE __m512 register_min(__m512 a, __m512 b) {
  return _mm512_maskz_min_ps(static_cast<__mmask16>(-1), b, a);
}
GDPO_INLINE __m512 register_max(__m512 a, __m512 b) {
  return _mm512_maskz_max_ps(static_cast<__mmask16>(-1), b, a);
}
GDPO_INLINE __m512d register_min(__m512d a, __m512d b) {
  return _mm512_maskz_min_pd(static_cast<__mmask8>(-1), b, a);
}
GDPO_INLINE __m512d register_max(__m512d a, __m512d b) {
  return _mm512_maskz_max_pd(static_cast<__mmask8>(-1), b, a);
}
// The same in the lanes of the mask, and a in the others.
GDPO_INLINE __m512 register_min_where(__mmask16 mask, __m512 a, __m512 b) {
  return _mm512_mask_min_ps(a, mask, b, a);
}
GDPO_INLINE __m512 register_max_where(__mmask16 mask, __m512 a, __m512 b) {
  return _mm512_mask_max_ps(a, mask, b, a);
}
GDPO_INLINE __m512d register_min_where(__mmask8 mask, __m512d a, __m512d b) {
  return _mm512_mask_min_pd(a, mask, b, a);
}
GDPO_INLINE __m512d register_max_where(__mmask8 mask, __m512d a, __m512d b) {
  return _mm512_mask_max_pd(a, mask, b, a);
}
GDPO_INLINE __m512 register_sqrt(__m512 a) {
  return _mm512_maskz_sqrt_ps(static_cast<__mmask16>(-1), a);
}
GDPO_INLINE __m512d register_sqrt(__m512d a) {
  return _mm512_maskz_sqrt_pd(static_cast<__mmask8>(-1), a);
}
#define GDPO_COMPARE(name, order)                              \
  GDPO_INLINE __mmask16 register_##name(__m512 a, __m512 b) {  \
    return _mm512_cmp_ps_mask(a, b, order);                    \
  }                                                            \
  GDPO_INLINE __mmask8 register_##name(__m512d a, __m512d b) { \
    return _mm512_cmp_pd_mask(a, b, order);                    \
  }
GDPO_COMPARE(equal, _CMP_EQ_OQ)
GDPO_COMPARE(less, _CMP_LT_OQ)
GDPO_COMPARE(less_equal, _CMP_LE_OQ)
GDPO_COMPARE(differ, _CMP_NEQ_OQ)
#undef GDPO_COMPARE
// The same of integers, signed: is a > b, and is a == b.
GDPO_INLINE __mmask16 register_above(Register<16, float>::Bits a, Register<16, float>::Bits b) {
  return _mm512_cmpgt_epi32_mask(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b));
}
GDPO_INLINE __mmask8 register_above(Register<8, double>::Bits a, Register<8, double>::Bits b) {
  return _mm512_cmpgt_epi64_mask(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b));
}
GDPO_INLINE __mmask16 register_same(Register<16, float>::Bits a, Register<16, float>::Bits b) {
  return _mm512_cmpeq_epi32_mask(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b));
}
GDPO_INLINE __mmask8 register_same(Register<8, double>::Bits a, Register<8, double>::Bits b) {
  return _mm512_cmpeq_epi64_mask(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b));
}
GDPO_INLINE __mmask16 register_mask(Register<16, float>::Bits a) {
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(a));
}
GDPO_INLINE __mmask8 register_mask(Register<8, double>::Bits a) {
  return _mm512_movepi64_mask(reinterpret_cast<__m512i>(a));
}
/// n + 1 in the lanes of the mask, n in the others.
GDPO_INLINE Register<16, float>::Bits register_add_where(Register<16, float>::Bits n,
                                                         __mmask16 mask) {
  const __m512i counts = reinterpret_cast<__m512i>(n);
  return reinterpret_cast<Register<16, float>::Bits>(
      _mm512_mask_add_epi32(counts, mask, counts, _mm512_set1_epi32(1)));
}
GDPO_INLINE Register<8, double>::Bits register_add_where(Register<8, double>::Bits n,
                                                         __mmask8 mask) {
  const __m512i counts = reinterpret_cast<__m512i>(n);
  return reinterpret_cast<Register<8, double>::Bits>(
      _mm512_mask_add_epi64(counts, mask, counts, _mm512_set1_epi64(1)));
}
/// A mask of the lanes whose byte is not 0, from L bytes.
template <int L>
GDPO_INLINE auto register_load_mask(const unsigned char* p) {
  if constexpr (L == 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm_test_epi8_mask(bytes, bytes);
  } else {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return static_cast<__mmask8>(_mm_test_epi8_mask(bytes, bytes));
  }
}
GDPO_INLINE __m512 register_select(__mmask16 mask, __m512 a, __m512 b) {
  return _mm512_mask_blend_ps(mask, b, a);
}
GDPO_INLINE __m512d register_select(__mmask8 mask, __m512d a, __m512d b) {
  return _mm512_mask_blend_pd(mask, b, a);
}
#if GDPO_HAS_FMA
GDPO_INLINE __m512 register_fma(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
GDPO_INLINE __m512d register_fma(__m512d a, __m512d b, __m512d c) {
  return _mm512_fmadd_pd(a, b, c);
}
#endif
#endif
#elif GDPO_LANE_BYTES > 0 && defined(__aarch64__)
GDPO_INLINE float32x4_t register_min(float32x4_t a, float32x4_t b) { return b < a ? b : a; }
GDPO_INLINE float32x4_t register_max(float32x4_t a, float32x4_t b) { return a < b ? b : a; }
GDPO_INLINE float64x2_t register_min(float64x2_t a, float64x2_t b) { return b < a ? b : a; }
GDPO_INLINE float64x2_t register_max(float64x2_t a, float64x2_t b) { return a < b ? b : a; }
GDPO_INLINE int register_bits(float32x4_t a) {
  return static_cast<int>(vmaxvq_u32(vreinterpretq_u32_f32(a)));
}
GDPO_INLINE int register_bits(float64x2_t a) {
  const uint64x2_t bits = vreinterpretq_u64_f64(a);
  return (vgetq_lane_u64(bits, 0) | vgetq_lane_u64(bits, 1)) != 0;
}
GDPO_INLINE float32x4_t register_sqrt(float32x4_t a) { return vsqrtq_f32(a); }
GDPO_INLINE float64x2_t register_sqrt(float64x2_t a) { return vsqrtq_f64(a); }
GDPO_INLINE float32x4_t register_fma(float32x4_t a, float32x4_t b, float32x4_t c) {
  return vfmaq_f32(c, a, b);
}
GDPO_INLINE float64x2_t register_fma(float64x2_t a, float64x2_t b, float64x2_t c) {
  return vfmaq_f64(c, a, b);
}
#endif

}  // namespace math
GDPO_END_NAMESPACE
