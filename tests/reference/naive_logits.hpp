// The oracle of a row of logits: its softmax, log-probs and entropy, and their derivatives by the
// logits, in long double with plain loops and without any code of the library.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace naive {

struct Softmax {
  std::vector<long double> z, p;  ///< logits divided by the temperature; probabilities
  long double logsumexp = 0, entropy = 0;

  long double logp(std::size_t j) const { return z[j] - logsumexp; }
};

template <class Row>
Softmax softmax(const Row& logits, std::size_t n, double temperature) {
  Softmax s;
  long double most = -std::numeric_limits<long double>::infinity(), sum = 0;
  for (std::size_t j = 0; j < n; ++j) {
    s.z.push_back(static_cast<long double>(logits[j]) / static_cast<long double>(temperature));
    most = std::max(most, s.z[j]);
  }
  for (const long double z : s.z) sum += std::exp(z - most);
  s.logsumexp = most + std::log(sum);
  for (const long double z : s.z) {
    s.p.push_back(std::exp(z - s.logsumexp));
    if (s.p.back() > 0) s.entropy -= s.p.back() * (z - s.logsumexp);
  }
  return s;
}

/// The derivative of g logp(target) + g_entropy H by the logits.
///
/// With z = logits / temperature: d logp(t) / d z_j = delta_tj - p_j. The entropy is
/// H = -sum_k p_k log p_k with d p_k / d z_j = p_k (delta_jk - p_j), hence
/// d H / d z_j = -p_j (log p_j + 1) + p_j sum_k p_k (log p_k + 1).
inline std::vector<long double> logits_gradient(const Softmax& s, std::size_t target, double g,
                                                double g_entropy, double temperature) {
  std::vector<long double> gradient;
  long double mean = 0;  // sum_k p_k (log p_k + 1)
  for (std::size_t k = 0; k < s.p.size(); ++k) {
    if (s.p[k] > 0) mean += s.p[k] * (s.logp(k) + 1);
  }
  for (std::size_t j = 0; j < s.p.size(); ++j) {
    const long double own = s.p[j] > 0 ? s.p[j] * (s.logp(j) + 1) : 0;
    gradient.push_back((static_cast<long double>(g) * ((j == target ? 1 : 0) - s.p[j]) -
                        static_cast<long double>(g_entropy) * (own - s.p[j] * mean)) /
                       static_cast<long double>(temperature));
  }
  return gradient;
}

}  // namespace naive
