#pragma once

#include <optional>
#include <string>

namespace resolution {

/// The number a text spells in full: decimal or exponent notation, optional sign and surrounding blanks, or true /
/// false in any case as 1 / 0. Empty where it spells none or one that is not finite.
std::optional<double> parse_number(const std::string& text);

/// Whether a text stands for "no value": empty, nan, na, null or none in any case.
bool spells_missing(const std::string& text);

}  // namespace resolution
