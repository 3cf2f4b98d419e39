#pragma once

#include <string>
#include <vector>

namespace resolution {

/// Columns of text for a terminal: the first is aligned left, the others right; a header row may have several lines
/// (separated by '\n' in its cells). Columns that do not fit `width` are continued in a second block with the first
/// column repeated.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : header_(std::move(header)) {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text(std::size_t width = 100) const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace resolution
