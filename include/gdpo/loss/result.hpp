#pragma once
#include <gdpo/loss/metrics.hpp>
#include <gdpo/loss/term.hpp>

namespace gdpo {

/// What a loss call gives. All sums are divided by the normaliser: losses of micro-batches add, metrics merge.
struct LossResult {
  GDPO_DATA_HOST_INLINE LossResult() = default;  // inlined, as LossMetrics

  double loss = 0;         ///< policy_loss + kl_loss; 0 for an empty batch
  double policy_loss = 0;  ///< sum_it W_i w_it surrogate_it
  double kl_loss = 0;      ///< sum_it W_i w'_it beta kl_it, of all KL terms
  Normaliser normaliser;   ///< the counts it was divided by
  LossMetrics metrics;
};

}  // namespace gdpo
