#include "records.hpp"

#include <algorithm>

#include "../words.hpp"

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
  const std::size_t line_break = before.rfind('\n');
  if (line_break == std::string_view::npos) return {start.line, start.column + width_of(before)};
  const auto lines = static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'));
  return {start.line + lines, 1 + width_of(before.substr(line_break + 1))};
}

}  // namespace resolution
