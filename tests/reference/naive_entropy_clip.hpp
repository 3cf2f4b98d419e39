// The tokens that Clip-B and Clip-V drop, straight from their definition, in long double. It shares
// no code with the library.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace naive {

/// A valid token. Its logp is that of the policy whose entropy is clipped.
struct EntropyToken {
  long double logp, entropy, center, advantage;
};
struct EntropyClipSettings {
  long double mu = 2.5L, max_share = 1;
  bool own_mean = true;  // the center is the mean of the batch
  bool zero_advantage = false;
};
struct EntropyClipResult {
  std::vector<bool> dropped;
  long double mean = 0, variance = 0;
  /// How far the nearest token is from a decision that would be another one.
  long double margin = HUGE_VALL;
};

inline EntropyClipResult entropy_clip(const std::vector<EntropyToken>& tokens,
                                      const EntropyClipSettings& s) {
  EntropyClipResult result;
  result.dropped.assign(tokens.size(), false);
  std::vector<long double> measure;
  long double n = 0, sum = 0, squares = 0;
  for (const EntropyToken& t : tokens) {
    measure.push_back(std::exp(t.logp) * (t.entropy + t.logp) - (s.own_mean ? 0 : t.center));
    if (std::isfinite(measure.back())) sum += measure.back(), n += 1;
  }
  if (n == 0) return result;
  result.mean = sum / n;
  for (const long double d : measure) {
    if (std::isfinite(d)) squares += (d - result.mean) * (d - result.mean);
  }
  result.variance = squares / n;
  const long double bound = -s.mu * std::sqrt(result.variance);
  std::vector<std::size_t> outliers;
  for (std::size_t k = 0; k < tokens.size(); ++k) {
    const long double d = measure[k] - (s.own_mean ? result.mean : 0);
    if (!std::isfinite(d)) continue;
    const bool judged = tokens[k].advantage < 0 || (tokens[k].advantage == 0 && s.zero_advantage);
    if (!judged) continue;
    result.margin = std::min(result.margin, std::fabs(d - bound));
    if (!(d < bound)) continue;
    if (tokens[k].advantage < 0) {
      outliers.push_back(k);
    } else {
      result.dropped[k] = true;
    }
  }
  std::stable_sort(outliers.begin(), outliers.end(),
                   [&](std::size_t a, std::size_t b) { return measure[a] < measure[b]; });
  const auto most = static_cast<std::size_t>(std::max(1.0L, std::floor(s.max_share * n)));
  for (std::size_t k = 0; k < outliers.size(); ++k) {
    if (k < most) result.dropped[outliers[k]] = true;
    if (k + 1 == most && k + 1 < outliers.size()) {
      const long double gap = measure[outliers[k + 1]] - measure[outliers[k]];
      if (gap != 0) result.margin = std::min(result.margin, gap);
    }
  }
  return result;
}

}  // namespace naive
