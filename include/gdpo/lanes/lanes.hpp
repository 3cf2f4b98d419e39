#pragma once
// One interface over a number and a pack of them, for loops that are written once and run at any width.
#include <gdpo/lanes/pack.hpp>

GDPO_BEGIN_NAMESPACE
namespace math {

/// Lanes of every sum over tokens, whatever the register: lane j holds the elements j mod 16. That is what makes the bits of
/// a sum the same for a scalar, SSE2, AVX2, AVX-512 and NEON.
constexpr int logical_lanes = 16;

/// V = float or double: one lane.
template <class V>
struct Lanes {
  using Scalar = V;
  using Mask = bool;
  static constexpr int width = 1;

  template <class T>
  static GDPO_INLINE V load(const T* p) {
    return static_cast<V>(*p);
  }
  template <class T>
  static GDPO_INLINE void store(T* p, V x) {
    *p = static_cast<T>(x);
  }
  static GDPO_INLINE bool load_mask(const unsigned char* p) { return *p != 0; }
  static GDPO_INLINE bool all_lanes() { return true; }

  /// How often a mask held, by lane.
  struct Count {
    std::int32_t n = 0;
    GDPO_INLINE void add(bool mask) { n += mask; }
    GDPO_INLINE index_t total() const { return n; }
  };
};

template <int L, class S>
struct Lanes<Pack<L, S>> {
  using V = Pack<L, S>;
  using Scalar = S;
  using Mask = math::Mask<L, S>;
  using Bits = typename Register<L, S>::Bits;
  using Integer = std::conditional_t<std::is_same_v<S, float>, std::int32_t, std::int64_t>;
  static constexpr int width = L;
  static_assert(L > 1 && fits_register<L, S>, "lanes of one register");

  template <class T>
  static GDPO_INLINE V load(const T* p) {
    return V::load(p);
  }
  template <class T>
  static GDPO_INLINE void store(T* p, const V& x) {
    if constexpr (std::is_same_v<T, S>) {
      x.store(p);
    } else if constexpr (L >= 4) {
      static_assert(std::is_same_v<T, float>, "lanes are stored as themselves or as float");
      const auto single = __builtin_convertvector(x.v, typename Register<L, S>::Single);
      std::memcpy(p, &single, sizeof single);
    } else {
      for (int j = 0; j < L; ++j) p[j] = static_cast<T>(x.v[j]);
    }
  }
  static GDPO_INLINE Mask load_mask(const unsigned char* p) {
#if GDPO_LANE_BYTES >= 64
    if constexpr (has_bit_mask<L, S>) return {register_load_mask<L>(p)};
#elif GDPO_LANE_BYTES == 16 && defined(__x86_64__)
    if constexpr (L == 4) return {register_load_mask(p)};
#endif
    alignas(sizeof(Bits)) Integer
        wide[L];  // g++ 12 makes one instruction of the loop, L loads of __builtin_convertvector
    for (int j = 0; j < L; ++j) wide[j] = p[j];
    Bits bits;
    std::memcpy(&bits, wide, sizeof bits);
    return mask_of<L, S>(bits != 0);
  }
  static GDPO_INLINE Mask all_lanes() { return mask_of<L, S>(Bits{} == 0); }

  struct Count {
    Bits n{};
    GDPO_INLINE void add(const Mask& mask) {
      if constexpr (has_bit_mask<L, S>) {
        n = register_add_where(n, mask.v);
      } else {
        n -= mask.v;
      }
    }
    GDPO_INLINE index_t total() const {
      Integer by_lane[L];  // a copy: indexing n would take it out of its register for good
      std::memcpy(by_lane, &n, sizeof n);
      Integer sum = 0;
      for (const Integer x : by_lane) sum += x;
      return sum;
    }
  };
};

/// What formulas run on where speed is wanted: one register of S, or S itself where there are none.
template <class S>
using Native = std::conditional_t<native_width<S> == 1, S, Pack<native_width<S>, S>>;

/// The sum of 16 logical lanes that stand in registers of V one after the other, in double, as a tree.
GDPO_CALLS_ANY
template <class V, class Get>
GDPO_INLINE double sum_lanes(const Get& lanes_of) {
  using Scalar = typename Lanes<V>::Scalar;
  constexpr int width = Lanes<V>::width;
  Scalar lanes[logical_lanes];
  for (int k = 0; k < logical_lanes / width; ++k) Lanes<V>::store(lanes + k * width, lanes_of(k));
  return tree_sum(Pack<logical_lanes>::load(lanes));
}

}  // namespace math
GDPO_END_NAMESPACE
