#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "random.hpp"

namespace small_groups {

/// How a reward is drawn, given the arm.
enum class Draw {
  Fixed,      ///< It is the mean of the arm (a logged reward).
  Bernoulli,  ///< 1 with the arm's mean as its probability, else 0.
  Normal,     ///< The mean plus scale times a nearly normal number.
  StudentT2,  ///< The mean plus scale times Student's t with 2 degrees of freedom: no variance.
  Pareto      ///< The mean plus scale times a Pareto number of index 4, centered, of variance 1.
};

/// One reward of all prompts.
struct Reward {
  Draw draw = Draw::Fixed;
  double weight = 1;
};

/// Softmax bandits, one for each prompt: a completion is an arm, drawn by the policy, and gets
/// rewards around the means of its arm. What is measured is the gradient by the logits of all
/// prompts, a vector of prompts x arms numbers.
struct Bandits {
  std::size_t prompts = 0;
  std::size_t arms = 0;
  std::vector<Reward> rewards;
  /// Correlation of the noise of rewards 0 and 1; both are then Draw::Normal.
  double correlation = 0;
  std::vector<double> policy;  ///< (prompts, arms) probabilities
  std::vector<double> means;   ///< (prompts, arms, rewards) expected rewards
  std::vector<double> scales;  ///< (prompts, rewards) factors of the noise

  double probability(std::size_t prompt, std::size_t arm) const {
    return policy[prompt * arms + arm];
  }
  double mean(std::size_t prompt, std::size_t arm, std::size_t reward) const {
    return means[(prompt * arms + arm) * rewards.size() + reward];
  }
  double scale(std::size_t prompt, std::size_t reward) const {
    return scales[prompt * rewards.size() + reward];
  }
};

/// Exact gradients, (prompts, arms) each. sigma is the standard deviation of a reward, or of the
/// weighted sum, under the policy of the prompt, noise included. Where the noise has no variance,
/// the square of its scale stands for it. What has sigma 0 has gradient 0.
struct Targets {
  std::vector<double> objective;     ///< of J = sum_a pi_a sum_c w_c r_ac: pi_a (r_a - J)
  std::vector<double> standardized;  ///< each prompt's, divided by sigma of its weighted sum
  std::vector<double> each;          ///< each prompt's and reward's, divided by sigma of the reward
};
Targets targets_of(const Bandits& bandits);

/// One batch: K completions for each prompt, one after the other.
struct Sample {
  std::vector<std::uint32_t> arms;  ///< (prompts K)
  std::vector<double> rewards;      ///< (prompts K, rewards)
};
/// Draws a batch into `sample`, whose memory is used again.
void draw(const Bandits& bandits, std::size_t k, Random& random, Sample& sample);

}  // namespace small_groups
