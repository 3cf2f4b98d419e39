#pragma once
#include <gdpo/lanes/pack.hpp>
#include <utility>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Lanes From of a, then b.
template <int W, int... From>
GDPO_INLINE math::Pack<W> shuffle(const math::Pack<W>& a, const math::Pack<W>& b,
                                  std::integer_sequence<int, From...>) {
#if defined(__clang__)
  return {__builtin_shufflevector(a.v, b.v, From...)};
#else
  return {__builtin_shuffle(a.v, b.v, typename math::Register<W, double>::Bits{From...})};
#endif
}

/// Of the lanes of a, then b: in every 2 H the H from `offset`.
template <int H, int offset, int W, int... J>
GDPO_INLINE math::Pack<W> half_segments(const math::Pack<W>& a, const math::Pack<W>& b,
                                        std::integer_sequence<int, J...>) {
  return shuffle(a, b, std::integer_sequence<int, (J / H * 2 * H + J % H + offset)...>{});
}

/// Of every L lanes the first half plus the second half.
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

/// The tree_sum of every L consecutive lanes, side by side: two registers at a time, where tree_sum takes one number.
template <int L, int All>
GDPO_INLINE math::Pack<All / L> segment_sums(const math::Pack<All>& a) {
  if constexpr (L == 1) {
    return a;
  } else {
    return segment_sums<L / 2>(add_halves<L>(a));
  }
}

/// The W x W numbers of r, rows and columns exchanged: blocks of H x H, then those within them.
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
