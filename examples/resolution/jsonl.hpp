#pragma once

#include "records.hpp"

namespace resolution {

/// Reads JSON Lines: each line is one object, each object one completion; blank lines are skipped.
/// A column is a key or, where no key has that name, a dotted path into nested objects and arrays
/// (`rewards.accuracy`, `scores.0`). true is 1 and false 0; null and an absent key are Missing.
///
/// Throws UserError where a line is not a JSON object (with its position), a value is an object or
/// an array, or no line has a wanted column.
void read_jsonl(const Source& source, const std::vector<std::string>& wanted,
                const OnRecord& on_record);

}  // namespace resolution
