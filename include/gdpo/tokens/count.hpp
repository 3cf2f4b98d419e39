#pragma once
// gdpo::count: the tokens and rows of a batch, which a loss is divided by.
#include <gdpo/core/exec.hpp>
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

/// The same on the threads that a tag names: gdpo::seq, gdpo::simd or gdpo::parallel(executor). All
/// give the same counts. A mask whose elements have to be converted is read on the calling thread.
template <class Exec, class S, std::enable_if_t<detail::is_exec_v<Exec>, int> = 0>
Normalizer count(const Exec& exec, const TokenBatch<S>& batch) {
  const detail::TokenLayout layout = detail::layout_of("gdpo::count", batch, detail::NeedsLogp::No);
  // A thread reads 64 bytes of the mask in the time of one other number.
  constexpr index_t bytes = 64, rows_at_once = 16;
  const index_t units = (layout.rows + rows_at_once - 1) / rows_at_once;
  const index_t threads = detail::workers_for(exec, units, layout.tokens / bytes);
  if (threads == 1 || !batch.mask || !batch.mask.in_place()) return count(batch);
  std::atomic<index_t> tokens{0}, non_empty{0};
  detail::for_each_unit(exec, threads, units, [&](index_t, index_t unit) {
    index_t of_unit = 0, rows = 0;
    const index_t end = (std::min)((unit + 1) * rows_at_once, layout.rows);
    for (index_t i = unit * rows_at_once; i < end; ++i) {
      const index_t of_row = detail::count_row(batch.mask, layout(i), nullptr);
      of_unit += of_row, rows += of_row > 0;
    }
    tokens.fetch_add(of_unit, std::memory_order_relaxed);
    non_empty.fetch_add(rows, std::memory_order_relaxed);
  });
  Normalizer n;
  n.rows = static_cast<double>(layout.rows);
  n.tokens = static_cast<double>(tokens.load());
  n.non_empty_rows = static_cast<double>(non_empty.load());
  n.counted = {batch.prepared.mask_changes, n.tokens, n.rows};
  return n;
}

GDPO_END_NAMESPACE
