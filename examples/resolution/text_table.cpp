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
  // Per row and column, the lines of its cell. The first row is the header.
  std::vector<std::vector<std::vector<std::string>>> cells;
  std::vector<std::size_t> widths(header_.size(), 0);
  const auto add = [&](const std::vector<std::string>& row) {
    cells.emplace_back();
    for (std::size_t c = 0; c < row.size(); ++c) {
      cells.back().push_back(lines_of(row[c]));
      for (const std::string& line : cells.back().back())
        widths[c] = std::max(widths[c], width_of(line));
    }
  };
  add(header_);
  for (const auto& row : rows_) add(row);

  std::string out;
  std::size_t first = 1;
  do {
    std::size_t last = first;
    std::size_t used = widths[0];
    while (last < widths.size() && (last == first || used + gutter + widths[last] <= width))
      used += gutter + widths[last++];
    if (!out.empty()) out += '\n';
    for (const auto& row : cells) {
      const bool header = &row == &cells.front();
      std::size_t height = 0;
      for (const auto& cell : row) height = std::max(height, cell.size());
      for (std::size_t l = 0; l < height; ++l) {
        // Headers with fewer lines are aligned at the bottom, above the rule.
        const auto part = [&](std::size_t c) {
          const std::size_t above = header ? height - row[c].size() : 0;
          return l < above || l - above >= row[c].size() ? std::string() : row[c][l - above];
        };
        std::string text = aligned(part(0), widths[0], true);
        for (std::size_t c = first; c < last; ++c)
          text += std::string(gutter, ' ') + aligned(part(c), widths[c], false);
        out += without_trailing_blanks(text);
      }
      if (header) out += std::string(std::min(used, width), '-') + '\n';
    }
    first = last;
  } while (first < widths.size());
  return out;
}

}  // namespace resolution
