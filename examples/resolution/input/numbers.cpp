#include "numbers.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <string>

#include "../words.hpp"

namespace resolution {
namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  return first == std::string_view::npos
             ? std::string_view()
             : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// Whether two texts are the same, case aside; `lower` is in lower case.
bool spells(std::string_view text, std::string_view lower) {
  return std::equal(text.begin(), text.end(), lower.begin(), lower.end(),
                    [](char a, char b) { return resolution::lower(a) == b; });
}

}  // namespace

std::optional<double> parse_number(std::string_view text) {
  const std::string_view word = trimmed(text);
  const char* first = word.data();
  const char* last = first + word.size();
  if (last - first > 1 && *first == '+' && first[1] != '-') ++first;
  double value = 0;
  const auto [end, error] = std::from_chars(first, last, value);
  if (error == std::errc() && end == last && std::isfinite(value)) return value;
  if (error == std::errc::result_out_of_range && end == last) {
    // Too large, or too small to be anything but 0; from_chars does not say which.
    value = std::strtod(std::string(first, last).c_str(), nullptr);
    if (std::isfinite(value)) return value;
  }
  if (spells(word, "true")) return 1;
  if (spells(word, "false")) return 0;
  return std::nullopt;
}

bool spells_infinity(std::string_view text) {
  std::string_view word = trimmed(text);
  if (!word.empty() && (word[0] == '-' || word[0] == '+')) word.remove_prefix(1);
  return spells(word, "inf") || spells(word, "infinity");
}

bool spells_missing(std::string_view text) {
  constexpr std::string_view words[] = {"",     "nan",  "-nan", "na",      "n/a", "#na", "#n/a",
                                        "<na>", "null", "none", "missing", "nil", "-",   "--"};
  const std::string_view word = trimmed(text);
  return std::any_of(std::begin(words), std::end(words),
                     [&](std::string_view w) { return spells(word, w); });
}

bool same_word(std::string_view a, std::string_view b) {
  const std::string_view x = trimmed(a);
  const std::string_view y = trimmed(b);
  return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                    [](char p, char q) { return lower(p) == lower(q); });
}

}  // namespace resolution
