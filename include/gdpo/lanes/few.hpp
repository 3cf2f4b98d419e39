#pragma once
// Copies of fewer than 16 elements, in a few instructions whatever their number: the last tokens of
// a row, which do not fill all lanes.
#include <gdpo/lanes/lanes.hpp>

GDPO_BEGIN_NAMESPACE
namespace math {

/// A mask in which every token counts.
constexpr unsigned char all_ones[logical_lanes] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

/// Copies n elements, at most 15, by the bits of n.
template <class T>
GDPO_INLINE void copy_pieces(T* to, const T* from, index_t n) {
  if (n & 8) std::memcpy(to, from, 8 * sizeof(T)), to += 8, from += 8;
  if (n & 4) std::memcpy(to, from, 4 * sizeof(T)), to += 4, from += 4;
  if (n & 2) std::memcpy(to, from, 2 * sizeof(T)), to += 2, from += 2;
  if (n & 1) std::memcpy(to, from, sizeof(T));
}

// With masks in the instructions, the stores fill whole registers. A vector load that follows would
// have to wait for smaller stores to reach the cache.
#if GDPO_LANE_BYTES >= 64 && defined(__x86_64__)
GDPO_INLINE unsigned first_bits(index_t n) { return (1u << n) - 1; }
GDPO_INLINE void copy_few(float* to, const float* from, index_t n) {
  // In halves, because lanes of double store eight floats at a time.
  const auto low = static_cast<__mmask8>(first_bits(n)),
             high = static_cast<__mmask8>(first_bits(n) >> 8);
  _mm256_mask_storeu_ps(to, low, _mm256_maskz_loadu_ps(low, from));
  _mm256_mask_storeu_ps(to + 8, high, _mm256_maskz_loadu_ps(high, from + 8));
}
GDPO_INLINE void copy_few(double* to, const double* from, index_t n) {
  const auto low = static_cast<__mmask8>(first_bits(n)),
             high = static_cast<__mmask8>(first_bits(n) >> 8);
  _mm512_mask_storeu_pd(to, low, _mm512_maskz_loadu_pd(low, from));
  _mm512_mask_storeu_pd(to + 8, high, _mm512_maskz_loadu_pd(high, from + 8));
}
GDPO_INLINE void copy_padded(float* to, const float* from, index_t n) {
  const auto there = static_cast<__mmask16>(first_bits(n));
  _mm512_storeu_ps(to, _mm512_maskz_loadu_ps(there, from));
}
GDPO_INLINE void copy_padded(double* to, const double* from, index_t n) {
  const auto low = static_cast<__mmask8>(first_bits(n)),
             high = static_cast<__mmask8>(first_bits(n) >> 8);
  _mm512_storeu_pd(to, _mm512_maskz_loadu_pd(low, from));
  _mm512_storeu_pd(to + 8, _mm512_maskz_loadu_pd(high, from + 8));
}
GDPO_INLINE void copy_padded(unsigned char* to, const unsigned char* from, index_t n) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_maskz_loadu_epi8(static_cast<__mmask16>(first_bits(n)), from));
}
#else
/// Copies n elements, at most 15.
template <class T>
GDPO_INLINE void copy_few(T* to, const T* from, index_t n) {
  copy_pieces(to, from, n);
}
/// The same, and fills up with 0 to 16 elements.
template <class T>
GDPO_INLINE void copy_padded(T* to, const T* from, index_t n) {
#if GDPO_LANE_BYTES == 32 && defined(__AVX2__)
  const auto count = static_cast<int>(n);
  if constexpr (std::is_same_v<T, float>) {
    const __m256i place = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    for (int j = 0; j < logical_lanes; j += 8) {
      const __m256i there = _mm256_cmpgt_epi32(_mm256_set1_epi32(count - j), place);
      _mm256_storeu_ps(to + j, _mm256_maskload_ps(from + j, there));
    }
    return;
  }
  if constexpr (std::is_same_v<T, double>) {
    const __m256i place = _mm256_setr_epi64x(0, 1, 2, 3);
    for (int j = 0; j < logical_lanes; j += 4) {
      const __m256i there = _mm256_cmpgt_epi64(_mm256_set1_epi64x(count - j), place);
      _mm256_storeu_pd(to + j, _mm256_maskload_pd(from + j, there));
    }
    return;
  }
#endif
  for (int j = 0; j < logical_lanes; ++j) to[j] = T(0);
  copy_pieces(to, from, n);
}
#endif

}  // namespace math
GDPO_END_NAMESPACE
