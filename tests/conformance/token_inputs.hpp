// The token arrays of a case, padded as recorded or packed, and the library's batch over them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <gdpo/loss.hpp>
#include <string>
#include <vector>

#include "golden.hpp"

namespace conformance {

// The arrays of a case. An empty vector stands for an array that the record does not have.
struct TokenInputs {
  gdpo::index_t rows = 0, width = 0;
  std::vector<double> logp, old_logp, ref_logp, rollout_logp, teacher_logp, token_advantages,
      weights, entropy_weights, level_log_weights,
      entropies;                                           // per token
  std::vector<unsigned char> mask;                         // per token
  std::vector<double> advantages, truncated, row_weights;  // per row
  std::vector<std::int64_t> group_ids;  // per row; rows that are averaged together
  std::vector<std::int64_t> offsets;    // packed: rows + 1; padded: empty

  std::vector<std::size_t> place;  // packed: the place of each token in the padded arrays

  Target target;  // of the case

  bool is_packed() const { return !offsets.empty(); }
};

// Reads the members of TokenInputs under their names in the record; `logp` is the record's name for
// the first one. If the record was taken in float32, numbers are rounded to float. Throws BadGolden
// for shapes that do not fit, Unsupported for an input with another name.
TokenInputs token_inputs(const Case& recorded, const std::string& logp = "logp");

// The inputs of a trainer whose sums run over padding: without a mask, and each row weighs as many
// times as it has valid tokens.
TokenInputs over_padding(const TokenInputs& in);

// The inputs of a trainer whose weights enter the ratio of the row: their logarithms, within the
// bounds of Reach::Level, and at the first valid token alone those that all tokens of a row share.
TokenInputs in_ratio(const TokenInputs& in, bool of_rows);

// The inputs with the means over each row of the advantages of tokens in their place.
TokenInputs row_advantages(const TokenInputs& in);

// Rows first .. last - 1 of padded inputs.
TokenInputs rows_of(const TokenInputs& in, std::size_t first, std::size_t last);

// The same tokens without padding. A row whose valid tokens come first is cut to them; a row with
// holes stays whole, and so do all rows if no token is valid.
TokenInputs packed(const TokenInputs& in);

// Each row of padded tokens as a batch, for numbers that a trainer lists by row.
std::vector<TokenInputs> rows_of(const TokenInputs& in);

// A view, in the layout of `in`, of an array with one entry per token of `in`; absent if the array
// is empty.
template <class T>
gdpo::TokenView<T> view_of(const TokenInputs& in, const std::vector<T>& tokens) {
  if (tokens.empty()) return {};
  if (in.is_packed()) return gdpo::view(tokens);
  return gdpo::view(tokens.data(), in.rows, in.width);
}

// The values of a view in the layout of `in`; all are `absent` if there is no view.
template <class T>
std::vector<T> tokens_of(const TokenInputs& in, const gdpo::TokenView<T>& view, T absent) {
  std::vector<T> out(in.logp.size(), absent);
  for (gdpo::index_t i = 0; view && i < in.rows; ++i) {
    const auto row = static_cast<std::size_t>(i);
    const gdpo::index_t begin = in.is_packed() ? in.offsets[row] : i * in.width;
    const gdpo::index_t length = in.is_packed() ? in.offsets[row + 1] - begin : in.width;
    T* to = out.data() + begin;
    const T* from = view.row(i, begin, length, to);
    if (from != to) std::copy(from, from + length, to);
  }
  return out;
}

// The tokens of `in` as S and the library's batch over them. S is double, or float for numbers that
// were rounded to it. `in` and this object must outlive the batch.
template <class S>
class TokenArrays {
 public:
  explicit TokenArrays(const TokenInputs& in)
      : in_(in),
        logp_(of(in.logp)),
        old_logp_(of(in.old_logp)),
        ref_logp_(of(in.ref_logp)),
        rollout_logp_(of(in.rollout_logp)),
        teacher_logp_(of(in.teacher_logp)),
        token_advantages_(of(in.token_advantages)),
        weights_(of(in.weights)),
        entropy_weights_(of(in.entropy_weights)),
        level_log_weights_(of(in.level_log_weights)),
        entropies_(of(in.entropies)) {
    if (!in.group_ids.empty())
      group_tokens_ = gdpo::count_group_tokens(batch(), gdpo::by_id(in.group_ids));
  }
  TokenArrays(const TokenArrays&) = delete;
  TokenArrays& operator=(const TokenArrays&) = delete;

  gdpo::TokenBatch<S> batch() const {
    gdpo::TokenBatch<S> batch;
    batch.logp = view_of(in_, logp_);
    batch.old_logp = view_of(in_, old_logp_);
    batch.ref_logp = view_of(in_, ref_logp_);
    batch.rollout_logp = view_of(in_, rollout_logp_);
    batch.teacher_logp = view_of(in_, teacher_logp_);
    batch.token_advantages = view_of(in_, token_advantages_);
    batch.weights = view_of(in_, weights_);
    batch.entropy_weights = view_of(in_, entropy_weights_);
    batch.level_log_weights = view_of(in_, level_log_weights_);
    batch.entropies = view_of(in_, entropies_);
    batch.mask = view_of(in_, in_.mask);
    if (in_.is_packed()) batch.offsets = gdpo::view(in_.offsets);
    if (!in_.advantages.empty()) batch.advantages = gdpo::view(in_.advantages);
    if (!in_.truncated.empty()) batch.truncated = gdpo::view(in_.truncated);
    if (!in_.row_weights.empty()) batch.row_weights = gdpo::view(in_.row_weights);
    if (!group_tokens_.empty()) batch.group_tokens = gdpo::view(group_tokens_);
    return batch;
  }

 private:
  static std::vector<S> of(const std::vector<double>& from) {
    std::vector<S> to;
    for (const double x : from) to.push_back(static_cast<S>(x));
    return to;
  }
  const TokenInputs& in_;
  std::vector<S> logp_, old_logp_, ref_logp_, rollout_logp_, teacher_logp_, token_advantages_,
      weights_, entropy_weights_, level_log_weights_, entropies_;
  std::vector<double> group_tokens_;  // before pre-passes
};

// The tokens of `in` as (rows, width). Packed tokens go to their places, and the others are 0.
template <class T>
std::vector<T> padded(const TokenInputs& in, const std::vector<T>& tokens) {
  if (!in.is_packed()) return tokens;
  std::vector<T> out(static_cast<std::size_t>(in.rows * in.width), T(0));
  for (std::size_t k = 0; k < tokens.size(); ++k) out[in.place[k]] = tokens[k];
  return out;
}

}  // namespace conformance
