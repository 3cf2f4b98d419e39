#pragma once
#include <gdpo/loss/metrics.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Sum and range of one quantity over the tokens of a row.
struct Tally {
  double sum = 0, min = math::infinity, max = -math::infinity;
  GDPO_INLINE void add(double x) {
    sum += x;
    min = (math::min)(min, x);
    max = (math::max)(max, x);
  }
};

/// What one row contributes: over its valid tokens, before the row's weight.
struct RowTally {
  index_t tokens = 0;
  double kl_loss = 0;  // beta times kl, of all terms
  Tally loss, surrogate, kl, k1, k3, ratio, entropy;
  index_t low = 0, high = 0, outside = 0, dual = 0, bounded = 0, kl_bounded = 0;
  bool advantage = false;  // one of them is not 0
  bool kl_on = false, has_entropy = false;
};

inline void add_metric(Metric& m, const Tally& tally, double n) {
  const double mean = n > 0 ? tally.sum / n : 0.0;
  m = merge(m, Metric{tally.sum, n, tally.min, tally.max, mean, 1, mean, mean});
}
inline void add_share(Metric& m, index_t hits, double n) {
  const double sum = static_cast<double>(hits), mean = n > 0 ? sum / n : 0.0;
  const double min = n > 0 ? (sum < n ? 0.0 : 1.0) : math::infinity;
  const double max = n > 0 ? (hits > 0 ? 1.0 : 0.0) : -math::infinity;
  m = merge(m, Metric{sum, n, min, max, mean, 1, mean, mean});
}
inline void add_row_value(Metric& m, double value) {
  m = merge(m, Metric{0, 0, math::infinity, -math::infinity, value, 1, value, value});
}

/// `completion`: tokens of the row before pre-passes; truncated: NaN where not known.
inline void add_row(LossMetrics& m, const RowTally& tally, index_t completion, double truncated) {
  const double n = static_cast<double>(tally.tokens);
  add_metric(m.loss, tally.loss, n);
  add_metric(m.surrogate, tally.surrogate, n);
  if (tally.kl_on) add_metric(m.kl, tally.kl, n), add_share(m.kl_bounded, tally.kl_bounded, n);
  add_share(m.clip_fraction, tally.low + tally.high, n);
  add_share(m.clip_fraction_low, tally.low, n);
  add_share(m.clip_fraction_high, tally.high, n);
  add_share(m.clip_fraction_any, tally.outside, n);
  add_share(m.dual_clip_fraction, tally.dual, n);
  add_metric(m.approx_kl_k1, tally.k1, n);
  add_metric(m.approx_kl_k3, tally.k3, n);
  add_metric(m.ratio, tally.ratio, n);
  add_share(m.log_ratio_bounded, tally.bounded, n);
  if (tally.has_entropy) add_metric(m.entropy, tally.entropy, n);
  add_row_value(m.completion_length, static_cast<double>(completion));
  if (!math::is_nan(truncated)) add_row_value(m.clipped_completions, math::is_zero(truncated) ? 0.0 : 1.0);
  m.empty_rows += tally.tokens == 0;
  m.degenerate_rows += tally.tokens > 0 && !tally.advantage;
}

}  // namespace detail
GDPO_END_NAMESPACE
