// Logits, compiled with -ffast-math and with parts of it: log-probs, entropies and gradients are
// those of the formulas; a logit of -inf has probability 0; NaN and +inf show in their row; masked
// rows may hold anything.
#include <cmath>
#include <gdpo/logits.hpp>

#include "support/exact.hpp"

using exact::bits, exact::expect, exact::is_nan;

namespace {

constexpr int vocabulary = 5000;

struct Rows {
  std::vector<float> logits = std::vector<float>(2 * vocabulary);
  std::vector<int> targets{1234, 77};
  std::vector<float> logp = std::vector<float>(2), entropy = logp, g{1, -2}, dlogits = logits;
  std::vector<double> logsumexp = std::vector<double>(2);
  std::vector<unsigned char> mask{1, 1};

  Rows() {
    for (std::size_t k = 0; k < logits.size(); ++k)
      logits[k] = static_cast<float>(k * 7919 % 1009) * 0.01f;
  }
  template <class Exec>
  void run(const Exec& exec) {
    gdpo::LogitBatch<float, 2> batch;
    batch.logits = gdpo::view(logits.data(), 2, vocabulary);
    batch.targets = gdpo::view(targets);
    batch.mask = gdpo::view(mask);
    gdpo::token_logprobs_into(exec, batch,
                              {gdpo::view(logp), gdpo::view(entropy), gdpo::view(logsumexp)});
    gdpo::token_logprobs_backward(exec, batch, {gdpo::view(g), {}}, gdpo::view(logsumexp),
                                  gdpo::view(dlogits.data(), 2, vocabulary));
  }
};
bool is_nan_float(float x) { return is_nan(static_cast<double>(x)); }
bool near_to(double got, double expected, double tolerance) {
  return !is_nan(got) && std::abs(got - expected) <= tolerance;
}

/// Compares with the formulas; the bounds are up to twice those of property/logits/oracle_test.cpp.
template <class Exec>
void formulas(const Exec& exec) {
  Rows r;
  r.logits[400] = static_cast<float>(-exact::infinity());
  r.run(exec);
  for (std::size_t i = 0; i < 2; ++i) {
    double sum = 0, weighted = 0;
    for (std::size_t j = 0; j < vocabulary; ++j) {
      if (i == 0 && j == 400) continue;
      const double x = static_cast<double>(r.logits[i * vocabulary + j]);
      sum += std::exp(x), weighted += x * std::exp(x);
    }
    const double target =
        static_cast<double>(r.logits[i * vocabulary + static_cast<std::size_t>(r.targets[i])]);
    expect("logsumexp", near_to(r.logsumexp[i], std::log(sum), 1e-6));
    expect("logp", near_to(static_cast<double>(r.logp[i]), target - std::log(sum), 2e-6));
    expect("entropy",
           near_to(static_cast<double>(r.entropy[i]), std::log(sum) - weighted / sum, 4e-6));
    for (std::size_t j = 0; j < vocabulary; ++j) {
      if (i == 0 && j == 400) continue;
      const double p = std::exp(static_cast<double>(r.logits[i * vocabulary + j])) / sum;
      const double onehot = j == static_cast<std::size_t>(r.targets[i]) ? 1.0 : 0.0;
      expect("dlogits", near_to(static_cast<double>(r.dlogits[i * vocabulary + j]),
                                static_cast<double>(r.g[i]) * (onehot - p), 2e-7));
    }
  }
  expect("-inf", (bits(static_cast<double>(r.dlogits[400])) & 0x7fffffffffffffffu) == 0);
}

/// NaN and +inf at the edges of a row show in all of its results and in no other row.
template <class Exec>
void edges(const Exec& exec) {
  for (const std::size_t at :
       {std::size_t{0}, std::size_t{2000}, std::size_t{4998}, std::size_t{4999}}) {
    for (const double bad : {exact::nan(), exact::infinity()}) {
      Rows r, clean;
      r.logits[at] = static_cast<float>(bad);
      r.run(exec), clean.run(exec);
      expect("NaN in logp", is_nan_float(r.logp[0]));
      expect("NaN in entropy", is_nan_float(r.entropy[0]));
      expect("NaN in logsumexp", is_nan(r.logsumexp[0]));
      expect("NaN in dlogits", is_nan_float(r.dlogits[0]) && is_nan_float(r.dlogits[4999]));
      expect("the other row", bits(r.logsumexp[1]) == bits(clean.logsumexp[1]) &&
                                  r.dlogits[5000] == clean.dlogits[5000]);
      r.mask[0] = 0, clean.mask[0] = 0;
      r.run(exec), clean.run(exec);
      expect("masked", r.logp == clean.logp && bits(static_cast<double>(r.dlogits[at])) == 0);
    }
  }
  Rows none;
  for (std::size_t j = 0; j < vocabulary; ++j)
    none.logits[j] = static_cast<float>(-exact::infinity());
  none.run(exec);
  expect("only -inf",
         is_nan_float(none.logp[0]) && bits(none.logsumexp[0]) == bits(-exact::infinity()));
}

}  // namespace

int main() {
  formulas(gdpo::seq), formulas(gdpo::simd);
  edges(gdpo::seq), edges(gdpo::simd);
  return exact::failures == 0 ? 0 : 1;
}
