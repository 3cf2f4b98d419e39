#pragma once
// advantages_and_returns_into: advantages and returns of all tokens of a batch.
#include <gdpo/value/engine/batch_returns.hpp>

GDPO_BEGIN_NAMESPACE

/// Computes the advantages and the returns of all tokens of a batch.
///
///     gdpo::ReturnBatch<float> batch;
///     batch.row_rewards = gdpo::view(scores, rows);
///     batch.values = gdpo::view(values, rows, width);
///     batch.mask = gdpo::view(mask, rows, width);
///     gdpo::ReturnsWorkspace<float> workspace;
///     gdpo::advantages_and_returns_into(gdpo::simd, batch, gdpo::TokenAdvantage<>{{1, 0.95}},
///                                       gdpo::view(advantages, rows, width),
///                                       gdpo::view(returns, rows, width), workspace);
///
/// - `exec`: seq, simd or parallel(executor); all give the same bits.
/// - `estimator`: a TokenAdvantage, or a type with its members.
/// - `advantages`: required, of the shape of the batch and with elements of type S.
/// - `returns`: the same, or `{}` where they are not wanted.
/// - `workspace`: kept by the caller. After a first call nothing is allocated.
///
/// Both outputs are written at every position, exactly 0 where the mask is 0. An output may be one
/// of the batch's token arrays itself, with the same strides and elements of type S (advantages
/// over the rewards, say): each position is read before it is written. Other overlaps, and two
/// outputs in one place, are not allowed.
///
/// **Arithmetic.** Everything is computed in double, in the order that the policy states, without
/// fma; what is written is rounded once to S. So all executions and all builds give the same bits,
/// padded or packed, and rows may be split over calls. Two things depend on the build: K3 in the
/// penalty is computed with fma where the machine has it (math::exp_parts), and with a
/// renormalization the advantages are rounded to S before it and once after it. They are then what
/// whiten_into makes of the advantages of a call without one, bit for bit.
///
/// **Data.** A row without a step gives zeros, whatever its columns hold. A NaN or an infinity in a
/// reward, a value or a bootstrap reaches the steps before it in its row (in its turn), and no
/// other row; with a renormalization every advantage of the batch. That holds for a factor of 0
/// too, because 0 times infinity is NaN; only returns::RewardToGo with gamma 0 has no steps before.
///
/// **Errors.** invalid_input, before anything is written: settings out of range, shapes that do not
/// fit, a missing array.
template <class Exec, class S, class Estimator,
          std::enable_if_t<!detail::is_device_v<Exec>, int> = 0>
void advantages_and_returns_into(const Exec& exec, const ReturnBatch<S>& batch,
                                 const Estimator& estimator,
                                 const std::common_type_t<TokenOut<S>>& advantages,
                                 const std::common_type_t<TokenOut<S>>& returns,
                                 ReturnsWorkspace<S>& workspace) {
  static_assert(detail::needs_exec<Exec>());
  static_assert(is_token_advantage_v<Estimator>,
                "the estimator is a gdpo::TokenAdvantage, or has its members: returns, penalty, "
                "reward_clip, renorm; a gdpo::OutcomeAdvantage also takes a gdpo::RewardBatch, in "
                "front of the batch of tokens");
  const detail::BatchReturns<Exec, S, Estimator> call("gdpo::advantages_and_returns_into", batch,
                                                      estimator, advantages, returns);
  call(exec, workspace);
}

/// The same on one thread in vector lanes (simd), with a workspace of its own, which is allocated
/// in each call. Without `returns`, only the advantages are computed.
template <class S, class Estimator>
void advantages_and_returns_into(const ReturnBatch<S>& batch, const Estimator& estimator,
                                 const std::common_type_t<TokenOut<S>>& advantages,
                                 const std::common_type_t<TokenOut<S>>& returns = {}) {
  ReturnsWorkspace<S> workspace;
  advantages_and_returns_into(simd, batch, estimator, advantages, returns, workspace);
}

GDPO_END_NAMESPACE
