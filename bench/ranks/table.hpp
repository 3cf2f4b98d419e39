#pragma once
// A table for a terminal or, with `markdown`, for a page.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

/// A number with three significant digits; those before the point are all kept.
inline std::string digits(double x) {
  char text[64];
  std::snprintf(text, sizeof text, x >= 1000 && x < 1e9 ? "%.0f" : "%.3g", x);
  return text;
}

class Table {
 public:
  /// columns: what each column is, with its unit. Those of a terminal stand one under the other
  /// above the table, because they are longer than the numbers.
  Table(std::string title, std::vector<std::string> columns)
      : title_(std::move(title)), columns_(std::move(columns)) {}
  void add(std::vector<std::string> line) { lines_.push_back(std::move(line)); }

  void print(bool markdown) const {
    std::printf(markdown ? "\n**%s**\n\n" : "\n%s\n", title_.c_str());
    if (markdown) {
      print_line(columns_);
      print_line(std::vector<std::string>(columns_.size(), "---"));
      for (const auto& line : lines_) print_line(line);
      return;
    }
    std::vector<std::string> letters;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      letters.push_back(std::string(1, static_cast<char>('A' + c)));
      std::printf("  %s  %s\n", letters.back().c_str(), columns_[c].c_str());
    }
    print_padded(letters);
    for (const auto& line : lines_) print_padded(line);
  }

 private:
  static void print_line(const std::vector<std::string>& cells) {
    for (const std::string& cell : cells) std::printf("|%s", (" " + cell + " ").c_str());
    std::puts("|");
  }
  void print_padded(const std::vector<std::string>& cells) const {
    for (std::size_t c = 0; c < cells.size(); ++c) {
      std::size_t width = 1;
      for (const auto& line : lines_) width = (std::max)(width, line[c].size());
      std::printf("  %*s", static_cast<int>(width), cells[c].c_str());
    }
    std::puts("");
  }

  std::string title_;
  std::vector<std::string> columns_;
  std::vector<std::vector<std::string>> lines_;
};
