#pragma once
// L lanes of S (double or float) over the vector extension of GCC and Clang: written is what is vectorised. A pack wider than
// one register is two halves, so every build has the same L lanes and the same bits; only the number of instructions
// differs.
#include <gdpo/lanes/register.hpp>
#include <gdpo/storage/storage.hpp>

GDPO_BEGIN_NAMESPACE
namespace math {

template <int L, class S = double, bool = fits_register<L, S>>
struct Mask {
  Mask<L / 2, S> low, high;
};
template <int L, class S>
struct Mask<L, S, true> {
  typename Register<L, S>::Mask v;
};

/// Of lanes of bits, all or none in each.
template <int L, class S>
GDPO_INLINE Mask<L, S> mask_of(typename Register<L, S>::Bits bits) {
  if constexpr (has_bit_mask<L, S>) {
    return {register_mask(bits)};
  } else {
    return {bits};
  }
}

template <int L, class S = double, bool = fits_register<L, S>>
struct Pack {
  using Half = Pack<L / 2, S>;
  Half low, high;
  static GDPO_INLINE Pack all(S x) { return {Half::all(x), Half::all(x)}; }
  template <class T>
  static GDPO_INLINE Pack load(const T* p) {
    return {Half::load(p), Half::load(p + L / 2)};
  }
  GDPO_INLINE void store(S* p) const { low.store(p), high.store(p + L / 2); }
};
template <int L, class S>
struct Pack<L, S, true> {
  using Value = typename Register<L, S>::Value;
  Value v;
  // Copies of the lanes, not of a struct: those g++ leaves behind in memory.
  Pack() = default;
  GDPO_INLINE Pack(Value x) : v(x) {}
  GDPO_INLINE Pack(const Pack& o) : v(o.v) {}
  GDPO_INLINE Pack& operator=(const Pack& o) {
    v = o.v;
    return *this;
  }
  static GDPO_INLINE Pack all(S x) {
    if constexpr (L == 1) {
      return {x};
    } else {
      return {x - typename Register<L, S>::Value{}};
    }
  }
  static GDPO_INLINE Pack load(const S* p) {
    if constexpr (L == 1) {
      return {*p};
    } else {
      return {*reinterpret_cast<const typename Register<L, S>::Memory*>(p)};
    }
  }
  /// Of any storage type.
  template <class T>
  static GDPO_INLINE Pack load(const T* p) {
    if constexpr (L >= 4 && std::is_same_v<S, double> && std::is_same_v<T, float>) {
      typename Register<L, S>::Single single;
      std::memcpy(&single, p, sizeof single);
#if defined(__AVX__) && GDPO_LANE_BYTES > 0
      Pack r;  // g++ 12 makes three or four instructions of the conversion
#if defined(__AVX512F__)
      asm("vcvtps2pd %1, %0" : "=v"(r.v) : "vm"(single));
#else
      asm("vcvtps2pd %1, %0" : "=x"(r.v) : "xm"(single));
#endif
      return r;
#else
      return {__builtin_convertvector(single, typename Register<L, S>::Value)};
#endif
    } else {
      S values[L];
      for (int j = 0; j < L; ++j) values[j] = static_cast<S>(gdpo::load(p[j]));
      return load(values);
    }
  }
  GDPO_INLINE void store(S* p) const {
    if constexpr (L == 1) {
      *p = v;
    } else {
      *reinterpret_cast<typename Register<L, S>::Memory*>(p) = v;
    }
  }
};

// One body for a register and for two halves of a wider pack.
#define GDPO_LANEWISE(Result, name, expression)                              \
  template <int L, class S>                                                  \
  GDPO_INLINE Result<L, S>(name)(const Pack<L, S>& a, const Pack<L, S>& b) { \
    if constexpr (fits_register<L, S>) {                                     \
      return {expression};                                                   \
    } else {                                                                 \
      return {(name)(a.low, b.low), (name)(a.high, b.high)};                 \
    }                                                                        \
  }
GDPO_LANEWISE(Pack, operator+, a.v + b.v)
GDPO_LANEWISE(Pack, operator-, a.v - b.v)
GDPO_LANEWISE(Pack, operator/, a.v / b.v)
#undef GDPO_LANEWISE

#define GDPO_COMPARE(op, with_bit_mask, lanes)                                   \
  template <int L, class S>                                                      \
  GDPO_INLINE Mask<L, S> operator op(const Pack<L, S>& a, const Pack<L, S>& b) { \
    if constexpr (has_bit_mask<L, S>) {                                          \
      return {with_bit_mask};                                                    \
    } else if constexpr (fits_register<L, S>) {                                  \
      return {lanes};                                                            \
    } else {                                                                     \
      return {a.low op b.low, a.high op b.high};                                 \
    }                                                                            \
  }
GDPO_COMPARE(==, register_equal(a.v, b.v), a.v == b.v)
GDPO_COMPARE(<, register_less(a.v, b.v), a.v < b.v)
GDPO_COMPARE(>, register_less(b.v, a.v), a.v > b.v)
GDPO_COMPARE(<=, register_less_equal(a.v, b.v), a.v <= b.v)
GDPO_COMPARE(>=, register_less_equal(b.v, a.v), a.v >= b.v)
#undef GDPO_COMPARE

#define GDPO_MASKWISE(name, of_bool, of_lanes)                               \
  template <int L, class S>                                                  \
  GDPO_INLINE Mask<L, S> name(const Mask<L, S>& a, const Mask<L, S>& b) {    \
    if constexpr (L == 1) {                                                  \
      return {a.v of_bool b.v};                                              \
    } else if constexpr (fits_register<L, S>) {                              \
      return {static_cast<typename Register<L, S>::Mask>(a.v of_lanes b.v)}; \
    } else {                                                                 \
      return {name(a.low, b.low), name(a.high, b.high)};                     \
    }                                                                        \
  }
GDPO_MASKWISE(both, &&, &)
GDPO_MASKWISE(either, ||, |)
#undef GDPO_MASKWISE

template <int L, class S>
GDPO_INLINE Mask<L, S> differ(const Pack<L, S>& a, const Pack<L, S>& b) {
  if constexpr (has_bit_mask<L, S>) {
    return {register_differ(a.v, b.v)};
  } else {
    return either(a<b, a> b);
  }
}

// The functions of register.hpp; one lane is a scalar.
#define GDPO_BY_REGISTER(name)                                             \
  template <int L, class S>                                                \
  GDPO_INLINE Pack<L, S>(name)(const Pack<L, S>& a, const Pack<L, S>& b) { \
    if constexpr (L == 1) {                                                \
      return {(name)(a.v, b.v)};                                           \
    } else if constexpr (fits_register<L, S>) {                            \
      return {register_##name(a.v, b.v)};                                  \
    } else {                                                               \
      return {(name)(a.low, b.low), (name)(a.high, b.high)};               \
    }                                                                      \
  }
GDPO_BY_REGISTER(min)
GDPO_BY_REGISTER(max)
#undef GDPO_BY_REGISTER

template <int L, class S>
GDPO_INLINE Pack<L, S> operator-(const Pack<L, S>& a) {
  if constexpr (fits_register<L, S>) {
    return {-a.v};
  } else {
    return {-a.low, -a.high};
  }
}

/// mask ? a : b, lane by lane.
template <int L, class S>
GDPO_INLINE Pack<L, S> select(const Mask<L, S>& mask, const Pack<L, S>& a, const Pack<L, S>& b) {
  if constexpr (has_bit_mask<L, S>) {
    return {register_select(mask.v, a.v, b.v)};
  } else if constexpr (fits_register<L, S>) {
    return {mask.v ? a.v : b.v};
  } else {
    return {select(mask.low, a.low, b.low), select(mask.high, a.high, b.high)};
  }
}

template <int L, class S>
GDPO_INLINE Pack<L, S> opaque(Pack<L, S> a) {
  if constexpr (!fits_register<L, S>) {
    return {opaque(a.low), opaque(a.high)};
  } else if constexpr (L == 1) {
    return {opaque(a.v)};
  } else {
#if defined(__CUDACC__)  // scalars only
#elif defined(__x86_64__)
    asm("" : "+v"(a.v));
#elif defined(__aarch64__)
    asm("" : "+w"(a.v));
#endif
    return a;
  }
}

/// Lanewise product that no later addition can absorb (scalar.hpp).
template <int L, class S>
GDPO_INLINE Pack<L, S> mul(const Pack<L, S>& a, const Pack<L, S>& b) {
  if constexpr (fits_register<L, S>) {
    return opaque(Pack<L, S>{a.v * b.v});
  } else {
    return {mul(a.low, b.low), mul(a.high, b.high)};
  }
}

/// As the scalar fma: one rounding where the machine has the instruction, else two.
template <int L, class S>
GDPO_INLINE Pack<L, S> fma(const Pack<L, S>& a, const Pack<L, S>& b, const Pack<L, S>& c) {
  if constexpr (!fits_register<L, S>) {
    return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)};
  } else if constexpr (L == 1) {
    return {fma(a.v, b.v, c.v)};
  } else {
#if GDPO_HAS_FMA
    return {register_fma(a.v, b.v, c.v)};
#else
    return mul(a, b) + c;
#endif
  }
}

template <int L, class S>
GDPO_INLINE Pack<L, S> abs(const Pack<L, S>& a) {
  const Pack<L, S> zero = Pack<L, S>::all(S(0));
  return select(a < zero, zero - a, a);
}

/// 2^n of a shifted n: as the scalar.
template <int L, class S>
GDPO_INLINE Pack<L, S> pow2_of_shifted(const Pack<L, S>& t) {
  if constexpr (!fits_register<L, S>) {
    return {pow2_of_shifted(t.low), pow2_of_shifted(t.high)};
  } else if constexpr (L == 1) {
    return {pow2_of_shifted(t.v)};
  } else {
    using Bits = typename Register<L, S>::Bits;
    using Value = typename Register<L, S>::Value;
    return {reinterpret_cast<Value>(reinterpret_cast<Bits>(t.v)
                                    << (std::is_same_v<S, float> ? 23 : 52))};
  }
}

/// before | (a ^ b) on the bits: collects where two packs differ, on the pipes that do not add.
template <int L>
GDPO_INLINE Pack<L> collect_differences(const Pack<L>& before, const Pack<L>& a, const Pack<L>& b) {
  if constexpr (!fits_register<L, double>) {
    return {collect_differences(before.low, a.low, b.low),
            collect_differences(before.high, a.high, b.high)};
  } else if constexpr (L == 1) {
    return {from_bits(bits_of(before.v) | (bits_of(a.v) ^ bits_of(b.v)))};
  } else {
    using Bits = typename Register<L, double>::Bits;
    using Value = typename Register<L, double>::Value;
    return {reinterpret_cast<Value>(reinterpret_cast<Bits>(before.v) |
                                    (reinterpret_cast<Bits>(a.v) ^ reinterpret_cast<Bits>(b.v)))};
  }
}
/// Lanes without any bit: no difference was collected.
template <int L>
GDPO_INLINE Mask<L> has_no_bit(const Pack<L>& a) {
  if constexpr (!fits_register<L, double>) {
    return {has_no_bit(a.low), has_no_bit(a.high)};
  } else if constexpr (L == 1) {
    return {bits_of(a.v) == 0};
  } else {
    return mask_of<L, double>(reinterpret_cast<typename Register<L, double>::Bits>(opaque(a).v) ==
                              0);
  }
}

/// Correctly rounded: no errno and no library call, whatever the flags.
template <int L, class S>
GDPO_INLINE Pack<L, S> sqrt(const Pack<L, S>& a) {
  if constexpr (!fits_register<L, S>) {
    return {sqrt(a.low), sqrt(a.high)};
  } else if constexpr (L == 1) {
    return {std::sqrt(a.v)};
  } else {
    return {register_sqrt(a.v)};
  }
}

// Decided by the bits, as the scalar is_nan and the others.
#define GDPO_BY_BITS(name, one_lane, lanes)                                                        \
  template <int L, class S>                                                                        \
  GDPO_INLINE Mask<L, S> name(const Pack<L, S>& a) {                                               \
    if constexpr (!fits_register<L, S>) {                                                          \
      return {name(a.low), name(a.high)};                                                          \
    } else if constexpr (L == 1) {                                                                 \
      return {one_lane};                                                                           \
    } else {                                                                                       \
      using Integer = std::conditional_t<std::is_same_v<S, float>, std::int32_t, std::int64_t>;    \
      constexpr bool single = std::is_same_v<S, float>;                                            \
      constexpr Integer magnitude =                                                                \
          static_cast<Integer>(single ? 0x7fffffff : 0x7fffffffffffffff);                          \
      constexpr Integer exponent = static_cast<Integer>(single ? 0x7f800000 : 0x7ff0000000000000); \
      const auto bits = reinterpret_cast<typename Register<L, S>::Bits>(opaque(a).v) & magnitude;  \
      (void)exponent;                                                                              \
      return mask_of<L, S>(lanes);                                                                 \
    }                                                                                              \
  }
GDPO_BY_BITS(is_nan, is_nan(a.v), bits > exponent)
GDPO_BY_BITS(is_inf, is_inf(a.v), bits == exponent)
GDPO_BY_BITS(is_zero, is_zero(a.v), bits == 0)
GDPO_BY_BITS(not_finite, not_finite(a.v), bits >= exponent)
#undef GDPO_BY_BITS

template <int L, class S>
GDPO_INLINE bool any(const Mask<L, S>& mask) {
  if constexpr (!fits_register<L, S>) {
    return any(either(mask.low, mask.high));
  } else if constexpr (L == 1) {
    return mask.v;
  } else {
    if constexpr (has_bit_mask<L, S>) {
      return mask.v != 0;
    } else {
      return register_bits(reinterpret_cast<typename Register<L, S>::Value>(mask.v)) != 0;
    }
  }
}

template <int L>
GDPO_INLINE Pack<L / 2> low_half(const Pack<L>& a) {
  if constexpr (!fits_register<L, double>) {
    return a.low;
  } else if constexpr (L == 2) {
    return {a.v[0]};
  } else if constexpr (L == 4) {
    return {typename Register<L / 2, double>::Value{a.v[0], a.v[1]}};
  } else {
    return {typename Register<L / 2, double>::Value{a.v[0], a.v[1], a.v[2], a.v[3]}};
  }
}
template <int L>
GDPO_INLINE Pack<L / 2> high_half(const Pack<L>& a) {
  if constexpr (!fits_register<L, double>) {
    return a.high;
  } else if constexpr (L == 2) {
    return {a.v[1]};
  } else if constexpr (L == 4) {
    return {typename Register<L / 2, double>::Value{a.v[2], a.v[3]}};
  } else {
    return {typename Register<L / 2, double>::Value{a.v[4], a.v[5], a.v[6], a.v[7]}};
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

/// The scalar of a V: of double and float, themselves.
template <class V>
struct ScalarOf {
  using type = V;
};
template <int L, class S>
struct ScalarOf<Pack<L, S>> {
  using type = S;
};
template <class V>
using scalar_t = typename ScalarOf<V>::type;

/// A number as V: every formula is written once for float, double and for packs of them. A V stays what it is. (Numbers by
/// value: a device has no addresses of the host's constants.)
template <class V, std::enable_if_t<std::is_arithmetic_v<V>, int> = 0>
GDPO_INLINE V constant(V x) {
  return x;
}
template <class V, std::enable_if_t<!std::is_arithmetic_v<V>, int> = 0>
GDPO_INLINE V constant(const V& x) {
  return x;
}
template <class V, std::enable_if_t<!std::is_same_v<V, double>, int> = 0>
GDPO_INLINE V constant(double x) {
  if constexpr (std::is_arithmetic_v<V>) {
    return static_cast<V>(x);
  } else {
    return V::all(static_cast<scalar_t<V>>(x));
  }
}

}  // namespace math
GDPO_END_NAMESPACE
