#pragma once
// Where the rows of a batch are, and the checks that all its arrays have one shape.
#include <algorithm>
#include <gdpo/tokens/token_batch.hpp>

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
  TokenShape shape;             // of the token arrays; its strides mean nothing
  const char* shaped = "logp";  // the array of the batch that has it

  RowSpan operator()(index_t row) const {
    if (!offsets) return {row, row * width, width};
    const index_t begin = offsets(row);
    return {row, begin, offsets(row + 1) - begin};
  }
};

GDPO_NOINLINE inline void check_shape_of(const char* function, const char* name,
                                         const TokenShape& own, const TokenLayout& layout) {
  const TokenShape& shape = layout.shape;
  bool same = own.rank == shape.rank;
  for (int r = 0; r < own.rank; ++r)
    same = same && r < shape.rank && own.extent[r] == shape.extent[r];
  if (!same) {
    contract::fail(
        function, name, contract::shape(own.rank, own.extent),
        contract::shape(shape.rank, shape.extent) + ", the shape of batch." + layout.shaped);
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
  const index_t *own = c.extents(), *shape = layout.shape.extent;
  if (c.rank() == 2 && layout.shape.rank == 3 && (own[0] != shape[0] || own[1] != shape[1])) {
    contract::fail(
        function, name, contract::shape(2, own),
        contract::shape(2, shape) + ", the prompts and completions of batch." + layout.shaped);
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
    const RowSpan at = span_of(i);
    if (at.length == 0) continue;
    const index_t first = mask.shape().first(at.row, at.begin);
    for (const index_t t : {index_t{0}, at.length - 1}) {
      const index_t place = first + t * mask.shape().step();
      if (load_stored<double>(mask.data(), mask.stored_as(), place) != no_label) continue;
      contract::fail(function, name,
                     "-100 at row " + contract::text(at.row) + ", token " + contract::text(t),
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

/// Whether a call reads batch.logp. One that does not takes a batch without it, whose shape is that
/// of the first array that is there.
enum class NeedsLogp : bool { No, Yes };

/// The layout as far as the shapes tell it, with all shapes checked. No array is read, because the
/// arrays of a device cannot be: `longest` of a packed batch stays 0, and offsets are not checked.
/// Where there are offsets alone, the number of tokens is not known; it is then the largest one.
template <class S>
TokenLayout shape_of(const char* function, const TokenBatch<S>& b, NeedsLogp needs) {
  using contract::fail, contract::text;
  check_prepared(function, b.prepared);
  TokenLayout layout;
  TokenShape& shape = layout.shape;
  if (needs == NeedsLogp::Yes) shape = b.logp.shape();
  if (needs == NeedsLogp::Yes && shape.rank == 0)
    fail(function, "batch.logp", "no array", "the log-probs of the policy being trained");
  const auto take = [&](const char* name, bool has_elements, const auto& of) {
    if (shape.rank == 0 && of.rank() > 0 && static_cast<bool>(of) == has_elements)
      shape = of.shape(), layout.shaped = name;
  };
  for (const bool has_elements : {true, false}) {  // an array without elements is the last to ask
#define GDPO_X(in_batch, ...) take(#in_batch, has_elements, b.in_batch);
    GDPO_TOKEN_ARRAYS(GDPO_X)
    GDPO_TOKEN_MARKS(GDPO_X)
#undef GDPO_X
  }
  contract::check_extents(function, contract::Text("batch.") + layout.shaped, shape.rank,
                          shape.extent);
  if (shape.rank == 0 && !b.offsets) {
    fail(function, "batch", "no array of tokens and no offsets",
         "a mask, offsets or log-probs, which say how many tokens the rows have");
  }
  if (shape.rank < 2) {
    if (!b.offsets || b.offsets.size() == 0) {
      fail(function, "batch.offsets",
           shape.rank == 0
               ? contract::Text("no entries")
               : "none, with packed tokens (" + contract::Text(layout.shaped) + " has rank 1)",
           "offsets (B + 1)");
    }
    const index_t entries = b.offsets.size();
    contract::check_extents(function, "batch.offsets", 1, &entries);
    layout.rows = entries - 1;
    layout.offsets = b.offsets;
    layout.tokens = shape.rank == 1 ? shape.extent[0] : (std::numeric_limits<index_t>::max)();
  } else {
    if (b.offsets) {
      fail(function, "batch.offsets",
           "offsets, with padded tokens (" + contract::Text(layout.shaped) + " has rank " +
               text(index_t{shape.rank}) + ")",
           "none, or tokens of rank 1");
    }
    layout.rows = shape.rank == 2 ? shape.extent[0] : shape.extent[0] * shape.extent[1];
    layout.width = shape.extent[shape.rank - 1];
    layout.longest = layout.rows > 0 ? layout.width : 0;
    layout.tokens = layout.rows * layout.width;
  }
#define GDPO_X(in_batch, ...) check_tokens(function, "batch." #in_batch, b.in_batch, layout);
  GDPO_TOKEN_ARRAYS(GDPO_X)
  GDPO_TOKEN_MARKS(GDPO_X)
#undef GDPO_X
#define GDPO_X(in_batch, type) check_rows(function, "batch." #in_batch, b.in_batch, layout);
  GDPO_ROW_COLUMNS(GDPO_X)
#undef GDPO_X
  return layout;
}

/// The layout with the offsets read and checked.
template <class S>
TokenLayout layout_of(const char* function, const TokenBatch<S>& b, NeedsLogp needs) {
  using contract::fail, contract::text;
  TokenLayout layout = shape_of(function, b, needs);
  const auto check_masks = [&] {
    check_mask(function, "batch.mask", b.mask, layout.rows, layout);
    check_mask(function, "batch.completion_mask", b.completion_mask, layout.rows, layout);
  };
  if (!layout.offsets) {
    check_masks();
    return layout;
  }
  if (layout.shape.rank == 0) {
    layout.tokens = b.offsets(layout.rows);
    contract::check_extents(function, "batch.offsets", 1, &layout.tokens);
  }
  if (b.offsets(0) != 0 || b.offsets(layout.rows) != layout.tokens) {
    fail(function, "batch.offsets",
         "from " + text(b.offsets(0)) + " to " + text(b.offsets(layout.rows)),
         "from 0 to " + text(layout.tokens) + ", the number of tokens");
  }
  for (index_t i = 0; i < layout.rows; ++i) {
    // Compared before they are subtracted: their difference could be too large for an index_t.
    if (b.offsets(i + 1) < b.offsets(i)) {
      fail(function, "batch.offsets",
           "offsets[" + text(i + 1) + "] = " + text(b.offsets(i + 1)) + " after offsets[" +
               text(i) + "] = " + text(b.offsets(i)),
           "offsets that never decrease");
    }
    layout.longest = (std::max)(layout.longest, b.offsets(i + 1) - b.offsets(i));
  }
  check_masks();
  return layout;
}

}  // namespace detail
GDPO_END_NAMESPACE
