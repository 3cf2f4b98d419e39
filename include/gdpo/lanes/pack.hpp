#pragma once
// L lanes of double over the vector extension of GCC and Clang: written is what is vectorised. A pack wider than one
// register is two halves, so every build has the same L lanes and the same bits; only the number of instructions
// differs.
#include <gdpo/core/storage.hpp>
#include <gdpo/math/scalar.hpp>

GDPO_BEGIN_NAMESPACE
namespace math {

// g++ drops a vector_size that depends on a template parameter, hence one line for each width.
template <int L>
struct Register {};
template <>
struct Register<1> {
  using Value = double;
  using Mask = bool;
};
#if GDPO_LANE_BYTES >= 16
template <>
struct Register<2> {
  typedef double Value __attribute__((vector_size(16)));
  typedef std::int64_t Mask __attribute__((vector_size(16)));
};
#endif
#if GDPO_LANE_BYTES >= 32
template <>
struct Register<4> {
  typedef double Value __attribute__((vector_size(32)));
  typedef float Single __attribute__((vector_size(16)));
  typedef std::int64_t Mask __attribute__((vector_size(32)));
};
#endif
#if GDPO_LANE_BYTES >= 64
template <>
struct Register<8> {
  typedef double Value __attribute__((vector_size(64)));
  typedef float Single __attribute__((vector_size(32)));
  typedef std::int64_t Mask __attribute__((vector_size(64)));
};
#endif

template <int L>
constexpr bool fits_register = L == 1 || L * 8 <= GDPO_LANE_BYTES;
template <int L>
constexpr bool converts_floats = L >= 4 && fits_register<L>;

template <int L, bool = fits_register<L>>
struct Mask {
  Mask<L / 2> low, high;
};
template <int L>
struct Mask<L, true> {
  typename Register<L>::Mask v;
};

template <int L, bool = fits_register<L>>
struct Pack {
  Pack<L / 2> low, high;
  static GDPO_INLINE Pack all(double x) { return {Pack<L / 2>::all(x), Pack<L / 2>::all(x)}; }
  template <class T>
  static GDPO_INLINE Pack load(const T* p) {
    return {Pack<L / 2>::load(p), Pack<L / 2>::load(p + L / 2)};
  }
  GDPO_INLINE void store(double* p) const { low.store(p), high.store(p + L / 2); }
};
template <int L>
struct Pack<L, true> {
  typename Register<L>::Value v;
  static GDPO_INLINE Pack all(double x) {
    if constexpr (L == 1) {
      return {x};
    } else {
      return {x - typename Register<L>::Value{}};
    }
  }
  static GDPO_INLINE Pack load(const double* p) {
    Pack r;
    std::memcpy(&r.v, p, sizeof r.v);
    return r;
  }
  /// Of any storage type.
  template <class T>
  static GDPO_INLINE Pack load(const T* p) {
    if constexpr (converts_floats<L> && std::is_same_v<T, float>) {
      typename Register<L>::Single single;
      std::memcpy(&single, p, sizeof single);
#if defined(__AVX512F__)
      if constexpr (L == 8) {  // g++ 12 makes four instructions of the conversion
        Pack r;
        asm("vcvtps2pd %1, %0" : "=v"(r.v) : "v"(single));
        return r;
      }
#endif
      return {__builtin_convertvector(single, typename Register<L>::Value)};
    } else {
      double values[L];
      for (int j = 0; j < L; ++j) values[j] = gdpo::load(p[j]);
      return load(values);
    }
  }
  GDPO_INLINE void store(double* p) const { std::memcpy(p, &v, sizeof v); }
};

// One body for a register and for two halves of a wider pack.
#define GDPO_LANEWISE(Result, name, expression)                     \
  template <int L>                                                  \
  GDPO_INLINE Result<L>(name)(const Pack<L>& a, const Pack<L>& b) { \
    if constexpr (fits_register<L>) {                               \
      return {expression};                                          \
    } else {                                                        \
      return {(name)(a.low, b.low), (name)(a.high, b.high)};        \
    }                                                               \
  }
GDPO_LANEWISE(Pack, operator+, a.v + b.v)
GDPO_LANEWISE(Pack, operator-, a.v - b.v)
GDPO_LANEWISE(Pack, operator/, a.v / b.v)
GDPO_LANEWISE(Pack, min, b.v < a.v ? b.v : a.v)
GDPO_LANEWISE(Pack, max, a.v < b.v ? b.v : a.v)
GDPO_LANEWISE(Mask, operator==, a.v == b.v)
GDPO_LANEWISE(Mask, operator<, a.v < b.v)
#undef GDPO_LANEWISE

template <int L>
GDPO_INLINE Mask<L> operator|(const Mask<L>& a, const Mask<L>& b) {
  if constexpr (L == 1) {
    return {a.v || b.v};
  } else if constexpr (fits_register<L>) {
    return {a.v | b.v};
  } else {
    return {a.low | b.low, a.high | b.high};
  }
}

/// mask ? a : b, lane by lane.
template <int L>
GDPO_INLINE Pack<L> select(const Mask<L>& mask, const Pack<L>& a, const Pack<L>& b) {
  if constexpr (fits_register<L>) {
    return {mask.v ? a.v : b.v};
  } else {
    return {select(mask.low, a.low, b.low), select(mask.high, a.high, b.high)};
  }
}

template <int L>
GDPO_INLINE Pack<L> opaque(Pack<L> a) {
  if constexpr (!fits_register<L>) {
    return {opaque(a.low), opaque(a.high)};
  } else if constexpr (L == 1) {
    return {opaque(a.v)};
  } else {
#if defined(__x86_64__)
    asm("" : "+v"(a.v));
#elif defined(__aarch64__)
    asm("" : "+w"(a.v));
#endif
    return a;
  }
}

/// Lanewise product that no later addition can absorb (scalar.hpp).
template <int L>
GDPO_INLINE Pack<L> mul(const Pack<L>& a, const Pack<L>& b) {
  if constexpr (fits_register<L>) {
    return opaque(Pack<L>{a.v * b.v});
  } else {
    return {mul(a.low, b.low), mul(a.high, b.high)};
  }
}

template <int L>
GDPO_INLINE Pack<L> abs(const Pack<L>& a) {
  const Pack<L> zero = Pack<L>::all(0.0);
  return select(a < zero, zero - a, a);
}

/// before | (a ^ b) on the bits: collects where two packs differ, on the pipes that do not add.
template <int L>
GDPO_INLINE Pack<L> collect_differences(const Pack<L>& before, const Pack<L>& a, const Pack<L>& b) {
  if constexpr (!fits_register<L>) {
    return {collect_differences(before.low, a.low, b.low), collect_differences(before.high, a.high, b.high)};
  } else if constexpr (L == 1) {
    return {from_bits(bits_of(before.v) | (bits_of(a.v) ^ bits_of(b.v)))};
  } else {
    using Bits = typename Register<L>::Mask;
    using Value = typename Register<L>::Value;
    return {reinterpret_cast<Value>(reinterpret_cast<Bits>(before.v) |
                                    (reinterpret_cast<Bits>(a.v) ^ reinterpret_cast<Bits>(b.v)))};
  }
}
/// Lanes without any bit: no difference was collected.
template <int L>
GDPO_INLINE Mask<L> has_no_bit(const Pack<L>& a) {
  if constexpr (!fits_register<L>) {
    return {has_no_bit(a.low), has_no_bit(a.high)};
  } else if constexpr (L == 1) {
    return {bits_of(a.v) == 0};
  } else {
    return {reinterpret_cast<typename Register<L>::Mask>(opaque(a).v) == 0};
  }
}

/// Correctly rounded, one instruction a register: no errno and no library call, whatever the flags.
template <int L>
GDPO_INLINE Pack<L> sqrt(Pack<L> a) {
  if constexpr (!fits_register<L>) {
    return {sqrt(a.low), sqrt(a.high)};
  } else if constexpr (L == 1) {
    return {std::sqrt(a.v)};
  } else {
#if defined(__AVX__)
    asm("vsqrtpd %0, %0" : "+v"(a.v));
#elif defined(__x86_64__)
    asm("sqrtpd %0, %0" : "+x"(a.v));
#else
    asm("fsqrt %0.2d, %0.2d" : "+w"(a.v));
#endif
    return a;
  }
}

/// Decided by the bits, as the scalar is_nan and is_zero.
template <int L>
GDPO_INLINE Mask<L> is_nan(const Pack<L>& a) {
  if constexpr (!fits_register<L>) {
    return {is_nan(a.low), is_nan(a.high)};
  } else if constexpr (L == 1) {
    return {is_nan(a.v)};
  } else {
    using Bits = typename Register<L>::Mask;
    return {(reinterpret_cast<Bits>(opaque(a).v) & 0x7fffffffffffffff) > 0x7ff0000000000000};
  }
}
template <int L>
GDPO_INLINE Mask<L> not_finite(const Pack<L>& a) {
  if constexpr (!fits_register<L>) {
    return {not_finite(a.low), not_finite(a.high)};
  } else if constexpr (L == 1) {
    return {is_nan(a.v) || is_inf(a.v)};
  } else {
    using Bits = typename Register<L>::Mask;
    return {(reinterpret_cast<Bits>(opaque(a).v) & 0x7ff0000000000000) == 0x7ff0000000000000};
  }
}
template <int L>
GDPO_INLINE Mask<L> is_zero(const Pack<L>& a) {
  if constexpr (!fits_register<L>) {
    return {is_zero(a.low), is_zero(a.high)};
  } else if constexpr (L == 1) {
    return {is_zero(a.v)};
  } else {
    using Bits = typename Register<L>::Mask;
    return {(reinterpret_cast<Bits>(opaque(a).v) & 0x7fffffffffffffff) == 0};
  }
}

template <int L>
GDPO_INLINE bool any(const Mask<L>& mask) {
  if constexpr (!fits_register<L>) {
    return any(mask.low) || any(mask.high);
  } else if constexpr (L == 1) {
    return mask.v;
  } else {
    std::int64_t folded = 0;
    for (int i = 0; i < L; ++i) folded |= mask.v[i];
    return folded != 0;
  }
}

template <int L>
GDPO_INLINE Pack<L / 2> low_half(const Pack<L>& a) {
  if constexpr (!fits_register<L>) {
    return a.low;
  } else if constexpr (L == 2) {
    return {a.v[0]};
  } else if constexpr (L == 4) {
    return {typename Register<L / 2>::Value{a.v[0], a.v[1]}};
  } else {
    return {typename Register<L / 2>::Value{a.v[0], a.v[1], a.v[2], a.v[3]}};
  }
}
template <int L>
GDPO_INLINE Pack<L / 2> high_half(const Pack<L>& a) {
  if constexpr (!fits_register<L>) {
    return a.high;
  } else if constexpr (L == 2) {
    return {a.v[1]};
  } else if constexpr (L == 4) {
    return {typename Register<L / 2>::Value{a.v[2], a.v[3]}};
  } else {
    return {typename Register<L / 2>::Value{a.v[4], a.v[5], a.v[6], a.v[7]}};
  }
}

/// The lanes added as a tree: (0 + L/2), (1 + L/2 + 1), ..., then halves of that.
template <int L>
GDPO_INLINE double tree_sum(const Pack<L>& a) {
  if constexpr (L == 1) {
    return a.v;
  } else {
    return tree_sum(low_half(a) + high_half(a));
  }
}

template <int L>
GDPO_INLINE double tree_min(const Pack<L>& a) {
  if constexpr (L == 1) {
    return a.v;
  } else {
    return tree_min((min)(low_half(a), high_half(a)));
  }
}

/// A number as V: every formula is written once for double and for packs. A V stays what it is.
template <class V>
GDPO_INLINE V constant(const V& x) {
  return x;
}
template <class V, std::enable_if_t<!std::is_same_v<V, double>, int> = 0>
GDPO_INLINE V constant(double x) {
  if constexpr (std::is_arithmetic_v<V>) {
    return static_cast<V>(x);
  } else {
    return V::all(x);
  }
}

}  // namespace math
GDPO_END_NAMESPACE
