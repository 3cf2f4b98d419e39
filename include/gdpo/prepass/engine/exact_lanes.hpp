#pragma once
// Exact sums of the numbers of a row in vector lanes.
#include <gdpo/prepass/engine/row_lanes.hpp>
#include <gdpo/stats/exact_sum.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The smallest lane.
GDPO_INLINE double least_of_lanes(double x) { return x; }
template <int L>
GDPO_INLINE double least_of_lanes(const math::Pack<L>& x) {
  return math::tree_min(x);
}

/// Adds f(x) exactly for the n numbers x that are not NaN, none of them larger than `reach` after
/// f.
///
/// Each f(x) is cut into three parts with 40 binary digits each, at the same places for all. Up to
/// 4096 parts with the same place add up in a double without rounding, so few sums are left for
/// the long accumulator. Digits further down are added to it one by one; they are rare.
template <class V, class F>
void add_row_exactly(ExactSum& sum, const double* numbers, index_t n, double reach, const F& f) {
  if (math::is_zero(reach)) return;
  constexpr index_t block = 4096;
  constexpr int digits = 40, parts = 3;
  const int exponent = static_cast<int>((math::bits_of(reach) >> 52) & 0x7ff) - 1023 + 1;
  const bool in_parts = exponent > -800 && exponent < 900;  // reach < 2^exponent
  double shifts[parts];
  for (int k = 0; k < parts; ++k) {
    // Numbers of this size have the last digit of part k as their last.
    const int last = exponent - digits * (k + 1) + 52;
    shifts[k] = in_parts ? math::from_bits(static_cast<std::uint64_t>(last + 1023) << 52) * 1.5 : 0;
  }
  for (index_t begin = 0; begin < n; begin += block) {
    const index_t length = (std::min)(block, n - begin);
    V totals[parts];
    for (V& total : totals) total = math::constant<V>(0.0);
    for_each_lanes<V>(length, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
      using L = typename decltype(lanes)::type;
      constexpr int width = math::Lanes<L>::width;
      const L zero = math::constant<L>(0.0), x = math::Lanes<L>::load(numbers + begin + t);
      L rest = math::select(math::is_nan(x), zero, L(f(x)));
      if constexpr (std::is_same_v<L, V>) {
        for (int k = 0; in_parts && k < parts; ++k) {
          const L shift = math::constant<L>(shifts[k]);
          const L part = math::opaque(L(rest + shift)) - shift;
          totals[k] = math::opaque(L(totals[k] + part)), rest = math::opaque(L(rest - part));
        }
        if constexpr (width > 1) {
          if (!math::any(math::differ(rest, zero))) return;
        }
      }
      double left[width];
      math::Lanes<L>::store(left, rest);
      for (const double one : left) sum.add(one);
    });
    for (const V& total : totals) {
      double lanes[math::Lanes<V>::width];
      math::Lanes<V>::store(lanes, total);
      for (const double one : lanes) sum.add(one);
    }
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
