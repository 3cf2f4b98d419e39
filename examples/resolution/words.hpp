#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace resolution {

/// The length in bytes of the UTF-8 character at byte `at`, or 0 where the bytes are not UTF-8.
std::size_t character_length(const std::string& text, std::size_t at);

/// The text as a terminal can show it: characters that cannot be printed or change the direction of
/// writing, and bytes that are not UTF-8, become escapes such as `\n`, `\x1b` or `\u202e`. What
/// goes beyond `most` bytes of the text is replaced by "...".
std::string printable(const std::string& text, std::size_t most = std::string::npos);

/// The text in double quotes, made printable and cut after 48 bytes, so that no message is flooded
/// by what stands in a log.
std::string in_quotes(const std::string& text);

/// A list of quoted names, `"a", "b", "c"`, cut after twenty names or 150 bytes.
std::string list(const std::vector<std::string>& names);

/// The names in the order of their distance from `name`: the number of characters to insert, to
/// remove or to replace, case aside. The nearest comes first.
std::vector<std::string> nearest_first(std::vector<std::string> names, const std::string& name);

/// A number with its noun: "1 group", "2 groups". The number has thousands separators.
std::string counted(std::size_t n, const std::string& noun);
/// The same for a noun whose plural is not made with an s: "1 batch", "2 batches".
std::string counted(std::size_t n, const std::string& noun, const std::string& plural);

/// A number with thousands separators: 1234567 -> "1,234,567".
std::string grouped(std::size_t n);

/// A number with `digits` digits after the decimal point, or as compact() prints it from 1e9 on;
/// "-" for a value that is not finite; never "-0.00".
std::string fixed(double value, int digits);

/// The shortest text with up to `digits` significant digits, e.g. 0.0000123 -> "1.23e-05"; "-" for
/// a value that is not finite.
std::string compact(double value, int digits = 4);

/// A rate in percent: 0.0446 -> "4.46 %"; "under 0.01 %" where rounding would leave nothing of it.
std::string percent(double rate, int digits = 2);

/// The least and the largest of some numbers, as "0.12" or "between 0.12 and 0.34". Those that are
/// not finite are left out.
std::string range_text(const std::vector<double>& values, int digits);

/// A part of a whole with its percentage: 138 of 3097 -> "138 (4.46 %)", 0 -> "0".
std::string share(std::size_t part, std::size_t whole);

/// Breaks a paragraph into lines of at most `width` characters. Every line after the first is
/// indented by `indent` spaces.
std::string wrapped(const std::string& text, std::size_t width, std::size_t indent);

/// The text, cut to at most `width` characters; an ellipsis shows the cut.
std::string shortened(const std::string& text, std::size_t width);

/// The number of characters (not bytes) of UTF-8 text.
std::size_t width_of(std::string_view utf8);

/// An ASCII letter in lower case, any other character as it is.
constexpr char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace resolution
