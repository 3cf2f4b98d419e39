#pragma once

#include <string>

#include "comparison.hpp"
#include "counting.hpp"

namespace resolution {

/// The report for a terminal of 100 columns.
std::string to_text(const Comparison& comparison);
std::string to_text(const Counting& counting);

}  // namespace resolution
