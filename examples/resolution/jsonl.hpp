#pragma once

#include "records.hpp"

namespace resolution {

/// Reads JSON Lines: one object per line, one completion per object; blank lines are skipped. A column is a key or,
/// where no key has that name, a dotted path into nested objects and arrays (`rewards.accuracy`, `scores.0`). true is 1
/// and false 0; null and an absent key are Missing. Throws UserError: a line that is not a JSON object (with the
/// place), a value that is an object or an array, a column that no line has.
void read_jsonl(const Source& source, const std::vector<std::string>& wanted,
                const OnRecord& on_record);

}  // namespace resolution
