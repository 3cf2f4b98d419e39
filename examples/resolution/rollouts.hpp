#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

namespace resolution {

enum class Format { Auto, Csv, Jsonl };

/// The names of the columns that are read.
struct Columns {
  std::string group;
  std::vector<std::string> rewards;
  std::string length;  ///< empty where no column has lengths
};

/// A log of rollouts: N completions with C rewards each.
struct Rollouts {
  std::string file;  ///< name of the file without its folder
  std::vector<std::string> reward_names;
  std::vector<double> rewards;           ///< (N, C) row-major; NaN where missing
  std::vector<std::int64_t> group_of;    ///< (N) 0 .. groups - 1, numbered by first appearance
  std::vector<std::string> group_names;  ///< (groups) as in the file
  std::vector<std::vector<std::size_t>> members;  ///< (groups) rows of each group, in file order
  std::string length_name;
  std::vector<double> lengths;  ///< (N) length, at least 1; empty without a length column

  std::size_t rows() const { return group_of.size(); }
  std::size_t channels() const { return reward_names.size(); }
  double reward(std::size_t row, std::size_t channel) const {
    return rewards[row * channels() + channel];
  }
};

/// Reads a log from a stream that messages call `name`. Format::Auto takes JSON Lines where the
/// first character is `{`, else CSV. A group is any text or number; its rows need not stand
/// together. A reward that is empty, null or NaN is missing.
///
/// Throws UserError, with line and column, for a cell that is not a number, an empty group cell,
/// and an empty or negative length; also for what the readers refuse and for a file without
/// completions.
Rollouts read_rollouts(std::istream& stream, const std::string& name, Format format,
                       const Columns& columns);

/// The same from a file, or from standard input where the path is empty or "-".
Rollouts read_rollouts_file(const std::string& path, Format format, const Columns& columns);

}  // namespace resolution
