#pragma once
#include <gdpo/core/errors.hpp>
#include <gdpo/loss/metrics.hpp>
#include <gdpo/loss/term.hpp>

namespace gdpo {

/// What a loss call returns.
///
/// The three losses are already divided by the counts of the step, so those of its micro-batches
/// and ranks add up. Metrics are sums and counts. merge() combines both.
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

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Whether two losses were divided by the same counts.
inline bool same_counts(const Normaliser& a, const Normaliser& b) {
  return a.tokens == b.tokens && a.rows == b.rows && a.non_empty_rows == b.non_empty_rows &&
         a.given == b.given;
}
/// The counts as the words of a message.
GDPO_COLD inline std::string counts_in_words(const Normaliser& n) {
  return std::string(contract::text(n.tokens) + " tokens, " + contract::text(n.rows) + " rows, " +
                     contract::text(n.non_empty_rows) + " non-empty rows, " +
                     contract::text(n.given) + " given");
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
/// Two results with rows that were divided by different counts throw invalid_input: they are not
/// of one step, or were divided by the counts of a micro-batch.
inline LossResult merge(const LossResult& a, const LossResult& b) {
  if (a.metrics.rows > 0 && b.metrics.rows > 0 &&
      !detail::same_counts(a.normaliser, b.normaliser)) {
    contract::fail("gdpo::merge", "b.normaliser", detail::counts_in_words(b.normaliser),
                   detail::counts_in_words(a.normaliser) + ", the counts of the step, as in a");
  }
  LossResult r;
  r.loss = a.loss + b.loss;
  r.policy_loss = a.policy_loss + b.policy_loss, r.kl_loss = a.kl_loss + b.kl_loss;
  const bool counts_of_b =
      a.metrics.rows == 0 && (b.metrics.rows > 0 || detail::same_counts(a.normaliser, {}));
  r.normaliser = counts_of_b ? b.normaliser : a.normaliser;
  r.metrics = merge(a.metrics, b.metrics);
  return r;
}

GDPO_END_NAMESPACE
