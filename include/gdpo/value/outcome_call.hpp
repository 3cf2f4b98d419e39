#pragma once
// advantages_and_returns_into of an OutcomeAdvantage: from rewards of rows to advantages of tokens.
#include <gdpo/advantage/advantages.hpp>
#include <gdpo/value/advantages_and_returns.hpp>
#include <gdpo/value/shared/outcome_batch.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {
struct OutcomeScratch;
}  // namespace detail

/// Scratch memory of an OutcomeAdvantage, as ReturnsWorkspace is of a TokenAdvantage.
template <class S>
class OutcomeWorkspace {
 public:
  /// The memory of the rows, whose sums() are their combined values (Workspace).
  const Workspace& rows() const { return rows_; }

 private:
  friend struct detail::OutcomeScratch;
  Workspace rows_;
  ReturnsWorkspace<S> tokens_;
  std::vector<double> of_steps_;
  std::vector<S> of_tokens_;
};

namespace detail {

/// Runs a call with the memory of a workspace.
struct OutcomeScratch {
  template <class Exec, class Rewards, class S, class Rows, class Tokens>
  static void run(const char* function, const Exec& exec, const Rewards& rewards,
                  const ReturnBatch<S>& batch, const OutcomeAdvantage<Rows, Tokens>& estimator,
                  const TokenOut<S>& advantages, const TokenOut<S>& returns,
                  OutcomeWorkspace<S>& workspace, GroupReport* report) {
    check_outcome(function, rewards, batch, estimator, advantages, returns);
    const auto rows = static_cast<std::size_t>(rewards.rewards.extent[0]);
    const bool last = estimator.placement == Placement::LastStep;
    workspace.of_steps_.resize(last ? rows : 0);
    workspace.of_tokens_.resize(last ? 0 : rows);
    const ReturnBatch<S> bound =
        with_outcomes(batch, estimator.placement, gdpo::view(workspace.of_steps_),
                      gdpo::view(workspace.of_tokens_));
    const BatchReturns<Exec, S, Tokens> of_tokens(function, bound, estimator.tokens, advantages,
                                                  returns);
    if (last) {
      advantages_into(exec, rewards, estimator.rows, gdpo::view(workspace.of_steps_),
                      workspace.rows_, report);
    } else {
      advantages_into(exec, rewards, estimator.rows, gdpo::view(workspace.of_tokens_),
                      workspace.rows_, report);
    }
    of_tokens(exec, workspace.tokens_);
  }
};

}  // namespace detail

/// Computes the advantages and the returns of all tokens of a batch from the rewards of its rows.
///
///     const gdpo::RewardBatch rewards{gdpo::view(scores), gdpo::groups_of(8)};
///     gdpo::ReturnBatch<float> batch;
///     batch.mask = gdpo::view(mask, rows, width);
///     gdpo::OutcomeWorkspace<float> workspace;
///     gdpo::advantages_and_returns_into(gdpo::simd, rewards, batch, gdpo::openrlhf::rloo_outcome,
///                                       gdpo::view(advantages, rows, width),
///                                       gdpo::view(returns, rows, width), workspace);
///
/// It is advantages_into of the rows and advantages_and_returns_into of the tokens behind it, in
/// every bit; between the two the advantages of rows are doubles, and numbers of type S for
/// Placement::EveryToken.
///
/// - `rewards`: row i is row i of the batch of tokens. RewardBatch::tokens and the other columns
///   are the caller's. A row without a valid token counts in its group; RewardBatch::valid leaves
///   it out.
/// - `batch`: without `row_rewards`, and without `rewards` for Placement::EveryToken.
/// - `report`: may be null; otherwise that of the rows (advantages_into).
/// - everything else: as for a TokenAdvantage.
///
/// An infinite reward makes the advantages of rows NaN or infinite as in advantages_into, in its
/// group or, with a batch step of `rows`, in all; tokens.renorm carries that to every token.
///
/// Over ranks: gather the rewards (dist::gather_rows), run `rows` on all of them, and `tokens` on
/// the rows of the rank; what whitening needs are the moments of all ranks (README.md,
/// whiten_into).
///
/// Errors: invalid_input, before any output is written: batches of different numbers of rows, and
/// what the two calls refuse.
template <class Exec, class T, class Groups, class S, class Rows, class Tokens,
          std::enable_if_t<!detail::is_device_v<Exec>, int> = 0>
void advantages_and_returns_into(const Exec& exec, const RewardBatch<T, Groups>& rewards,
                                 const ReturnBatch<S>& batch,
                                 const OutcomeAdvantage<Rows, Tokens>& estimator,
                                 const std::common_type_t<TokenOut<S>>& advantages,
                                 const std::common_type_t<TokenOut<S>>& returns,
                                 OutcomeWorkspace<S>& workspace, GroupReport* report = nullptr) {
  if constexpr (detail::may_run<Exec, Groups>()) {
    detail::OutcomeScratch::run("gdpo::advantages_and_returns_into", exec, rewards, batch,
                                estimator, advantages, returns, workspace, report);
  }
}

/// The same on one thread in vector lanes (simd), with a workspace of its own, which is allocated
/// in each call. Without `returns`, only the advantages are computed.
template <class T, class Groups, class S, class Rows, class Tokens>
void advantages_and_returns_into(const RewardBatch<T, Groups>& rewards, const ReturnBatch<S>& batch,
                                 const OutcomeAdvantage<Rows, Tokens>& estimator,
                                 const std::common_type_t<TokenOut<S>>& advantages,
                                 const std::common_type_t<TokenOut<S>>& returns = {}) {
  OutcomeWorkspace<S> workspace;
  advantages_and_returns_into(simd, rewards, batch, estimator, advantages, returns, workspace);
}

GDPO_END_NAMESPACE
