#pragma once

#include <optional>
#include <string>
#include <vector>

#include "batch_step.hpp"
#include "estimators.hpp"
#include "metrics.hpp"
#include "rollouts.hpp"

namespace resolution {

struct EstimatorResult {
  EstimatorInfo info;
  std::vector<double> advantages;  ///< (N)
  Metrics metrics;
};

/// Everything that the reports show about one log.
struct Comparison {
  Rollouts rollouts;
  Settings settings;
  std::vector<double> gated;  ///< (N, C) rewards after --given
  RewardSummary rewards;
  std::vector<EstimatorResult> results;
  BatchStep batch;  ///< of GDPO
  std::optional<LengthWeighting> length;

  /// The result that stands for summing first (GRPO where there is one), or null; and for normalising first (GDPO).
  const EstimatorResult* sum_first() const;
  const EstimatorResult* normalise_first() const;
  const EstimatorResult* find(const std::string& name) const;
};

/// Throws UserError where an estimator needs lengths and there are none, or refuses the input.
Comparison compare(Rollouts rollouts, Settings settings,
                   const std::vector<std::string>& estimators);

}  // namespace resolution
