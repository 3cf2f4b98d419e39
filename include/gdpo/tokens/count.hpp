#pragma once
// gdpo::count: the tokens and rows of a batch, which a loss is divided by.
#include <gdpo/tokens/token_row.hpp>

GDPO_BEGIN_NAMESPACE

/// The counts of one (micro-)batch: valid tokens, rows, and rows with a valid token.
///
/// Call it after prepare() and before the first loss of the step, whose counts are the sum over its
/// micro-batches and ranks: "One step" in include/gdpo/loss/README.md. `given` stays 0. A loss
/// refuses what count() has returned for a batch whose mask prepare() has changed since, unless it
/// is part of a sum. No log-probs are needed, only a mask, or the offsets of packed rows.
///
/// It reads the mask once; without a mask it reads nothing but the offsets. Nothing is allocated
/// unless the mask has to be converted, because its elements are not bytes or not contiguous.
/// Throws invalid_input for shapes and offsets that do not fit.
template <class S>
Normalizer count(const TokenBatch<S>& batch) {
  const detail::TokenLayout layout = detail::layout_of("gdpo::count", batch, detail::NeedsLogp::No);
  Normalizer n = detail::count_rows(batch, layout);
  n.counted = {batch.prepared.mask_changes, n.tokens, n.rows};
  return n;
}

GDPO_END_NAMESPACE
