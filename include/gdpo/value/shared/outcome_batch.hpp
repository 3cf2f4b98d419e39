#pragma once
// What an OutcomeAdvantage hands from its rows to its tokens, and the checks of both batches.
#include <gdpo/value/outcome_advantage.hpp>
#include <gdpo/value/shared/return_layout.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Checks that two batches fit together. Their arrays are checked by the calls that read them.
template <class Rewards, class S, class Rows, class Tokens>
void check_outcome(const char* function, const Rewards& rewards, const ReturnBatch<S>& batch,
                   const OutcomeAdvantage<Rows, Tokens>& estimator, const TokenOut<S>& advantages,
                   const TokenOut<S>& returns) {
  check_fields(function, "", estimator);
  check_over_tokens(function, estimator.tokens.renorm, true, "tokens.renorm.over");
  if (batch.row_rewards) {
    contract::fail(function, "batch.row_rewards", "an array",
                   "none: the advantages of the rows take its place");
  }
  if (batch.rewards && estimator.placement == Placement::EveryToken) {
    contract::fail(function, "batch.rewards", "an array",
                   "none: with placement every_token the advantages of the rows take its place");
  }
  const TokenLayout layout = return_layout(function, batch, advantages, returns, ReadsArrays::No);
  contract::check_array(function, "rewards", rewards.rewards);
  contract::check_entries(function, "rewards", rewards.rewards.extent[0], layout.rows);
}

/// The batch of tokens with the advantages of its rows, which are in one of two arrays: as doubles
/// for the last steps, as numbers of the batch for every token.
template <class S>
ReturnBatch<S> with_outcomes(ReturnBatch<S> batch, Placement placement,
                             const View<double, 1>& of_steps, const View<S, 1>& of_tokens) {
  if (placement == Placement::LastStep) {
    batch.row_rewards = of_steps;
  } else {
    batch.rewards = repeated(of_tokens);
  }
  return batch;
}

}  // namespace detail
GDPO_END_NAMESPACE
