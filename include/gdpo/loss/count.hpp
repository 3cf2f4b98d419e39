#pragma once
#include <gdpo/loss/engine/rows.hpp>

GDPO_BEGIN_NAMESPACE

/// The counts of one (micro-)batch: valid tokens, rows, and rows with a valid token.
///
/// The order of a step is prepare, count, loss. Count each batch that a loss is given, after
/// prepare() and before the first loss; add the counts of all micro-batches and ranks, and give the
/// sum to every loss call. `given` stays 0. A loss refuses what count() has returned for a batch
/// whose mask prepare() has changed since, unless it is part of a sum.
///
/// No log-probs are needed: a mask says how many tokens there are, and so do the offsets of packed
/// rows without a mask. So a step can be counted before its first forward pass.
///
/// It reads the mask once; without a mask it reads nothing but the offsets. Nothing is allocated
/// unless the mask has to be converted, because its elements are not bytes or not contiguous.
/// Throws invalid_input for shapes and offsets that do not fit.
template <class S>
Normaliser count(const TokenBatch<S>& batch) {
  const detail::TokenLayout layout = detail::layout_of("gdpo::count", batch, detail::NeedsLogp::No);
  Normaliser n = detail::count_rows(batch, layout);
  n.counted = {batch.prepared.mask_changes, n.tokens, n.rows};
  return n;
}

GDPO_END_NAMESPACE
