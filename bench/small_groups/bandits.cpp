#include "bandits.hpp"

#include <cmath>

namespace small_groups {
namespace {

/// A number of the noise of this kind; its scale is 1, and so is its variance where it has one.
double noise(Draw draw, Random& random) {
  if (draw == Draw::Normal) return random.normal();
  const double u = random.uniform();
  // The quantile functions: Student's t with 2 degrees of freedom, and Pareto's u^(-1/4), which has
  // mean 4/3 and variance 2/9.
  if (draw == Draw::StudentT2) return (2 * u - 1) / std::sqrt(2 * u * (1 - u));
  return (1 / std::sqrt(std::sqrt(u)) - 4.0 / 3) * std::sqrt(4.5);
}

/// The variance of a reward of this arm, or what stands for it.
double noise_variance(const Bandits& b, std::size_t prompt, std::size_t arm, std::size_t reward) {
  const double mean = b.mean(prompt, arm, reward);
  switch (b.rewards[reward].draw) {
    case Draw::Fixed:
      return 0;
    case Draw::Bernoulli:
      return mean * (1 - mean);
    default:
      return b.scale(prompt, reward) * b.scale(prompt, reward);
  }
}

/// A value for each arm of a prompt: a reward, or the weighted sum of all.
struct ArmValues {
  std::vector<double> means;
  std::vector<double> variances;

  /// Adds factor times the exact gradient of the expected value, or of that divided by its sigma.
  void add_gradient(const double* policy, double factor, bool standardized, double* out) const {
    double expected = 0;
    for (std::size_t a = 0; a < means.size(); ++a) expected += policy[a] * means[a];
    double variance = 0;
    bool varies = false;
    for (std::size_t a = 0; a < means.size(); ++a) {
      const double d = means[a] - expected;
      variance += policy[a] * (d * d + variances[a]);
      varies = varies || (policy[a] > 0 && (means[a] != means[0] || variances[a] > 0));
    }
    if (!varies) return;
    if (standardized) factor /= std::sqrt(variance);
    for (std::size_t a = 0; a < means.size(); ++a)
      out[a] += factor * (policy[a] * (means[a] - expected));
  }
};

}  // namespace

Targets targets_of(const Bandits& b) {
  const std::size_t size = b.prompts * b.arms;
  Targets targets{std::vector<double>(size), std::vector<double>(size), std::vector<double>(size)};
  ArmValues sum, one;
  one.means.resize(b.arms);
  one.variances.resize(b.arms);
  for (std::size_t p = 0; p < b.prompts; ++p) {
    const double* policy = b.policy.data() + p * b.arms;
    sum.means.assign(b.arms, 0);
    sum.variances.assign(b.arms, 0);
    for (std::size_t c = 0; c < b.rewards.size(); ++c) {
      const double w = b.rewards[c].weight;
      for (std::size_t a = 0; a < b.arms; ++a) {
        one.means[a] = b.mean(p, a, c);
        one.variances[a] = noise_variance(b, p, a, c);
        sum.means[a] += w * one.means[a];
        sum.variances[a] += w * w * one.variances[a];
      }
      one.add_gradient(policy, w, true, targets.each.data() + p * b.arms);
    }
    if (b.correlation != 0) {
      const double covariance = b.correlation * b.scale(p, 0) * b.scale(p, 1);
      for (double& v : sum.variances)
        v += 2 * b.rewards[0].weight * b.rewards[1].weight * covariance;
    }
    sum.add_gradient(policy, 1, false, targets.objective.data() + p * b.arms);
    sum.add_gradient(policy, 1, true, targets.standardized.data() + p * b.arms);
  }
  return targets;
}

void draw(const Bandits& b, std::size_t k, Random& random, Sample& sample) {
  const std::size_t count = b.rewards.size();
  sample.arms.resize(b.prompts * k);
  sample.rewards.resize(b.prompts * k * count);
  const double rest = std::sqrt(1 - b.correlation * b.correlation);
  for (std::size_t p = 0; p < b.prompts; ++p) {
    const double* policy = b.policy.data() + p * b.arms;
    std::size_t last = b.arms - 1;  // what rounding leaves goes to the last arm that can be drawn
    while (last > 0 && policy[last] == 0) --last;
    for (std::size_t i = p * k; i < (p + 1) * k; ++i) {
      std::size_t arm = 0;
      for (double u = random.uniform() - policy[0]; arm < last && u >= 0; u -= policy[arm]) ++arm;
      sample.arms[i] = static_cast<std::uint32_t>(arm);
      double first = 0;
      for (std::size_t c = 0; c < count; ++c) {
        double value = b.mean(p, arm, c);
        const Draw kind = b.rewards[c].draw;
        if (kind == Draw::Bernoulli) {
          value = random.uniform() < value ? 1 : 0;
        } else if (kind != Draw::Fixed) {
          double e = noise(kind, random);
          if (c == 0) first = e;
          if (c == 1 && b.correlation != 0) e = b.correlation * first + rest * e;
          value += b.scale(p, c) * e;
        }
        sample.rewards[i * count + c] = value;
      }
    }
  }
}

}  // namespace small_groups
