#pragma once

#include "records.hpp"

namespace resolution {

/// Reads comma-separated values with a header row (RFC 4180): quoted fields may hold commas, doubled quotes and line
/// breaks; lines end with LF or CRLF; a UTF-8 byte order mark and blank lines are skipped; a quote inside a field that
/// does not begin with one is an ordinary character. An empty cell is Missing.
/// Throws UserError: no header, a wanted column that is absent or there twice, a row with too few or too many cells, a
/// quoted field that does not end or goes on after its closing quote.
void read_csv(const Source& source, const std::vector<std::string>& wanted,
              const OnRecord& on_record);

}  // namespace resolution
