#pragma once

#include "records.hpp"

namespace resolution {

/// Reads comma-separated values with a header row (RFC 4180). Quoted fields may hold commas,
/// doubled quotes and line breaks; lines end with LF or CRLF; a UTF-8 byte order mark and blank
/// lines are skipped. A quote inside a field that does not begin with one is an ordinary character.
/// An empty cell is Missing.
///
/// Throws UserError where there is no header, a wanted column is absent or occurs twice, a row has
/// too few or too many cells, or a quoted field does not end or goes on after its closing quote.
void read_csv(const Source& source, const std::vector<std::string>& wanted,
              const OnRecord& on_record);

}  // namespace resolution
