#pragma once

#include <string>

#include "comparison.hpp"

namespace constrained {

/// Tables for a terminal of 100 columns.
std::string to_text(const Comparison& comparison);
/// All measures of all runs.
std::string to_json(const Comparison& comparison);
/// A self-contained HTML page with charts, curves and tables.
std::string to_html(const Comparison& comparison);

/// What the measures mean, for the readers of a table.
constexpr const char* definitions =
    "Errors and violations are in std of the baseline policy's reward, from exact expectations. "
    "Violation: mean error of the last quarter, where positive. Undershoot: the furthest beyond "
    "the limit, on the satisfied side, once it was reached. Oscillation: std of the error over the "
    "second half. Feedback and lambda: means of the last quarter.";

}  // namespace constrained
