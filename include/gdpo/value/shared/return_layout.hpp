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

/// The layout of a batch and its outputs, with all shapes checked. The shape is that of the first
/// token array that has elements; without one it is that of the advantages. Repeated numbers have
/// no shape of tokens: they must be as many as the rows.
template <class S>
TokenLayout return_layout(const char* function, const ReturnBatch<S>& b,
                          const TokenOut<S>& advantages, const TokenOut<S>& returns,
                          ReadsArrays reads) {
  bool any = static_cast<bool>(b.offsets) || advantages.rank() > 0;
  for_each_return_array(b, [&](const char*, const auto& array) { any = any || array.rank() > 0; });
  if (!any) {
    contract::fail(function, "advantages", "no array",
                   "the array that the advantages are written to");
  }
  TokenLayout layout = layout_of_shapes(
      function, TokenShape{}, "advantages", b.offsets,
      [&](const auto& f) {
        for_each_return_array(b, [&](const char* name, const auto& array) {
          if (!array.shape().repeats) f(name, array);
        });
        f("advantages", advantages);
      },
      [&](const auto& f) {
        f("batch.row_rewards", b.row_rewards), f("batch.bootstrap", b.bootstrap);
      });
  // Of arrays without elements too, which layout_of_shapes takes as absent.
  const auto check = [&](const char* name, const auto& array) {
    if (array.rank() > 0) check_shape_of(function, name, array.shape(), layout);
    if (array.shape().repeats)
      contract::check_entries(function, name, array.shape().extent[0], layout.rows);
  };
  for_each_return_array(b, check);
  check("advantages", advantages), check("returns", returns);
  check_apart(function, "advantages", advantages);
  check_apart(function, "returns", returns);
  if (reads == ReadsArrays::Yes) {
    read_offsets(function, layout);
    check_mask(function, "batch.mask", b.mask, layout.rows, layout);
  }
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
