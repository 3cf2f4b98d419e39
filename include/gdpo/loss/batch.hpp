#pragma once
#include <algorithm>
#include <gdpo/loss/array_list.hpp>
#include <gdpo/loss/metrics.hpp>
#include <gdpo/loss/term.hpp>
#include <gdpo/storage/column.hpp>

GDPO_BEGIN_NAMESPACE

namespace detail {

/// Extents and strides of a token array of rank 1 (packed), 2 or 3 (padded); rank 0: none.
struct TokenShape {
  int rank = 0;
  index_t extent[3] = {}, stride[3] = {};

  TokenShape() = default;
  template <class T, int Rank>
  TokenShape(const View<T, Rank>& v, bool present) : rank(present ? Rank : 0) {
    for (int r = 0; r < Rank; ++r) extent[r] = v.extent[r], stride[r] = v.stride[r];
  }
  /// From one token of a row to the next.
  GDPO_INLINE index_t step() const { return rank == 0 ? 0 : stride[rank - 1]; }
  /// The first token of row `row`, which begins at token `begin` if packed.
  GDPO_INLINE index_t first(index_t row, index_t begin) const {
    return rank == 1   ? begin * stride[0]
           : rank == 2 ? row * stride[0]
                       : row / extent[1] * stride[0] + row % extent[1] * stride[1];
  }
};

}  // namespace detail

/// One number a token, whatever stores it, read as S: from a view of rank 1 (packed tokens), 2 (B, T) or 3 (B, G, T), any
/// strides, of float, double, 16-bit floats, integers or bool. Contiguous tokens of type S are read where they stand; others
/// are converted row by row. A null pointer: absent, or empty.
template <class S>
class TokenView {
 public:
  TokenView() = default;
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

  explicit operator bool() const { return data_ != nullptr; }
  int rank() const { return shape_.rank; }
  index_t extent(int axis) const { return shape_.extent[axis]; }
  const void* data() const { return data_; }
  StoredAs stored_as() const { return stored_as_; }
  const detail::TokenShape& shape() const { return shape_; }

  /// Rows stand in memory as they are read: `row` needs no scratch.
  bool in_place() const { return direct_ && shape_.step() == 1; }
  /// `n` tokens: of row `row` of a padded view, or from token `begin` of a packed one. `scratch` holds n where they have to
  /// be converted.
  GDPO_NOINLINE const S* row(index_t row, index_t begin, index_t n, S* scratch) const {
    const index_t stride = shape_.step(), first = shape_.first(row, begin);
    if (direct_ && stride == 1) return static_cast<const S*>(data_) + first;
    convert_(data_, first, stride, n, scratch);
    return scratch;
  }
  /// Token t of a row, whatever stores it.
  GDPO_HOST_INLINE S at(index_t row, index_t begin, index_t t) const {
    S value;
    convert_(data_, shape_.first(row, begin) + t * shape_.step(), 0, 1, &value);
    return value;
  }

 private:
  template <class T, int Rank>
  static bool present(const View<T, Rank>& v) {
    index_t elements = 1;
    for (const index_t extent : v.extent) elements *= extent;
    return v.data || elements == 0;  // the pointer of an empty array may be null
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

/// Where a gradient goes: a writable view of the batch's shape. Default: no gradient.
template <class S>
class TokenOut {
 public:
  TokenOut() = default;
  template <class T, int Rank>
  TokenOut(View<T, Rank> v) : data_(v.data), shape_(v, v.data != nullptr) {
    static_assert(!std::is_const_v<T>, "the gradient is written: its view must not be of const");
    static_assert(std::is_same_v<std::remove_const_t<T>, S>,
                  "the gradient has the scalar of the batch: float for a TokenBatch<float>, double "
                  "for <double>");
  }
  explicit operator bool() const { return data_ != nullptr; }
  int rank() const { return shape_.rank; }
  index_t extent(int axis) const { return shape_.extent[axis]; }
  /// The tokens of a row stand one after the other.
  bool contiguous() const { return shape_.step() == 1; }
  S* data() const { return data_; }
  const detail::TokenShape& shape() const { return shape_; }
  View<S, 1> row(index_t row, index_t begin, index_t n) const {
    return {data_ + shape_.first(row, begin), {n}, {shape_.step()}};
  }

 private:
  S* data_ = nullptr;
  detail::TokenShape shape_;
};

/// The tokens of one (micro-)batch. A row is a sequence (a completion).
///
///   gdpo::TokenBatch<float> batch;
///   batch.logp = gdpo::view(logp, rows, width);       padded (B, T); or (B, G, T)
///   batch.old_logp = gdpo::view(old_logp, rows, width);
///   batch.advantages = gdpo::view(advantages);        (B)
///   batch.mask = gdpo::view(mask, rows, width);
/// Packed: rank-1 arrays of N tokens and offsets (B + 1), as cu_seqlens; row i is tokens offsets[i] .. offsets[i+1]-1.
/// All token arrays have one shape. S is float (also for 16-bit storage) or double. Views only: everything must outlive the
/// call. Tokens with mask 0 may hold anything: it changes no
/// bit of a result.
template <class S = float>
struct TokenBatch {
  static_assert(std::is_same_v<S, float> || std::is_same_v<S, double>,
                "a TokenBatch is of float or double");
  using Scalar = S;

  /// Log-probs of the tokens, nats. logp: under the policy being trained.
  TokenView<S> logp;
  /// What the ratio is against: the policy that sampled, or the proximal one. Absent: on-policy, the ratio is exactly 1.
  TokenView<S> old_logp;
  /// The reference policy: needed, and read, only where a KL term against it has beta != 0.
  TokenView<S> ref_logp;
  /// The policy that sampled, as the engine reported it: for pre-passes and Against::Rollout.
  TokenView<S> rollout_logp;
  /// For Against::Teacher.
  TokenView<S> teacher_logp;

  /// One advantage a row (B), or one a token: exactly one of the two.
  Column advantages;
  TokenView<S> token_advantages;

  /// 0: not a token of the loss. Absent: all are.
  TokenView<unsigned char> mask;
  /// (B + 1), packed batches only.
  IndexColumn offsets;
  /// Ids of segments (ranks, turns): a run of equal ids in a row shares one ratio at a Sequence level. Absent: the row is one.
  /// Neighbours need different ids, also where only masked tokens lie between them.
  TokenView<std::int64_t> segments;

  /// (B) factor of the row's weight W_i, at least 0. Absent: 1.
  Column row_weights;
  /// Factors of the surrogate and of the KL terms, detached, at least 0; pre-passes fill them. Absent: 1. A negative one would
  /// turn the clip round: negate the advantage instead.
  TokenView<S> weights, kl_weights;
  /// For factors that read Token::tag.
  TokenView<S> tags;

  /// Only for metrics, the entropies (nats) also for prepass::TopEntropy. truncated (B): not 0: the completion hit the length
  /// limit. completion_mask: what counts as length of a completion, absent: mask; prepare() fills it and what follows.
  TokenView<S> entropies;
  Column truncated;
  TokenView<unsigned char> completion_mask;
  NonFinite rollout_non_finite;
  double entropy_threshold = math::infinity;
};

namespace detail {

/// Which of the arrays that a loss may do without it reads.
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
                                               sizeof(NonFinite) + sizeof(double),
              "a new array of TokenBatch needs its line in loss/array_list.hpp");

/// Where the rows of a batch stand. `layout_of` makes it, and checks the shape of every array of the batch.
struct RowSpan {
  index_t row, begin, length;
};
class TokenLayout {
 public:
  index_t rows = 0, width = 0, longest = 0,
          tokens = 0;  // width: 0 if packed. tokens: positions, masked ones included
  IndexColumn offsets;

  RowSpan operator()(index_t row) const {
    if (!offsets) return {row, row * width, width};
    const index_t begin = offsets(row);
    return {row, begin, offsets(row + 1) - begin};
  }
};

GDPO_NOINLINE inline void check_shape_of(const char* function, const char* name,
                                         const TokenShape& own, int rank, const index_t* extent) {
  bool same = own.rank == rank;
  for (int r = 0; r < own.rank; ++r) same = same && r < rank && own.extent[r] == extent[r];
  if (!same) {
    contract::fail(function, name, contract::shape(own.rank, own.extent),
                   contract::shape(rank, extent) + ", the shape of batch.logp");
  }
}
template <class Tokens>
void check_tokens(const char* function, const char* name, const Tokens& v, int rank,
                  const index_t* extent) {
  if (v) check_shape_of(function, name, v.shape(), rank, extent);
}
GDPO_NOINLINE inline void check_rows(const char* function, const char* name, const Column& c,
                                     index_t rows) {
  if (c && c.size() != rows) {
    contract::fail(function, name, contract::text(c.size()) + " entries",
                   "one for each of the " + contract::text(rows) + " rows");
  }
}

/// Of the shapes alone: no array is read (on a device none can be), so `longest` of a packed batch stays 0.
template <class S>
TokenLayout shape_of(const char* function, const TokenBatch<S>& b) {
  using contract::fail, contract::text;
  TokenLayout layout;
  const int rank = b.logp.rank();
  const index_t shape[3] = {b.logp.extent(0), b.logp.extent(1), b.logp.extent(2)};
  for (int axis = 0; axis < rank; ++axis) {
    if (b.logp.extent(axis) < 0)
      fail(function, "batch.logp", contract::shape(rank, shape), "extents of at least 0");
  }
  if (rank == 0)
    fail(function, "batch.logp", "no array", "the log-probs of the policy being trained");
  if (rank == 1) {
    if (!b.offsets || b.offsets.size() == 0) {
      fail(function, "batch.offsets", "none, with packed tokens (logp has rank 1)",
           "offsets (B + 1)");
    }
    layout.rows = b.offsets.size() - 1;
    layout.offsets = b.offsets;
    layout.tokens = b.logp.extent(0);
  } else {
    if (b.offsets)
      fail(function, "batch.offsets",
           "offsets, with padded tokens (logp has rank " + text(index_t{rank}) + ")",
           "none, or tokens of rank 1");
    layout.rows = rank == 2 ? b.logp.extent(0) : b.logp.extent(0) * b.logp.extent(1);
    layout.width = layout.longest = b.logp.extent(rank - 1);
    layout.tokens = layout.rows * layout.width;
  }
  const auto tokens = [&](const char* name, const auto& v) {
    check_tokens(function, name, v, rank, shape);
  };
#define GDPO_X(in_batch, ...) tokens("batch." #in_batch, b.in_batch);
  GDPO_TOKEN_ARRAYS(GDPO_X)
  GDPO_TOKEN_MARKS(GDPO_X)
#undef GDPO_X
#define GDPO_X(in_batch, type) check_rows(function, "batch." #in_batch, b.in_batch, layout.rows);
  GDPO_ROW_COLUMNS(GDPO_X)
#undef GDPO_X
  return layout;
}

/// The same with the offsets read, and checked.
template <class S>
TokenLayout layout_of(const char* function, const TokenBatch<S>& b) {
  using contract::fail, contract::text;
  TokenLayout layout = shape_of(function, b);
  if (!layout.offsets) return layout;
  if (b.offsets(0) != 0 || b.offsets(layout.rows) != layout.tokens) {
    fail(function, "batch.offsets",
         "from " + text(b.offsets(0)) + " to " + text(b.offsets(layout.rows)),
         "from 0 to " + text(layout.tokens) + ", the number of tokens");
  }
  for (index_t i = 0; i < layout.rows; ++i) {
    const index_t length = b.offsets(i + 1) - b.offsets(i);
    if (length < 0) {
      fail(function, "batch.offsets",
           "offsets[" + text(i + 1) + "] = " + text(b.offsets(i + 1)) + " after offsets[" +
               text(i) + "] = " + text(b.offsets(i)),
           "offsets that never decrease");
    }
    layout.longest = (std::max)(layout.longest, length);
  }
  return layout;
}

}  // namespace detail
GDPO_END_NAMESPACE
