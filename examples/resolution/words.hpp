#pragma once

#include <string>
#include <vector>

namespace resolution {

/// "text" in double quotes.
std::string in_quotes(const std::string& text);

/// `"a", "b", "c"`, cut after twenty names.
std::string list(const std::vector<std::string>& names);

/// 1 "group", 2 "groups"; numbers with thousands separators.
std::string counted(std::size_t n, const std::string& noun);

/// 1234567 -> "1,234,567".
std::string grouped(std::size_t n);

/// Fixed-point text, from 1e9 on compact(); "-" for a value that is not finite; never "-0.00".
std::string fixed(double value, int digits);

/// The shortest form that keeps `digits` significant digits, e.g. 0.0000123 -> "1.23e-05"; "-" where not finite.
std::string compact(double value, int digits = 4);

/// 0.0446 -> "4.46 %".
std::string percent(double rate, int digits = 2);

/// 138 of 3097 -> "138 (4.46 %)".
std::string share(std::size_t part, std::size_t whole);

/// Breaks a paragraph into lines of at most `width` characters, each after the first indented by `indent` spaces.
std::string wrapped(const std::string& text, std::size_t width, std::size_t indent);

/// Text cut to at most `width` characters, with an ellipsis where something was cut.
std::string shortened(const std::string& text, std::size_t width);

/// The number of characters (not bytes) of UTF-8 text.
std::size_t width_of(const std::string& utf8);

}  // namespace resolution
