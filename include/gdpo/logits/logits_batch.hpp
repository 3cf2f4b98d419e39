#pragma once
// LogitBatch: the logits of a language model, with the tokens that they predict.
#include <gdpo/logits/row.hpp>
#include <gdpo/tokens/token_batch.hpp>

GDPO_BEGIN_NAMESPACE

/// Logits of a language model, (N, V) or (B, T, V), with the tokens that they are to predict. T is
/// the stored type: float, double, Float16, BFloat16, or a class with the memory layout of one of
/// these (LayoutOf). The batch holds views only: the arrays must outlive the call.
///
///     gdpo::LogitBatch<float, 3> logits;
///     logits.logits = gdpo::view(data, sequences, width, vocabulary);
///     logits.targets = gdpo::view(tokens, sequences, width);  // row (b, t) predicts targets(b, t)
///
/// `gdpo::aligned` makes a batch from the logits and ids of whole sequences.
template <class T, int Rank>
struct LogitBatch {
  static_assert(!std::is_const_v<T>, "LogitBatch<float, 2>: its view is of const float by itself");
  static_assert(!std::is_integral_v<T>, "logits are floating-point numbers");
  static_assert(Rank == 2 || Rank == 3, "logits are (N, V) or (B, T, V)");

  /// The logits: (N, V) or (B, T, V). The vocabulary has stride 1; rows may have any strides. A
  /// batch that is only counted, before the forward pass, may be without them.
  View<const T, Rank> logits;
  /// The token that each row is to predict: (N) or (B, T), int32 or int64. A call that needs no
  /// target accepts an absent array.
  TokenView<std::int64_t> targets;
  /// (N) or (B, T). 0: neither the row nor its target is read, and its results are 0. A row with
  /// any other number, also NaN, counts. Absent: all rows count.
  TokenView<unsigned char> mask;
  /// (B + 1), the cu_seqlens of packed sequences, for logits (N, V) only. The last row of each
  /// sequence predicts nothing and counts as masked; `targets` and `mask` may end before that of
  /// the last sequence. Absent: all rows predict.
  IndexColumn offsets;
  /// The logits are divided by it: a number from 1e-37 to 1e37.
  double temperature = 1;
  /// For a shard of the vocabulary (`logit_rows`): column j is token first_token + j.
  index_t first_token = 0;
};

namespace detail {

/// Where a row of logits stands in the token arrays: the arguments of TokenView::at.
struct LogitPlace {
  index_t row, begin, t;
};
/// The place of row i. width: 0 for logits (N, V), T for logits (B, T, V).
GDPO_INLINE LogitPlace logit_place(index_t width, index_t i) {
  if (width == 0) return {0, i, 0};
  return {i / width, 0, i % width};
}

/// Whether `value` is one of n numbers that never decrease. If they do decrease, the answer may be
/// wrong, but nothing outside the n numbers is read.
GDPO_CALLS_ANY
template <class Numbers>
GDPO_DEVICE bool holds(const Numbers& numbers, index_t n, index_t value) {
  index_t low = 0, high = n;
  while (low < high) {
    const index_t middle = low + (high - low) / 2;
    const bool below = numbers(middle) < value;
    low = below ? middle + 1 : low, high = below ? high : middle;
  }
  return low < n && numbers(low) == value;
}
/// The column of a token among `vocabulary` columns that begin with first_token; -1: none.
GDPO_INLINE index_t column_of(std::int64_t token, index_t first_token, index_t vocabulary) {
  const std::int64_t column = token - first_token;
  return column >= 0 && column < vocabulary ? static_cast<index_t>(column) : -1;
}

/// The rows of a LogitBatch, numbered in order: their addresses, tokens and names in messages.
template <class T, int Rank>
class LogitRows {
 public:
  explicit LogitRows(const LogitBatch<T, Rank>& batch) : batch_(batch) {}

  index_t rows() const {
    return Rank == 2 ? batch_.logits.extent[0] : batch_.logits.extent[0] * batch_.logits.extent[1];
  }
  index_t vocabulary() const { return batch_.logits.extent[Rank - 1]; }
  index_t numbers() const { return rows() * vocabulary(); }
  LogitPlace place(index_t i) const {
    return logit_place(Rank == 2 ? 0 : batch_.logits.extent[1], i);
  }
  template <class U>
  U* begin(const View<U, Rank>& v, index_t i) const {
    if constexpr (Rank == 2) {
      return v.data + i * v.stride[0];
    } else {
      return v.data + i / v.extent[1] * v.stride[0] + i % v.extent[1] * v.stride[1];
    }
  }
  const T* begin(index_t i) const { return begin(batch_.logits, i); }

  template <class S>
  S token(const TokenView<S>& tokens, index_t i) const {
    const LogitPlace position = place(i);
    return tokens.at(position.row, position.begin, position.t);
  }
  template <class S>
  void put(const TokenOut<S>& tokens, index_t i, double value) const {
    if (!tokens) return;
    const LogitPlace position = place(i);
    tokens.row(position.row, position.begin, position.t + 1)(position.t) = static_cast<S>(value);
  }

  bool valid(index_t i) const {
    // A row whose number + 1 is an offset ends a sequence.
    if (batch_.offsets && holds(batch_.offsets, batch_.offsets.size(), i + 1)) return false;
    return !batch_.mask || token(batch_.mask, i) != 0;
  }
  /// The column of the row's target; -1: not among the columns.
  index_t target(index_t i) const {
    return column_of(token(batch_.targets, i), batch_.first_token, vocabulary());
  }
  /// A view of `values`, one for each row in order, in the shape of the targets.
  template <class Values>
  auto dense(Values& values) const {
    if constexpr (Rank == 2) {
      return gdpo::view(values);
    } else {
      return gdpo::view(values.data(), batch_.logits.extent[0], batch_.logits.extent[1]);
    }
  }
  std::string name(index_t i) const {
    const LogitPlace position = place(i);
    return Rank == 2 ? "(" + contract::text(i) + ")"
                     : "(" + contract::text(position.row) + ", " + contract::text(position.t) + ")";
  }

 private:
  const LogitBatch<T, Rank>& batch_;
};

/// Checks an array with one entry for each row: the shape of the logits without the vocabulary.
/// `without_last`: the array of packed sequences may lack the entry of the last row, which ends a
/// sequence and is not read.
template <int Rank, class Tokens>
void check_by_row(const char* function, const std::string& name, const Tokens& v,
                  const index_t* logits, bool without_last = false) {
  if (!v) return;
  index_t extent[3] = {};
  bool same = v.rank() == Rank - 1;
  for (int r = 0; r < v.rank(); ++r) {
    extent[r] = v.extent(r);
    same =
        same && r < Rank - 1 &&
        (extent[r] == logits[r] || (without_last && logits[r] > 0 && extent[r] == logits[r] - 1));
  }
  if (!same) {
    contract::fail(
        function, name, contract::shape(v.rank(), extent),
        contract::shape(Rank - 1, logits) + ", the shape of logits without the vocabulary");
  }
}
/// Checks a view of the shape of the logits: the logits themselves, or the array for their
/// gradient.
template <class U, int Rank>
void check_table(const char* function, const char* name, const View<U, Rank>& v,
                 const index_t* shape) {
  using contract::fail;
  const index_t elements = contract::check_extents(function, name, Rank, v.extent);
  for (int r = 0; r < Rank; ++r) {
    if (v.extent[r] != shape[r]) {
      fail(function, name, contract::shape(Rank, v.extent),
           contract::shape(Rank, shape) + ", the shape of logits");
    }
  }
  if (elements > 0 && !v)
    fail(function, name, "no array", contract::shape(Rank, v.extent) + " numbers");
  if (v.extent[Rank - 1] > 1 && v.stride[Rank - 1] != 1) {
    fail(function, name,
         "stride " + contract::text(v.stride[Rank - 1]) + " between two entries of the vocabulary",
         "1");
  }
}

/// The same for an array that is written: its rows do not share memory.
template <class U, int Rank>
void check_written_table(const char* function, const char* name, const View<U, Rank>& v,
                         const index_t* shape) {
  check_table(function, name, v, shape);
  contract::check_apart(function, name, Rank, v.extent, v.stride);
}

/// What a call requires of the targets of rows that count: nothing (they may be absent); tokens of
/// at least 0, which may be in another shard; or tokens of the vocabulary.
enum class Targets { Unread, OfShard, OfVocabulary };

/// Refuses a shard, for calls that need the whole vocabulary.
template <class T, int Rank>
void check_whole(const char* function, const LogitBatch<T, Rank>& b) {
  if (b.first_token == 0) return;
  contract::fail(function, "first_token", contract::text(b.first_token),
                 "0, the whole vocabulary; of a shard: gdpo::logit_rows");
}

/// Checks shapes and settings of a LogitBatch, without reading its arrays.
template <class T, int Rank>
void check_logits_shape(const char* function, const LogitBatch<T, Rank>& b, Targets targets) {
  using contract::fail, contract::text;
  check_table(function, "logits", b.logits, b.logits.extent);
  const bool packed = Rank == 2 && b.offsets;
  check_by_row<Rank>(function, "targets", b.targets, b.logits.extent, packed);
  check_by_row<Rank>(function, "mask", b.mask, b.logits.extent, packed);
  const double inverse = 1 / b.temperature;
  if (!(b.temperature > 0) || math::not_finite(b.temperature) || !(inverse >= 1e-37) ||
      !(inverse <= 1e37)) {
    fail(function, "temperature", text(b.temperature), "a number from 1e-37 to 1e37");
  }
  if (b.first_token < 0) fail(function, "first_token", text(b.first_token), "at least 0");
  const index_t rows = LogitRows<T, Rank>(b).rows();
  if (b.offsets) {
    if (Rank == 3)
      fail(function, "offsets", "offsets, with logits (B, T, V)", "none, or logits (N, V)");
    const index_t entries = b.offsets.size();
    if (contract::check_extents(function, "offsets", 1, &entries) == 0) {
      fail(function, "offsets", "no entry", "from 0 to " + text(rows) + ", the number of rows");
    }
  }
  if (targets != Targets::Unread && !b.targets && rows > 0) {
    fail(function, "targets", "no array", "the token that each row of logits is to predict");
  }
}

/// Checks a LogitBatch including the values of its offsets and targets.
template <class T, int Rank>
void check_logits(const char* function, const LogitBatch<T, Rank>& b, Targets targets) {
  using contract::fail, contract::text;
  check_logits_shape(function, b, targets);
  const LogitRows<T, Rank> rows(b);
  if (b.offsets) {
    const index_t n = b.offsets.size();
    if (b.offsets(0) != 0 || b.offsets(n - 1) != rows.rows()) {
      fail(function, "offsets", "from " + text(b.offsets(0)) + " to " + text(b.offsets(n - 1)),
           "from 0 to " + text(rows.rows()) + ", the number of rows");
    }
    for (index_t i = 1; i < n; ++i) {
      if (b.offsets(i) < b.offsets(i - 1)) {
        fail(function, "offsets",
             "offsets[" + text(i) + "] = " + text(b.offsets(i)) + " after offsets[" + text(i - 1) +
                 "] = " + text(b.offsets(i - 1)),
             "offsets that never decrease");
      }
    }
  }
  if (targets == Targets::Unread) return;
  for (index_t i = 0; i < rows.rows(); ++i) {
    if (!rows.valid(i)) continue;
    const std::int64_t token = rows.token(b.targets, i);
    if (token >= 0 && (targets == Targets::OfShard || token < rows.vocabulary())) continue;
    fail(function, "targets", std::to_string(token) + " at row " + rows.name(i),
         targets == Targets::OfShard
             ? "a token: at least 0, or mask 0"
             : "a token: from 0 to " + text(rows.vocabulary() - 1) + ", or mask 0");
  }
}

}  // namespace detail

GDPO_END_NAMESPACE
