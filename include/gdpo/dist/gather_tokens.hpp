#pragma once
// gather_tokens: the tokens of all ranks on each rank.
#include <array>
#include <gdpo/core/until_moved.hpp>
#include <gdpo/dist/agree.hpp>
#include <gdpo/loss/entropy.hpp>
#include <gdpo/tokens/token_row.hpp>
#include <utility>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What a rank sends ahead of its part of the tokens.
struct TokensHeader {
  index_t rows, width, tokens;         // width: the padded one; 0: packed
  std::uint64_t arrays;                // bit k: array k of the lists is there
  std::uint64_t positions;             // 1: the places of the tokens are given
  std::uint64_t columns[row_columns];  // a hash of each column of one number a row; 0: absent
};

/// Memory for every array of tokens of a batch.
template <class S>
struct TokenMemory {
#define GDPO_X(member, ...) std::vector<S> member;
  GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
#define GDPO_X(member, type) std::vector<type> member;
  GDPO_TOKEN_MARKS(GDPO_X)
#undef GDPO_X
};
/// Calls f(name, array of the batch, its memory) for every array of tokens, in the order of the
/// lists. Batch and Memory may be const.
template <class Batch, class Memory, class F>
void for_each_token_array(Batch& batch, Memory& memory, const F& f) {
#define GDPO_X(member, ...) f("batch." #member, batch.member, memory.member);
  GDPO_TOKEN_ARRAYS(GDPO_X)
  GDPO_TOKEN_MARKS(GDPO_X)
#undef GDPO_X
}
/// A hash of the numbers of a column; 0 if it is absent. NaN equals NaN, and 0 equals -0.
inline std::uint64_t hash_of(const Column& column) {
  if (!column) return 0;
  std::string bytes;
  for (index_t i = 0; i < column.size(); ++i) {
    const double x = column(i), number = math::is_nan(x) ? math::nan() : x + 0.0;
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  return hash_of(bytes) | 1;
}

}  // namespace detail

namespace dist {

/// Whole rows whose tokens are on several ranks; made by `gather_tokens`.
/// It owns its memory and is moved, not copied. One that has been moved from has no tokens, and its
/// batch no arrays.
template <class S>
class GatheredTokens {
 public:
  /// Made by gather_tokens() from what the ranks have sent.
  GatheredTokens(const char* function, const gdpo::detail::Records& records, int rank,
                 const TokenBatch<S>& local) {
    using namespace gdpo::detail;
    padded_ = !local.offsets;
    const std::vector<TokensHeader> headers = read_headers(function, records);
    rows_ = headers[0].rows;
    const auto rows = static_cast<std::size_t>(rows_), ranks = headers.size();
    std::vector<RecordReader> readers;
    // lengths[r][i]: how many tokens of row i rank r has; begin_[i]: where row i begins
    std::vector<std::vector<index_t>> lengths(ranks);
    begin_.assign(rows + 1, 0);
    for (std::size_t r = 0; r < ranks; ++r) {
      readers.emplace_back(records, static_cast<int>(r));
      readers[r].template get<TokensHeader>();
      width_.value += headers[r].width;
      lengths[r].assign(rows, headers[r].width);
      if (!padded_) readers[r].get(lengths[r].data(), rows);
      for (std::size_t i = 0; i < rows; ++i) begin_[i + 1] += lengths[r][i];
    }
    for (std::size_t i = 0; i < rows; ++i) begin_[i + 1] += begin_[i];

    const TokensHeader& full = headers[with_tokens(headers)];
    const std::uint64_t arrays = full.arrays;
    const bool has_positions = full.positions != 0;
    local_rows_ = padded_ ? rows_.value : 1;
    local_width_ = padded_ ? headers[static_cast<std::size_t>(rank)].width
                           : headers[static_cast<std::size_t>(rank)].tokens;
    // places[r]: where the tokens of rank r stand among all
    std::vector<std::vector<index_t>> places(ranks);
    std::vector<index_t> filled(begin_.begin(), begin_.end() - 1);
    std::vector<unsigned char> uses(has_positions ? tokens() : 0);
    for (std::size_t r = 0; r < ranks; ++r) {
      places[r].resize(static_cast<std::size_t>(headers[r].tokens));
      if (has_positions) readers[r].get(places[r].data(), places[r].size());
      auto place = places[r].begin();
      for (std::size_t i = 0; i < rows; ++i) {
        for (index_t t = 0; t < lengths[r][i]; ++t, ++place) {
          if (has_positions) {
            check_position(function, r, i, *place);
            *place += begin_[i];
            check_once(function, r, i, *place, uses);
          } else {
            *place = filled[i]++;
          }
        }
      }
    }
    local_places_ = places[static_cast<std::size_t>(rank)];

    TokenBatch<S>& whole = batch_.value = local;
    whole.offsets = {};
    whole.entropy_threshold = math::infinity, whole.rollout_non_finite = {};
    if (!padded_) whole.offsets = gdpo::view(std::as_const(begin_));
    std::uint64_t bit = 1;
    for_each_token_array(whole, memory_, [&](const char*, auto& array, auto& memory) {
      using Value = typename std::decay_t<decltype(memory)>::value_type;
      const bool present = arrays & bit;
      bit <<= 1;
      array = {};
      if (!present) return;
      memory.resize(tokens());
      for (std::size_t r = 0; r < ranks; ++r) {
        for (const index_t place : places[r])
          memory[static_cast<std::size_t>(place)] = readers[r].template get<Value>();
      }
      array = shaped(memory.data());
    });
    gradient_.resize(tokens());
    if (whole.entropies) entropy_gradient_.resize(tokens());
  }

  GatheredTokens(GatheredTokens&&) = default;             ///< A move; views stay as they are.
  GatheredTokens& operator=(GatheredTokens&&) = default;  ///< A move; views stay as they are.

  /// The whole rows, for count(), prepare(), a loss and everything else that takes a batch. Their
  /// order is that of the rows that were gathered. The batch refers to the memory of this object,
  /// and to the columns of the batch that was gathered.
  const TokenBatch<S>& batch() const& { return batch_.value; }
  const TokenBatch<S>& batch() && = delete;  ///< Deleted: it would refer to freed memory.

  /// Where the own tokens stand among all, in the order in which this rank has them: places in an
  /// array of batch() that is read row after row.
  const std::vector<index_t>& own_places() const& { return local_places_; }
  const std::vector<index_t>& own_places() && = delete;  ///< Deleted: refers to freed memory.

  /// Room for the gradient of the whole rows, of the shape of batch().
  TokenOut<S> gradient() & { return shaped(gradient_.data()); }
  TokenOut<S> gradient() && = delete;  ///< Deleted: it would refer to freed memory.
  /// The same for the gradient by the entropies, of a batch that has some; else no array.
  TokenOut<S> entropy_gradient() & {
    return entropy_gradient_.empty() ? TokenOut<S>{}
                                     : TokenOut<S>(shaped(entropy_gradient_.data()));
  }
  TokenOut<S> entropy_gradient() && = delete;  ///< Deleted: it would refer to freed memory.
  /// Writes the gradients of the own tokens, as they stand in gradient() and entropy_gradient(),
  /// into arrays of the shape that the tokens of this rank have.
  void own_into(const std::common_type_t<LossGradient<S>>& out) const {
    copy_own(gradient_, "out", out.logp);
    if (!out.entropies) return;
    if (entropy_gradient_.empty()) {
      contract::fail("gdpo::dist::GatheredTokens::own_into", "out.entropies", "an array",
                     "none: the batch that was gathered has no entropies");
    }
    copy_own(entropy_gradient_, "out.entropies", out.entropies);
  }

 private:
  void copy_own(const std::vector<S>& gradient, const char* name, const TokenOut<S>& out) const {
    if (local_places_.empty()) return;
    index_t rows = 1;
    for (int axis = 0; axis + 1 < out.rank(); ++axis) rows *= out.extent(axis);
    constexpr const char* function = "gdpo::dist::GatheredTokens::own_into";
    const bool fits = out && (out.rank() == 1) == !padded_ && rows == local_rows_ &&
                      out.extent(out.rank() - 1) == local_width_;
    if (!fits) {
      const index_t local_shape[2] = {local_rows_, local_width_};
      contract::fail(
          function, name,
          out ? contract::shape(out.rank(), out.shape().extent) : contract::Text("no array"),
          contract::shape(padded_ ? 2 : 1, local_shape + (padded_ ? 0 : 1)) +
              ", the shape of the own tokens");
    }
    gdpo::detail::check_apart(function, name, out);
    for (std::size_t k = 0; k < local_places_.size(); ++k) {
      const auto i = static_cast<index_t>(k);
      out.row(i / local_width_, 0, local_width_)(i % local_width_) =
          gradient[static_cast<std::size_t>(local_places_[k])];
    }
  }

  std::size_t tokens() const {
    return begin_.empty() ? 0 : static_cast<std::size_t>(begin_.back());
  }

  template <class Value>
  struct Shaped {
    Value* data;
    const GatheredTokens& owner;
    template <class Target>
    operator Target() const {
      if (owner.padded_) return Target(gdpo::view(data, owner.rows_.value, owner.width_.value));
      return Target(gdpo::view(data, static_cast<index_t>(owner.tokens())));
    }
  };
  template <class Value>
  Shaped<Value> shaped(Value* data) const {
    return {data, *this};
  }

  /// The first rank that has tokens, or the last one. Ranks without tokens need no arrays.
  static std::size_t with_tokens(const std::vector<gdpo::detail::TokensHeader>& headers) {
    std::size_t rank = 0;
    while (rank + 1 < headers.size() && headers[rank].tokens == 0) ++rank;
    return rank;
  }

  /// Reads what each rank has, and refuses ranks that do not share the rows.
  std::vector<gdpo::detail::TokensHeader> read_headers(const char* function,
                                                       const gdpo::detail::Records& records) {
    using namespace gdpo::detail;
    std::vector<TokensHeader> headers;
    for (int r = 0; r < records.ranks(); ++r)
      headers.push_back(RecordReader(records, r).get<TokensHeader>());
    const std::size_t full_rank = with_tokens(headers);
    const TokensHeader &first = headers[0], &full = headers[full_rank];
    for (std::size_t r = 1; r < headers.size(); ++r) {
      const TokensHeader& now = headers[r];
      if (now.rows != first.rows) {
        fail_between(function, "batch", std::to_string(first.rows) + " rows", 0,
                     std::to_string(now.rows), r, "parts of the same rows on all ranks");
      }
      std::uint64_t bit = 1;
      for_each_token_array(batch_.value, memory_, [&](const char* name, auto&, auto&) {
        if (now.tokens > 0 && (now.arrays ^ full.arrays) & bit) {
          const auto words = [&](const TokensHeader& h) { return h.arrays & bit ? "one" : "none"; };
          fail_between(function, name, words(full), full_rank, words(now), r,
                       "the same arrays on all ranks");
        }
        bit <<= 1;
      });
      if (now.tokens > 0 && now.positions != full.positions) {
        const auto words = [](const TokensHeader& h) { return h.positions ? "some" : "none"; };
        fail_between(function, "positions", words(full), full_rank, words(now), r,
                     "positions on all ranks or on none");
      }
      const std::uint64_t *a = first.columns, *b = now.columns;
#define GDPO_X(member, type)                                              \
  if (*a++ != *b++)                                                       \
    fail_between(function, "batch." #member, "a column", 0, "another", r, \
                 "the same numbers on all ranks, because they share the rows");
      GDPO_ROW_COLUMNS(GDPO_X)
#undef GDPO_X
    }
    return headers;
  }

  void check_position(const char* function, std::size_t rank, std::size_t row, index_t t) const {
    const index_t length = begin_[row + 1] - begin_[row];
    if (t >= 0 && t < length) return;
    contract::fail(
        function, "positions",
        std::to_string(t) + " in row " + std::to_string(row) + " of rank " + std::to_string(rank),
        "the places of the tokens in the whole row, from 0 to " + std::to_string(length - 1));
  }
  void check_once(const char* function, std::size_t rank, std::size_t row, index_t place,
                  std::vector<unsigned char>& uses) const {
    if (!uses[static_cast<std::size_t>(place)]++) return;
    contract::fail(function, "positions",
                   "place " + std::to_string(place - begin_[row]) + " in row " +
                       std::to_string(row) + " a second time, by rank " + std::to_string(rank),
                   "a place of its own for every token of a row");
  }

  template <class X>
  using UntilMoved = gdpo::detail::UntilMoved<X>;

  UntilMoved<TokenBatch<S>> batch_;
  gdpo::detail::TokenMemory<S> memory_;
  UntilMoved<index_t> rows_, width_;
  bool padded_ = false;
  std::vector<index_t> begin_, local_places_;
  UntilMoved<index_t> local_rows_, local_width_;
  std::vector<S> gradient_, entropy_gradient_;
};

/// Gathers the parts of rows whose tokens are spread over ranks (context parallelism, sequence
/// parallelism), so that every rank has them whole.
///
///     auto whole = gdpo::dist::gather_tokens(context_parallel, batch);
///     const auto n =
///         gdpo::dist::all_merge(data_parallel, [&] { return gdpo::count(whole.batch()); });
///     const auto r = gdpo::dist::agree(data_parallel, [&] {
///       return loss(whole.batch(), n, whole.gradient());
///     });
///     whole.own_into(gdpo::view(dlogp, rows, width));  // of the tokens of this rank
///
/// All ranks of the group then have the same loss and metrics, those of the whole rows, in every
/// bit: the ratio of a sequence, the mean over a row, counts, segments that cross ranks, pre-passes
/// that decide by row. A split row counts once where counts, losses and metrics are merged over the
/// data-parallel group, the ranks with different rows, and not over all ranks.
///
/// What travels is small beside the activations of the tokens: sizeof(S) for each array, 1 byte for
/// a mask, 8 for segments and positions.
///
/// batch: the part that this rank has of each row, padded or packed, also none. All ranks have the
/// same rows in the same order, the same arrays and the same columns (advantages, row_weights,
/// group_tokens, truncated). Padded parts lie side by side, so the whole rows are as wide as all
/// parts together; the padding of a part is masked as before.
///
/// positions: (the shape of the tokens) the place of each token in its whole row, for parts that
/// are not consecutive, such as those of ring attention that balances causal work. Absent: the
/// tokens of rank 0 come first, then those of rank 1.
///
/// Errors, the same on all ranks: invalid_input for a batch that does not fit on some rank, for
/// ranks that do not share their rows, and for positions that are not all different.
template <class Comm, class S>
GatheredTokens<S> gather_tokens(const Comm& comm, const TokenBatch<S>& batch,
                                const TokenView<std::int64_t>& positions = {}) {
  using namespace gdpo::detail;
  constexpr const char* function = "gdpo::dist::gather_tokens";
  const Records records = exchange(function, comm, [&](Contribution& mine) {
    const TokenLayout layout = layout_of(function, batch, NeedsLogp::No);
    if (batch.prepared.uses) {
      contract::fail(function, "batch", "a batch that prepare() has seen in parts",
                     "gather_tokens first, then prepare: pre-passes decide by whole rows");
    }
    check_tokens(function, "positions", positions, layout);
    TokensHeader header{};
    header.rows = layout.rows, header.width = layout.width, header.tokens = layout.tokens;
    TokenMemory<S> unused;
    std::uint64_t bit = 1;
    for_each_token_array(batch, unused, [&](const char*, const auto& array, auto&) {
      if (array.rank() > 0) header.arrays |= bit;
      bit <<= 1;
    });
    std::uint64_t* column = header.columns;
#define GDPO_X(member, type) *column++ = hash_of(batch.member);
    GDPO_ROW_COLUMNS(GDPO_X)
#undef GDPO_X
    mine.settings = "tokens of " + type_name<S>() + (layout.offsets ? ", packed" : ", padded");
    header.positions = positions ? 1 : 0;
    mine.put(&header, 1);
    for (index_t i = 0; layout.offsets && i < layout.rows; ++i) {
      const index_t length = layout(i).length;
      mine.put(&length, 1);
    }
    const auto put = [&](const auto& array, auto scratch) {
      scratch.resize(static_cast<std::size_t>(layout.longest));
      for (index_t i = 0; i < layout.rows; ++i) {
        const RowSpan span = layout(i);
        mine.put(array.row(i, span.begin, span.length, scratch.data()),
                 static_cast<std::size_t>(span.length));
      }
    };
    if (positions) put(positions, std::vector<std::int64_t>{});
    for_each_token_array(batch, unused, [&](const char*, const auto& array, auto& memory) {
      if (array) put(array, memory);
    });
  });
  return GatheredTokens<S>(function, records, comm.rank(), batch);
}

}  // namespace dist
GDPO_END_NAMESPACE
