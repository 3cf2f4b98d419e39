#pragma once
// The speed of the memory, for comparison: loops that load and store with next to no arithmetic.
// The compiler vectorizes them.
#include <omp.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace probes {

/// f(begin, end) on each of `threads` threads, for equal shares of 0 ... n - 1.
template <class F>
void share(int threads, std::ptrdiff_t n, const F& f) {
  if (threads == 1) return f(std::ptrdiff_t{0}, n);
#pragma omp parallel num_threads(threads)
  {
    const std::ptrdiff_t workers = omp_get_num_threads(), worker = omp_get_thread_num();
    f(n * worker / workers, n * (worker + 1) / workers);
  }
}

/// Loads and stores what K1 does: 17 bytes a token.
[[gnu::noinline]] inline void k1_traffic(const float* logp, const float* old_logp,
                                         const float* ref_logp, const unsigned char* mask,
                                         float* __restrict gradient, std::ptrdiff_t n) {
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    const float sum = logp[i] + old_logp[i] + ref_logp[i];
    gradient[i] = mask[i] ? sum : 0.0f;
  }
}
/// a = b + 3 c: 12 bytes an element.
[[gnu::noinline]] inline void triad(float* __restrict a, const float* b, const float* c,
                                    std::ptrdiff_t n) {
  for (std::ptrdiff_t i = 0; i < n; ++i) a[i] = b[i] + 3.0f * c[i];
}
/// 8 bytes an element. The product keeps the compiler from calling memcpy, which bypasses the
/// cache.
[[gnu::noinline]] inline void copy(float* __restrict to, const float* from, std::ptrdiff_t n) {
  for (std::ptrdiff_t i = 0; i < n; ++i) to[i] = 1.5f * from[i];
}
/// The bytes of T an element. The bits are added as integers, whose sum the compiler may reorder:
/// then a vector register costs one load and one addition.
template <class T>
[[gnu::noinline]] auto read(const T* from, std::ptrdiff_t n) {
  using Sum = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  Sum sum = 0;
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    std::conditional_t<sizeof(T) == 2, std::uint16_t, Sum> bits;
    std::memcpy(&bits, from + i, sizeof bits);
    sum += bits;
  }
  return sum;
}

}  // namespace probes
