#pragma once
// A ValueBatch as the TokenBatch whose layout, rows and counts it has, and the checks of a call.
#include <gdpo/tokens/check_counts.hpp>
#include <gdpo/tokens/token_row.hpp>
#include <gdpo/value/value_batch.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The arrays of a ValueBatch as a TokenBatch holds them: values as logp, old values as old_logp
/// (`reads_old`: whether they are read), returns as token_advantages. Everything that finds rows
/// and counts tokens then serves both.
template <class S>
TokenBatch<S> tokens_of(const ValueBatch<S>& b, bool reads_old) {
  TokenBatch<S> tokens;
  tokens.logp = b.values, tokens.token_advantages = b.returns;
  if (reads_old) tokens.old_logp = b.old_values;
  tokens.mask = b.mask, tokens.offsets = b.offsets, tokens.row_weights = b.row_weights;
  tokens.group_tokens = b.group_tokens;
  return tokens;
}

/// The arrays of a row of tokens_of(), under the names that they have in the ValueBatch.
template <class S>
struct ValueRow {
  const S *values, *old_values, *returns;
  explicit ValueRow(const TokenRow<S>& row)
      : values(row.logp), old_values(row.old_logp), returns(row.advantages) {}
};

/// The layout of a ValueBatch as far as the shapes tell it (layout_of_shapes).
template <class S>
TokenLayout shape_of(const char* function, const ValueBatch<S>& b, NeedsLogp needs) {
  const TokenShape shape = needs == NeedsLogp::Yes ? b.values.shape() : TokenShape{};
  if (needs == NeedsLogp::Yes && shape.rank == 0) {
    contract::fail(function, "batch.values", "no array",
                   "the values of the critic that is trained");
  }
  return layout_of_shapes(
      function, shape, "batch.values", b.offsets,
      [&](const auto& f) {
        f("batch.values", b.values), f("batch.old_values", b.old_values);
        f("batch.returns", b.returns), f("batch.mask", b.mask);
      },
      [&](const auto& f) {
        f("batch.row_weights", b.row_weights), f("batch.group_tokens", b.group_tokens);
      });
}
/// The layout with the offsets read and checked, and the mask looked at.
template <class S>
TokenLayout layout_of(const char* function, const ValueBatch<S>& b, NeedsLogp needs) {
  TokenLayout layout = shape_of(function, b, needs);
  read_offsets(function, layout);
  check_mask(function, "batch.mask", b.mask, layout.rows, layout);
  return layout;
}

/// Whether a clip of this size holds anything in a batch of S; no clip reads no old values.
template <class S>
bool clips(double clip) {
  return clip <= static_cast<double>((std::numeric_limits<S>::max)());
}

/// Checks the settings of a value loss and that the batch has the arrays that they need.
template <class S, class Loss>
void check_value_loss(const char* function, const Loss& loss, const ValueBatch<S>& batch,
                      const TokenLayout& layout) {
  using contract::fail;
  check_fields(function, "", loss);
  check_width(function, loss.aggregate, layout);
  check_group(function, loss.aggregate, batch, layout);
  if (layout.tokens == 0) return;  // nothing will be read
  if (!batch.returns)
    fail(function, "batch.returns", "no array", "what the values are trained towards");
  if (clips<S>(loss.clip) && !batch.old_values) {
    fail(function, "batch.old_values", "no array",
         "the values at the rollout, because clip is finite");
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
