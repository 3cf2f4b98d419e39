#pragma once

#include <vector>

#include "comparison.hpp"
#include "findings.hpp"

namespace resolution {

// Findings that set two estimators side by side: one that sums the rewards first (`sum`) and one
// that normalizes each reward first (`normalized`).

/// The headline: which of the two ties fewer completions inside groups.
Finding tie_rate(const Comparison& comparison, const EstimatorResult& sum,
                 const EstimatorResult& normalized);

/// Appends the other topics: counts of distinct values, groups whose advantages are all 0, how
/// strongly each reward is heard, and a second normalization inside the group.
void contrast(const Comparison& comparison, const EstimatorResult& sum,
              const EstimatorResult& normalized, std::vector<Finding>& out);

}  // namespace resolution
