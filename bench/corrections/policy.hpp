#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "../small_groups/random.hpp"

namespace corrections {

using Random = small_groups::Random;

constexpr std::size_t vocabulary = 12;
constexpr std::size_t contexts = vocabulary + 1;  ///< 0: nothing yet; else the last token + 1

/// A number for each context c and each token a that may follow it, at c * vocabulary + a: logits,
/// probabilities, and gradients by the logits.
using Table = std::array<double, contexts * vocabulary>;

constexpr std::size_t at(std::size_t context, std::size_t token) {
  return context * vocabulary + token;
}
/// softmax(logits) of each context.
Table softmax(const Table& logits);
double dot(const Table& a, const Table& b);
/// a + factor b.
Table plus(const Table& a, double factor, const Table& b);

/// A policy that writes `length` tokens, each from a softmax that depends on the token before it,
/// and a reward of the whole sequence: each step scores -1, 0 or 1, and the reward is 1 if the
/// total is at least `needed`, else 0.
struct Task {
  std::size_t length;
  Table logits;                                  ///< of the policy that is trained
  Table policy;                                  ///< its probabilities
  std::array<int, contexts * vocabulary> score;  ///< of a step, as in Table
  int needed;
};

/// Random logits (standard deviation 2) and scores. `needed` is chosen so that the policy is
/// rewarded about half of the time.
Task make_task(std::size_t length, Random random);

/// The mean reward of sequences drawn from `kernel`.
double mean_reward(const Task& task, const Table& kernel);

/// Exactly, by going through all totals of all steps:
///
///     sum over all sequences of
///         product_t kernel(a_t | c_t)  (R - baseline)  sum_t d log p(a_t | c_t)
///
/// with p the policy of the task and d the derivative by its logits. With the policy as the kernel
/// it is the policy gradient, for every baseline. The rows of a kernel need not sum to 1.
Table expected_gradient(const Task& task, const Table& kernel, double baseline);

}  // namespace corrections
