#include "words.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

namespace resolution {
namespace {

std::string formatted(const char* format, int digits, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, digits, value);
  return text;
}

}  // namespace

std::string in_quotes(const std::string& text) { return '"' + text + '"'; }

std::string list(const std::vector<std::string>& names) {
  constexpr std::size_t most = 20;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i)
    text += (i == 0 ? "" : ", ") + in_quotes(names[i]);
  if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
  return text;
}

std::string counted(std::size_t n, const std::string& noun) {
  return grouped(n) + " " + noun + (n == 1 ? "" : "s");
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
  return std::isfinite(rate) ? fixed(100 * rate, digits) + " %" : "-";
}

std::string share(std::size_t part, std::size_t whole) {
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

std::size_t width_of(const std::string& utf8) {
  return static_cast<std::size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

}  // namespace resolution
