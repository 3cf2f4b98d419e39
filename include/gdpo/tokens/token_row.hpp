#pragma once
// TokenRow: the arrays of one row as loops read them, and how a row is counted and read.
#include <gdpo/tokens/normalizer.hpp>
#include <gdpo/tokens/token_layout.hpp>
#include <vector>

GDPO_BEGIN_NAMESPACE

namespace detail {
/// The number of bytes that are not 0; `length` is a multiple of 64.
GDPO_NOINLINE inline index_t count_bytes(const unsigned char* mask, index_t length) {
  constexpr index_t lanes = 64, most = 255;  // 255 additions of 0 or 1 fit into a byte
  index_t n = 0, t = 0;
  while (t + lanes <= length) {
    unsigned char sums[lanes] = {};
    for (index_t k = 0; k < most && t + lanes <= length; ++k, t += lanes) {
      for (index_t j = 0; j < lanes; ++j)
        sums[j] = static_cast<unsigned char>(sums[j] + (mask[t + j] != 0));
    }
    // Eight bytes as one number: its even and odd bytes as four numbers of 16 bits.
    constexpr std::uint64_t even = 0x00ff00ff00ff00ff, ones = 0x0001000100010001;
    std::uint64_t total = 0;
    for (index_t j = 0; j < lanes; j += 8) {
      std::uint64_t eight;
      std::memcpy(&eight, sums + j, 8);
      total += (eight & even) + (eight >> 8 & even);
    }
    n += static_cast<index_t>((total * ones) >> 48);
  }
  return n;
}
/// The number of positions whose mask is not 0; all of them if `mask` is null.
inline index_t count_mask(const unsigned char* mask, index_t length) {
  if (!mask) return length;
  index_t t = length / 64 * 64, n = t > 0 ? count_bytes(mask, t) : 0;
  // Eight bytes as one number: the high bit of each byte says whether the byte is not 0.
  constexpr std::uint64_t low_bits = 0x7f7f7f7f7f7f7f7f, ones = 0x0101010101010101;
  const auto count_eight = [&](std::uint64_t eight) {
    const std::uint64_t set = (((eight & low_bits) + low_bits) | eight) >> 7 & ones;
    n += static_cast<index_t>((set * ones) >> 56);
  };
  std::uint64_t eight;
  for (; t + 8 <= length; t += 8) std::memcpy(&eight, mask + t, 8), count_eight(eight);
  for (eight = 0; t < length; ++t) eight = eight << 8 | mask[t];
  count_eight(eight);
  return n;
}
}  // namespace detail

/// The arrays of one row, contiguous. One that is absent, or that the loss does not read, is null.
template <class S>
struct TokenRow {
  index_t row;                   ///< Number of the row in its batch.
  index_t length;                ///< Number of tokens, masked ones included.
  const unsigned char* mask;     ///< 0: the token does not count. Null: all count.
  const std::int64_t* segments;  ///< Ids of segments. Null: the row is one segment.
#define GDPO_X(in_batch, in_row, ...) const S* in_row;
  GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
  double advantage;  ///< Advantage of the row if `advantages` is null.

  /// Whether token t counts.
  GDPO_INLINE bool valid(index_t t) const { return !mask || mask[t] != 0; }
  /// The number of valid tokens.
  index_t count() const { return detail::count_mask(mask, length); }
  /// The advantage of token t: its own, or that of the row.
  GDPO_INLINE double advantage_of(index_t t) const {
    return advantages ? static_cast<double>(advantages[t]) : advantage;
  }
  /// The mean advantage of the row's valid tokens, summed in their order; 0 if there are none.
  double mean_advantage() const {
    double sum = 0;
    index_t n = 0;
    for (index_t t = 0; t < length; ++t) {
      if (valid(t)) sum += advantage_of(t), ++n;
    }
    return n > 0 ? sum / static_cast<double>(n) : 0.0;
  }
  /// The end of the segment that begins at `begin`: the next valid token with another id, or the
  /// end of the row. Ids at masked tokens are not read.
  index_t segment_end(index_t begin) const {
    if (!segments) return length;
    index_t first = begin;
    while (first < length && !valid(first)) ++first;
    index_t end = first + 1;
    while (end < length && (!valid(end) || segments[end] == segments[first])) ++end;
    return (std::min)(end, length);
  }
};

namespace detail {

/// The number of tokens of one row whose mask is not 0. `scratch` has room for a row whose mask has
/// to be converted.
inline index_t count_row(const TokenView<unsigned char>& mask, const RowSpan& span,
                         unsigned char* scratch) {
  return count_mask(mask ? mask.row(span.row, span.begin, span.length, scratch) : nullptr,
                    span.length);
}

/// f(i, n) for each row i of a batch, in their order, with the number n of its valid tokens.
template <class S, class F>
void for_each_count(const TokenBatch<S>& batch, const TokenLayout& layout, const F& f) {
  const bool converts = batch.mask && !batch.mask.in_place();
  std::vector<unsigned char> scratch(converts ? static_cast<std::size_t>(layout.longest) : 0);
  for (index_t row = 0; row < layout.rows; ++row)
    f(row, count_row(batch.mask, layout(row), scratch.data()));
}
/// Counts the rows of a batch, those with a valid token, and the valid tokens.
template <class S>
Normalizer count_rows(const TokenBatch<S>& batch, const TokenLayout& layout) {
  Normalizer n;
  n.rows = static_cast<double>(layout.rows);
  for_each_count(batch, layout, [&n](index_t, index_t tokens) {
    n.tokens += static_cast<double>(tokens);
    n.non_empty_rows += tokens > 0;
  });
  return n;
}

/// Room for the arrays of rows that are converted because they are not contiguous or have another
/// type: for one row, or for several short ones, one behind the other.
template <class S>
struct RowScratch {
  std::vector<S> values;
  std::vector<unsigned char> mask, completion_mask;
  std::vector<std::int64_t> segments;

  /// `tokens`: those of the longest row, or of the rows that are read together.
  void reserve(index_t tokens) {
    const auto n = static_cast<std::size_t>(tokens);
    if (mask.size() >= n) return;
    values.resize(token_arrays * n);
    mask.resize(n);
    completion_mask.resize(n);
    segments.resize(n);
  }
};

/// Reads the rows of a batch. It looks at the arrays once, so that a row costs a few instructions
/// for each array that is there.
template <class S>
class RowReader {
 public:
  /// The batch must outlive the reader.
  RowReader(const TokenBatch<S>& batch, TokenReads reads) : batch_(batch) {
    const auto add = [this](const TokenView<S>& v, bool wanted, const S* TokenRow<S>::*member) {
      if (v && wanted) arrays_[count_++] = {Place<S>(v), member};
    };
#define GDPO_X(in_batch, in_row, in_token, read, ...) \
  add(batch.in_batch, reads.read, &TokenRow<S>::in_row);
    GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
    if (batch.mask) mask_ = Place<unsigned char>(batch.mask);
    if (batch.segments) segments_ = Place<std::int64_t>(batch.segments);
  }
  /// Puts the arrays of the row at `span` into r, whose other arrays are null already. What cannot
  /// be read in place is converted into `scratch`, behind the `used` tokens of other rows. r is
  /// filled where it stands: a copy of numbers that were just stored one by one would have to wait
  /// until they have reached the cache.
  void read(const RowSpan& span, RowScratch<S>& scratch, index_t used, TokenRow<S>& r) const {
    r.row = span.row, r.length = span.length;
    const auto room = static_cast<index_t>(scratch.mask.size());
    for (int a = 0; a < count_; ++a) {
      r.*arrays_[a].member = arrays_[a].place.row(span, scratch.values.data() + (a * room + used));
    }
    if (mask_.view) r.mask = mask_.row(span, scratch.mask.data() + used);
    if (segments_.view) r.segments = segments_.row(span, scratch.segments.data() + used);
    r.advantage = batch_.advantages ? batch_.advantages(span.row) : 0.0;
  }

 private:
  /// An array, and where its rows are if they can be read in place.
  template <class T>
  struct Place {
    const TokenView<T>* view = nullptr;
    const T* data = nullptr;
    index_t by_row = 0, by_begin = 0;

    Place() = default;
    explicit Place(const TokenView<T>& v) : view(&v) {
      if (v.is_linear(by_row, by_begin)) data = static_cast<const T*>(v.data());
    }
    GDPO_HOST_INLINE const T* row(const RowSpan& span, T* scratch) const {
      return data ? data + (by_row * span.row + by_begin * span.begin)
                  : view->row(span.row, span.begin, span.length, scratch);
    }
  };
  struct Array {
    using Member = const S* TokenRow<S>::*;
    Place<S> place;
    Member member;
  };
  const TokenBatch<S>& batch_;
  Array arrays_[token_arrays];
  int count_ = 0;
  Place<unsigned char> mask_;
  Place<std::int64_t> segments_;
};
/// The arrays of row `row`, converted into `scratch` where they cannot be read in place.
template <class S>
TokenRow<S> read_row(const TokenBatch<S>& b, const TokenLayout& layout, index_t row,
                     TokenReads reads, RowScratch<S>& scratch) {
  TokenRow<S> r{};
  RowReader<S>(b, reads).read(layout(row), scratch, 0, r);
  return r;
}

/// Throws unless the weight of each row with valid tokens is at least 0. One that is not finite is
/// no mistake of the caller: the loss counts it. Reads the masks of rows with a negative one alone.
template <class Batch>
void check_row_weights(const char* function, const Batch& batch, const TokenLayout& layout) {
  if (!batch.row_weights) return;
  for (index_t i = 0; i < layout.rows; ++i) {
    const double weight = batch.row_weights(i);
    if (!(weight < 0) || math::not_finite(weight)) continue;
    const RowSpan span = layout(i);
    for (index_t t = 0; t < span.length; ++t) {
      if (batch.mask && batch.mask.at(span.row, span.begin, t) == 0) continue;
      contract::fail(function, "batch.row_weights(" + contract::text(i) + ")",
                     contract::text(weight), "a number of at least 0 for a row with valid tokens");
    }
  }
}

/// Throws unless the group of each row with valid tokens has at least the tokens of the row. Reads
/// the masks of all rows.
template <class S>
void check_group_tokens(const char* function, const TokenBatch<S>& batch,
                        const TokenLayout& layout) {
  if (!batch.group_tokens) return;
  for_each_count(batch, layout, [&](index_t i, index_t tokens) {
    const double of_group = batch.group_tokens(i);
    if (tokens == 0 || (of_group >= static_cast<double>(tokens) && !math::not_finite(of_group)))
      return;
    contract::fail(
        function, "batch.group_tokens(" + contract::text(i) + ")",
        contract::text(of_group) + ", for a row of " + contract::text(tokens) + " tokens",
        "the valid tokens of all rows of its group, those of this row among them "
        "(gdpo::count_group_tokens of the prepared batch)");
  });
}

}  // namespace detail

GDPO_END_NAMESPACE
