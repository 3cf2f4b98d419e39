#pragma once
// Loads lanes from memory that holds float, double or 16-bit floats, and stores them. V is a scalar
// or a pack of lanes in one register; both give the same bits.
#include <gdpo/lanes/lanes.hpp>

GDPO_BEGIN_NAMESPACE
namespace math {

// For bfloat16, the upper half of a float. load_high_halves loads 16-bit numbers into the upper
// halves of the lanes and sets the lower halves to 0. store_low_halves stores the lower halves of
// lanes that hold integers from -2^15 to 2^15 - 1 (the shift in store_lanes keeps the sign).
#if GDPO_LANE_BYTES > 0 && defined(__x86_64__)
GDPO_INLINE void load_high_halves(const void* p, Register<4, float>::Bits& out) {
  __m128i halves = _mm_setzero_si128();
  std::memcpy(&halves, p, 8);
  out = reinterpret_cast<Register<4, float>::Bits>(_mm_unpacklo_epi16(_mm_setzero_si128(), halves));
}
GDPO_INLINE void store_low_halves(void* p, Register<4, float>::Bits a) {
  const __m128i bits = reinterpret_cast<__m128i>(a), packed = _mm_packs_epi32(bits, bits);
  std::memcpy(p, &packed, 8);
}
#if GDPO_LANE_BYTES >= 32
GDPO_INLINE void load_high_halves(const void* p, Register<8, float>::Bits& out) {
  __m128i halves;
  std::memcpy(&halves, p, 16);
  out = reinterpret_cast<Register<8, float>::Bits>(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
GDPO_INLINE void store_low_halves(void* p, Register<8, float>::Bits a) {
  const __m256i bits = reinterpret_cast<__m256i>(a);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(bits, bits), 0x08);
  std::memcpy(p, &packed, 16);
}
#endif
#if GDPO_LANE_BYTES >= 64  // the forms with a zero mask, for the reason given in register.hpp
GDPO_INLINE void load_high_halves(const void* p, Register<16, float>::Bits& out) {
  constexpr auto all = static_cast<__mmask16>(-1);
  __m256i halves;
  std::memcpy(&halves, p, 32);
  const __m512i wide = _mm512_maskz_slli_epi32(all, _mm512_maskz_cvtepu16_epi32(all, halves), 16);
  out = reinterpret_cast<Register<16, float>::Bits>(wide);
}
GDPO_INLINE void store_low_halves(void* p, Register<16, float>::Bits a) {
  __m256i packed =
      _mm512_maskz_cvtepi32_epi16(static_cast<__mmask16>(-1), reinterpret_cast<__m512i>(a));
  // Keeps the conversion and the store apart: the one instruction that does both takes three times
  // as long on processors of AMD.
  asm("" : "+v"(packed));
  std::memcpy(p, &packed, 32);
}
#endif
#elif GDPO_LANE_BYTES > 0 && defined(__aarch64__)
GDPO_INLINE void load_high_halves(const void* p, Register<4, float>::Bits& out) {
  uint16x4_t halves;
  std::memcpy(&halves, p, 8);
  out = vreinterpretq_s32_u32(vshll_n_u16(halves, 16));
}
GDPO_INLINE void store_low_halves(void* p, Register<4, float>::Bits a) {
  const int16x4_t packed = vmovn_s32(a);
  std::memcpy(p, &packed, 8);
}
#endif

// Conversions of binary16 by instruction, with the results of Storage<Float16>.
#if GDPO_LANE_BYTES >= 32 && defined(__F16C__)
#define GDPO_CONVERTS_HALF 1
#if GDPO_LANE_BYTES >= 64
using HalfRegister = __m256i;
GDPO_INLINE __m512 register_from_half(__m256i h) {
  return _mm512_maskz_cvtph_ps(static_cast<__mmask16>(-1), h);
}
GDPO_INLINE __m256i half_from_register(__m512 a) {
  return _mm512_maskz_cvtps_ph(static_cast<__mmask16>(-1), a, _MM_FROUND_TO_NEAREST_INT);
}
#else
using HalfRegister = __m128i;
GDPO_INLINE __m256 register_from_half(__m128i h) { return _mm256_cvtph_ps(h); }
GDPO_INLINE __m128i half_from_register(__m256 a) {
  return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT);
}
#endif
#else
#define GDPO_CONVERTS_HALF 0
#endif

/// Loads Lanes<V>::width numbers of any storage type.
template <class V, class T>
GDPO_INLINE V load_lanes(const T* p) {
  [[maybe_unused]] constexpr int L = Lanes<V>::width;
  if constexpr (L == 1) {
    return static_cast<V>(gdpo::load(*p));
  } else if constexpr (std::is_same_v<layout_t<T>, BFloat16>) {
    typename Register<L, float>::Bits bits;
    load_high_halves(p, bits);
    return {reinterpret_cast<typename Register<L, float>::Value>(bits)};
#if GDPO_CONVERTS_HALF
  } else if constexpr (std::is_same_v<layout_t<T>, Float16>) {
    HalfRegister halves;
    std::memcpy(&halves, p, sizeof halves);
    return {register_from_half(halves)};
#else
  } else if constexpr (std::is_same_v<layout_t<T>, Float16>) {
    // The bits of a binary16, 13 places to the left, are those of a float but for the bias of its
    // exponent: 127 in place of 15. Below 2^-14 a binary16 has no leading 1 and the bits are made
    // those of 2^-14 plus the number.
    using Bits = typename Register<L, float>::Bits;
    using Value = typename Register<L, float>::Value;
    constexpr int one = 1 << 23, infinite = 31 * one, rebias = (127 - 15) * one;
    Bits halves;
    load_high_halves(p, halves);
    const Bits size = (halves & 0x7fff0000) >> 3, sign = halves ^ (halves & 0x7fff0000);
    const Bits normal = size + (size >= infinite ? Bits{} + 2 * rebias : Bits{} + rebias);
    const Bits quiet = normal | (size > infinite ? Bits{} + 0x400000 : Bits{});
    const Bits least = Bits{} + (rebias + one);  // of 2^-14
    const Bits below = reinterpret_cast<Bits>(
        Value(reinterpret_cast<Value>(size + least) - reinterpret_cast<Value>(least)));
    return {reinterpret_cast<Value>((size < one ? below : quiet) | sign)};
#endif
  } else {
    return V::load(p);
  }
}

/// Stores as many results, each rounded to the nearest T, ties to even.
template <class V, class T>
GDPO_INLINE void store_lanes(T* p, const V& v) {
  [[maybe_unused]] constexpr int L = Lanes<V>::width;
  if constexpr (L == 1) {
    gdpo::store(*p, v);
  } else if constexpr (std::is_same_v<T, scalar_t<V>>) {
    v.store(p);
  } else if constexpr (std::is_same_v<layout_t<T>, BFloat16>) {
    using Bits = typename Register<L, float>::Bits;
    // The upper half of a float is a bfloat16. Adding 0x7fff, and 1 more if the lowest kept bit is
    // set, rounds to the nearest, ties to even. A NaN gets the quiet bit and loses the lower half
    // first, so that rounding cannot turn it into an infinity.
    const V quiet{reinterpret_cast<typename Register<L, float>::Value>(
        (reinterpret_cast<Bits>(v.v) & ~0xffff) | 0x400000)};
    const Bits bits = reinterpret_cast<Bits>(select(is_nan(v), quiet, v).v);
    store_low_halves(p, (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#if GDPO_CONVERTS_HALF
  } else if constexpr (std::is_same_v<layout_t<T>, Float16>) {
    const HalfRegister halves = half_from_register(v.v);
    std::memcpy(static_cast<void*>(p), &halves, sizeof halves);
#endif
  } else {
    scalar_t<V> values[L];
    v.store(values);
    for (int j = 0; j < L; ++j) gdpo::store(p[j], values[j]);
  }
}

}  // namespace math
GDPO_END_NAMESPACE
