#pragma once

#include <optional>

#include "estimators.hpp"
#include "rollouts.hpp"

namespace resolution {

/// GDPO's last step: the summed, normalised rewards are divided by their standard deviation over the batch. `mean` is 0
/// up to rounding because every group is centred, so the step changes no count.
struct BatchStep {
  double mean = 0;
  double std = 0;  ///< ddof 1
};

BatchStep batch_step(const std::vector<double>& sums);

/// The same step with every completion weighted by its length, as trainers do that whiten over tokens: the mean is no
/// longer 0, so every completion is shifted by one constant, those without any signal too.
struct LengthWeighting {
  static constexpr double eps = 1e-8;  ///< in the root
  BatchStep plain;
  BatchStep weighted;  ///< mean = sum n a / N, variance = sum n (a - mean)^2 / (N - 1), N = sum n
  double zero_share = 0;           ///< completions with advantage 0 in the plain step
  double value_given_to_zero = 0;  ///< what length weighting gives to them
  double sign_changed_share = 0;   ///< of the other completions
};

/// Needs rollouts.lengths. `sums`, `plain`: GDPO before and after the batch step.
LengthWeighting length_weighting(const Settings& settings, const Rollouts& rollouts,
                                 const std::vector<double>& sums, const std::vector<double>& plain);

}  // namespace resolution
