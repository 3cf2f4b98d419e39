#pragma once
// DistillationResult: what distillation from logits returns, and how the results of one step merge.
#include <gdpo/tokens/check_counts.hpp>
#include <gdpo/tokens/metric.hpp>

namespace gdpo {  // plain data, which is sent between ranks

/// What distillation_from_logits() measured, over the positions that count.
struct DistillationMetrics {
  Metric loss;          ///< L of a position, before its weight.
  Metric student_mass;  ///< The policy's probability of the k tokens. Not with Rest::Renormalize.
  Metric teacher_mass;  ///< The teacher's probability of the k tokens. Not with Rest::Renormalize.
  NonFinite losses;     ///< Losses that are NaN or infinite, as of NaN among logits or log-probs.
  NonFinite weights;    ///< Weights that are not finite, in whose place the loss takes 0.
  index_t rows = 0;     ///< Number of sequences.
  index_t empty_rows = 0;  ///< Those without a position that counts.
};

/// What distillation_from_logits() returns. The loss is divided by the counts of the step, so those
/// of its micro-batches and ranks add up; merge() combines them.
struct DistillationResult {
  double loss = 0;              ///< Sum of W L over the positions; 0 without any.
  Normalizer normalizer;        ///< The counts that the loss was divided by.
  index_t over = -1;            ///< Which of them divided, as in LossResult.
  DistillationMetrics metrics;  ///< What the call measured besides the loss.
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

namespace detail {

/// What the metrics have seen, as counts.
inline Normalizer seen_by(const DistillationMetrics& m) {
  Normalizer n;
  n.tokens = m.loss.count, n.rows = static_cast<double>(m.rows);
  n.non_empty_rows = static_cast<double>(m.rows - m.empty_rows);
  return n;
}

/// Adds a sequence whose values add up to `sum` over so many positions. The range of the positions
/// is the caller's.
GDPO_DEVICE inline void add_sequence(Metric& m, double sum, index_t tokens) {
  const auto n = static_cast<double>(tokens);
  const double mean = tokens > 0 ? sum / n : 0.0;
  m.sum += sum, m.count += n, m.row_sum += mean, m.rows += 1;
  m.row_min = (math::min)(m.row_min, mean), m.row_max = (math::max)(m.row_max, mean);
}

}  // namespace detail

/// The metrics of two micro-batches or ranks together.
inline DistillationMetrics merge(const DistillationMetrics& a, const DistillationMetrics& b) {
  DistillationMetrics m;
  m.loss = merge(a.loss, b.loss), m.student_mass = merge(a.student_mass, b.student_mass);
  m.teacher_mass = merge(a.teacher_mass, b.teacher_mass);
  m.losses = merge(a.losses, b.losses), m.weights = merge(a.weights, b.weights);
  m.rows = a.rows + b.rows, m.empty_rows = a.empty_rows + b.empty_rows;
  return m;
}
/// The result of two micro-batches or ranks of one step together, as for a LossResult. Counts that
/// are not those of one step throw invalid_input.
inline DistillationResult merge(const DistillationResult& a, const DistillationResult& b) {
  DistillationResult r;
  r.loss = a.loss + b.loss;
  r.metrics = merge(a.metrics, b.metrics);
  detail::merge_counts(a, b, detail::seen_by(r.metrics), r);
  return r;
}

GDPO_END_NAMESPACE
