#pragma once

#include <optional>

#include "estimators.hpp"
#include "rollouts.hpp"

namespace resolution {

/// The statistics of GDPO's last step, which divides the sums of the normalised rewards by their
/// standard deviation over the batch. `mean` is 0 up to rounding, because every group is centred.
/// The step is therefore one division of all advantages, and changes none of the counts.
struct BatchStep {
  double mean = 0;
  double std = 0;  ///< divisor N - 1
};

/// The statistics of the step over `sums`: GDPO's advantages before it.
BatchStep batch_step(const std::vector<double>& sums);

/// The same step with every completion weighted by its length, as trainers do that whiten over
/// tokens. The weighted mean is not 0, so every completion is shifted by one constant, including
/// completions whose advantage was 0.
struct LengthWeighting {
  static constexpr double eps = 1e-8;  ///< added to the variance: a / sqrt(variance + eps)
  BatchStep plain;
  /// mean = sum n a / N, variance = sum n (a - mean)^2 / (N - 1), with lengths n and N = sum n.
  BatchStep weighted;
  double zero_share = 0;           ///< share of completions with advantage 0 in the plain step
  double value_given_to_zero = 0;  ///< the advantage that length weighting gives to them
  double sign_changed_share = 0;   ///< share of the other completions whose sign differs
};

/// Compares the two. `sums` and `plain` are GDPO's advantages before and after the plain batch
/// step. rollouts.lengths must not be empty.
LengthWeighting length_weighting(const Settings& settings, const Rollouts& rollouts,
                                 const std::vector<double>& sums, const std::vector<double>& plain);

}  // namespace resolution
