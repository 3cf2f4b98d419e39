#pragma once
#include <algorithm>
#include <gdpo/loss/array_list.hpp>
#include <gdpo/loss/metrics.hpp>
#include <gdpo/loss/term.hpp>
#include <gdpo/storage/column.hpp>

GDPO_BEGIN_NAMESPACE

namespace detail {

/// Extents and strides of a token array of rank 1 (packed), 2 or 3 (padded); rank 0: no array.
struct TokenShape {
  int rank = 0;
  index_t extent[3] = {}, stride[3] = {};

  TokenShape() = default;
  template <class T, int Rank>
  TokenShape(const View<T, Rank>& v, bool present) : rank(present ? Rank : 0) {
    for (int r = 0; r < Rank; ++r) extent[r] = v.extent[r], stride[r] = v.stride[r];
  }
  /// Number of elements from one token of a row to the next.
  GDPO_INLINE index_t step() const { return rank == 0 ? 0 : stride[rank - 1]; }
  /// Offset of the first token of row `row`, in elements. In a packed array that is token `begin`.
  GDPO_INLINE index_t first(index_t row, index_t begin) const {
    return rank == 1   ? begin * stride[0]
           : rank == 2 ? row * stride[0]
                       : row / extent[1] * stride[0] + row % extent[1] * stride[1];
  }
};

}  // namespace detail

/// An input array with one number per token, of any storage type, read as S.
///
/// It is made from a view of rank 1 (packed tokens), 2 (B, T) or 3 (B, G, T) with any strides. The
/// elements may be float, double, 16-bit floats, integers or bool, but double needs S = double. If
/// the tokens of a row are contiguous and of type S, they are read in place; others are converted
/// one row at a time. A view with a null pointer is an absent array, or one without elements.
template <class S>
class TokenView {
 public:
  TokenView() = default;
  /// From a view. It is not explicit, so that `batch.logp = gdpo::view(...)` works.
  template <class T, int Rank>
  TokenView(View<T, Rank> v)
      : data_(v.data),
        shape_(v, present(v)),
        direct_(reads_directly<T>),
        stored_as_(gdpo::stored_as<T>()),
        convert_(&convert<T>) {
    static_assert(!(std::is_same_v<S, float> && std::is_same_v<std::remove_const_t<T>, double>),
                  "a token array of double needs a gdpo::TokenBatch<double>");
    static_assert(
        !std::is_integral_v<S> || std::is_same_v<S, unsigned char> || std::is_integral_v<T>,
        "segments are integers (int32 or int64)");
  }

  /// Whether there is an array with elements.
  explicit operator bool() const { return data_ != nullptr; }
  /// 1 for packed tokens, 2 or 3 for padded ones, 0 for no array.
  int rank() const { return shape_.rank; }
  /// Extent of an axis, 0 to rank() - 1; the last one is tokens.
  index_t extent(int axis) const { return shape_.extent[axis]; }
  /// The first element, of the type that stored_as() says.
  const void* data() const { return data_; }
  /// How an element is stored.
  StoredAs stored_as() const { return stored_as_; }
  /// Extents and strides.
  const detail::TokenShape& shape() const { return shape_; }
  /// The same packed array with n tokens; those that the memory does not have must not be read.
  TokenView with_tokens(index_t n) const {
    TokenView longer = *this;
    if (rank() == 1) longer.shape_.extent[0] = n;
    return longer;
  }

  /// Whether rows are read in place, without conversion.
  bool in_place() const { return direct_ && shape_.step() == 1; }
  /// `n` tokens of row `row` of a padded array, or from token `begin` of a packed one. If they have
  /// to be converted, they are written to `scratch`, which holds at least n.
  GDPO_NOINLINE const S* row(index_t row, index_t begin, index_t n, S* scratch) const {
    const index_t stride = shape_.step(), first = shape_.first(row, begin);
    if (direct_ && stride == 1) return static_cast<const S*>(data_) + first;
    convert_(data_, first, stride, n, scratch);
    return scratch;
  }
  /// Token t of a row, converted if need be. `row` and `begin` are those of row().
  GDPO_HOST_INLINE S at(index_t row, index_t begin, index_t t) const {
    S value;
    convert_(data_, shape_.first(row, begin) + t * shape_.step(), 0, 1, &value);
    return value;
  }

 private:
  template <class T, int Rank>
  static bool present(const View<T, Rank>& v) {
    bool empty = false;  // an array without elements may have a null pointer
    for (const index_t extent : v.extent) empty = empty || extent == 0;
    return v.data || empty;
  }
  template <class T>
  static constexpr bool reads_directly = std::is_same_v<std::remove_const_t<T>, S> ||
                                         (std::is_same_v<S, unsigned char> &&
                                          std::is_integral_v<T> && sizeof(T) == 1);
  template <class T>
  static void convert(const void* data, index_t first, index_t stride, index_t n, S* out) {
    const T* in = static_cast<const T*>(data) + first;
    for (index_t t = 0; t < n; ++t, in += stride) {
      if constexpr (std::is_floating_point_v<S>) {
        out[t] = static_cast<S>(load(*in));
      } else if constexpr (std::is_same_v<S, unsigned char>) {
        out[t] = math::is_zero(load(*in)) ? 0 : 1;
      } else {
        out[t] = static_cast<S>(*in);
      }
    }
  }
  const void* data_ = nullptr;
  detail::TokenShape shape_;
  bool direct_ = false;
  StoredAs stored_as_ = StoredAs::Other;
  void (*convert_)(const void*, index_t, index_t, index_t, S*) = nullptr;
};

/// The output array of a gradient: a writable view of the batch's shape, with elements of type S.
///
/// Made by default, it means that no gradient is wanted.
template <class S>
class TokenOut {
 public:
  TokenOut() = default;
  /// From a view of rank 1, 2 or 3 with any strides.
  template <class T, int Rank>
  TokenOut(View<T, Rank> v) : data_(v.data), shape_(v, v.data != nullptr) {
    static_assert(!std::is_const_v<T>, "the gradient is written: its view must not be of const");
    static_assert(std::is_same_v<std::remove_const_t<T>, S>,
                  "the gradient has the scalar of the batch: float for a TokenBatch<float>, double "
                  "for <double>");
  }
  /// Whether a gradient is wanted.
  explicit operator bool() const { return data_ != nullptr; }
  /// 1 for packed tokens, 2 or 3 for padded ones, 0 for none.
  int rank() const { return shape_.rank; }
  /// Extent of an axis, 0 to rank() - 1; the last one is tokens.
  index_t extent(int axis) const { return shape_.extent[axis]; }
  /// Whether the tokens of a row are next to each other in memory.
  bool contiguous() const { return shape_.step() == 1; }
  /// The first element.
  S* data() const { return data_; }
  /// Extents and strides.
  const detail::TokenShape& shape() const { return shape_; }
  /// `n` tokens of row `row` of a padded array, or from token `begin` of a packed one.
  View<S, 1> row(index_t row, index_t begin, index_t n) const {
    return {data_ + shape_.first(row, begin), {n}, {shape_.step()}};
  }

 private:
  S* data_ = nullptr;
  detail::TokenShape shape_;
};

namespace detail {

/// Throws unless each token of an array that a call writes has an element of its own.
template <class S>
void check_apart(const char* function, const contract::Text& name, const TokenOut<S>& v) {
  if (v) contract::check_apart(function, name, v.rank(), v.shape().extent, v.shape().stride);
}

}  // namespace detail

/// What prepare() leaves in a batch, so that count() and a loss can refuse one that is used in the
/// wrong order. A batch that it has not prepared has the initial values.
struct Prepared {
  /// How many calls of prepare() have changed the mask. count() writes it into the Normaliser.
  int mask_changes = 0;
  /// How often the PrepassMemory of this batch has been used; null: its arrays are the caller's.
  const std::uint64_t* uses = nullptr;
  /// The number of uses when this batch was prepared. If `uses` has grown since, the masks and
  /// weights of this batch are overwritten.
  std::uint64_t use = 0;
};

/// The tokens of one (micro-)batch, with everything that a loss reads about them.
///
/// A row is one sequence (a completion); B is the number of rows.
///
///     gdpo::TokenBatch<float> batch;
///     batch.logp = gdpo::view(logp, rows, width);          // padded, (B, T)
///     batch.old_logp = gdpo::view(old_logp, rows, width);
///     batch.mask = gdpo::view(mask, rows, width);
///     batch.advantages = gdpo::view(advantages, rows);     // (B)
///
/// A padded array may also have rank 3, (prompts, completions, T): its B rows are in the order of
/// the first two axes. Packed batches have token arrays of rank 1 and `offsets` (cu_seqlens): row i
/// is the tokens offsets[i] .. offsets[i + 1] - 1. All token arrays of a batch have the same shape.
///
/// Columns have one number for each row, (B); beside tokens of rank 3 they may be (prompts,
/// completions), as may any column whose rows are in that order.
///
/// S is the type that numbers are read as and that the gradient has: float, also for arrays of
/// 16-bit floats, or double. The members are views: the arrays must outlive the calls.
///
/// Only `logp` and one of the two advantages are required by a loss. Before the forward pass there
/// are no log-probs: count() and prepare() take a batch without them, whose shape is that of the
/// first array that is there. Masked tokens may hold anything, even NaN: they change no bit of a
/// result.
template <class S = float>
struct TokenBatch {
  static_assert(std::is_same_v<S, float> || std::is_same_v<S, double>,
                "a TokenBatch is of float or double");
  /// The type that numbers are read as and that the gradient has.
  using Scalar = S;

  /// Log-probs of the tokens under the policy being trained, in nats. Required by a loss.
  TokenView<S> logp;
  /// Log-probs under the policy that the ratio is against: the one that sampled, or the proximal
  /// one. Absent: the step is on-policy, and the ratio is exactly 1.
  TokenView<S> old_logp;
  /// Log-probs under the reference policy. Needed, and read, only where a KL term against it has
  /// beta != 0, or a policy declares `reads_ref`.
  TokenView<S> ref_logp;
  /// Log-probs under the policy that sampled, as the sampling engine reported them. For pre-passes
  /// that compare them with old_logp, and for KL terms with Against::Rollout.
  TokenView<S> rollout_logp;
  /// Log-probs under a teacher, for KL terms with Against::Teacher.
  TokenView<S> teacher_logp;

  /// (B) One advantage per row. Required, unless token_advantages are given.
  Column advantages;
  /// One advantage per token, instead of one per row.
  TokenView<S> token_advantages;

  /// 0: the token does not belong to the loss; every other number, also NaN, lets it in. Absent:
  /// all tokens do.
  TokenView<unsigned char> mask;
  /// (B + 1) Where each row begins and the last one ends. Required for packed batches only.
  IndexColumn offsets;
  /// Ids of segments (turns, for example). At a level of segments, a run of equal ids in a row
  /// shares one ratio; at level::Token they have no meaning. Absent: each row is one segment.
  /// Segments that follow each other need different ids, even if masked tokens lie between them.
  /// The ids of masked tokens do not matter.
  TokenView<std::int64_t> segments;

  /// (B) Factor of the row's weight W_i, at least 0. Absent: 1. A loss on the host refuses a
  /// negative one of a row with valid tokens; on a device, where nobody looks first, it counts.
  Column row_weights;
  /// Factor of the surrogate, at least 0; no gradient flows through it. Pre-passes write it.
  /// Absent: 1. No call looks at each token for a negative factor, which counts as it is and clips
  /// the wrong side: negate the advantage instead.
  TokenView<S> weights;
  /// Factor of the KL terms, like weights.
  TokenView<S> kl_weights;
  /// Numbers of the caller's own, for policies that read Token::tag.
  TokenView<S> tags;

  /// Entropies of the tokens in nats, for metrics and prepass::TopEntropy.
  TokenView<S> entropies;
  /// (B) Not 0: the completion reached the length limit. For metrics only.
  Column truncated;
  /// Not 0: the token counts towards LossMetrics::completion_length. Absent: mask. prepare() fills
  /// it, so that lengths are those of the completions as they were sampled.
  TokenView<unsigned char> completion_mask;
  /// What prepare() found in rollout_logp, for LossMetrics::non_finite. A loss that does not read
  /// that array reports this instead.
  NonFinite rollout_non_finite;
  /// The threshold that prepass::TopEntropy took, in nats, for LossMetrics. prepare() fills it.
  double entropy_threshold = math::infinity;
  /// What prepare() did to this batch, by which calls refuse a wrong order.
  Prepared prepared;
};

namespace detail {

/// Which of the optional arrays a loss reads.
struct TokenReads {
  bool ref = true, rollout = true, teacher = true, tags = true;
  static constexpr bool always = true;

  static constexpr TokenReads none() {
    TokenReads reads;
    reads.ref = reads.rollout = reads.teacher = reads.tags = false;
    return reads;
  }
};

#define GDPO_ONE_MORE(...) +1
constexpr int token_arrays = 0 GDPO_TOKEN_ARRAYS(GDPO_ONE_MORE);
constexpr int token_marks = 0 GDPO_TOKEN_MARKS(GDPO_ONE_MORE);
constexpr int row_columns = 0 GDPO_ROW_COLUMNS(GDPO_ONE_MORE);
#undef GDPO_ONE_MORE
static_assert(sizeof(TokenBatch<float>) == (token_arrays + token_marks) * sizeof(TokenView<float>) +
                                               row_columns * sizeof(Column) + sizeof(IndexColumn) +
                                               sizeof(NonFinite) + sizeof(double) +
                                               sizeof(Prepared),
              "a new array of TokenBatch needs its line in loss/array_list.hpp");

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
