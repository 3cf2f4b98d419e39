#pragma once

#include <array>
#include <string>
#include <vector>

#include "corrections.hpp"
#include "samplers.hpp"

namespace corrections {

/// What is run. Neither the number of threads nor what else is run changes a number.
struct Settings {
  std::size_t policies = 4;    ///< tasks of each sampler
  std::size_t chunks = 20;     ///< of each task; intervals come from the differences between them
  std::size_t batches = 10;    ///< of each chunk
  std::size_t sequences = 64;  ///< of a batch
  std::uint64_t seed = 1;      ///< of all random numbers
};

/// A number with an interval of two standard errors to either side.
struct Interval {
  double value = 0, low = 0, high = 0;
};

/// What is measured of a correction under a sampler: the mean over the policies. Lengths are
/// relative to the exact gradient g, and f is the gradient of one batch.
struct Measured {
  Interval bias;         ///< |E f - g| / |g|
  bool exact = false;    ///< the bias is computed, not estimated
  double length = 0;     ///< (E f . g) / |g|^2: 1 if f has the right length along g
  double direction = 0;  ///< the cosine of E f with g
  double variance = 0;   ///< E |f - E f|^2 / |g|^2
  double error = 0;      ///< variance + bias^2
  double cosine = 0;     ///< E cos(f, g)
  double of_chunk = 0;   ///< the cosine with g of the mean over a chunk's batches
  double of_all = 0;     ///< that of the mean over all batches of a policy
  Interval gain;         ///< that less the cosine without a correction, on the same batches
  double dropped = 0;    ///< share of the tokens with weight 0
  double effective = 0;  ///< effective share of the tokens
};

/// All that was measured of one sampler.
struct Case {
  Sampler sampler;
  double distance = 0;       ///< the mean of |log p - log q| over the tokens, nats
  double product_share = 0;  ///< effective share of a batch's sequences under the product of ratios
  double reward = 0;         ///< mean reward of the engine
  double own_reward = 0;     ///< mean reward of the policy that is trained
  std::vector<Measured> corrections;
};

struct Results {
  Settings settings;
  std::vector<Correction> corrections;
  std::vector<Case> cases;
  bool complete = true;  ///< no sampler and no correction was left out
};

/// Runs everything on that many threads; 0: one for each of the machine.
Results run(const Settings& settings, const std::vector<Sampler>& samplers,
            const std::vector<Correction>& corrections, int threads);

}  // namespace corrections
