#pragma once
// ReturnBatch: rewards, values and masks, from which returns are computed.
#include <gdpo/tokens/token_batch.hpp>

GDPO_BEGIN_NAMESPACE

/// The tokens of one batch, with everything that an estimator of token advantages reads.
///
///     gdpo::ReturnBatch<float> batch;
///     batch.row_rewards = gdpo::view(scores, rows);       // (B) one reward a completion
///     batch.values = gdpo::view(values, rows, width);     // (B, T) of the critic
///     batch.mask = gdpo::view(mask, rows, width);
///
/// Shapes are those of a TokenBatch: token arrays are padded, (B, T) or (prompts, completions, T),
/// or packed, (tokens) with `offsets`; all of them and both outputs have one shape, with any
/// strides. Columns have one number a row; gdpo::repeated makes an array of tokens of one. The
/// members are views, and the arrays must outlive the calls.
///
/// S is the type that numbers are read as and that the outputs have: float, also for arrays of
/// 16-bit floats, or double. All arithmetic is in double.
///
/// In a padded array every position of a row belongs to it. `Steps::Row` and
/// `Steps::RowRewardOnValid` walk over all of them, so rows of different lengths are packed there;
/// the other choices skip padding by the mask.
template <class S = float>
struct ReturnBatch {
  static_assert(std::is_same_v<S, float> || std::is_same_v<S, double>,
                "a ReturnBatch is of float or double");
  /// The type that numbers are read as and that the outputs have.
  using Scalar = S;

  /// Rewards of the tokens. Absent: 0. Needed where there are neither row_rewards nor a penalty.
  TokenView<S> rewards;
  /// (B) One reward a row, which is clamped (TokenAdvantage::reward_clip) and added to the reward
  /// of the row's last step. Absent: 0. That of a row without a step has no effect.
  Column row_rewards;
  /// The critic's value of the state before each token: what it predicts for the tokens from that
  /// one on. Needed by returns::Gae; returns::RewardToGo does not read it.
  TokenView<S> values;
  /// Log-probs under the policy that wrote the tokens, in nats. Needed where penalty.coef is not 0,
  /// and otherwise not read.
  TokenView<S> logp;
  /// Log-probs under the reference policy, in nats, needed where logp is. For
  /// `distillation_advantage` those under a teacher.
  TokenView<S> ref_logp;

  /// 0: no token of the policy (prompt, output of a tool, padding); every other number, also NaN,
  /// makes it valid. Absent: all are valid.
  TokenView<unsigned char> mask;
  /// (B + 1) Where each row begins and the last one ends. Required for packed batches only.
  IndexColumn offsets;

  /// (B) The value of the state behind the row's last step, for rows that were cut off and go on
  /// elsewhere. 0 where the episode has ended. Absent: all have ended. That of a row without a step
  /// has no effect.
  Column bootstrap;
};

GDPO_END_NAMESPACE
