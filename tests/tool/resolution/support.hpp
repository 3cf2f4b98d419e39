#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "../../support/catch.hpp"
#include "comparison.hpp"
#include "errors.hpp"
#include "input/rollouts.hpp"

namespace resolution {

inline const std::string data_dir = GDPO_DATA_DIR;

/// The columns of a log: those that tell groups apart, the rewards, the length and those that tell
/// batches apart.
inline Columns columns(const std::string& group, const std::vector<std::string>& rewards,
                       const std::string& length = "", const std::vector<std::string>& batch = {}) {
  return {{group}, rewards, length, batch};
}

/// Reads a log from a text; messages call it "log".
inline Rollouts read(const std::string& text, const Columns& columns, const Reading& reading = {}) {
  std::istringstream stream(text);
  return read_rollouts(stream, "log", reading, columns);
}

/// Reads a log of examples/data.
inline Rollouts read_data(const std::string& file, const std::vector<std::string>& rewards,
                          const std::string& length = "",
                          const std::vector<std::string>& batch = {}) {
  return read_rollouts_files({data_dir + "/" + file}, {}, columns("group", rewards, length, batch));
}

/// The message of the UserError that a call throws; fails where it throws none.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  FAIL("no error");
  return "";
}

}  // namespace resolution
