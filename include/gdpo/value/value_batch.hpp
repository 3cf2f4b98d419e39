#pragma once
// ValueBatch: the tokens that a value loss reads.
#include <gdpo/tokens/token_batch.hpp>

GDPO_BEGIN_NAMESPACE

/// The tokens of one (micro-)batch as the value loss of a critic reads them.
///
/// A row is one sequence (a completion); B is the number of rows. The shapes are those of a
/// TokenBatch: padded arrays are (B, T) or (prompts, completions, T), packed ones have rank 1 and
/// `offsets`, and all token arrays have the same shape.
///
///     gdpo::ValueBatch<float> batch;
///     batch.values = gdpo::view(values, rows, width);          // of the critic that is trained
///     batch.old_values = gdpo::view(old_values, rows, width);  // at the rollout
///     batch.returns = gdpo::view(returns, rows, width);
///     batch.mask = gdpo::view(mask, rows, width);
///
/// S is the type that numbers are read as and that the gradient has: float, also for arrays of
/// 16-bit floats, or double. The members are views: the arrays must outlive the calls. Masked
/// tokens may hold anything, even NaN: they change no bit of a result.
template <class S = float>
struct ValueBatch {
  static_assert(std::is_same_v<S, float> || std::is_same_v<S, double>,
                "a ValueBatch is of float or double");
  /// The type that numbers are read as and that the gradient has.
  using Scalar = S;

  /// Values of the tokens under the critic that is trained; the gradient is by them. Required by a
  /// loss.
  TokenView<S> values;
  /// Values of the same tokens at the rollout, which the clip is about. Required, and read, only
  /// where `ValueLoss::clip` is finite.
  TokenView<S> old_values;
  /// What the values are trained towards (value/returns.hpp). Required by a loss.
  TokenView<S> returns;

  /// 0: the token does not belong to the loss; every other number, also NaN, lets it in. Absent:
  /// all tokens do.
  TokenView<unsigned char> mask;
  /// (B + 1) Where each row begins and the last one ends. Required for packed batches only.
  IndexColumn offsets;
  /// (B) Factor of the row's weight W_i, at least 0. Absent: 1. A loss on the host refuses a
  /// negative one of a row with valid tokens; on a device, where nobody looks first, it counts.
  Column row_weights;
  /// (B) Number of valid tokens in all rows of the row's group, as TokenBatch::group_tokens.
  Column group_tokens;
};

GDPO_END_NAMESPACE
