#pragma once

#include <string>

namespace resolution {

/// Writes a whole file or none: the text goes to a temporary file in the same folder, which then takes the name.
/// Something that is not a regular file (a pipe, /dev/null) is written to directly. Throws UserError and removes the
/// temporary file where it cannot be written.
void write_whole_file(const std::string& path, const std::string& text);

}  // namespace resolution
