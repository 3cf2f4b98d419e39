#pragma once

#include <string>
#include <vector>

#include "comparison.hpp"

namespace resolution {

/// A statement about this log, computed from its numbers.
struct Finding {
  std::string title;
  std::string text;
};

/// The most important finding. Where counts over the whole log say the opposite, its text says so.
Finding headline(const Comparison& comparison);

/// What makes it doubtful that the log is what it was taken for: most groups hold a single
/// completion, files hold the same rows, groups lie in several files. Reports begin with them.
std::vector<Finding> warnings(const Comparison& comparison);

/// All other findings, one per topic. Topics that do not apply to the log are left out.
std::vector<Finding> findings(const Comparison& comparison);

/// Groups whose rewards differ but whose advantages are all 0 when each reward is normalized first.
/// Groups that an estimator that sums first does tell apart come first.
std::vector<std::size_t> canceled_groups(const Comparison& comparison);

/// Whether an estimator gives advantage 0 to every completion of a group that has a reward.
bool is_zero(const Comparison& comparison, const EstimatorResult& result, std::size_t group);

}  // namespace resolution
