#pragma once
#include <gdpo/loss/engine/rows.hpp>

GDPO_BEGIN_NAMESPACE

/// The local counts of a batch, from the same mask as the loss; `given` stays 0. Sum them over the micro-batches and ranks of
/// an optimiser step. O(mask).
template <class S>
Normaliser count(const TokenBatch<S>& batch) {
  const detail::TokenLayout layout = detail::layout_of("gdpo::count", batch);
  const bool converts = batch.mask && !batch.mask.in_place();
  std::vector<unsigned char> scratch(converts ? static_cast<std::size_t>(layout.longest) : 0);
  Normaliser n;
  n.rows = static_cast<double>(layout.rows);
  for (index_t row = 0; row < layout.rows; ++row) {
    const index_t tokens = detail::count_row(batch.mask, layout(row), scratch.data());
    n.tokens += static_cast<double>(tokens);
    n.non_empty_rows += tokens > 0;
  }
  return n;
}

GDPO_END_NAMESPACE
