#pragma once

#include <optional>
#include <string>
#include <vector>

#include "batch_step.hpp"
#include "estimators.hpp"
#include "input/rollouts.hpp"
#include "metrics.hpp"

namespace resolution {

/// What one estimator gave on the log.
struct EstimatorResult {
  EstimatorInfo info;
  std::vector<double> advantages;  ///< (N)
  Metrics metrics;
};

/// Everything that the reports show about one log.
struct Comparison {
  Rollouts rollouts;
  Settings settings;
  std::vector<double> gated;   ///< (N, C) rewards after the conditions of --given
  std::vector<char> rewarded;  ///< (N) see Measure::rewarded()
  RewardSummary rewards;
  BatchCurves curves;
  std::vector<EstimatorResult> results;
  std::vector<BatchStep> batch_steps;     ///< the last step of GDPO in each batch
  std::optional<LengthWeighting> length;  ///< where the log has lengths

  /// The result that stands for estimators that sum the rewards first: GRPO, else GRPO without std,
  /// else the first of that kind. Null where there is none.
  const EstimatorResult* sum_first() const;
  /// The same for estimators that normalise each reward first: GDPO, else GDPO before its batch
  /// step, else the first of that kind.
  const EstimatorResult* normalise_first() const;
  /// The rows of a group that count, in their order.
  std::vector<std::size_t> counted_rows(std::size_t group) const;
  /// The result of the estimator with this name, or null.
  const EstimatorResult* find(const std::string& name) const;
};

/// Computes all estimators on a log, batch by batch. Throws UserError where an estimator needs
/// lengths that the log does not have, or refuses the input.
Comparison compare(Rollouts rollouts, Settings settings,
                   const std::vector<std::string>& estimators);

}  // namespace resolution
