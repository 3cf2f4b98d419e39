#pragma once

#include <vector>

#include "comparison.hpp"
#include "findings.hpp"

namespace resolution {

/// What two estimators of a comparison, one that sums the rewards first and one that normalises each first, say together.

/// Which of them ties fewer completions inside groups: the headline.
Finding tie_rate(const Comparison& comparison, const EstimatorResult& sum,
                 const EstimatorResult& normalised);

/// The other topics: counts, dead and cancelled groups, balance of the rewards, a second normalisation.
std::vector<Finding> contrast(const Comparison& comparison, const EstimatorResult& sum,
                              const EstimatorResult& normalised);

}  // namespace resolution
