#pragma once

#include <vector>

#include "corrections.hpp"
#include "samplers.hpp"

namespace corrections {

/// What is known exactly of a task, an engine and a baseline.
struct Exact {
  double baseline;  ///< the engine's mean reward, which the mean of a large group tends to
  Table gradient;   ///< of the policy's mean reward
  Table none;       ///< the expected gradient without a correction
  Table product;    ///< that of sequences weighed by the product of all ratios
};
Exact make_exact(const Task& task, const Engine& engine);

/// How far policy and engine disagree, as the means over the tokens that were drawn.
struct Mismatch {
  double distance = 0;       ///< |log p - log q|, nats
  double product_share = 0;  ///< effective share of the sequences under the product of the ratios
};

/// Sums over the batches of one chunk, for one correction.
struct Sums {
  Table gradient{};      ///< of the estimated gradients
  double squares = 0;    ///< of their squared norms
  double cosines = 0;    ///< of their cosines with the exact gradient
  double dropped = 0;    ///< of the shares of tokens with weight 0
  double effective = 0;  ///< of (sum u)^2 / (N sum u^2), u the weights of the N tokens
  double with_none = 0, with_product = 0;  ///< of their inner products with the two known ones
};

/// A chunk: many batches of one task and one engine, drawn from one stream of random numbers.
struct Chunk {
  std::size_t batches = 0;
  Mismatch mismatch;       ///< sums over the batches
  std::vector<Sums> sums;  ///< one for each correction
};
/// Draws the batches and lets the library compute masks, weights, loss and gradient: every
/// correction sees the same tokens. corrections[0] and [1] are none and the product.
Chunk measure(const Task& task, const Engine& engine, const Exact& exact,
              const std::vector<std::vector<gdpo::runtime::Prepass>>& corrections,
              std::size_t batches, std::size_t sequences, Random random);

}  // namespace corrections
