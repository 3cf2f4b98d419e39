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

/// Whether a text stands for "no value", in any case: it is empty, nan, na, n/a, null, none, nil,
/// missing, one or two hyphens, or what pandas writes for it.
bool spells_missing(std::string_view text);

/// Whether two texts are the same, case and surrounding blanks aside.
bool same_word(std::string_view a, std::string_view b);

}  // namespace resolution
