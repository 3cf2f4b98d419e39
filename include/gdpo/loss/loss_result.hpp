#pragma once
// LossResult: what a policy loss returns, and how the results of one step merge.
#include <gdpo/loss/metrics.hpp>
#include <gdpo/tokens/check_counts.hpp>

namespace gdpo {

/// What a loss call returns.
///
/// The losses are already divided by the counts of the step, so those of its micro-batches
/// and ranks add up. Metrics are sums and counts. merge() combines both.
///
/// Below, i is a row, t a valid token of it, W_i the row's weight (tokens/aggregate.hpp), w_it the
/// product of factors and `TokenBatch::weights`, and w'_it `TokenBatch::kl_weights`.
struct LossResult {
  GDPO_DATA_HOST_INLINE LossResult() = default;  // inlined for the same reason as LossMetrics'

  /// policy_loss + kl_loss + entropy_loss; 0 for a batch without valid tokens.
  double loss = 0;
  double policy_loss = 0;  ///< Sum over i, t of W_i w_it surrogate_it.
  /// Sum over i, t and the KL terms of W_i w'_it beta kl_it. A term may have factors, which are
  /// part of w' here, and an aggregate of its own, which gives its W_i (Kl).
  double kl_loss = 0;
  double entropy_loss = 0;  ///< What an EntropyBonus adds, as a rule below 0; 0 without one.
  Normalizer normalizer;    ///< The counts that the losses were divided by.
  /// Which of these counts divided, as a gdpo::Over; -1: none of them, or it is not known.
  index_t over = -1;
  LossMetrics metrics;  ///< What the call measured besides the loss.
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What the metrics have seen, as counts.
inline Normalizer seen_by(const LossMetrics& m) {
  Normalizer n;
  n.tokens = static_cast<double>(m.advantage.n), n.rows = static_cast<double>(m.rows);
  n.non_empty_rows = static_cast<double>(m.rows - m.empty_rows);
  return n;
}

}  // namespace detail

/// The result of two micro-batches or ranks of one step together.
///
/// The losses add up, because each was divided by the counts of the whole step, and the metrics
/// merge. A result without rows may come from a rank that had none and has no counts: the counts of
/// the sum are those of the result that has rows; where neither has, those of `a`, unless all of
/// them are 0. LossResult{} changes no number.
///
/// Sums are rounded as they are added, so those of the same results in another order or grouping
/// may differ in the last bits; counts and ranges are exact.
///
/// Two results with rows throw invalid_input if they were divided by different counts, or if the
/// count that divided them is less than what both hold: they are not of one step, or were divided
/// by the counts of a micro-batch.
inline LossResult merge(const LossResult& a, const LossResult& b) {
  LossResult r;
  r.loss = a.loss + b.loss;
  r.policy_loss = a.policy_loss + b.policy_loss, r.kl_loss = a.kl_loss + b.kl_loss;
  r.entropy_loss = a.entropy_loss + b.entropy_loss;
  r.metrics = merge(a.metrics, b.metrics);
  detail::merge_counts(a, b, detail::seen_by(r.metrics), r);
  return r;
}

GDPO_END_NAMESPACE
