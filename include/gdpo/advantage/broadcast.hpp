#pragma once
// broadcast_into: each token gets the advantage of its row.
#include <gdpo/stats/masked.hpp>

GDPO_BEGIN_NAMESPACE

/// Gives each token the advantage of its row, as TRL, verl and ms-swift do.
///
///     out(i, t) = advantages(i)  where mask(i, t) != 0,  exactly 0 elsewhere
///
/// Shapes: advantages (N), mask (N, T) of any arithmetic type, out (N, T); all are required, with
/// any strides. Other shapes throw invalid_input. The advantage of a row without valid tokens has
/// no effect, even if it is NaN. Allocates nothing.
template <class A, class M, class R>
void broadcast_into(View<A, 1> advantages, View<M, 2> mask, View<R, 2> out) {
  using contract::text;
  constexpr const char* function = "gdpo::broadcast_into";
  contract::check_array(function, "advantages", advantages);
  contract::check_array(function, "mask", mask);
  contract::check_written(function, "out", out);
  const index_t rows = advantages.extent[0], length = mask.extent[1];
  if (mask.extent[0] != rows || out.extent[0] != rows || out.extent[1] != length) {
    contract::fail(function, "mask, out",
                   "(" + text(mask.extent[0]) + ", " + text(length) + ") and (" +
                       text(out.extent[0]) + ", " + text(out.extent[1]) + ")",
                   "the same (N, T) with N = " + text(rows) + ", the number of advantages");
  }
  for (index_t i = 0; i < rows; ++i) {
    const R value = static_cast<R>(load(advantages(i)));
    for (index_t t = 0; t < length; ++t) out(i, t) = detail::counts(mask, i, t) ? value : R(0);
  }
}

GDPO_END_NAMESPACE
