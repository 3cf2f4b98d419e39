#pragma once

#include "records.hpp"

namespace resolution {

/// Reads a log of JSON objects in one of three forms: an object a line (JSON Lines; blank lines
/// are skipped), an array of objects, or objects behind each other over several lines. NaN,
/// Infinity and -Infinity, which Python writes, are values. Numbers keep their spelling.
///
/// A wanted column is a key or, where no key has that name, a path into nested objects and arrays
/// (split_path(): `rewards.accuracy`, `prompt.0.content`). null and an absent key are missing.
/// Where a column that tells groups or batches apart holds an object or an array, its JSON text is
/// the value.
///
/// An object is one completion. Where a wanted number is an array, the object holds a completion
/// per element: all its arrays must have the same length, and what is no array is the same for
/// all of its completions.
///
/// Throws UserError, with line and column, where a record is not a JSON object, a wanted number is
/// an object, arrays differ in length, or no record has a wanted column.
///
/// `on_names` is called once, before the records, with the names in the first object, those of
/// nested values as paths.
void read_json(Bytes& bytes, const std::vector<Wanted>& wanted,
               const std::function<void(const std::vector<std::string>&)>& on_names,
               const OnRecord& on_record);

}  // namespace resolution
