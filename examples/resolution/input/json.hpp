#pragma once

#include "records.hpp"

namespace resolution {

/// What read_json() found out about the objects.
struct ListRecords {
  std::size_t objects = 0;
  /// The first wanted number that was a list of several values beside one value for the group, as
  /// in `{"prompt": "...", "rewards": [1, 0, 1]}`. Empty where there was none.
  std::string column;
};

/// Reads a log of JSON objects in one of three forms: an object a line (JSON Lines; blank lines
/// are skipped), an array of objects, or objects behind each other over several lines. NaN,
/// Infinity and -Infinity, which Python writes, are values. Numbers keep their spelling.
///
/// A wanted column is a key or, where no key has that name, a path into nested objects and arrays
/// (split_path(): `rewards.accuracy`, `prompt.0.content`). A `*` in it stands for every element of
/// an array or member of an object (`rollouts.*.accuracy`), which makes an array of its values.
/// null, NaN and an absent key are missing. Where a column that tells groups or batches apart holds
/// an object or a list of objects, such as a chat, its JSON text is the value.
///
/// An object is one completion. Where a wanted number is an array, the object holds a completion
/// per element: all its arrays must have the same length, and what is no array is the same for
/// all of its completions.
///
/// Throws UserError, with line and column, where a record is not a JSON object, a wanted number is
/// an object or an array inside an array, arrays differ in length, an object lacks a column that
/// tells groups or batches apart, or no record has a wanted column.
///
/// `on_names` is called once, before the records, with the names in the first object, those of
/// nested values as paths; `on_bad_cell` for every cell that `on_record` finds wrong.
ListRecords read_json(Bytes& bytes, const std::vector<Wanted>& wanted,
                      const std::function<void(const std::vector<std::string>&)>& on_names,
                      const OnRecord& on_record, const OnBadCell& on_bad_cell);

}  // namespace resolution
