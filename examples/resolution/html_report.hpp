#pragma once

#include <string>

#include "comparison.hpp"
#include "counting.hpp"

namespace resolution {

/// A self-contained page: one file without network access or scripts; charts are HTML and inline
/// SVG. It can be read in light and dark, on a phone and on paper, by readers who do not tell
/// colors apart, and by screen readers.
std::string to_html(const Comparison& comparison);
std::string to_html(const Counting& counting);

}  // namespace resolution
