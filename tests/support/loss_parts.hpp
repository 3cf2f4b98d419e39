#pragma once
// What tests of a step in parts share: rows of random lengths, parts of them, and metrics merged
// from parts.
#include <support/loss_calls.hpp>

namespace loss_product {

/// "" where the metrics of the whole and the merged metrics of its parts agree: counts and ranges
/// exactly, sums to 1e-12 of the count times the largest term.
inline std::string merged_mismatch(const gdpo::LossMetrics& whole, const gdpo::LossMetrics& parts) {
  std::string text;
  const auto compare = [&](const std::string& name, double a, double b, double tolerance) {
    if (std::fabs(a - b) <= tolerance || same_bits(a, b)) return;
    text += name + ": " + std::to_string(a) + " and " + std::to_string(b) + "; ";
  };
  const auto compare_metric = [&](const std::string& name, const gdpo::Metric& a,
                                  const gdpo::Metric& b) {
    const double size = 1e-12 * (a.count + 1) *
                        (std::fmax(std::fabs(a.min), std::fabs(a.max)) < 1e300
                             ? 1 + std::fmax(std::fabs(a.min), std::fabs(a.max))
                             : 1.0);
    compare(name + ".sum", a.sum, b.sum, size);
    compare(name + ".row_sum", a.row_sum, b.row_sum, size + 1e-12 * std::fabs(a.row_sum));
    for (const auto exact : {&gdpo::Metric::count, &gdpo::Metric::rows, &gdpo::Metric::min,
                             &gdpo::Metric::max, &gdpo::Metric::row_min, &gdpo::Metric::row_max}) {
      compare(name + " range or count", a.*exact, b.*exact, 0);
    }
  };
  for (const auto& metric : gdpo::detail::metric::list)
    compare_metric(metric.name, whole.*metric.member, parts.*metric.member);
  compare("advantage.mean", whole.advantage.mean, parts.advantage.mean, 1e-12);
  compare("advantage.m2", whole.advantage.m2, parts.advantage.m2, 1e-12 * (1 + whole.advantage.m2));
  if (whole.advantage.n != parts.advantage.n || whole.rows != parts.rows ||
      whole.empty_rows != parts.empty_rows || whole.degenerate_rows != parts.degenerate_rows)
    text += "counts";
  return text;
}

/// The given rows of a Data, in the given order.
inline Data rows_of(const Data& d, const std::vector<int>& rows) {
  Data part;
  part.rows = static_cast<int>(rows.size()), part.width = d.width;
  for (const int i : rows) {
    const auto add = [i](auto& to, const auto& from, int width) {
      if (from.empty()) return;
      to.insert(to.end(), from.begin() + i * width, from.begin() + (i + 1) * width);
    };
    for (const auto member : token_arrays) add(part.*member, d.*member, d.width);
    add(part.mask, d.mask, d.width), add(part.segments, d.segments, d.width);
    for (const auto member :
         {&Data::advantages, &Data::row_weights, &Data::group_tokens, &Data::truncated})
      add(part.*member, d.*member, 1);
  }
  return part;
}

/// Random tokens with log-probs of the old policy, which some losses need.
inline Data tokens_of(Random& random, int rows, int width) {
  Data d = random_tokens(random, rows, width, 0.3);
  while (d.old_logp.empty()) d = random_tokens(random, rows, width, 0.3);
  return d;
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
