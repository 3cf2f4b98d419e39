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
  return tokens;
}

/// The arrays of a row of tokens_of(), under the names that they have in the ValueBatch.
template <class S>
struct ValueRow {
  const S *values, *old_values, *returns;
  explicit ValueRow(const TokenRow<S>& row)
      : values(row.logp), old_values(row.old_logp), returns(row.advantages) {}
};

/// Refuses arrays whose shapes do not fit, under the names of the ValueBatch. After this,
/// layout_of() and shape_of() of tokens_of() can only find fault with what has the same name in
/// both batches.
template <class S>
void check_value_shapes(const char* function, const ValueBatch<S>& b, NeedsLogp needs) {
  using contract::fail, contract::Text;
  TokenLayout layout;
  TokenShape& shape = layout.shape;
  layout.shaped = "values";
  if (needs == NeedsLogp::Yes) shape = b.values.shape();
  if (needs == NeedsLogp::Yes && shape.rank == 0)
    fail(function, "batch.values", "no array", "the values of the critic that is trained");
  const auto for_each = [&](const auto& f) {
    f("batch.values", b.values), f("batch.old_values", b.old_values);
    f("batch.returns", b.returns), f("batch.mask", b.mask);
  };
  for (const bool has_elements : {true, false}) {  // an array without elements is the last to ask
    for_each([&](const char* name, const auto& of) {
      if (shape.rank == 0 && of.rank() > 0 && static_cast<bool>(of) == has_elements)
        shape = of.shape(), layout.shaped = name + sizeof "batch";
    });
  }
  if (shape.rank == 0) return;  // there are offsets alone, or nothing: both have one name
  contract::check_extents(function, Text("batch.") + layout.shaped, shape.rank, shape.extent);
  const bool packed = shape.rank == 1;
  if (packed && (!b.offsets || b.offsets.size() == 0)) {
    fail(function, "batch.offsets",
         "none, with packed tokens (" + Text(layout.shaped) + " has rank 1)", "offsets (B + 1)");
  }
  if (!packed && b.offsets) {
    fail(function, "batch.offsets",
         "offsets, with padded tokens (" + Text(layout.shaped) + " has rank " +
             Text(index_t{shape.rank}) + ")",
         "none, or tokens of rank 1");
  }
  for_each([&](const char* name, const auto& of) { check_tokens(function, name, of, layout); });
  const index_t entries = packed ? b.offsets.size() : 0;
  contract::check_extents(function, "batch.offsets", 1, &entries);
  layout.rows = packed            ? entries - 1
                : shape.rank == 2 ? shape.extent[0]
                                  : shape.extent[0] * shape.extent[1];
  check_rows(function, "batch.row_weights", b.row_weights, layout);
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
  if (reads_width(loss.aggregate) && batch.offsets) {
    fail(function, "aggregate.padded_width", "true, with a packed batch",
         "a constant: packed tokens have no padded width");
  }
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
