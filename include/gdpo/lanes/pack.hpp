#pragma once
// Packs of L lanes of S (double or float) and their operations, written out for vector registers
// rather than left to the compiler's vectorizer. A pack that is wider than a register is two
// halves, so every build has the same L lanes and the same bits. Only the number of instructions
// differs.
//
// Each operation gives in every lane the bits of the scalar function of the same name
// (math/scalar.hpp), whatever the width (tests/unit/lanes/lanes_test.cpp). Which NaN comes out of
// two is the processor's choice.
#include <gdpo/lanes/register.hpp>
#include <gdpo/storage/storage.hpp>

GDPO_BEGIN_NAMESPACE
namespace math {

/// The result of a comparison of two packs: true or false in each lane.
template <int L, class S = double, bool = fits_register<L, S>>
struct Mask {
  Mask<L / 2, S> low, high;
};
template <int L, class S>
struct Mask<L, S, true> {
  typename Register<L, S>::Mask v;
};

/// A mask from the bits of a comparison: each lane has all its bits set or none.
template <int L, class S>
GDPO_INLINE Mask<L, S> mask_of(typename Register<L, S>::Bits bits) {
  if constexpr (has_bit_mask<L, S>) {
    return {register_mask(bits)};
  } else {
    return {bits};
  }
}

/// L numbers of type S; L is a power of two.
///   all(x)    x in every lane
///   load(p)   L elements of any storage type from p, each rounded to S; p may be unaligned
///   store(p)  the L lanes to p, which may be unaligned
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
  // Copies of the lanes are written out, because g++ copies such a struct through memory.
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
  template <class T>
  static GDPO_INLINE Pack load(const T* p) {
    if constexpr (L >= 4 && std::is_same_v<S, double> && std::is_same_v<T, float>) {
      typename Register<L, S>::Single single;
      std::memcpy(&single, p, sizeof single);
#if defined(__AVX__) && GDPO_LANE_BYTES > 0
      Pack r;  // one instruction, where g++ 12 makes three or four of __builtin_convertvector
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

// Defines an operation by one expression of registers; a wider pack applies it to its two halves.
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

// Defines a comparison. It is false where an operand is NaN.
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

#define GDPO_MASKWISE(name, bool_op, lane_op)                               \
  template <int L, class S>                                                 \
  GDPO_INLINE Mask<L, S> name(const Mask<L, S>& a, const Mask<L, S>& b) {   \
    if constexpr (L == 1) {                                                 \
      return {a.v bool_op b.v};                                             \
    } else if constexpr (fits_register<L, S>) {                             \
      return {static_cast<typename Register<L, S>::Mask>(a.v lane_op b.v)}; \
    } else {                                                                \
      return {name(a.low, b.low), name(a.high, b.high)};                    \
    }                                                                       \
  }
GDPO_MASKWISE(both, &&, &)
GDPO_MASKWISE(either, ||, |)
#undef GDPO_MASKWISE

/// Whether a < b or a > b; false where one of them is NaN.
template <int L, class S>
GDPO_INLINE Mask<L, S> differ(const Pack<L, S>& a, const Pack<L, S>& b) {
  if constexpr (has_bit_mask<L, S>) {
    return {register_differ(a.v, b.v)};
  } else {
    return either(a<b, a> b);
  }
}

// min and max give a where a or b is NaN, as the scalars do.
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

/// In each lane a if the mask is true, else b.
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

/// min(a, b) and max(a, b) in the lanes of the mask, and a in the others.
#define GDPO_WHERE(name)                                                           \
  template <int L, class S>                                                        \
  GDPO_INLINE Pack<L, S> name##_where(const Mask<L, S>& mask, const Pack<L, S>& a, \
                                      const Pack<L, S>& b) {                       \
    if constexpr (has_bit_mask<L, S>) {                                            \
      return {register_##name##_where(mask.v, a.v, b.v)};                          \
    } else {                                                                       \
      return select(mask, (name)(a, b), a);                                        \
    }                                                                              \
  }
GDPO_WHERE(min)
GDPO_WHERE(max)
#undef GDPO_WHERE

/// Returns a, and hides from the optimizer how it was computed (math/scalar.hpp).
template <int L, class S>
GDPO_INLINE Pack<L, S> opaque(Pack<L, S> a) {
  if constexpr (!fits_register<L, S>) {
    return {opaque(a.low), opaque(a.high)};
  } else if constexpr (L == 1) {
    return {opaque(a.v)};
  } else {
#if defined(__CUDACC__)  // a CUDA front end has scalars only
#elif defined(__x86_64__)
    asm("" : "+v"(a.v));
#elif defined(__aarch64__)
    asm("" : "+w"(a.v));
#endif
    return a;
  }
}

/// a * b, rounded once; no addition that follows can turn it into an fma.
template <int L, class S>
GDPO_INLINE Pack<L, S> mul(const Pack<L, S>& a, const Pack<L, S>& b) {
  if constexpr (fits_register<L, S>) {
    return opaque(Pack<L, S>{a.v * b.v});
  } else {
    return {mul(a.low, b.low), mul(a.high, b.high)};
  }
}

/// a * b + c, rounded once in a build for a machine with the instruction (GDPO_HAS_FMA), else
/// twice.
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

/// |a|; the sign of a zero or a NaN stays as it is.
template <int L, class S>
GDPO_INLINE Pack<L, S> abs(const Pack<L, S>& a) {
  const Pack<L, S> zero = Pack<L, S>::all(S(0));
  return select(a < zero, zero - a, a);
}

/// 2^n for the integer n that a shifted number holds in its low bits (math/scalar.hpp).
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

/// differences | (a ^ b) on the bits, which collects where two packs differ.
///
/// These bit operations run on other execution ports than additions, so they cost a loop that adds
/// nothing.
template <int L>
GDPO_INLINE Pack<L> collect_differences(const Pack<L>& differences, const Pack<L>& a,
                                        const Pack<L>& b) {
  if constexpr (!fits_register<L, double>) {
    return {collect_differences(differences.low, a.low, b.low),
            collect_differences(differences.high, a.high, b.high)};
  } else if constexpr (L == 1) {
    return {from_bits(bits_of(differences.v) | (bits_of(a.v) ^ bits_of(b.v)))};
  } else {
    using Bits = typename Register<L, double>::Bits;
    using Value = typename Register<L, double>::Value;
    return {reinterpret_cast<Value>(reinterpret_cast<Bits>(differences.v) |
                                    (reinterpret_cast<Bits>(a.v) ^ reinterpret_cast<Bits>(b.v)))};
  }
}
/// The lanes without any bit set: collect_differences() found no difference there.
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

/// The square root, correctly rounded. It sets no errno.
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

/// Lanes whose bits without the sign are at least the exponent of infinity, as bits.
template <int L, class S, class Bits, class Integer>
GDPO_INLINE Bits is_not_finite(const Bits& magnitude, Integer exponent) {
#if GDPO_LANE_BYTES == 16 && defined(__x86_64__) && !defined(__SSE4_2__)
  if constexpr (L == 2) return register_not_finite(magnitude);
#endif
  return magnitude >= exponent;
}

// is_nan, is_inf, is_zero, not_finite and is_finite look at the bits, as the scalar functions do,
// so they are right under -ffast-math too.
#define GDPO_BY_BITS(name, one_lane, with_bit_mask, lanes)                                         \
  template <int L, class S>                                                                        \
  GDPO_INLINE Mask<L, S> name(const Pack<L, S>& a) {                                               \
    if constexpr (!fits_register<L, S>) {                                                          \
      return {name(a.low), name(a.high)};                                                          \
    } else if constexpr (L == 1) {                                                                 \
      return {one_lane};                                                                           \
    } else {                                                                                       \
      using Integer = std::conditional_t<std::is_same_v<S, float>, std::int32_t, std::int64_t>;    \
      using Bits = typename Register<L, S>::Bits;                                                  \
      constexpr bool single = std::is_same_v<S, float>;                                            \
      constexpr Integer magnitude =                                                                \
          static_cast<Integer>(single ? 0x7fffffff : 0x7fffffffffffffff);                          \
      constexpr Integer exponent = static_cast<Integer>(single ? 0x7f800000 : 0x7ff0000000000000); \
      const Bits bits = reinterpret_cast<Bits>(opaque(a).v) & magnitude;                           \
      (void)exponent;                                                                              \
      if constexpr (has_bit_mask<L, S>) {                                                          \
        return {with_bit_mask};                                                                    \
      } else {                                                                                     \
        return mask_of<L, S>(lanes);                                                               \
      }                                                                                            \
    }                                                                                              \
  }
GDPO_BY_BITS(is_nan, is_nan(a.v), register_above(bits, Bits{} + exponent), bits > exponent)
GDPO_BY_BITS(is_inf, is_inf(a.v), register_same(bits, Bits{} + exponent), bits == exponent)
GDPO_BY_BITS(is_zero, is_zero(a.v), register_same(bits, Bits{}), bits == 0)
GDPO_BY_BITS(not_finite, not_finite(a.v), register_above(bits, Bits{} + (exponent - 1)),
             (is_not_finite<L, S>(bits, exponent)))
GDPO_BY_BITS(is_finite, is_finite(a.v), register_above(Bits{} + exponent, bits),
             ~(is_not_finite<L, S>(bits, exponent)))
#undef GDPO_BY_BITS

/// Whether the mask is true in any lane.
GDPO_INLINE bool any(bool mask) { return mask; }
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

/// Lanes 0 to L/2 - 1.
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
/// Lanes L/2 to L - 1.
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

/// The sum of the lanes as a tree: lane j is added to lane j + L/2 for j < L/2, then the same is
/// done with these L/2 sums, until one is left.
template <int L>
GDPO_INLINE double tree_sum(const Pack<L>& a) {
  if constexpr (L == 1) {
    return a.v;
  } else {
    return tree_sum(low_half(a) + high_half(a));
  }
}

/// The smallest lane. A NaN may get lost.
template <int L>
GDPO_INLINE double tree_min(const Pack<L>& a) {
  if constexpr (L == 1) {
    return a.v;
  } else {
    return tree_min((min)(low_half(a), high_half(a)));
  }
}

/// The scalar type of V, which is float, double or a pack of them.
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

/// A number as V, in every lane; a V is returned as it is.
///
/// Formulas use it for their constants, so that one template serves float, double and packs.
/// Numbers are taken by value, because code on a device cannot take the address of a constant of
/// the host.
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
