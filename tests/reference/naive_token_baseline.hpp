// The optimal token baseline, straight from its definition, in long double. It shares no code with
// the library: every weight is summed anew for every token.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <vector>

namespace naive {

struct TokenBaselineSettings {
  long double eps = 0;
  bool ordinal = true, all_members = false, raw_tail = false;
};

/// One row of a group. All arrays have its length; weights may be empty.
struct TokenBaselineRow {
  std::vector<long double> returns, logp, sum_pi_squared, weights;
  std::vector<bool> valid;

  std::size_t tokens() const {
    return static_cast<std::size_t>(std::count(valid.begin(), valid.end(), true));
  }
  /// The position of the token that stands at a place; none if there is none.
  std::optional<std::size_t> position(std::size_t place, bool ordinal) const {
    if (!ordinal) {
      if (place < valid.size() && valid[place]) return place;
      return {};
    }
    std::size_t number = 0;
    for (std::size_t t = 0; t < valid.size(); ++t) {
      if (valid[t] && number++ == place) return t;
    }
    return {};
  }
  /// The sum of the squared distances from certainty up to a token.
  long double weight(std::size_t until) const {
    long double sum = 0;
    for (std::size_t t = 0; t <= until; ++t) {
      if (!valid[t]) continue;
      const long double rho = weights.empty() ? 1 : weights[t];
      sum += (1 - 2 * std::exp(logp[t]) + sum_pi_squared[t]) * rho * rho;
    }
    return sum;
  }
};

/// The advantages of the rows of one group; 0 at positions that are not valid.
inline std::vector<std::vector<long double>> optimal_token_baseline(
    const std::vector<TokenBaselineRow>& group, const TokenBaselineSettings& s) {
  std::vector<std::vector<long double>> advantages;
  std::vector<std::size_t> counts;
  for (const TokenBaselineRow& row : group) {
    advantages.emplace_back(row.valid.size(), 0.0L);
    if (s.all_members || row.tokens() > 0) counts.push_back(row.tokens());
  }
  std::sort(counts.rbegin(), counts.rend());
  for (std::size_t i = 0; i < group.size(); ++i) {
    std::size_t number = 0;
    for (std::size_t t = 0; t < group[i].valid.size(); ++t) {
      if (!group[i].valid[t]) continue;
      const std::size_t place = s.ordinal ? number : t;
      ++number;
      long double products = 0, weights = 0;
      for (const TokenBaselineRow& other : group) {
        const auto u = other.position(place, s.ordinal);
        if (!u) continue;
        products += other.returns[*u] * other.weight(*u), weights += other.weight(*u);
      }
      const bool alone = counts.size() < 2;
      const bool tail = s.raw_tail && !alone && counts[0] > counts[1] &&
                        group[i].tokens() == counts[0] && place >= counts[1];
      const long double divisor = weights + s.eps;
      const long double baseline = alone || tail || divisor == 0 ? 0 : products / divisor;
      advantages[i][t] = group[i].returns[t] - baseline;
    }
  }
  return advantages;
}

}  // namespace naive
