#pragma once
// mismatch: how far the log-probs of the sampling engine are from the trainer's.
#include <gdpo/mismatch/engine/mismatch_lanes.hpp>
#include <gdpo/mismatch/keys.hpp>

GDPO_BEGIN_NAMESPACE

/// Measures how far `rollout_logp` is from `old_logp`, or from `logp` where the batch has none.
///
/// Only valid tokens are read, so a batch after prepare() gives the report of what its mask has
/// left, with its weights; before prepare() that of all. A batch without weights has weights 1.
/// completion_mask is compared with mask, for tokens that corrections have dropped.
///
/// `first_row`: the number of the batch's first row in the step, which places count from; 0 or
/// more.
///
/// It runs on the calling thread, several rows at a time, and allocates room for those that have to
/// be converted. Errors: invalid_input for settings out of range, shapes that do not fit, and a
/// batch without the arrays. Data never throws: tokens with a log-prob that is NaN or infinite are
/// left out and counted.
template <class S>
MismatchReport mismatch(const TokenBatch<S>& batch, const MismatchSettings& settings = {},
                        index_t first_row = 0) {
  constexpr const char* function = "gdpo::mismatch";
  detail::check_fields(function, "settings", settings);
  detail::check_first_row(function, first_row);
  const detail::TokenLayout layout = detail::layout_of(function, batch, detail::NeedsLogp::No);
  TokenBatch<S> read = detail::mismatch_arrays(function, batch, layout.tokens > 0);
  read.completion_mask = batch.completion_mask;
  MismatchReport report;
  report.settings = settings;
  detail::MismatchLanes<S>(read, layout, settings, first_row).add_to(report);
  return report;
}

GDPO_END_NAMESPACE
