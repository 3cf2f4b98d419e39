#pragma once

#include <string>
#include <vector>

#include "comparison.hpp"

namespace resolution {

/// A statement about this data, computed from the numbers.
struct Finding {
  std::string title;
  std::string text;
};

/// The one sentence to take away, and the one beside it that keeps it honest.
Finding headline(const Comparison& comparison);

/// What the numbers mean, one topic each; topics that do not apply are left out.
std::vector<Finding> findings(const Comparison& comparison);

/// Groups whose rewards differ but get advantage 0 throughout when each reward is normalised first; those that summing
/// first tells apart come first.
std::vector<std::size_t> cancelled_groups(const Comparison& comparison);

/// Whether an estimator gives 0 to every completion of a group.
bool is_zero(const Comparison& comparison, const EstimatorResult& result, std::size_t group);

}  // namespace resolution
