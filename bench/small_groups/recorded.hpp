#pragma once

#include <string>
#include <vector>

namespace small_groups {

/// A log of examples/data: the rewards of its completions, in groups of consecutive rows.
struct Log {
  std::vector<double> rewards;      ///< (rows, columns)
  std::vector<std::size_t> begins;  ///< (groups + 1) first row of each group, and the end
  std::size_t columns = 0;

  std::size_t groups() const { return begins.size() - 1; }
};

/// Reads the columns of these names, and `group`, which tells groups apart. Throws
/// resolution::UserError, with file and line, where the file cannot be read.
Log read_log(const std::string& path, const std::vector<std::string>& columns);

}  // namespace small_groups
