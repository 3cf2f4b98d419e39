#pragma once
#include <gdpo/loss/engine/rows.hpp>

GDPO_BEGIN_NAMESPACE

/// The local counts of a batch, from the same mask as the loss; `given` stays 0. Sum them over the micro-batches and ranks of
/// an optimiser step. O(mask).
template <class S>
Normaliser count(const TokenBatch<S>& batch) {
  return detail::count_rows(batch, detail::layout_of("gdpo::count", batch));
}

GDPO_END_NAMESPACE
