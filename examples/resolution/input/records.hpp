#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "../errors.hpp"
#include "bytes.hpp"

namespace resolution {

/// A column that is read.
struct Wanted {
  std::string name;
  bool is_number;  ///< a reward or a length; else a value that tells groups or batches apart
};

/// One value of one completion, as it stands in the file.
struct Cell {
  bool missing = true;  ///< an empty cell, null, or a key that the record does not have
  std::string text;     ///< the characters; numbers keep the spelling of the file
};

/// What a receiver of records finds wrong with a cell.
struct BadCell {
  std::size_t index;  ///< number of the cell in the record
  std::string message;
  std::string word;  ///< the text, where it may stand for a missing reward; else empty
};

/// Called once per completion with the cells of the wanted columns, in the wanted order. Returns
/// the cells that are wrong.
using OnRecord = std::function<std::vector<BadCell>(const std::vector<Cell>&)>;

/// Called by a reader with every cell that is wrong, and where it begins.
using OnBadCell = std::function<void(Position, const BadCell&)>;

/// What to say of a record that is wrong, is the last one, and does not end with a line break.
inline const std::string cut_off =
    "; the file ends inside this record: if a run was cut off, leave its last line out (sed '$d')";

/// A path of keys from its text: `rewards.accuracy` names the member `accuracy` of `rewards`. `\.`
/// stands for a dot that belongs to a key, and `\\` for a backslash.
std::vector<std::string> split_path(std::string_view path);

/// The key with its dots and backslashes written as split_path() reads them.
std::string escaped_key(std::string_view key);

/// The position of the character at byte `offset` of `text`, which begins at `start`.
Position position_in(std::string_view text, std::size_t offset, Position start);

}  // namespace resolution
