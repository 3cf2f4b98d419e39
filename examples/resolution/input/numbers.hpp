#pragma once

#include <optional>
#include <string_view>

namespace resolution {

/// The number that a text spells in full: decimal or exponent notation with optional sign and
/// surrounding blanks, or true and false, in any case, as 1 and 0. Empty for any other text and for
/// a number that is not finite.
std::optional<double> parse_number(std::string_view text);

/// Whether a text spells an infinite number: inf or infinity with optional sign, in any case.
bool spells_infinity(std::string_view text);

/// Whether a text stands for "no value": empty, nan, na, null or none, in any case.
bool spells_missing(std::string_view text);

}  // namespace resolution
