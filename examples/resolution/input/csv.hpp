#pragma once

#include "records.hpp"

namespace resolution {

/// Reads delimited text with a header row (RFC 4180). Quoted fields may hold delimiters, doubled
/// quotes and line breaks; lines end with LF or CRLF; blank lines are skipped. A quote inside a
/// field that does not begin with one is an ordinary character. An empty cell is missing.
///
/// `delimiter` separates the cells. If it is 0, it is what a line `sep=;` before the header says,
/// else the comma, tab, semicolon or bar that splits the header into a row with most of the wanted
/// names; where that does not decide, the most frequent of them. A column is found by its name as
/// it stands in the header, else by the name without the backslashes of `\.` and `\\`.
///
/// Throws UserError where there is no header, a wanted column is absent or occurs twice, a row has
/// too few or too many cells, or a quoted field does not end or goes on after its closing quote.
///
/// `on_names` is called once, before the records, with the names of all columns; `on_bad_cell` for
/// every cell that `on_record` finds wrong.
void read_csv(Bytes& bytes, char delimiter, const std::vector<Wanted>& wanted,
              const std::function<void(const std::vector<std::string>&)>& on_names,
              const OnRecord& on_record, const OnBadCell& on_bad_cell);

}  // namespace resolution
