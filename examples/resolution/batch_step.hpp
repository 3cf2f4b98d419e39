#pragma once

#include <vector>

#include "input/rollouts.hpp"

namespace resolution {

/// The statistics of GDPO's last step, which divides the sums of the normalized rewards by their
/// standard deviation over the batch. `mean` is 0 up to rounding, because every group is centered.
/// The step is therefore one division of all advantages of a batch, and changes none of the counts
/// inside it.
struct BatchStep {
  double mean = 0;
  double std = 0;  ///< divisor N - 1
};

/// The statistics of the step in each batch. `sums` (N) are GDPO's advantages before it; rows that
/// are not `rewarded` (N) take part in neither, as in the library. Where no row of a batch is, both
/// are NaN.
std::vector<BatchStep> batch_steps(const Rollouts& rollouts, const std::vector<double>& sums,
                                   const std::vector<char>& rewarded);

/// The same step with every completion weighted by its length, as trainers do that whiten over
/// tokens. The weighted mean is not 0, so every completion of a batch is shifted by one constant,
/// including completions whose advantage was 0.
struct LengthWeighting {
  /// Added to the variance, a / sqrt(variance + eps): that of renorm=tokens.
  static constexpr double eps = 1e-8;
  struct Batch {
    /// mean = sum n a / N, variance = sum n (a - mean)^2 / (N - 1), with lengths n and N = sum n.
    BatchStep weighted;
    double value_given_to_zero = 0;  ///< what a completion with advantage 0 gets
  };
  std::vector<Batch> batches;
  // Of the completions that have a reward.
  double zero_share = 0;          ///< share of completions with advantage 0 in the plain step
  double sign_changed_share = 0;  ///< share of the other completions whose sign differs
};

/// Compares the two. `sums`, `plain` and `over_tokens` are GDPO's advantages before the step, after
/// the plain one and after the weighted one, `rewarded` the same as for batch_steps().
/// rollouts.lengths must not be empty.
LengthWeighting length_weighting(const Rollouts& rollouts, const std::vector<double>& sums,
                                 const std::vector<double>& plain,
                                 const std::vector<double>& over_tokens,
                                 const std::vector<char>& rewarded);

}  // namespace resolution
