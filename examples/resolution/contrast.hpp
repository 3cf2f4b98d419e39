#pragma once

#include <vector>

#include "comparison.hpp"
#include "findings.hpp"

namespace resolution {

// Findings that set two estimators side by side: one that sums the rewards first (`sum`) and one
// that normalises each reward first (`normalised`).

/// The headline: which of the two ties fewer completions inside groups.
Finding tie_rate(const Comparison& comparison, const EstimatorResult& sum,
                 const EstimatorResult& normalised);

/// The other topics: counts over the log, groups whose advantages are all 0, how strongly each
/// reward is heard, and a second normalisation inside the group.
std::vector<Finding> contrast(const Comparison& comparison, const EstimatorResult& sum,
                              const EstimatorResult& normalised);

}  // namespace resolution
