#pragma once
// Sums of neighboring lanes, and transposition, within packs.
#include <gdpo/lanes/pack.hpp>
#include <utility>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The lanes of a followed by those of b, picked by the indices Index.
template <int W, int... Index>
GDPO_INLINE math::Pack<W> shuffle(const math::Pack<W>& a, const math::Pack<W>& b,
                                  std::integer_sequence<int, Index...>) {
#if defined(__clang__)
  return {__builtin_shufflevector(a.v, b.v, Index...)};
#else
  return {__builtin_shuffle(a.v, b.v, typename math::Register<W, double>::Bits{Index...})};
#endif
}

/// From the lanes of a followed by those of b: in every 2 H lanes the H that begin at `offset`.
template <int H, int offset, int W, int... J>
GDPO_INLINE math::Pack<W> half_segments(const math::Pack<W>& a, const math::Pack<W>& b,
                                        std::integer_sequence<int, J...>) {
  return shuffle(a, b, std::integer_sequence<int, (J / H * 2 * H + J % H + offset)...>{});
}

/// Adds the second half of every L lanes to their first half, so that L / 2 of them are left.
template <int L, int All>
GDPO_INLINE math::Pack<All / 2> add_halves(const math::Pack<All>& a) {
  const auto low = low_half(a), high = high_half(a);
  if constexpr (All == L) {
    return low + high;
  } else if constexpr (math::fits_register<All / 2, double>) {
    constexpr std::make_integer_sequence<int, All / 2> lanes{};
    return half_segments<L / 2, 0>(low, high, lanes) +
           half_segments<L / 2, L / 2>(low, high, lanes);
  } else {
    return {add_halves<L>(low), add_halves<L>(high)};
  }
}

/// The tree_sum of every L consecutive lanes, side by side. It adds whole registers, where one
/// tree_sum after the other would end in single numbers.
template <int L, int All>
GDPO_INLINE math::Pack<All / L> segment_sums(const math::Pack<All>& a) {
  if constexpr (L == 1) {
    return a;
  } else {
    return segment_sums<L / 2>(add_halves<L>(a));
  }
}

/// The sums of eight sets of 16 lanes, each as tree_sum adds them. `folded` has the first step of
/// the trees: lane j of a set plus lane j + 8.
GDPO_NOINLINE inline void eight_tree_sums(const double (&folded)[8][8], double* sums) {
  segment_sums<8>(math::Pack<64>::load(&folded[0][0])).store(sums);
}

/// Transposes the W x W numbers of r: exchanges its blocks of H x H, then does the same within
/// them.
template <int H, int W, int... J>
GDPO_INLINE void transpose(math::Pack<W>* r, std::integer_sequence<int, J...> lanes) {
  if constexpr (H > 0) {
    for (int i = 0; i < W; ++i) {
      if (i & H) continue;
      const auto a = r[i], b = r[i + H];
      r[i] = shuffle(a, b, std::integer_sequence<int, ((J & H) ? W + J - H : J)...>{});
      r[i + H] = shuffle(a, b, std::integer_sequence<int, ((J & H) ? W + J : J + H)...>{});
    }
    transpose<H / 2>(r, lanes);
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
