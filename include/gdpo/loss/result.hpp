#pragma once
#include <gdpo/loss/metrics.hpp>
#include <gdpo/loss/term.hpp>

namespace gdpo {

/// What a loss call returns.
///
/// The three losses are already divided by the counts of the step, so those of its micro-batches
/// and ranks add up. Metrics are sums and counts: combine them with merge().
///
/// Below, i is a row, t a valid token of it, W_i the row's weight (loss/aggregate.hpp), w_it the
/// product of factors and `TokenBatch::weights`, and w'_it `TokenBatch::kl_weights`.
struct LossResult {
  GDPO_DATA_HOST_INLINE LossResult() = default;  // inlined for the same reason as LossMetrics'

  double loss = 0;         ///< policy_loss + kl_loss; 0 for a batch without valid tokens.
  double policy_loss = 0;  ///< Sum over i, t of W_i w_it surrogate_it.
  double kl_loss = 0;      ///< Sum over i, t and the KL terms of W_i w'_it beta kl_it.
  Normaliser normaliser;   ///< The counts that the losses were divided by.
  LossMetrics metrics;     ///< What the call measured besides the loss.
};

}  // namespace gdpo
