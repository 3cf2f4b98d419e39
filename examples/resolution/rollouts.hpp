#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

namespace resolution {

enum class Format { Auto, Csv, Jsonl };

/// Which columns of a file mean what.
struct Columns {
  std::string group;
  std::vector<std::string> rewards;
  std::string length;  ///< empty: none
};

/// A log of rollouts, N completions with C rewards each.
struct Rollouts {
  std::string file;  ///< base name
  std::vector<std::string> reward_names;
  std::vector<double> rewards;           ///< (N, C) row-major; NaN = missing
  std::vector<std::int64_t> group_of;    ///< (N) 0 .. groups-1, numbered by first appearance
  std::vector<std::string> group_names;  ///< (groups)
  std::vector<std::vector<std::size_t>> members;  ///< (groups) rows of each group, in file order
  std::string length_name;
  std::vector<double> lengths;  ///< (N) max(1, column); empty without a length column

  std::size_t rows() const { return group_of.size(); }
  std::size_t channels() const { return reward_names.size(); }
  double reward(std::size_t row, std::size_t channel) const {
    return rewards[row * channels() + channel];
  }
};

/// Reads a log from a stream that messages call `name`. Format::Auto takes JSON Lines where the first character is `{`,
/// CSV elsewhere. A group is any text or number, its rows need not stand together. A reward that is empty, null or NaN
/// is missing. Throws UserError with line and column: a cell that is not a number, an empty group cell, an empty or
/// negative length, what the readers refuse, a file without completions.
Rollouts read_rollouts(std::istream& stream, const std::string& name, Format format,
                       const Columns& columns);

/// The same from a file, or from standard input where the path is empty or "-".
Rollouts read_rollouts_file(const std::string& path, Format format, const Columns& columns);

}  // namespace resolution
