#pragma once
// GDPO, the GRPO loss and log-probs from logits as one would write them down: scalar loops,
// std::exp, sums in double. Benchmarks compare the speed of the library with them. In double and
// long double they give the results that the library's are checked against.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace naive {

/// GDPO advantages: rewards (prompts * K, C), row-major, to out (prompts * K). Sample std, no eps,
/// every weight 1. Missing rewards (NaN) and groups of equal rewards get no special treatment.
inline void gdpo_advantages(const float* rewards, std::ptrdiff_t prompts, std::ptrdiff_t K,
                            std::ptrdiff_t C, float* out) {
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
  for (std::ptrdiff_t i = 0; i < N; ++i)
    square += (double(out[i]) - mean) * (double(out[i]) - mean);
  const double sigma = std::sqrt(square / double(N - 1));
  for (std::ptrdiff_t i = 0; i < N; ++i) out[i] = float((double(out[i]) - mean) / sigma);
}

/// Arrays of tokens, (rows, width) row-major.
struct GrpoBatch {
  std::ptrdiff_t rows, width;
  const float *logp, *old_logp, *ref_logp;
  const unsigned char* mask;  // null: every token counts
  const float* advantages;    // (rows)
  double low = 0.2, high = 0.2, beta = 0.04;
};

/// The loss, and means over the valid tokens.
struct GrpoSums {
  double loss = 0, kl = 0, clip_fraction = 0, approx_kl = 0, ratio = 0;
};

/// The mean over rows of the token means of max(-A r, -A clip(r)) + beta k3, and its gradient by
/// logp. It computes in T and stores the gradient as G.
template <class T, class G>
GrpoSums grpo(const GrpoBatch& batch, G* gradient) {
  GrpoSums sums;
  double valid = 0;
  const T low = T(1 - batch.low), high = T(1 + batch.high), beta = T(batch.beta);
  for (std::ptrdiff_t i = 0; i < batch.rows; ++i) {
    const std::ptrdiff_t at = i * batch.width;
    std::ptrdiff_t tokens = 0;
    for (std::ptrdiff_t k = at; k < at + batch.width; ++k)
      tokens += batch.mask ? batch.mask[k] != 0 : 1;
    const T weight = tokens > 0 ? T(1) / (T(tokens) * T(batch.rows)) : T(0),
            a = T(batch.advantages[i]);
    double row = 0;
    for (std::ptrdiff_t k = at; k < at + batch.width; ++k) {
      if (batch.mask && !batch.mask[k]) {
        gradient[k] = 0;
        continue;
      }
      const T log_ratio = T(batch.logp[k]) - T(batch.old_logp[k]), ratio = std::exp(log_ratio);
      const T unclipped = a * ratio, clipped = a * std::min(std::max(ratio, low), high);
      const bool is_clipped = clipped < unclipped;
      T loss = -std::min(unclipped, clipped), slope = is_clipped ? T(0) : -unclipped;
      if (batch.beta != 0) {
        const T x = T(batch.ref_logp[k]) - T(batch.logp[k]), e = std::exp(x), kl = e - x - 1;
        loss += beta * kl;
        slope += beta * (1 - e);
        sums.kl += double(kl);
      }
      gradient[k] = G(slope * weight);
      row += double(loss);
      sums.clip_fraction += is_clipped;
      sums.approx_kl += double(ratio - 1 - log_ratio);
      sums.ratio += double(ratio);
    }
    sums.loss += row * double(weight);
    valid += double(tokens);
  }
  for (double* mean : {&sums.kl, &sums.clip_fraction, &sums.approx_kl, &sums.ratio}) *mean /= valid;
  return sums;
}

/// What three passes over one row of logits give: log-prob of the target, entropy, log sum exp.
struct LogitsRow {
  double logp, entropy, logsumexp;
};
template <class T>
LogitsRow logits_forward(const float* logits, std::ptrdiff_t tokens, std::int64_t target) {
  const T most = T(*std::max_element(logits, logits + tokens));
  T sum = 0, weighted = 0;
  for (std::ptrdiff_t j = 0; j < tokens; ++j) sum += std::exp(T(logits[j]) - most);
  for (std::ptrdiff_t j = 0; j < tokens; ++j)
    weighted += (T(logits[j]) - most) * std::exp(T(logits[j]) - most);
  const T log_sum = std::log(sum);
  return {double(T(logits[target]) - most - log_sum), double(log_sum - weighted / sum),
          double(most + log_sum)};
}
/// dlogits = g (onehot - softmax), with the logsumexp of the forward pass.
template <class T, class G>
void logits_backward(const float* logits, std::ptrdiff_t tokens, std::int64_t target,
                     double logsumexp, double g, G* dlogits) {
  for (std::ptrdiff_t j = 0; j < tokens; ++j)
    dlogits[j] = G(-T(g) * std::exp(T(logits[j]) - T(logsumexp)));
  dlogits[target] += G(g);
}

}  // namespace naive
