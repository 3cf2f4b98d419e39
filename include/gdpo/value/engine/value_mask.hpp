#pragma once
// Which tokens of a register a mask lets in, for masks that are runs of equal bytes.
#include <cstring>
#include <gdpo/lanes/lanes.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The mask of the lanes of V whose byte is not 0: what math::Lanes<V>::load_mask gives.
///
/// Masks of completions are runs of equal bytes, so most registers are all in or all out, which one
/// comparison of an integer tells. Where the compiler does not vectorize the loop of load_mask
/// (g++ 12 does so at -O3, not at -O2), that costs several times as much as the loss itself.
template <class V>
GDPO_INLINE mask_t<V> run_mask(const unsigned char* p) {
  using L = math::Lanes<V>;
  if constexpr (L::width > 1 && L::width <= 8) {
    constexpr std::uint64_t ones = 0x0101010101010101u;
    std::uint64_t bytes = ones, none = 0;
    std::memcpy(&bytes, p, L::width), std::memcpy(&none, p, L::width);
    // This is 0 only if no byte is 0: subtracting 1 sets the high bit of a byte that is 0, and may
    // set others only above such a byte.
    if (((bytes - ones) & ~bytes & (ones << 7)) == 0) return L::all_lanes();
    if (none == 0) return math::constant<V>(1.0) < math::constant<V>(0.0);
  }
  return L::load_mask(p);
}

}  // namespace detail
GDPO_END_NAMESPACE
