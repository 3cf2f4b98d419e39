#pragma once

#include <vector>

#include "comparison.hpp"

namespace resolution {

/// A group in which the estimator that sums first gives two completions the same advantage, and the
/// one that normalizes each reward first does not.
struct SeparatedGroup {
  std::size_t group;
  std::size_t low, high;  ///< the two rows of one tie that normalizing first sets furthest apart
  double apart;           ///< the difference of their advantages, in the second estimator's
};

/// All such groups, those with the largest difference first. Empty where one of the two estimators
/// is not compared.
std::vector<SeparatedGroup> separated_groups(const Comparison& comparison);

}  // namespace resolution
