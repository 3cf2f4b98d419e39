#pragma once
// Where the rows of a ReturnBatch are, and the checks of its arrays.
#include <gdpo/tokens/token_layout.hpp>
#include <gdpo/value/return_batch.hpp>
#include <gdpo/value/token_advantage.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Whether a call may read the arrays on the host, where it can check the offsets.
enum class ReadsArrays : bool { No, Yes };

/// Calls f(name, array) for the token arrays of a batch.
template <class S, class F>
void for_each_return_array(const ReturnBatch<S>& b, const F& f) {
  f("batch.rewards", b.rewards);
  f("batch.values", b.values);
  f("batch.logp", b.logp);
  f("batch.ref_logp", b.ref_logp);
  f("batch.mask", b.mask);
}

/// Throws unless an array of tokens that is there has the shape of the layout.
template <class Tokens>
void check_return_shape(const char* function, const char* name, const Tokens& array,
                        const TokenLayout& layout) {
  if (array.rank() == 0) return;
  const TokenShape &own = array.shape(), &shape = layout.shape;
  bool same = own.rank == shape.rank;
  for (int r = 0; r < own.rank; ++r)
    same = same && r < shape.rank && own.extent[r] == shape.extent[r];
  if (!same) {
    contract::fail(function, name, contract::shape(own.rank, own.extent),
                   contract::shape(shape.rank, shape.extent) + ", the shape of " + layout.shaped);
  }
}

/// The layout of a batch and its outputs, with all shapes checked. The shape is that of the first
/// token array that has elements; without one it is that of the advantages.
template <class S>
TokenLayout return_layout(const char* function, const ReturnBatch<S>& b,
                          const TokenOut<S>& advantages, const TokenOut<S>& returns,
                          ReadsArrays reads) {
  using contract::fail, contract::text;
  TokenShape shape;
  const char* shaped = "advantages";
  const auto take = [&](const char* name, bool has_elements, const auto& of) {
    if (shape.rank == 0 && of.rank() > 0 && static_cast<bool>(of) == has_elements)
      shape = of.shape(), shaped = name;
  };
  for (const bool has_elements : {true, false}) {
    for_each_return_array(b,
                          [&](const char* name, const auto& of) { take(name, has_elements, of); });
    take("advantages", has_elements, advantages);
  }
  contract::check_extents(function, shaped, shape.rank, shape.extent);

  TokenLayout layout;
  if (shape.rank < 2) {
    if (!b.offsets || b.offsets.size() == 0) {
      if (shape.rank == 0)
        fail(function, "advantages", "no array", "the array that the advantages are written to");
      fail(function, "batch.offsets",
           "none, with packed tokens (" + contract::Text(shaped) + " has rank 1)",
           "offsets (B + 1)");
    }
    TokenBatch<S> offsets;
    offsets.offsets = b.offsets;
    layout = reads == ReadsArrays::Yes ? layout_of(function, offsets, NeedsLogp::No)
                                       : shape_of(function, offsets, NeedsLogp::No);
    if (shape.rank == 1) {
      if (reads == ReadsArrays::Yes && layout.tokens != shape.extent[0]) {
        fail(function, "batch.offsets", "from 0 to " + text(layout.tokens),
             "from 0 to " + text(shape.extent[0]) + ", the number of tokens");
      }
      layout.tokens = shape.extent[0];
    }
  } else {
    if (b.offsets) {
      fail(function, "batch.offsets",
           "offsets, with padded tokens (" + contract::Text(shaped) + " has rank " +
               text(index_t{shape.rank}) + ")",
           "none, or tokens of rank 1");
    }
    layout.rows = shape.rank == 2 ? shape.extent[0] : shape.extent[0] * shape.extent[1];
    layout.width = shape.extent[shape.rank - 1];
    layout.longest = layout.rows > 0 ? layout.width : 0;
    layout.tokens = layout.rows * layout.width;
  }
  layout.shape = shape;
  layout.shaped = shaped;
  for_each_return_array(
      b, [&](const char* name, const auto& of) { check_return_shape(function, name, of, layout); });
  check_return_shape(function, "advantages", advantages, layout);
  check_return_shape(function, "returns", returns, layout);
  check_apart(function, "advantages", advantages);
  check_apart(function, "returns", returns);

  if (reads == ReadsArrays::Yes) check_mask(function, "batch.mask", b.mask, layout.rows, layout);

  const auto check_column = [&](const char* name, const Column& c) {
    if (!c) return;
    const index_t* own = c.extents();
    if (c.rank() == 2 && shape.rank == 3 &&
        (own[0] != shape.extent[0] || own[1] != shape.extent[1])) {
      fail(function, name, contract::shape(2, own),
           contract::shape(2, shape.extent) + ", the prompts and completions of " + shaped);
    }
    contract::check_entries(function, name, c.size(), layout.rows);
  };
  check_column("batch.row_rewards", b.row_rewards);
  check_column("batch.bootstrap", b.bootstrap);
  return layout;
}

/// What a call reads.
struct ReturnReads {
  bool values;     ///< The critic's values.
  bool penalized;  ///< The log-probs, for the penalty.
  bool twice;      ///< Two scans: the returns are wanted, and have another decay.
};

/// Checks the settings and that no array is missing. Of a batch without tokens none is needed.
template <class S, class Estimator>
ReturnReads check_returns(const char* function, const Estimator& estimator, const ReturnBatch<S>& b,
                          const TokenOut<S>& advantages, const TokenOut<S>& returns,
                          const TokenLayout& layout) {
  check_over_tokens(function, estimator.renorm, true);
  const ReturnReads reads{std::decay_t<decltype(estimator.returns)>::reads_values,
                          estimator.penalty.coef != 0,
                          static_cast<bool>(returns) && estimator.returns.scans_twice()};
  if (layout.tokens == 0) return reads;
  const auto need = [&](const char* name, bool there, const char* given, const char* needed) {
    if (!there) contract::fail(function, name, given, needed);
  };
  need("advantages", static_cast<bool>(advantages), "no array",
       "the array that the advantages are written to");
  need("returns", !returns || returns.data() != advantages.data(), "the array of the advantages",
       "an array of their own");
  need("batch.rewards", b.rewards || b.row_rewards || reads.penalized,
       "neither rewards nor row_rewards", "one of them, or a penalty");
  if (reads.values)
    need("batch.values", static_cast<bool>(b.values), "no array", "the critic's values");
  if (reads.penalized) {
    constexpr const char* needed = "the log-probs of the tokens, because penalty.coef is not 0";
    need("batch.logp", static_cast<bool>(b.logp), "no array", needed);
    need("batch.ref_logp", static_cast<bool>(b.ref_logp), "no array", needed);
  }
  return reads;
}

}  // namespace detail
GDPO_END_NAMESPACE
