#include "records.hpp"

#include <algorithm>

namespace resolution {

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> keys(1);
  for (std::size_t i = 0; i < path.size(); ++i) {
    const bool escaped =
        path[i] == '\\' && i + 1 < path.size() && (path[i + 1] == '.' || path[i + 1] == '\\');
    if (escaped) {
      keys.back().push_back(path[++i]);
    } else if (path[i] == '.') {
      keys.emplace_back();
    } else {
      keys.back().push_back(path[i]);
    }
  }
  return keys;
}

std::string escaped_key(std::string_view key) {
  std::string text;
  for (const char c : key) {
    if (c == '.' || c == '\\') text.push_back('\\');
    text.push_back(c);
  }
  return text;
}

Position position_in(std::string_view text, std::size_t offset, Position start) {
  const std::string_view before = text.substr(0, offset);
  const auto characters = [](std::string_view part) {
    return static_cast<std::size_t>(std::count_if(part.begin(), part.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;  // not a later byte of a character
    }));
  };
  const std::size_t line_break = before.rfind('\n');
  if (line_break == std::string_view::npos) return {start.line, start.column + characters(before)};
  const auto lines = static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'));
  return {start.line + lines, 1 + characters(before.substr(line_break + 1))};
}

}  // namespace resolution
