#pragma once
// Loops over float or double numbers in memory, 16 lanes of double at a time.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <gdpo/lanes/lanes.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

using ParameterLanes = math::Pack<math::logical_lanes>;

/// Calls f(lanes) for the n numbers at x, 16 at a time; the last lanes beyond n are 0.
template <class S, class F>
GDPO_HOST_INLINE void for_lanes(const S* x, index_t n, const F& f) {
  constexpr int lanes = math::logical_lanes;
  index_t i = 0;
  for (; i + lanes <= n; i += lanes) f(ParameterLanes::load(x + i));
  if (i == n) return;
  S last[lanes] = {};
  for (int j = 0; i + j < n; ++j) last[j] = x[i + j];
  f(ParameterLanes::load(last));
}

/// Writes lanes as float or double, rounded to the nearest.
template <int L, class S>
GDPO_HOST_INLINE void store_as(const math::Pack<L, S>& lanes, S* p) {
  lanes.store(p);
}
template <int L>
GDPO_HOST_INLINE void store_as(const math::Pack<L>& lanes, float* p) {
  if constexpr (L == 1) {
    *p = static_cast<float>(lanes.v);
  } else if constexpr (math::fits_register<L, double>) {
    math::Lanes<math::Pack<L>>::store(p, lanes);
  } else {
    store_as(lanes.low, p), store_as(lanes.high, p + L / 2);
  }
}
/// x[i] = f(x[i], y[i], ...) for n numbers, in 16 lanes of C at a time. The first ones go by
/// themselves, so that the others are stored on whole cache lines. Lanes that hold no number are
/// computed from zeros.
template <class C, class F, class S, class... Others>
GDPO_HOST_INLINE void change_lanes(index_t n, const F& f, S* x, const Others*... y) {
  using Lanes = math::Pack<math::logical_lanes, C>;
  constexpr index_t lanes = math::logical_lanes;
  constexpr std::uintptr_t line = 64;
  const auto change_part = [&](index_t first, index_t m) {
    if (m == 0) return;
    const auto padded = [&](const auto* p) {
      std::remove_const_t<std::remove_pointer_t<decltype(p)>> copy[lanes] = {};
      std::memcpy(copy, p + first, static_cast<std::size_t>(m) * sizeof copy[0]);
      return Lanes::load(copy);
    };
    S copy[lanes];
    store_as(f(padded(x), padded(y)...), copy);
    std::memcpy(x + first, copy, static_cast<std::size_t>(m) * sizeof copy[0]);
  };
  const auto misalignment = reinterpret_cast<std::uintptr_t>(x) % line / sizeof(S);
  const auto unaligned =
      static_cast<index_t>(misalignment > 0 ? line / sizeof(S) - misalignment : 0);
  index_t i = (std::min)(n, unaligned);
  change_part(0, i);
  for (; i + lanes <= n; i += lanes) store_as(f(Lanes::load(x + i), Lanes::load(y + i)...), x + i);
  change_part(i, n - i);
}

}  // namespace detail
GDPO_END_NAMESPACE
