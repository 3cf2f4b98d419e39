#pragma once
// 16 bytes of a row of logits: how a thread reads them, with which functions it computes, and how
// it writes their gradient.
#include <gdpo/cuda/device/kernel.hpp>
#include <gdpo/logits/shared/sum_row.hpp>
#include <gdpo/storage/stored_as.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// The words that one memory access reads or writes.
template <int Bytes>
struct alignas(Bytes) Words {
  std::uint32_t word[Bytes / 4];
};
/// Reads Bytes bytes at p, which is aligned to them. Last: they are not read again, so they need
/// not stay in the caches.
template <int Bytes, bool Last = false>
GDPO_INLINE Words<Bytes> load_words(const void* p) {
#if defined(__CUDA_ARCH__)
  if constexpr (Last && Bytes == 16) {
    const uint4 w = __ldcs(static_cast<const uint4*>(p));
    return {{w.x, w.y, w.z, w.w}};
  } else {
    return *static_cast<const Words<Bytes>*>(p);
  }
#else
  Words<Bytes> w;
  std::memcpy(&w, p, sizeof w);
  return w;
#endif
}
/// Writes word(0), word(1), ... to p, which is aligned to Bytes. It takes a function because an
/// array of words would stay in local memory.
template <int Bytes, class Word>
GDPO_INLINE void store_words(void* p, const Word& word) {
#if defined(__CUDA_ARCH__)
  // Streaming stores: nothing reads these bytes soon, so they should not displace others in the
  // cache.
  if constexpr (Bytes == 16)
    __stcs(static_cast<uint4*>(p), make_uint4(word(0), word(1), word(2), word(3)));
  if constexpr (Bytes == 8) __stcs(static_cast<uint2*>(p), make_uint2(word(0), word(1)));
  if constexpr (Bytes == 4) __stcs(static_cast<unsigned*>(p), word(0));
#else
  for (int k = 0; k < Bytes / 4; ++k) {
    const std::uint32_t w = word(k);
    std::memcpy(static_cast<unsigned char*>(p) + 4 * k, &w, 4);
  }
#endif
}
/// Reads one number as the plain type that it is in memory.
template <class T>
GDPO_INLINE layout_t<T> load_raw(const T* p) {
#if defined(__CUDA_ARCH__)
  return *reinterpret_cast<const layout_t<T>*>(p);
#else
  layout_t<T> raw;
  std::memcpy(&raw, p, sizeof raw);
  return raw;
#endif
}
/// Writes one number of the plain type that it is in memory.
template <class T>
GDPO_INLINE void store_raw(T* p, layout_t<T> raw) {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<layout_t<T>*>(p) = raw;
#else
  std::memcpy(static_cast<void*>(p), &raw, sizeof raw);
#endif
}
GDPO_INLINE bool is_aligned_to(const void* p, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}

GDPO_INLINE float float_of(std::uint32_t bits) { return math::from_bits(bits); }
GDPO_INLINE void words_of(float x, std::uint32_t* w) { w[0] = math::bits_of(x); }
GDPO_INLINE void words_of(double x, std::uint32_t* w) {
  const std::uint64_t bits = math::bits_of(x);
  w[0] = static_cast<std::uint32_t>(bits), w[1] = static_cast<std::uint32_t>(bits >> 32);
}
GDPO_INLINE double double_of(std::uint32_t low, std::uint32_t high) {
  return math::from_bits(std::uint64_t{high} << 32 | low);
}

/// a * b + c, rounded once on every machine. With the product rounded by itself, the sum would lose
/// digits: it is much smaller than the product.
GDPO_INLINE float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}
GDPO_INLINE double fused(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

/// The t at and below which power_of_2(t) is 0.
template <class S>
constexpr S lowest_power = -static_cast<S>(std::numeric_limits<S>::max_exponent - 1);
/// 2^t; 0 from lowest_power down. For float on a device it is one instruction with a relative error
/// of 2^-22. On the host, and in double, it is the exponential of all formulas, of t ln 2.
GDPO_INLINE float power_of_2(float t) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(t));
  return y;
#else
  return math::exp_bounded(math::mul((math::max)(t, lowest_power<float>), 0.693147180559945309f));
#endif
}
GDPO_INLINE double power_of_2(double t) {
  return math::exp_bounded(math::mul((math::max)(t, lowest_power<double>), 0.693147180559945309));
}
/// 2^n for a whole n <= 0, exactly; 0 for n <= -1022 and where n is NaN.
GDPO_INLINE double whole_power_of_2(double n) {
  if (!(n > -1022)) return 0;
  return math::from_bits(static_cast<std::uint64_t>(1023 + static_cast<long long>(n)) << 52);
}

/// max(x, low); NaN if x is NaN.
GDPO_INLINE float at_least(float x, float low) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(low));
  return y;
#else
  return (math::max)(x, low);
#endif
}
GDPO_INLINE double at_least(double x, double low) { return (math::max)(x, low); }
/// The larger of a and b; the other one if one of them is NaN.
GDPO_INLINE float larger(float a, float b) {
#if defined(__CUDA_ARCH__)
  return fmaxf(a, b);
#else
  return math::is_nan(a) || a < b ? b : a;
#endif
}
GDPO_INLINE double larger(double a, double b) { return math::is_nan(a) || a < b ? b : a; }

/// The two 16-bit floats of type L in a word: their values, and functions on both at once.
template <class L>
struct Halves;
#if !defined(__CUDA_ARCH__)
template <class L>
std::uint32_t pack_halves(float low, float high) {
  L l, h;
  store(l, low), store(h, high);
  return static_cast<std::uint32_t>(l.bits) | static_cast<std::uint32_t>(h.bits) << 16;
}
#endif
template <>
struct Halves<BFloat16> {
  static constexpr std::uint32_t minus_infinity = 0xff80ff80u;
  static GDPO_INLINE float low(std::uint32_t w) { return float_of(w << 16); }
  static GDPO_INLINE float high(std::uint32_t w) { return float_of(w & 0xffff0000u); }
  static GDPO_INLINE std::uint32_t pack(float low, float high) {
#if defined(__CUDA_ARCH__)
    std::uint32_t w;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
    return w;
#else
    return pack_halves<BFloat16>(low, high);
#endif
  }
#if defined(__CUDA_ARCH__)
  static GDPO_INLINE std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
    std::uint32_t w;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(w) : "r"(a), "r"(b));
    return w;
  }
  static GDPO_INLINE std::uint32_t at_least(std::uint32_t x, std::uint32_t low) {
    std::uint32_t w;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(w) : "r"(x), "r"(low));
    return w;
  }
#endif
};
template <>
struct Halves<Float16> {
  static constexpr std::uint32_t minus_infinity = 0xfc00fc00u;
  static GDPO_INLINE float half(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
    float x;
    asm("{.reg .f16 h; mov.b16 h, %1; cvt.f32.f16 %0, h;}"
        : "=f"(x)
        : "h"(static_cast<unsigned short>(bits)));
    return x;
#else
    return static_cast<float>(load(Float16{static_cast<std::uint16_t>(bits)}));
#endif
  }
  static GDPO_INLINE float low(std::uint32_t w) { return half(w & 0xffffu); }
  static GDPO_INLINE float high(std::uint32_t w) { return half(w >> 16); }
  static GDPO_INLINE std::uint32_t pack(float low, float high) {
#if defined(__CUDA_ARCH__)
    std::uint32_t w;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
    return w;
#else
    return pack_halves<Float16>(low, high);
#endif
  }
#if defined(__CUDA_ARCH__)
  static GDPO_INLINE std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
    std::uint32_t w;
    asm("max.f16x2 %0, %1, %2;" : "=r"(w) : "r"(a), "r"(b));
    return w;
  }
  static GDPO_INLINE std::uint32_t at_least(std::uint32_t x, std::uint32_t low) {
    std::uint32_t w;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(w) : "r"(x), "r"(low));
    return w;
  }
#endif
};
/// larger() of both halves.
template <class L>
GDPO_INLINE std::uint32_t larger_halves(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  return Halves<L>::larger(a, b);
#else
  using H = Halves<L>;
  return H::pack(larger(H::low(a), H::low(b)), larger(H::high(a), H::high(b)));
#endif
}
/// at_least() of both halves.
template <class L>
GDPO_INLINE std::uint32_t halves_at_least(std::uint32_t x, std::uint32_t low) {
#if defined(__CUDA_ARCH__)
  return Halves<L>::at_least(x, low);
#else
  using H = Halves<L>;
  return H::pack(at_least(H::low(x), H::low(low)), at_least(H::high(x), H::high(low)));
#endif
}

/// 16 bytes of logits of storage T, as they stand in memory.
template <class T>
struct LogitVector {
  using L = layout_t<T>;
  using S = gdpo::detail::logit_scalar_t<T>;
  static_assert(stored_as<T>() != StoredAs::Other,
                "a device reads logits of float, double or 16-bit floats (gdpo::LayoutOf)");
  static constexpr int size = 16 / sizeof(L);
  static constexpr bool halves = sizeof(L) == 2;
  Words<16> w;

  /// Entries begin .. end - 1 of x, at most `size`, then -inf. `whole`: x is aligned to 16 bytes
  /// and all `size` entries are there.
  static GDPO_INLINE LogitVector load(const T* x, int begin, int end, bool whole) {
    if (whole) return {load_words<16>(x + begin)};
    LogitVector v = nothing();
    GDPO_UNROLL
    for (int j = 0; j < size; ++j) {
      if (begin + j < end) v.set(j, load_raw(x + begin + j));
    }
    return v;
  }
  /// Entries of -inf, which add nothing to a sum.
  static GDPO_INLINE LogitVector nothing() {
    LogitVector v{};
    GDPO_UNROLL
    for (int k = 0; k < 4; ++k) {
      if constexpr (halves) {
        v.w.word[k] = Halves<L>::minus_infinity;
      } else if constexpr (sizeof(L) == 4) {
        v.w.word[k] = 0xff800000u;
      } else {
        v.w.word[k] = k % 2 ? 0xfff00000u : 0u;
      }
    }
    return v;
  }
  /// Writes entry j.
  GDPO_INLINE void set(int j, L x) {
    if constexpr (halves) {
      const int shift = j % 2 * 16;
      w.word[j / 2] = (w.word[j / 2] & ~(0xffffu << shift)) | static_cast<std::uint32_t>(x.bits)
                                                                  << shift;
    } else {
      words_of(x, w.word + j * static_cast<int>(sizeof(L) / 4));
    }
  }
  /// All entries as S.
  GDPO_INLINE void numbers(S* x) const {
    if constexpr (halves) {
      GDPO_UNROLL
      for (int k = 0; k < 4; ++k)
        x[2 * k] = Halves<L>::low(w.word[k]), x[2 * k + 1] = Halves<L>::high(w.word[k]);
    } else {
      if constexpr (sizeof(L) == 4) {
        GDPO_UNROLL
        for (int k = 0; k < 4; ++k) x[k] = float_of(w.word[k]);
      } else {
        x[0] = double_of(w.word[0], w.word[1]), x[1] = double_of(w.word[2], w.word[3]);
      }
    }
  }
};

/// The largest number in N vectors; NaN is left out.
template <class T, int N>
GDPO_INLINE typename LogitVector<T>::S largest_of(const LogitVector<T>* v) {
  using Vector = LogitVector<T>;
  if constexpr (Vector::halves) {
    using H = Halves<typename Vector::L>;
    std::uint32_t top[N];
    GDPO_UNROLL
    for (int u = 0; u < N; ++u) {
      const std::uint32_t* w = v[u].w.word;
      top[u] = larger_halves<typename Vector::L>(larger_halves<typename Vector::L>(w[0], w[1]),
                                                 larger_halves<typename Vector::L>(w[2], w[3]));
    }
    GDPO_UNROLL
    for (int u = 1; u < N; ++u) top[0] = larger_halves<typename Vector::L>(top[0], top[u]);
    return larger(H::low(top[0]), H::high(top[0]));
  } else {
    using S = typename Vector::S;
    S most = gdpo::detail::minus_infinity<S>();
    GDPO_UNROLL
    for (int u = 0; u < N; ++u) {
      S x[Vector::size];
      v[u].numbers(x);
      GDPO_UNROLL
      for (int j = 0; j < Vector::size; ++j) most = larger(most, x[j]);
    }
    return most;
  }
}

/// Writes one result, rounded as store_numbers rounds.
template <class U, class S>
GDPO_INLINE void store_number(U* out, S y) {
  using L = layout_t<U>;
  if constexpr (sizeof(L) == 2) {
    store_raw(out, L{static_cast<std::uint16_t>(Halves<L>::pack(static_cast<float>(y), 0.0f))});
  } else {
    store_raw(out, static_cast<L>(y));
  }
}
/// Writes `size` results to out[begin ...], but none at `end` and beyond. `whole`: out is aligned
/// to store_step and all `size` entries exist.
template <int size, class S, class U>
GDPO_INLINE void store_numbers(U* out, int begin, int end, bool whole, const S* y) {
  using L = layout_t<U>;
  constexpr int bytes = size * static_cast<int>(sizeof(L)), step = bytes < 16 ? bytes : 16;
  if (whole) {
    const auto word = [&](int k) -> std::uint32_t {
      if constexpr (sizeof(L) == 2) {
        return Halves<L>::pack(static_cast<float>(y[2 * k]), static_cast<float>(y[2 * k + 1]));
      } else if constexpr (sizeof(L) == 4) {
        return math::bits_of(static_cast<L>(y[k]));
      } else {
        return static_cast<std::uint32_t>(math::bits_of(static_cast<L>(y[k / 2])) >> (k % 2 * 32));
      }
    };
    GDPO_UNROLL
    for (int k = 0; k < bytes / step; ++k) {
      store_words<step>(reinterpret_cast<unsigned char*>(out + begin) + k * step,
                        [&](int i) { return word(k * (step / 4) + i); });
    }
  } else {
    GDPO_UNROLL
    for (int j = 0; j < size; ++j) {
      if (begin + j < end) store_number(out + begin + j, y[j]);
    }
  }
}
/// Bytes that one access of store_numbers writes.
template <int size, class U>
constexpr std::size_t store_step = size * sizeof(U) < 16 ? size * sizeof(U) : 16;

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
