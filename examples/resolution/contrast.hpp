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

/// Appends the other topics: counts of distinct values, groups whose advantages are all 0, how
/// strongly each reward is heard, and a second normalisation inside the group.
void contrast(const Comparison& comparison, const EstimatorResult& sum,
              const EstimatorResult& normalised, std::vector<Finding>& out);

}  // namespace resolution
