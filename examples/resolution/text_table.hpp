#pragma once

#include <string>
#include <vector>

namespace resolution {

/// A table for a terminal. The first column is aligned left, the others right. A cell may have
/// several lines, separated by '\n'. Columns that do not fit into `width` continue in another
/// block, which repeats the first column.
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
