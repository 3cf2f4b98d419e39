#pragma once

#include <string>
#include <vector>

namespace resolution {

/// The text in double quotes.
std::string in_quotes(const std::string& text);

/// A list of quoted names, `"a", "b", "c"`, cut after twenty names.
std::string list(const std::vector<std::string>& names);

/// A number with its noun: "1 group", "2 groups". The number has thousands separators.
std::string counted(std::size_t n, const std::string& noun);

/// A number with thousands separators: 1234567 -> "1,234,567".
std::string grouped(std::size_t n);

/// A number with `digits` digits after the decimal point, or as compact() prints it from 1e9 on;
/// "-" for a value that is not finite; never "-0.00".
std::string fixed(double value, int digits);

/// The shortest text with up to `digits` significant digits, e.g. 0.0000123 -> "1.23e-05"; "-" for
/// a value that is not finite.
std::string compact(double value, int digits = 4);

/// A rate in percent: 0.0446 -> "4.46 %".
std::string percent(double rate, int digits = 2);

/// A part of a whole with its percentage: 138 of 3097 -> "138 (4.46 %)".
std::string share(std::size_t part, std::size_t whole);

/// Breaks a paragraph into lines of at most `width` characters. Every line after the first is
/// indented by `indent` spaces.
std::string wrapped(const std::string& text, std::size_t width, std::size_t indent);

/// The text, cut to at most `width` characters; an ellipsis shows the cut.
std::string shortened(const std::string& text, std::size_t width);

/// The number of characters (not bytes) of UTF-8 text.
std::size_t width_of(const std::string& utf8);

}  // namespace resolution
