#pragma once

#include <array>
#include <cstdint>
#include <gdpo/gdpo.hpp>

#include "random.hpp"

namespace constrained {

using Rows = Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Column numbers of the rewards.
constexpr gdpo::index_t feedback = 0, alignment = 1, quality = 2;

/// A policy: for each context, a softmax over the items.
struct Policy {
  Rows logits;             ///< (contexts, items)
  Rows log_probs() const;  ///< (contexts, items)
};

/// The completions of one step, group after group: completion i answers context i / group_size.
struct Rollouts {
  std::vector<int> items;   ///< the item of each completion
  Eigen::ArrayXXf rewards;  ///< (completions, 3)
};

/// A small recommender. Prompts (contexts) are answered with one of a few items. There are three
/// rewards: feedback (what users click) is anticorrelated with alignment (what they asked for) and
/// with quality (what is well made). The rewards of a completion are the means of its item plus
/// normal noise.
class Bandit {
 public:
  static constexpr int contexts = 32, items = 12, group_size = 16,
                       completions = contexts * group_size;
  static constexpr double noise = 0.5;  ///< std of the noise of each reward

  /// Draws the means of all rewards and the baseline policy from the seed.
  explicit Bandit(std::uint64_t seed);

  /// The policy before training.
  const Policy& baseline() const { return baseline_; }
  /// Samples a group of `group_size` completions for every context.
  Rollouts sample(const Policy& policy, Random random) const;
  /// The expected rewards of the policy over all contexts and items, without the noise of sampling.
  std::array<double, 3> expected(const Policy& policy) const;

 private:
  std::array<Rows, 3> means_;  // mean of each reward, (contexts, items)
  Policy baseline_;
};

}  // namespace constrained
