#pragma once
// Where the rows of a batch are, and the checks that all its arrays have one shape.
#include <algorithm>
#include <cstring>
#include <gdpo/tokens/token_batch.hpp>
#include <limits>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The place of one row: its number, its first position in the batch, its number of positions.
struct RowSpan {
  index_t row, begin, length;
};
/// Where the rows of a batch are. layout_of() makes it and checks the shape of every array.
class TokenLayout {
 public:
  index_t rows = 0;
  index_t width = 0;    // padded width; 0 if packed
  index_t longest = 0;  // positions in the longest row
  index_t tokens = 0;   // positions of the batch, masked ones included
  IndexColumn offsets;
  TokenShape shape;         // of the token arrays; its strides mean nothing
  const char* shaped = "";  // the array that has it, as messages call it: "batch.logp"

  RowSpan operator()(index_t row) const {
    if (!offsets) return {row, row * width, width};
    const index_t begin = offsets(row);
    return {row, begin, offsets(row + 1) - begin};
  }
  /// The place of the row behind `span`, which must not be the last one.
  RowSpan after(const RowSpan& span) const {
    const index_t row = span.row + 1, begin = span.begin + span.length;
    return {row, begin, offsets ? offsets(row + 1) - begin : width};
  }
};

GDPO_NOINLINE inline void check_shape_of(const char* function, const char* name,
                                         const TokenShape& array, const TokenLayout& layout) {
  const TokenShape& shape = layout.shape;
  bool same = array.rank == shape.rank;
  for (int r = 0; r < array.rank; ++r)
    same = same && r < shape.rank && array.extent[r] == shape.extent[r];
  if (!same) {
    contract::fail(function, name,
                   array.repeats ? contract::Text("one number a row")
                                 : contract::shape(array.rank, array.extent),
                   contract::shape(shape.rank, shape.extent) + ", the shape of " + layout.shaped);
  }
}
template <class Tokens>
void check_tokens(const char* function, const char* name, const Tokens& v,
                  const TokenLayout& layout) {
  if (v) check_shape_of(function, name, v.shape(), layout);
}
/// The same for an array that is written: each token has an element of its own.
template <class S>
void check_written_tokens(const char* function, const char* name, const TokenOut<S>& v,
                          const TokenLayout& layout) {
  check_tokens(function, name, v, layout);
  check_apart(function, name, v);
}
/// Checks a column of one number a row. One of rank 2 has the first two extents of tokens of rank
/// 3; beside other tokens the number of its elements is that of the rows.
GDPO_NOINLINE inline void check_rows(const char* function, const char* name, const Column& c,
                                     const TokenLayout& layout) {
  if (!c) return;
  const index_t *extents = c.extents(), *shape = layout.shape.extent;
  if (c.rank() == 2 && layout.shape.rank == 3 &&
      (extents[0] != shape[0] || extents[1] != shape[1])) {
    contract::fail(function, name, contract::shape(2, extents),
                   contract::shape(2, shape) + ", the prompts and completions of " + layout.shaped);
  }
  contract::check_entries(function, name, c.size(), layout.rows);
}

/// Refuses labels that stand in place of a mask: -100, at positions that have no label, is not 0,
/// so every position would count. Prompts and padding have it, so the ends of each row are looked
/// at.
/// `span_of(i)`: the place of row i.
template <class SpanOf>
void check_mask(const char* function, const char* name, const TokenView<unsigned char>& mask,
                index_t rows, const SpanOf& span_of) {
  constexpr double no_label = -100;
  if (!mask || mask.in_place() || mask.stored_as() == StoredAs::Other) return;
  for (index_t i = 0; i < rows; ++i) {
    const RowSpan span = span_of(i);
    if (span.length == 0) continue;
    const index_t first = mask.shape().first(span.row, span.begin);
    for (const index_t t : {index_t{0}, span.length - 1}) {
      const index_t place = first + t * mask.shape().step();
      if (load_stored<double>(mask.data(), mask.stored_as(), place) != no_label) continue;
      contract::fail(function, name,
                     "-100 at row " + contract::text(span.row) + ", token " + contract::text(t),
                     "0 where a token does not count, and not 0 where it does: of labels, where "
                     "they differ from -100");
    }
  }
}

/// Refuses a prepared batch whose masks and weights have been overwritten.
GDPO_NOINLINE inline void check_prepared(const char* function, const Prepared& prepared) {
  if (!prepared.uses || *prepared.uses == prepared.use) return;
  contract::fail(function, "batch",
                 "a prepared batch whose PrepassMemory has prepared another one since",
                 "a PrepassMemory for each prepared batch that is in use");
}

/// Fills in where the rows of a layout are, from its shape and the offsets.
GDPO_NOINLINE inline void place_rows(const char* function, const IndexColumn& offsets,
                                     TokenLayout& layout) {
  using contract::fail, contract::text;
  const TokenShape& shape = layout.shape;
  contract::check_extents(function, layout.shaped, shape.rank, shape.extent);
  if (shape.rank == 0 && !offsets) {
    fail(function, "batch", "no array of tokens and no offsets",
         "a mask, offsets or log-probs, which say how many tokens the rows have");
  }
  // The name of the array without "batch.".
  const char* const dot = std::strchr(layout.shaped, '.');
  const contract::Text name = dot ? dot + 1 : layout.shaped;
  if (shape.rank >= 2) {
    if (offsets) {
      fail(function, "batch.offsets",
           "offsets, with padded tokens (" + name + " has rank " + text(index_t{shape.rank}) + ")",
           "none, or tokens of rank 1");
    }
    layout.rows = shape.rank == 2 ? shape.extent[0] : shape.extent[0] * shape.extent[1];
    layout.width = shape.extent[shape.rank - 1];
    layout.longest = layout.rows > 0 ? layout.width : 0;
    layout.tokens = layout.rows * layout.width;
    return;
  }
  if (!offsets || offsets.size() == 0) {
    fail(function, "batch.offsets",
         shape.rank == 0 ? contract::Text("no entries")
                         : "none, with packed tokens (" + name + " has rank 1)",
         "offsets (B + 1)");
  }
  const index_t entries = offsets.size();
  contract::check_extents(function, "batch.offsets", 1, &entries);
  layout.rows = entries - 1;
  layout.offsets = offsets;
  layout.tokens = shape.rank == 1 ? shape.extent[0] : (std::numeric_limits<index_t>::max)();
}

/// Reads and checks the offsets of a packed batch: `longest`, and `tokens` where there are offsets
/// alone.
GDPO_NOINLINE inline void read_offsets(const char* function, TokenLayout& layout) {
  using contract::fail, contract::text;
  const IndexColumn& offsets = layout.offsets;
  if (!offsets) return;
  if (layout.shape.rank == 0) {
    layout.tokens = offsets(layout.rows);
    contract::check_extents(function, "batch.offsets", 1, &layout.tokens);
  }
  if (offsets(0) != 0 || offsets(layout.rows) != layout.tokens) {
    fail(function, "batch.offsets",
         "from " + text(offsets(0)) + " to " + text(offsets(layout.rows)),
         "from 0 to " + text(layout.tokens) + ", the number of tokens");
  }
  for (index_t i = 0; i < layout.rows; ++i) {
    // Compared before they are subtracted: their difference could be too large for an index_t.
    if (offsets(i + 1) < offsets(i)) {
      fail(function, "batch.offsets",
           "offsets[" + text(i + 1) + "] = " + text(offsets(i + 1)) + " after offsets[" + text(i) +
               "] = " + text(offsets(i)),
           "offsets that never decrease");
    }
    layout.longest = (std::max)(layout.longest, offsets(i + 1) - offsets(i));
  }
}

/// Makes the layout of the arrays of a batch as far as their shapes tell it, and checks the shapes.
///
/// The shape is `shape`, that of the array `shaped`; where it has rank 0, that of the first array
/// with elements, or of the first one without. No array is read, because the arrays of a device
/// cannot be: `longest` of a packed batch stays 0, and offsets are not checked. Where there are
/// offsets alone, the number of tokens is not known; it is then the largest one.
///
/// for_each_array(f) calls f(name, array) for all arrays of tokens, for_each_column(f) likewise for
/// columns of rows, with the names that messages use.
template <class ForEachArray, class ForEachColumn>
TokenLayout layout_of_shapes(const char* function, const TokenShape& shape, const char* shaped,
                             const IndexColumn& offsets, const ForEachArray& for_each_array,
                             const ForEachColumn& for_each_column) {
  TokenLayout layout;
  layout.shape = shape, layout.shaped = shaped;
  for (const bool has_elements : {true, false}) {
    for_each_array([&](const char* name, const auto& array) {
      if (layout.shape.rank == 0 && array.rank() > 0 && static_cast<bool>(array) == has_elements)
        layout.shape = array.shape(), layout.shaped = name;
    });
  }
  place_rows(function, offsets, layout);
  for_each_array(
      [&](const char* name, const auto& array) { check_tokens(function, name, array, layout); });
  for_each_column(
      [&](const char* name, const Column& column) { check_rows(function, name, column, layout); });
  return layout;
}

/// Whether a call reads the first array of its batch (batch.logp, batch.values). One that does not
/// takes a batch without it, whose shape is that of the first array that is there.
enum class NeedsLogp : bool { No, Yes };

/// layout_of_shapes() of a TokenBatch.
template <class S>
TokenLayout shape_of(const char* function, const TokenBatch<S>& b, NeedsLogp needs) {
  check_prepared(function, b.prepared);
  const TokenShape shape = needs == NeedsLogp::Yes ? b.logp.shape() : TokenShape{};
  if (needs == NeedsLogp::Yes && shape.rank == 0)
    contract::fail(function, "batch.logp", "no array", "the log-probs of the policy being trained");
  return layout_of_shapes(
      function, shape, "batch.logp", b.offsets,
      [&](const auto& f) {
#define GDPO_X(in_batch, ...) f("batch." #in_batch, b.in_batch);
        GDPO_TOKEN_ARRAYS(GDPO_X)
        GDPO_TOKEN_MARKS(GDPO_X)
      },
      [&](const auto& f) { GDPO_ROW_COLUMNS(GDPO_X) });
#undef GDPO_X
}

/// The layout with the offsets read and checked, and the masks looked at.
template <class S>
TokenLayout layout_of(const char* function, const TokenBatch<S>& b, NeedsLogp needs) {
  TokenLayout layout = shape_of(function, b, needs);
  read_offsets(function, layout);
  check_mask(function, "batch.mask", b.mask, layout.rows, layout);
  check_mask(function, "batch.completion_mask", b.completion_mask, layout.rows, layout);
  return layout;
}

}  // namespace detail
GDPO_END_NAMESPACE
