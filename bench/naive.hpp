#pragma once
// GDPO as one would write it down: scalar loops, reward by reward, double sums. What the library's speed is compared with.
#include <cmath>
#include <cstddef>

namespace naive {

/// rewards (prompts * K, C) row-major -> advantages (prompts * K). Sample std, no eps, every weight 1; no NaN rules, no exact zeros.
inline void gdpo_advantages(const float* rewards, std::ptrdiff_t prompts, std::ptrdiff_t K, std::ptrdiff_t C,
                            float* out) {
  const std::ptrdiff_t N = prompts * K;
  for (std::ptrdiff_t i = 0; i < N; ++i) out[i] = 0;
  for (std::ptrdiff_t c = 0; c < C; ++c) {
    for (std::ptrdiff_t p = 0; p < prompts; ++p) {
      double sum = 0, square = 0;
      for (std::ptrdiff_t k = 0; k < K; ++k) sum += double(rewards[(p * K + k) * C + c]);
      const double mean = sum / double(K);
      for (std::ptrdiff_t k = 0; k < K; ++k) {
        const double d = double(rewards[(p * K + k) * C + c]) - mean;
        square += d * d;
      }
      const double sigma = std::sqrt(square / double(K - 1));
      for (std::ptrdiff_t k = 0; k < K; ++k) {
        out[p * K + k] += float((double(rewards[(p * K + k) * C + c]) - mean) / sigma);
      }
    }
  }
  double sum = 0, square = 0;
  for (std::ptrdiff_t i = 0; i < N; ++i) sum += double(out[i]);
  const double mean = sum / double(N);
  for (std::ptrdiff_t i = 0; i < N; ++i) square += (double(out[i]) - mean) * (double(out[i]) - mean);
  const double sigma = std::sqrt(square / double(N - 1));
  for (std::ptrdiff_t i = 0; i < N; ++i) out[i] = float((double(out[i]) - mean) / sigma);
}

}  // namespace naive
