#pragma once

#include <string>

namespace resolution {

/// Writes a whole file or none: the text goes to a temporary file in the same folder, which is then
/// renamed. A file that exists and is not regular (a pipe, /dev/null) is written to directly. Where
/// the file cannot be written, the temporary file is removed and UserError is thrown.
void write_whole_file(const std::string& path, const std::string& text);

}  // namespace resolution
