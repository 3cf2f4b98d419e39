#pragma once
// What tests of a step in parts share: rows of random lengths, and metrics merged from parts.
#include <support/loss_product.hpp>

namespace loss_product {

/// "" where the metrics of the whole and the merged metrics of its parts agree: counts and ranges
/// exactly, sums to 1e-12 of the count times the largest term.
inline std::string merged_mismatch(const gdpo::LossMetrics& whole, const gdpo::LossMetrics& parts) {
  std::string text;
  const auto compare = [&](const char* name, double a, double b, double tolerance) {
    if (std::fabs(a - b) <= tolerance || same_bits(a, b)) return;
    text += std::string(name) + ": " + std::to_string(a) + " and " + std::to_string(b) + "; ";
  };
  int k = 0;
  for (const auto member :
       {&gdpo::LossMetrics::loss, &gdpo::LossMetrics::surrogate, &gdpo::LossMetrics::kl,
        &gdpo::LossMetrics::clip_fraction, &gdpo::LossMetrics::clip_fraction_low,
        &gdpo::LossMetrics::clip_fraction_high, &gdpo::LossMetrics::clip_fraction_any,
        &gdpo::LossMetrics::dual_clip_fraction, &gdpo::LossMetrics::approx_kl_k1,
        &gdpo::LossMetrics::approx_kl_k3, &gdpo::LossMetrics::ratio,
        &gdpo::LossMetrics::log_ratio_bounded, &gdpo::LossMetrics::kl_bounded,
        &gdpo::LossMetrics::entropy, &gdpo::LossMetrics::completion_length,
        &gdpo::LossMetrics::clipped_completions}) {
    const gdpo::Metric &a = whole.*member, &b = parts.*member;
    const std::string name = "metric " + std::to_string(k++);
    const double size = 1e-12 * (a.count + 1) *
                        (std::fmax(std::fabs(a.min), std::fabs(a.max)) < 1e300
                             ? 1 + std::fmax(std::fabs(a.min), std::fabs(a.max))
                             : 1.0);
    compare((name + ".sum").c_str(), a.sum, b.sum, size);
    compare((name + ".row_sum").c_str(), a.row_sum, b.row_sum, size + 1e-12 * std::fabs(a.row_sum));
    for (const auto exact : {&gdpo::Metric::count, &gdpo::Metric::rows, &gdpo::Metric::min,
                             &gdpo::Metric::max, &gdpo::Metric::row_min, &gdpo::Metric::row_max}) {
      compare((name + " range or count").c_str(), a.*exact, b.*exact, 0);
    }
  }
  compare("advantage.mean", whole.advantage.mean, parts.advantage.mean, 1e-12);
  compare("advantage.m2", whole.advantage.m2, parts.advantage.m2, 1e-12 * (1 + whole.advantage.m2));
  if (whole.advantage.n != parts.advantage.n || whole.rows != parts.rows ||
      whole.empty_rows != parts.empty_rows || whole.degenerate_rows != parts.degenerate_rows)
    text += "counts";
  return text;
}

/// Gives the rows random lengths and masks their padding; positions before it may be masked as
/// well.
inline std::vector<int> cut_tails(Random& random, Data& d) {
  std::vector<int> lengths;
  if (d.mask.empty()) d.mask.assign(d.logp.size(), 1);
  for (int i = 0; i < d.rows; ++i) {
    lengths.push_back(random.chance(0.15)  ? 0
                      : random.chance(0.2) ? d.width
                                           : random.below(d.width + 1));
    for (int t = lengths.back(); t < d.width; ++t) d.mask[d.at(i, t)] = 0;
  }
  return lengths;
}

}  // namespace loss_product
