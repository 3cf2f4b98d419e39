#include "text_table.hpp"

#include <algorithm>
#include <sstream>

#include "words.hpp"

namespace resolution {
namespace {

constexpr std::size_t gutter = 2;

std::vector<std::string> lines_of(const std::string& cell) {
  std::vector<std::string> lines;
  std::istringstream in(cell);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string aligned(const std::string& text, std::size_t width, bool left) {
  const std::string blank(width - std::min(width, width_of(text)), ' ');
  return left ? text + blank : blank + text;
}

std::string without_trailing_blanks(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line + '\n';
}

}  // namespace

std::string TextTable::text(std::size_t width) const {
  std::vector<std::vector<std::string>> head;
  std::vector<std::size_t> widths;
  std::size_t head_lines = 0;
  for (std::size_t c = 0; c < header_.size(); ++c) {
    head.push_back(lines_of(header_[c]));
    head_lines = std::max(head_lines, head.back().size());
    std::size_t needed = 0;
    for (const std::string& line : head.back()) needed = std::max(needed, width_of(line));
    for (const auto& row : rows_) needed = std::max(needed, width_of(row[c]));
    widths.push_back(needed);
  }

  std::string out;
  std::size_t first = 1;
  do {
    std::size_t last = first;
    std::size_t used = widths[0];
    while (last < widths.size() && (last == first || used + gutter + widths[last] <= width))
      used += gutter + widths[last++];
    const auto line = [&](const auto& cell) {
      std::string text = aligned(cell(0), widths[0], true);
      for (std::size_t c = first; c < last; ++c)
        text += std::string(gutter, ' ') + aligned(cell(c), widths[c], false);
      return without_trailing_blanks(text);
    };
    if (!out.empty()) out += '\n';
    for (std::size_t l = 0; l < head_lines; ++l) {
      out += line([&](std::size_t c) {
        // Headers with fewer lines are aligned at the bottom, above the rule.
        const std::size_t above = head_lines - head[c].size();
        return l < above ? std::string() : head[c][l - above];
      });
    }
    out += std::string(std::min(used, width), '-') + '\n';
    for (const auto& row : rows_) out += line([&](std::size_t c) { return row[c]; });
    first = last;
  } while (first < widths.size());
  return out;
}

}  // namespace resolution
