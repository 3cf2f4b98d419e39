#pragma once

#include <optional>
#include <string>

namespace resolution {

/// The number that a text spells in full: decimal or exponent notation with optional sign and
/// surrounding blanks, or true and false, in any case, as 1 and 0. Empty for any other text and for
/// a number that is not finite.
std::optional<double> parse_number(const std::string& text);

/// Whether a text stands for "no value": empty, nan, na, null or none, in any case.
bool spells_missing(const std::string& text);

}  // namespace resolution
