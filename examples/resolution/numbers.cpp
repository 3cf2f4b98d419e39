#include "numbers.hpp"

#include <charconv>
#include <cmath>

namespace resolution {
namespace {

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t");
  return first == std::string::npos ? ""
                                    : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

}  // namespace

std::optional<double> parse_number(const std::string& text) {
  const std::string word = trimmed(text);
  const char* first = word.data();
  const char* last = first + word.size();
  if (last - first > 1 && *first == '+' && first[1] != '-') ++first;
  double value = 0;
  const auto [end, error] = std::from_chars(first, last, value);
  if (error == std::errc() && end == last && std::isfinite(value)) return value;
  const std::string name = lower(word);
  if (name == "true") return 1;
  if (name == "false") return 0;
  return std::nullopt;
}

bool spells_missing(const std::string& text) {
  const std::string name = lower(trimmed(text));
  return name.empty() || name == "nan" || name == "na" || name == "null" || name == "none";
}

}  // namespace resolution
