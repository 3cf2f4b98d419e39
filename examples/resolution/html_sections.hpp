#pragma once

#include <string>
#include <vector>

#include "comparison.hpp"

namespace resolution {

/// Parts of the page of a comparison; each returns HTML.

/// The style sheet's name for the colour of an estimator.
std::string class_of(const EstimatorInfo& info);

/// The estimator's name in its colour.
std::string coloured_label(const EstimatorInfo& info);

/// The two results that stand for summing first and normalising first, where they are there.
std::vector<const EstimatorResult*> compared_results(const Comparison& comparison);

/// Groups whose rewards differ and cancel, rewards and advantages side by side; alike groups once.
std::string cancelled_section(const Comparison& comparison);

std::string rewards_table(const Comparison& comparison);
std::string metrics_table(const Comparison& comparison);

/// The estimators, settings and counts in words.
std::string definitions(const Comparison& comparison);

}  // namespace resolution
