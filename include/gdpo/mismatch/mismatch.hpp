#pragma once
// mismatch: how far the log-probs of the sampling engine are from the trainer's.
#include <gdpo/mismatch/keys.hpp>
#include <gdpo/mismatch/shared/mismatch_row.hpp>
#include <gdpo/tokens/token_row.hpp>

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
/// It runs on the calling thread and allocates room for one row. Errors: invalid_input for settings
/// out of range, shapes that do not fit, and a batch without the arrays. Data never throws: tokens
/// with a log-prob that is NaN or infinite are left out and counted.
template <class S>
MismatchReport mismatch(const TokenBatch<S>& batch, const MismatchSettings& settings = {},
                        index_t first_row = 0) {
  constexpr const char* function = "gdpo::mismatch";
  detail::check_fields(function, "settings", settings);
  detail::check_first_row(function, first_row);
  const detail::TokenLayout layout = detail::layout_of(function, batch, detail::NeedsLogp::No);
  const TokenBatch<S> read = detail::mismatch_arrays(function, batch, layout.tokens > 0);
  detail::RowScratch<S> scratch;
  scratch.reserve(layout.longest);
  const bool converts = batch.completion_mask && !batch.completion_mask.in_place();
  std::vector<unsigned char> marks(converts ? static_cast<std::size_t>(layout.longest) : 0);

  MismatchReport report;
  report.settings = settings;
  for (index_t i = 0; i < layout.rows; ++i) {
    const TokenRow<S> row = detail::read_row(read, layout, i, {}, scratch);
    const detail::RowSpan span = layout(i);
    const unsigned char* completion =
        batch.completion_mask
            ? batch.completion_mask.row(span.row, span.begin, span.length, marks.data())
            : nullptr;
    detail::MismatchRow sums;
    index_t masked = 0;
    for (index_t t = 0; t < row.length; ++t) {
      if (!row.valid(t)) {
        masked += completion && completion[t] != 0;
        continue;
      }
      sums.token(
          {settings, static_cast<double>(row.old_logp[t]), static_cast<double>(row.rollout_logp[t]),
           row.weights ? static_cast<double>(row.weights[t]) : 1.0, row.weights != nullptr},
          first_row + i, t);
    }
    sums.finish(settings, first_row + i, masked);
    detail::add_mismatch(report, sums);
  }
  return report;
}

GDPO_END_NAMESPACE
