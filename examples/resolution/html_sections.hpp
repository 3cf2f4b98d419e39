#pragma once

#include <string>
#include <vector>

#include "comparison.hpp"

namespace resolution {

// Parts of the page of a comparison. Each function except compared_results() returns HTML.

/// The style sheet's name for the color of an estimator.
std::string class_of(const EstimatorInfo& info);

/// The estimator's name in its color.
std::string colored_label(const EstimatorInfo& info);

/// The results that stand for summing first and for normalizing first; a result that does not exist
/// is left out.
std::vector<const EstimatorResult*> compared_results(const Comparison& comparison);

/// Three groups in which summing first ties completions that normalizing first sets furthest apart,
/// rewards and advantages side by side; empty where there is none.
std::string separated_section(const Comparison& comparison);

/// The course of rewards, ties and lengths over the batches; empty where the log is one batch.
std::string batches_section(const Comparison& comparison);

/// The groups whose rewards differ but whose advantages are all 0, rewards and advantages side by
/// side. Groups with the same rewards are shown once.
std::string canceled_section(const Comparison& comparison);

std::string rewards_table(const Comparison& comparison);
std::string metrics_table(const Comparison& comparison);

/// The meaning of the estimators, settings and counts, in words.
std::string definitions(const Comparison& comparison);

}  // namespace resolution
