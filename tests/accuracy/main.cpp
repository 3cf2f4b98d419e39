// The accuracy table of bench/README.md: how far losses of float inputs are from the same formulas
// in long double, on 256 sequences of up to 1024 tokens. The exit status is 1 where an error
// exceeds its bound (end of main()).
#include <cmath>
#include <cstdio>
#include <gdpo/loss.hpp>
#include <random>

namespace {

using real = long double;
constexpr int rows = 256, width = 1024;
constexpr std::size_t tokens = std::size_t{rows} * width;

struct Data {
  std::vector<float> logp = std::vector<float>(tokens), old_logp = logp, ref_logp = logp,
                     advantages = std::vector<float>(rows);
  std::vector<unsigned char> mask = std::vector<unsigned char>(tokens);
};

// Random rows of 1 to `width` tokens; the other policies' log-probs are normal around logp with
// this sd.
Data make(double sd) {
  std::mt19937_64 random(20260601);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  Data d;
  for (int i = 0; i < rows; ++i) {
    d.advantages[static_cast<std::size_t>(i)] = static_cast<float>(normal(random));
    const int length = 1 + static_cast<int>(uniform(random) * (width - 1));
    for (int t = 0; t < width; ++t) {
      const auto k = static_cast<std::size_t>(i * width + t);
      d.logp[k] = static_cast<float>(std::log(uniform(random) + 1e-4));
      d.old_logp[k] = d.logp[k] + static_cast<float>(sd * normal(random));
      d.ref_logp[k] = d.logp[k] + static_cast<float>(sd * normal(random));
      d.mask[k] = t < length;
    }
  }
  return d;
}

struct Reference {
  real loss = 0, kl = 0, approx_kl = 0;
  std::vector<real> gradient = std::vector<real>(tokens);
};

// The mean over rows of the means over tokens of max(-A r, -A clip(r)) + beta k3. The ratio r is
// that of the token or that of its sequence. The gradient is taken by log r, so that of -A r is -A
// r itself; where the clip decides, it is 0.
Reference reference(const Data& d, bool sequence, real low, real high, real beta) {
  Reference result;
  real count = 0;
  for (int i = 0; i < rows; ++i) {
    const auto at = static_cast<std::size_t>(i) * width;
    real n = 0, sum = 0;
    for (std::size_t k = at; k < at + width; ++k) {
      if (d.mask[k]) n += 1, sum += real(d.logp[k]) - real(d.old_logp[k]);
    }
    const real a = d.advantages[static_cast<std::size_t>(i)];
    for (std::size_t k = at; k < at + width; ++k) {
      if (!d.mask[k]) continue;
      const real own = real(d.logp[k]) - real(d.old_logp[k]),
                 r = std::exp(sequence ? sum / n : own);
      const real clipped = std::min(std::max(r, 1 - low), 1 + high),
                 x = real(d.ref_logp[k]) - real(d.logp[k]);
      result.loss += (std::max(-a * r, -a * clipped) + beta * (std::expm1(x) - x)) / (n * rows);
      result.gradient[k] =
          ((-a * r >= -a * clipped ? -a * r : 0) - beta * std::expm1(x)) / (n * rows);
      result.kl += std::expm1(x) - x;
      result.approx_kl += std::expm1(own) - own;
      count += 1;
    }
  }
  result.kl /= count;
  result.approx_kl /= count;
  return result;
}

double relative(real got, real want) {
  return static_cast<double>(std::fabs(got - want) / std::fabs(want));
}

struct Worst {
  double gradient = 0, loss = 0, kl = 0;
};

template <class Loss>
void report(const char* name, Loss loss, bool sequence, Worst& worst) {
  loss.kl.beta = 0.04;
  for (const double sd : {1e-1, 1e-2, 1e-3, 1e-4}) {
    const Data d = make(sd);
    std::vector<float> gradient(tokens);
    gdpo::TokenBatch<float> batch;
    batch.logp = gdpo::view(d.logp.data(), rows, width);
    batch.old_logp = gdpo::view(d.old_logp.data(), rows, width);
    batch.ref_logp = gdpo::view(d.ref_logp.data(), rows, width);
    batch.mask = gdpo::view(d.mask.data(), rows, width);
    batch.advantages = gdpo::view(d.advantages);
    const gdpo::LossResult got =
        loss(batch, gdpo::count(batch), gdpo::view(gradient.data(), rows, width));
    const Reference want = reference(d, sequence, loss.surrogate.low, loss.surrogate.high, 0.04L);

    real error = 0, largest = 0;
    double naive_kl = 0, count = 0;
    for (std::size_t k = 0; k < tokens; ++k) {
      error = std::max(error, std::fabs(real(gradient[k]) - want.gradient[k]));
      largest = std::max(largest, std::fabs(want.gradient[k]));
      if (!d.mask[k]) continue;
      const float x = d.ref_logp[k] - d.logp[k];
      naive_kl += std::exp(x) - x - 1.0f;  // in float, as k3 is usually written
      count += 1;
    }
    const double of_gradient = static_cast<double>(error / largest),
                 of_loss = relative(got.loss, want.loss);
    const double of_kl = relative(got.metrics.kl.mean(), want.kl);
    std::printf("| %s | %.0e | %.1e | %.1e | %.1e | %.1e | %.1e |\n", name, sd, of_gradient,
                of_loss, of_kl, relative(naive_kl / count, want.kl),
                relative(got.metrics.approx_kl_k3.mean(), want.approx_kl));
    worst.gradient = std::max(worst.gradient, of_gradient);
    worst.loss = std::max(worst.loss, of_loss);
    worst.kl = std::max(worst.kl, of_kl);
  }
}

}  // namespace

int main() {
  std::puts(
      "| loss | sd of the log-ratios | gradient, max error / max | loss | mean KL "
      "| mean KL as exp(x) - x - 1 | approx_kl_k3 |");
  std::puts("|---|---|---|---|---|---|---|");
  Worst worst;
  report("GRPO", gdpo::grpo_loss, false, worst);
  report("GSPO", gdpo::gspo_loss, true, worst);
  const bool good = worst.gradient <= 3e-7 && worst.loss <= 1e-6 && worst.kl <= 1e-6;
  std::printf("\n%s: gradient %.1e (at most 3e-7), loss %.1e (1e-6), mean KL %.1e (1e-6)\n",
              good ? "met" : "MISSED", worst.gradient, worst.loss, worst.kl);
  return good ? 0 : 1;
}
