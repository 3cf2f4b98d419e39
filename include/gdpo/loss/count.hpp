#pragma once
#include <gdpo/loss/engine/rows.hpp>

GDPO_BEGIN_NAMESPACE

/// The counts of one (micro-)batch: valid tokens, rows, and rows with a valid token.
///
/// Count the batch that the loss is given, so after prepare(). Add the counts of all micro-batches
/// and ranks of an optimiser step, and give the sum to each loss call. `given` stays 0.
///
/// It reads the mask once; without a mask it reads nothing but the offsets. Nothing is allocated
/// unless the mask has to be converted, because its elements are not bytes or not contiguous.
/// Throws invalid_input for shapes and offsets that do not fit.
template <class S>
Normaliser count(const TokenBatch<S>& batch) {
  return detail::count_rows(batch, detail::layout_of("gdpo::count", batch));
}

GDPO_END_NAMESPACE
