#pragma once

#include <functional>
#include <istream>
#include <string>
#include <vector>

#include "errors.hpp"

namespace resolution {

/// One value of one completion, as it stands in the file.
struct Cell {
  enum class Kind { Text, Missing };
  Kind kind = Kind::Text;
  std::string text;  ///< Kind::Text: the characters; numbers keep the spelling of the file
};

/// Thrown by a receiver of records: which of the cells is wrong, and why. The reader adds the
/// position and throws UserError.
struct BadCell {
  std::size_t index;  ///< number of the cell in the record
  std::string message;
};

/// A file of completions: the stream to read from, and its name in messages.
struct Source {
  std::istream& stream;
  std::string name;
};

/// Called once per completion with the cells of the wanted columns, in the wanted order.
using OnRecord = std::function<void(const std::vector<Cell>&)>;

}  // namespace resolution
