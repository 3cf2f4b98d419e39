#pragma once
// ValueLossResult: what a value loss returns, and how the results of one step merge.
#include <gdpo/tokens/check_counts.hpp>
#include <map>
#include <string>

namespace gdpo {  // plain data, which is sent between ranks

/// One NonFinite for each input of a value loss.
struct ValueNonFinite {
  NonFinite values;      ///< ValueBatch::values.
  NonFinite old_values;  ///< ValueBatch::old_values; 0 where the clip is off, for nothing reads it.
  NonFinite returns;     ///< ValueBatch::returns.
  NonFinite weights;     ///< Weights of rows; where one is not finite, the loss takes 0.
};

/// What a value loss measured, over valid tokens. merge() combines the metrics of two micro-batches
/// or ranks.
///
/// Below, v is the value of a token, R its return, and L its loss as ValueLoss defines it, the
/// factor 1/2 included. A metric that was not measured has count 0 (ValueLoss says which set of
/// metrics keeps what).
struct ValueMetrics {
  // Inlined in every build, for the reason that LossMetrics gives.
  GDPO_DATA_HOST_INLINE ValueMetrics() = default;

  Metric loss;   ///< L, before the weight of the row.
  Metric value;  ///< v, the prediction of the critic that is trained.
  Metric error;  ///< v - R: positive where the critic overestimates the return.
  /// 1 where the clipped square is strictly larger, so that the token has no gradient; else 0.
  Metric clip_fraction;
  Moments returns;            ///< Mean and spread of R.
  Moments residuals;          ///< Mean and spread of R - v, computed in double.
  ValueNonFinite non_finite;  ///< NaN and infinities among the inputs.
  index_t rows = 0;           ///< Number of rows.
  index_t empty_rows = 0;     ///< Rows without a valid token.

  /// The share of the spread of the returns that the values explain, 1 - Var(R - v) / Var(R).
  ///
  /// It is exactly 1 if all residuals are equal, 0 (up to rounding) for a constant prediction, and
  /// negative for predictions that are worse than that. A mean error of the values does not lower
  /// it, because variances are about their means. The values are those of this call. verl logs the
  /// same of the values at the rollout, and adds eps = 1e-5 to Var(R): that is
  /// explained_variance(1e-5) of a batch whose `values` are those. Both variances are of samples
  /// (n - 1), which matters only with eps.
  ///
  /// It is NaN where it is unknown: with fewer than two tokens, where no moments were measured,
  /// where a value or return is not finite, and, with eps = 0, where all returns are equal.
  GDPO_DATA_HOST_INLINE double explained_variance(double eps = 0) const;

  /// The metrics under the names that verl logs, each after `prefix` (verl's is "critic/"):
  /// "vf_loss", the mean of L over the tokens; "vf_clipfrac"; "vpred_mean"; and
  /// "vf_explained_var", which is explained_variance().
  ///
  /// What was not measured or is unknown has no key. `Map` is any type that maps strings to
  /// numbers.
  template <class Map = std::map<std::string, double>>
  GDPO_DATA_HOST_INLINE Map to_map(const std::string& prefix = "") const;
};

/// What a call of ValueLoss returns.
///
/// The loss is already divided by the counts of the step, so those of its micro-batches and ranks
/// add up. Metrics are sums and counts. merge() combines both.
struct ValueLossResult {
  GDPO_DATA_HOST_INLINE ValueLossResult() = default;  // inlined like LossMetrics'

  double loss = 0;        ///< Sum over i, t of W_i L_it; 0 for a batch without valid tokens.
  Normalizer normalizer;  ///< The counts that the loss was divided by.
  index_t over = -1;      ///< Which of them divided, as in LossResult.
  ValueMetrics metrics;   ///< What the call measured besides the loss.
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
/// The counts of both; the places are those of `a`, unless `a` has none.
GDPO_DEVICE inline ValueNonFinite merge(const ValueNonFinite& a, const ValueNonFinite& b) {
  return {merge(a.values, b.values), merge(a.old_values, b.old_values), merge(a.returns, b.returns),
          merge(a.weights, b.weights)};
}

namespace detail {

/// What the metrics have seen, as counts. Without means the number of tokens is not known: 0.
inline Normalizer seen_by(const ValueMetrics& m) {
  Normalizer n;
  n.tokens = m.loss.count, n.rows = static_cast<double>(m.rows);
  n.non_empty_rows = static_cast<double>(m.rows - m.empty_rows);
  return n;
}

/// ValueMetrics::explained_variance.
inline double explained_variance(const ValueMetrics& m, double eps) {
  const index_t n = m.returns.n;
  if (n < 2 || m.residuals.n != n || math::not_finite(m.returns.m2) ||
      math::not_finite(m.residuals.m2)) {
    return math::nan();
  }
  const double of_returns = variance(m.returns) + eps;
  return of_returns > 0 ? 1 - variance(m.residuals) / of_returns : math::nan();
}

}  // namespace detail

/// The metrics of two micro-batches or ranks together: sums, counts and moments of both, and the
/// place of a NonFinite from `a`, unless `a` has none.
inline ValueMetrics merge(const ValueMetrics& a, const ValueMetrics& b) {
  ValueMetrics m;
  m.loss = merge(a.loss, b.loss), m.value = merge(a.value, b.value);
  m.error = merge(a.error, b.error), m.clip_fraction = merge(a.clip_fraction, b.clip_fraction);
  m.returns = merge(a.returns, b.returns), m.residuals = merge(a.residuals, b.residuals);
  m.non_finite = merge(a.non_finite, b.non_finite);
  m.rows = a.rows + b.rows, m.empty_rows = a.empty_rows + b.empty_rows;
  return m;
}

/// The result of two micro-batches or ranks of one step together.
///
/// The losses add up, because each was divided by the counts of the whole step, and the metrics
/// merge. The counts are those of the result that has rows, as for a LossResult;
/// ValueLossResult{} changes no number. Sums are rounded as they are added, so those of the same
/// results in another order may differ in the last bits; counts and ranges are exact.
///
/// Counts that are not those of one step throw invalid_input, as for a LossResult.
inline ValueLossResult merge(const ValueLossResult& a, const ValueLossResult& b) {
  ValueLossResult r;
  r.loss = a.loss + b.loss;
  r.metrics = merge(a.metrics, b.metrics);
  detail::merge_counts(a, b, detail::seen_by(r.metrics), r);
  return r;
}

GDPO_END_NAMESPACE

namespace gdpo {

GDPO_DATA_HOST_INLINE double ValueMetrics::explained_variance(double eps) const {
  return detail::explained_variance(*this, eps);
}
template <class Map>
GDPO_DATA_HOST_INLINE Map ValueMetrics::to_map(const std::string& prefix) const {
  Map map;
  if (loss.count > 0) map[prefix + "vf_loss"] = loss.mean();
  if (clip_fraction.count > 0) map[prefix + "vf_clipfrac"] = clip_fraction.mean();
  if (value.count > 0) map[prefix + "vpred_mean"] = value.mean();
  const double explained = explained_variance();
  if (!math::is_nan(explained)) map[prefix + "vf_explained_var"] = explained;
  return map;
}

}  // namespace gdpo
