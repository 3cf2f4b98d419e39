#pragma once

#include <array>
#include <cstdint>
#include <gdpo/gdpo.hpp>

#include "random.hpp"

namespace constrained {

using Rows = Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// The columns of the rewards.
constexpr gdpo::index_t feedback = 0, alignment = 1, quality = 2;

/// A policy: a softmax over items for each context.
struct Policy {
  Rows logits;  ///< (contexts, items)
  Rows log_probs() const;
};

/// What was sampled in a step, group after group: completion i answers context i / group_size.
struct Rollouts {
  std::vector<int> items;
  Eigen::ArrayXXf rewards;  ///< (completions, 3)
};

/// A recommender in small: prompts (contexts) that are answered by one of a few items. What users click (feedback) is
/// anticorrelated with what they asked for (alignment) and with what is well made (quality). Rewards of a completion are those of
/// its item plus noise.
class Bandit {
 public:
  static constexpr int contexts = 32, items = 12, group_size = 16,
                       completions = contexts * group_size;
  static constexpr double noise = 0.5;

  explicit Bandit(std::uint64_t seed);

  const Policy& baseline() const { return baseline_; }
  /// A group of completions for every context.
  Rollouts sample(const Policy& policy, Random random) const;
  /// The mean rewards of the policy, exactly: without the noise of sampling.
  std::array<double, 3> expected(const Policy& policy) const;

 private:
  std::array<Rows, 3> means_;  // of the rewards, (contexts, items)
  Policy baseline_;
};

}  // namespace constrained
