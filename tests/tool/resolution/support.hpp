#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "../../support/catch.hpp"
#include "comparison.hpp"
#include "errors.hpp"
#include "rollouts.hpp"

namespace resolution {

inline const std::string data_dir = GDPO_DATA_DIR;

/// Reads a log from a text; messages call it "log".
inline Rollouts read(const std::string& text, const Columns& columns,
                     Format format = Format::Auto) {
  std::istringstream stream(text);
  return read_rollouts(stream, "log", format, columns);
}

/// Reads a log of examples/data.
inline Rollouts read_data(const std::string& file, const std::vector<std::string>& rewards,
                          const std::string& length = "") {
  return read_rollouts_file(data_dir + "/" + file, Format::Auto, {"group", rewards, length});
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
