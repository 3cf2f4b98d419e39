#pragma once

#include <string>

#include "comparison.hpp"

namespace constrained {

std::string to_text(const Comparison& comparison);
std::string to_json(const Comparison& comparison);
/// A whole page, complete in itself.
std::string to_html(const Comparison& comparison);

/// What the measures are, for readers of a table.
constexpr const char* definitions =
    "Errors and violations are in std of the baseline policy's reward, from exact expectations. "
    "Violation: mean error "
    "of the last "
    "quarter, where positive. Undershoot: the furthest beyond the limit, on the satisfied side, "
    "once it was reached. "
    "Oscillation: "
    "std of the error over the second half. Feedback and lambda: means of the last quarter.";

}  // namespace constrained
