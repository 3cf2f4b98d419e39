#include "words.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <sstream>

namespace resolution {
namespace {

std::string formatted(const char* format, int digits, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, digits, value);
  return text;
}

std::string escape(const char* format, unsigned code) {
  char text[16];
  std::snprintf(text, sizeof text, format, code);
  return text;
}

/// The code point of the UTF-8 character of `length` bytes at `at`.
unsigned code_point(const std::string& text, std::size_t at, std::size_t length) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  unsigned code = length == 1 ? byte(0) : byte(0) & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) code = (code << 6U) | (byte(i) & 0x3FU);
  return code;
}

/// Whether a character shows itself and nothing else: no control character, no line separator, no
/// mark that is invisible or changes the direction of writing.
bool is_printable(unsigned code) {
  return code >= 0x20 && !(code >= 0x7F && code < 0xA0) && code != 0xAD && code != 0x61C &&
         !(code >= 0x200B && code <= 0x200F) && !(code >= 0x2028 && code <= 0x202E) &&
         !(code >= 0x2060 && code <= 0x206F) && code != 0xFEFF &&
         !(code >= 0xE0000 && code <= 0xE007F);
}

/// The least number of characters to insert, remove or replace that makes `a` from `b`, case aside.
/// Texts are compared byte by byte, and only their first 64 bytes.
std::size_t distance(const std::string& a, const std::string& b) {
  constexpr std::size_t most = 64;
  const std::size_t width = std::min(b.size(), most);
  std::vector<std::size_t> row(width + 1);
  for (std::size_t j = 0; j <= width; ++j) row[j] = j;
  for (std::size_t i = 0; i < std::min(a.size(), most); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < width; ++j) {
      const std::size_t replaced = diagonal + (lower(a[i]) == lower(b[j]) ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row[width];
}

}  // namespace

std::size_t character_length(const std::string& text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  const std::size_t length = first < 0x80                    ? 1
                             : first >= 0xC2 && first < 0xE0 ? 2
                             : (first & 0xF0U) == 0xE0       ? 3
                             : first >= 0xF0 && first < 0xF5 ? 4
                                                             : 0;
  if (length == 0 || at + length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0U) != 0x80U) return 0;
  }
  // Longer than necessary, half of a surrogate pair, or beyond the last character.
  if ((first == 0xE0 && byte(at + 1) < 0xA0) || (first == 0xED && byte(at + 1) >= 0xA0) ||
      (first == 0xF0 && byte(at + 1) < 0x90) || (first == 0xF4 && byte(at + 1) >= 0x90)) {
    return 0;
  }
  return length;
}

std::string printable(const std::string& text, std::size_t most) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = character_length(text, at);
    if (at + std::max<std::size_t>(length, 1) > most) return out + "...";
    if (length == 0) {
      out += escape("\\x%02x", static_cast<unsigned char>(text[at++]));
      continue;
    }
    const unsigned code = code_point(text, at, length);
    if (is_printable(code)) {
      out.append(text, at, length);
    } else if (code == '\n' || code == '\t' || code == '\r') {
      out += code == '\n' ? "\\n" : code == '\t' ? "\\t" : "\\r";
    } else {
      out += escape(code < 0x100 ? "\\x%02x" : "\\u%04x", code);
    }
    at += length;
  }
  return out;
}

std::string in_quotes(const std::string& text) { return '"' + printable(text, 48) + '"'; }

std::string list(const std::vector<std::string>& names) {
  constexpr std::size_t most_names = 20;
  constexpr std::size_t most_bytes = 150;
  std::string text;
  std::size_t shown = 0;
  for (std::size_t bytes = 0; shown < std::min(names.size(), most_names); ++shown) {
    bytes += std::min<std::size_t>(names[shown].size(), 48);
    if (bytes > most_bytes) break;
    text += (shown == 0 ? "" : ", ") + in_quotes(names[shown]);
  }
  if (shown < names.size()) text += " and " + std::to_string(names.size() - shown) + " more";
  return text;
}

std::vector<std::string> nearest_first(std::vector<std::string> names, const std::string& name) {
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return distance(a, name) < distance(b, name);
  });
  return names;
}

std::string counted(std::size_t n, const std::string& noun) { return counted(n, noun, noun + "s"); }

std::string counted(std::size_t n, const std::string& noun, const std::string& plural) {
  return grouped(n) + " " + (n == 1 ? noun : plural);
}

std::string grouped(std::size_t n) {
  std::string digits = std::to_string(n);
  for (std::size_t place = digits.size(); place > 3; place -= 3) digits.insert(place - 3, 1, ',');
  return digits;
}

std::string fixed(double value, int digits) {
  if (!std::isfinite(value)) return "-";
  if (std::abs(value) >= 1e9) return compact(value);
  const double unit = std::pow(10.0, -digits);
  return formatted("%.*f", digits, std::abs(value) < unit / 2 ? 0.0 : value);
}

std::string compact(double value, int digits) {
  return std::isfinite(value) ? formatted("%.*g", digits, value == 0 ? 0.0 : value) : "-";
}

std::string percent(double rate, int digits) {
  if (!std::isfinite(rate)) return "-";
  const double least = std::pow(10.0, -digits);
  if (rate > 0 && 100 * rate < least / 2) return "under " + fixed(least, digits) + " %";
  return fixed(100 * rate, digits) + " %";
}

std::string range_text(const std::vector<double>& values, int digits) {
  double low = std::numeric_limits<double>::quiet_NaN();
  double high = low;
  for (const double v : values) {
    if (!std::isfinite(v)) continue;
    low = std::fmin(low, v);
    high = std::fmax(high, v);
  }
  const std::string from = fixed(low, digits);
  const std::string to = fixed(high, digits);
  return from == to ? from : "between " + from + " and " + to;
}

std::string share(std::size_t part, std::size_t whole) {
  if (part == 0) return "0";
  return grouped(part) + " (" +
         percent(static_cast<double>(part) / static_cast<double>(std::max<std::size_t>(whole, 1))) +
         ")";
}

std::string wrapped(const std::string& text, std::size_t width, std::size_t indent) {
  std::istringstream words(text);
  std::string out;
  std::string word;
  std::size_t used = 0;
  while (words >> word) {
    const std::size_t needed = width_of(word);
    if (used != 0 && used + 1 + needed > width) {
      out += '\n' + std::string(indent, ' ');
      used = indent;
    } else if (used != 0) {
      out += ' ';
      ++used;
    }
    out += word;
    used += needed;
  }
  return out;
}

std::string shortened(const std::string& text, std::size_t width) {
  if (width_of(text) <= width) return text;
  std::size_t bytes = 0;
  for (std::size_t characters = 0; characters + 3 < width; ++characters) {
    do ++bytes;
    while (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xC0U) == 0x80U);
  }
  return text.substr(0, bytes) + "...";
}

std::size_t width_of(std::string_view utf8) {
  return static_cast<std::size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

}  // namespace resolution
