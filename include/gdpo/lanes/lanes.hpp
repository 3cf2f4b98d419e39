#pragma once
// One interface to a number and to a pack of numbers, so that a loop is written once and runs at
// any width.
#include <gdpo/lanes/pack.hpp>

GDPO_BEGIN_NAMESPACE
namespace math {

/// Every sum over tokens has this many lanes, whatever the width of a register: element t goes to
/// lane t mod 16. So a sum has the same bits with scalars, SSE2, AVX2, AVX-512 and NEON.
constexpr int logical_lanes = 16;

/// The members of V that loops use; this is the case of a float or double, which is one lane.
///   width                 lanes of V
///   load(p), store(p, x)  `width` elements from p as a V, and back
///   load_mask(p)          the mask of the lanes whose byte is not 0, from `width` bytes
///   all_lanes()           the mask that is true in every lane
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

  /// Counts in each lane how often a mask was true. lanes() gives the counts as numbers, up to
  /// 2^24, and total() their sum.
  struct Count {
    std::int32_t n = 0;
    GDPO_INLINE void add(bool mask) { n += mask; }
    GDPO_INLINE index_t total() const { return n; }
    GDPO_INLINE V lanes() const { return static_cast<V>(n); }
  };
};

/// The case of a pack, which fits into one register.
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
    // g++ 12 makes one instruction of this loop, but L loads of __builtin_convertvector.
    alignas(sizeof(Bits)) Integer wide[L];
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
        n -= mask.v;  // a true lane is -1 as an integer
      }
    }
    GDPO_INLINE index_t total() const {
      Integer counts[L];  // indexing n itself would keep it out of a register in the whole loop
      std::memcpy(counts, &n, sizeof n);
      Integer sum = 0;
      for (const Integer x : counts) sum += x;
      return sum;
    }
    GDPO_INLINE V lanes() const {
      using Value = typename Register<L, S>::Value;
      if constexpr (std::is_same_v<S, float>) {
        return {__builtin_convertvector(n, Value)};
      } else {  // not every processor has the instruction: 2^52 + n has n as its low bits
        constexpr std::int64_t bits = 0x4330000000000000;
        // The result is hidden: the sum of several must not begin with their 2^52.
        return math::opaque(V{reinterpret_cast<Value>(n + bits) - 0x1p52});
      }
    }
  };
};

/// What vectorized loops compute with: one register of S, or S itself where there are no vectors.
template <class S>
using Native = std::conditional_t<native_width<S> == 1, S, Pack<native_width<S>, S>>;

/// The sum of the 16 logical lanes, added in double as a tree (tree_sum).
///
/// lanes_of(k) gives the k-th register, which holds the lanes k * width to (k + 1) * width - 1.
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
