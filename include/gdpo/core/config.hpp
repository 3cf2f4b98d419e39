#pragma once
// The only feature tests of the library: inlining, register width, and the inline namespace that keeps code compiled
// for different instruction sets, or with different assumptions about numbers, apart in one program. Plain data (View,
// Moments, ...) stands outside that namespace.
// Calls of min and max are parenthesised everywhere: some users have macros of these names.
#include <gdpo/core/version.hpp>

/// What formulas and kernels are made of: compiled for the device as well where a CUDA compiler reads it.
#if defined(__CUDACC__)
#define GDPO_DEVICE __host__ __device__
#define GDPO_CALLS_ANY \
  _Pragma("nv_exec_check_disable")  // before a template that calls what only one of the two can
#else
#define GDPO_DEVICE
#define GDPO_CALLS_ANY
#endif

/// Are functions forced inline? Optimised code is fast only so. An unoptimised or a sanitized build gains nothing and would
/// compile several times as long, so there the compiler decides. For a device they always are: a call there needs a stack.
#if defined(__SANITIZE_ADDRESS__) || \
    defined(__SANITIZE_THREAD__)  // g++; clang says it by __has_feature
#define GDPO_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer) || __has_feature(undefined_behavior_sanitizer)
#define GDPO_SANITIZED 1
#endif
#endif
#if defined(__CUDACC__) || (defined(__OPTIMIZE__) && !defined(GDPO_SANITIZED))
#define GDPO_FORCES_INLINE 1
#else
#define GDPO_FORCES_INLINE 0
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#define GDPO_HOST_INLINE __forceinline
#define GDPO_DATA_HOST_INLINE __forceinline
#define GDPO_NOINLINE __declspec(noinline)
#define GDPO_INLINE_LAMBDA
#else
#if defined(__CUDACC__)
#define GDPO_NOINLINE
#else
#define GDPO_NOINLINE __attribute__((noinline))
#endif
#define GDPO_DATA_HOST_INLINE inline __attribute__((always_inline))
#if GDPO_FORCES_INLINE
#define GDPO_HOST_INLINE inline __attribute__((always_inline))
#define GDPO_INLINE_LAMBDA __attribute__((always_inline))  // behind the parameters
#else
#define GDPO_HOST_INLINE inline
#define GDPO_INLINE_LAMBDA
#endif
#endif
/// Host code that a call takes once or never: checks, error texts, what odd data needs. Compiled once, for size.
#if defined(__GNUC__)
#define GDPO_COLD __attribute__((cold, noinline))
#else
#define GDPO_COLD GDPO_NOINLINE
#endif
#define GDPO_INLINE GDPO_DEVICE GDPO_HOST_INLINE
/// For members of plain data, which stands outside the inline namespace below. They are inlined in every build: objects for
/// different instruction sets would share the function otherwise, and the linker would keep the code of one of them.
#define GDPO_DATA_INLINE GDPO_DEVICE GDPO_DATA_HOST_INLINE

/// Bytes of one vector register that the lanes use; 0: no vector extension (or the CUDA front end), every lane is a
/// scalar.
#if defined(__CUDACC__) || !defined(__GNUC__)
#define GDPO_LANE_BYTES 0
#elif defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && \
    defined(__AVX512VL__)
#define GDPO_LANE_BYTES 64
#elif defined(__AVX2__)
#define GDPO_LANE_BYTES 32
#elif defined(__SSE2__) || defined(__aarch64__)
#define GDPO_LANE_BYTES 16
#else
#define GDPO_LANE_BYTES 0
#endif

#if defined(__FMA__) || defined(__aarch64__) || defined(__CUDACC__)
#define GDPO_HAS_FMA 1
#define GDPO_ABI_FMA _fma
#else
#define GDPO_HAS_FMA 0
#define GDPO_ABI_FMA
#endif
#if defined(__AVX__) && GDPO_LANE_BYTES == 16
#define GDPO_ABI_AVX _avx
#else
#define GDPO_ABI_AVX
#endif

// What the compiler may assume of numbers, as far as it tells: GCC has a macro for each of these flags, clang only for the first
// two. The flags for errno and traps change no result, and do not stand here.
#if defined(__FAST_MATH__)
#define GDPO_ABI_FAST _fast
#else
#define GDPO_ABI_FAST
#endif
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#define GDPO_FINITE_MATH 1  ///< the compiler assumes that no number is NaN or infinite
#define GDPO_ABI_FINITE _finite
#else
#define GDPO_FINITE_MATH 0
#define GDPO_ABI_FINITE
#endif
#if defined(__ASSOCIATIVE_MATH__)
#define GDPO_ABI_ASSOCIATIVE _associative
#else
#define GDPO_ABI_ASSOCIATIVE
#endif
#if defined(__RECIPROCAL_MATH__)
#define GDPO_ABI_RECIPROCAL _reciprocal
#else
#define GDPO_ABI_RECIPROCAL
#endif
#if defined(__NO_SIGNED_ZEROS__)
#define GDPO_ABI_ZEROS _unsigned_zeros
#else
#define GDPO_ABI_ZEROS
#endif

#define GDPO_ABI_JOIN_(width, avx, fma, fast, finite, associative, reciprocal, zeros) \
  v0_lanes##width##avx##fma##fast##finite##associative##reciprocal##zeros
#define GDPO_ABI_JOIN(width, avx, fma, fast, finite, associative, reciprocal, zeros) \
  GDPO_ABI_JOIN_(width, avx, fma, fast, finite, associative, reciprocal, zeros)
#define GDPO_ABI                                                                             \
  GDPO_ABI_JOIN(GDPO_LANE_BYTES, GDPO_ABI_AVX, GDPO_ABI_FMA, GDPO_ABI_FAST, GDPO_ABI_FINITE, \
                GDPO_ABI_ASSOCIATIVE, GDPO_ABI_RECIPROCAL, GDPO_ABI_ZEROS)

#define GDPO_BEGIN_NAMESPACE \
  namespace gdpo {           \
  inline namespace GDPO_ABI {
#define GDPO_END_NAMESPACE \
  }                        \
  }
