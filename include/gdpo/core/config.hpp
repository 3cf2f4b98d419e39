#pragma once
// What the library asks of the compiler: how functions are inlined, how wide a vector register is,
// and the name of the inline namespace. That name lists the instruction set and the floating-point
// flags of the compilation, so objects compiled with different ones can be linked into one program
// without sharing functions. Plain data (View, Moments, ...) stands outside the inline namespace,
// so that all objects of a program agree on it.
//
// Every call of min and max in the library is parenthesized, because some users' headers define
// macros of these names.
#include <gdpo/core/version.hpp>

/// GDPO_DEVICE marks a function that CUDA kernels call as well: a CUDA compiler builds it for both
/// host and device. GDPO_CALLS_ANY stands before a template that calls what its caller passes in,
/// which may exist on the host only or on the device only; it silences nvcc's warning about that.
#if defined(__CUDACC__)
#define GDPO_DEVICE __host__ __device__
#define GDPO_CALLS_ANY _Pragma("nv_exec_check_disable")
#else
#define GDPO_DEVICE
#define GDPO_CALLS_ANY
#endif

/// GDPO_FORCES_INLINE is 1 where functions are forced inline. Optimized code is only fast that way.
/// An unoptimized or sanitized build would gain nothing and take several times as long to compile,
/// so there the compiler decides. Device code is always forced inline, because a call on a device
/// needs a stack.
// g++ defines macros for its sanitizers; clang answers __has_feature instead.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
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
#define GDPO_INLINE_LAMBDA __attribute__((always_inline))  // stands after a lambda's parameters
#else
#define GDPO_HOST_INLINE inline
#define GDPO_INLINE_LAMBDA
#endif
#endif
/// Marks host code that a call runs once or never: checks, error texts, the handling of unusual
/// data. It is not inlined, and it is optimized for size.
#if defined(__GNUC__)
#define GDPO_COLD __attribute__((cold, noinline))
#else
#define GDPO_COLD GDPO_NOINLINE
#endif
#define GDPO_INLINE GDPO_DEVICE GDPO_HOST_INLINE
/// For member functions of plain data, which stands outside the inline namespace below. They are
/// inlined in every build. Otherwise objects for different instruction sets would share one symbol,
/// and the linker would keep the code of only one of them.
#define GDPO_DATA_INLINE GDPO_DEVICE GDPO_DATA_HOST_INLINE

/// Bytes of the vector register that the lanes use. 0 means no vectors, so that every lane is a
/// scalar: the compiler lacks the vector extension of GCC, or it is a CUDA front end, or the
/// instruction set has no registers that the library uses.
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

// Flags that let the compiler assume something about numbers. GCC defines a macro for each of
// them, clang only for the first two. The flags about errno and traps are left
// out, because they change no result.
#if defined(__FAST_MATH__)
#define GDPO_ABI_FAST _fast
#else
#define GDPO_ABI_FAST
#endif
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#define GDPO_FINITE_MATH 1  ///< The compiler assumes that no number is NaN or infinite.
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
