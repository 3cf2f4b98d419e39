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
  const naive_loss::real total = rounding * 8 * (e.tokens + 1);  // quantities of order 1
  const std::map<std::string, naive_loss::real> sums = e.metrics();
  using gdpo::detail::metric::WithEntropies, gdpo::detail::metric::WithKl;
  for (int q = 0; q < gdpo::detail::metrics_of_tokens; ++q) {
    const auto& facts = gdpo::detail::metric::list[q];
    const gdpo::Metric& metric = m.*facts.member;
    // Entropies are compared with numbers by hand (unit/loss/metrics_test.cpp).
    if (facts.where == WithEntropies || (facts.where == WithKl && s.kl.empty())) continue;
    const auto expected_sum = sums.find(facts.name);
    if (expected_sum == sums.end()) {
      text += std::string(facts.name) + ": the oracle does not have it\n";
    } else {
      near(facts.name, metric.sum, expected_sum->second, q < gdpo::detail::measured ? total : 0);
    }
    if (metric.count != e.tokens)
      text += std::string(facts.name) + ": of " + std::to_string(metric.count) +
              " tokens, expected " + std::to_string(e.tokens) + "\n";
  }
  if (m.rows != data.rows) text += "rows\n";
  return text;
}

}  // namespace loss_product
