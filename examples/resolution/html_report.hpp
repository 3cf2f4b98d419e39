#pragma once

#include <string>

#include "comparison.hpp"
#include "counting.hpp"

namespace resolution {

/// A self-contained page: one file without network access or scripts; charts are inline SVG. It can
/// be read in light and dark, by readers who do not tell colours apart, by screen readers, and on
/// paper.
std::string to_html(const Comparison& comparison);
std::string to_html(const Counting& counting);

}  // namespace resolution
