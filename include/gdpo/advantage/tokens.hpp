#pragma once
#include <gdpo/core/storage.hpp>

GDPO_BEGIN_NAMESPACE

/// Rows to tokens, `Broadcast`: out(i, t) = advantages(i) where mask(i, t) != 0, exactly 0 elsewhere (whatever the mask
/// hides). Shapes: advantages (N), mask (N, T), out (N, T); other shapes: invalid_input. TRL, verl, ms-swift.
template <class A, class M, class R>
void broadcast_into(View<A, 1> advantages, View<M, 2> mask, View<R, 2> out) {
  using contract::text;
  const index_t rows = advantages.extent[0], length = mask.extent[1];
  if (mask.extent[0] != rows || out.extent[0] != rows || out.extent[1] != length) {
    contract::fail("gdpo::broadcast_into", "mask, out",
                   "(" + text(mask.extent[0]) + ", " + text(length) + ") and (" + text(out.extent[0]) + ", " +
                       text(out.extent[1]) + ")",
                   "the same (N, T) with N = " + text(rows) + ", the number of advantages");
  }
  for (index_t i = 0; i < rows; ++i) {
    const R value = static_cast<R>(load(advantages(i)));
    for (index_t t = 0; t < length; ++t) out(i, t) = load(mask(i, t)) != 0 ? value : R(0);
  }
}

GDPO_END_NAMESPACE
