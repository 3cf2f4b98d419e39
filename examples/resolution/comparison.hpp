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

  /// The result that stands for estimators that sum the rewards first, the first of them, or null.
  const EstimatorResult* sum_first() const;
  /// The same for estimators that normalize each reward first, with this second normalization
  /// (none, batch, group, tokens).
  const EstimatorResult* normalize_first(const std::string& renorm) const;
  /// The same with a batch step, as GDPO, or else with any.
  const EstimatorResult* normalize_first() const;
  /// GDPO with its batch step, whatever its other settings; null where it is not compared.
  const EstimatorResult* gdpo() const;
  /// The rows of a group that count, in their order.
  std::vector<std::size_t> counted_rows(std::size_t group) const;
  /// The result of the estimator of this line, or null.
  const EstimatorResult* find(const std::string& name) const;
};

/// Computes all estimators on a log, batch by batch. Throws UserError where an estimator needs
/// lengths that the log does not have, or refuses the input.
Comparison compare(Rollouts rollouts, Settings settings,
                   const std::vector<std::string>& estimators);

}  // namespace resolution
