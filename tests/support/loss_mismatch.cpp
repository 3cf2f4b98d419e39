// The comparison of a loss with the oracle.
#include "support/loss_calls.hpp"

namespace loss_product {

std::string mismatch(const Settings& s, const Data& data, const naive_loss::Result& expected,
                     const Outcome& got, double unit) {
  std::string text;
  const auto near = [&](const char* name, double x, naive_loss::real y,
                        naive_loss::real tolerance) {
    if (std::fabs(static_cast<naive_loss::real>(x) - y) <= tolerance) return;
    char line[160];
    std::snprintf(line, sizeof line, "%s: %.17g, expected %.17Lg within %.3Lg\n", name, x, y,
                  tolerance);
    text += line;
  };
  // Ratios are of order 1 to e^2 and estimates of order 1; both come from a few dozen roundings.
  const double rounding = 256 * unit;
  const naive_loss::real sum = rounding * expected.sums.magnitude + 1e-300L;
  near("loss", got.result.loss, expected.loss, sum);
  near("policy_loss", got.result.policy_loss, expected.policy_loss, sum);
  near("kl_loss", got.result.kl_loss, expected.kl_loss, sum);

  // The size of what adds up to the gradient and may cancel: surrogate and KL terms, and the tokens
  // of a segment.
  Settings surrogate_only = s;
  surrogate_only.kl.clear();
  const gdpo::Normaliser& n = got.result.normaliser;
  const naive_loss::Result part =
      naive_loss::loss(surrogate_only, data, {n.tokens, n.rows, n.non_empty_rows, n.given});
  naive_loss::real largest = expected.sums.magnitude / (expected.sums.tokens + 1);
  for (std::size_t k = 0; k < expected.gradient.size(); ++k) {
    largest = std::fmax(
        largest, std::fabs(part.gradient[k]) + std::fabs(expected.gradient[k] - part.gradient[k]));
  }
  for (std::size_t k = 0; k < expected.gradient.size() && text.empty(); ++k) {
    const std::string at = "gradient[" + std::to_string(k) + "]";
    near(at.c_str(), got.gradient[k], expected.gradient[k], rounding * largest);
  }

  const gdpo::LossMetrics& m = got.result.metrics;
  const naive_loss::Sums& e = expected.sums;
  const auto count = [&](const char* name, const gdpo::Metric& metric, int hits) {
    if (metric.sum != hits || metric.count != e.tokens)
      text += std::string(name) + ": " + std::to_string(metric.sum) + " of " +
              std::to_string(metric.count) + ", expected " + std::to_string(hits) + " of " +
              std::to_string(e.tokens) + "\n";
  };
  count("clip_fraction", m.clip_fraction, e.low + e.high);
  count("clip_fraction_low", m.clip_fraction_low, e.low);
  count("clip_fraction_high", m.clip_fraction_high, e.high);
  count("clip_fraction_any", m.clip_fraction_any, e.outside);
  count("dual_clip_fraction", m.dual_clip_fraction, e.dual);
  count("log_ratio_bounded", m.log_ratio_bounded, e.bounded);
  if (!s.kl.empty()) count("kl_bounded", m.kl_bounded, e.kl_bounded);
  const naive_loss::real total = rounding * 8 * (e.tokens + 1);  // quantities of order 1
  near("surrogate", m.surrogate.sum, e.surrogate, total);
  near("token loss", m.loss.sum, e.token_loss, total);
  if (!s.kl.empty()) near("kl", m.kl.sum, e.first_kl, total);
  near("approx_kl_k1", m.approx_kl_k1.sum, e.k1, total);
  near("approx_kl_k3", m.approx_kl_k3.sum, e.k3, total);
  near("ratio", m.ratio.sum, e.ratio, total);
  if (m.rows != data.rows) text += "rows\n";
  return text;
}

}  // namespace loss_product
