#pragma once

#include <string>

#include "comparison.hpp"
#include "counting.hpp"

namespace resolution {

/// A self-contained page: one file, no network, no scripts; charts are inline SVG. Readable in light and dark, by
/// readers who do not tell colours apart, by screen readers and on paper.
std::string to_html(const Comparison& comparison);
std::string to_html(const Counting& counting);

}  // namespace resolution
