#pragma once

#include <string>
#include <vector>

namespace resolution {

/// A file to write: where, and what.
struct OutputFile {
  std::string path;
  std::string text;
};

/// Writes all files, or none where one of them cannot be written: each text goes to a temporary
/// file in the folder of its file, and these are renamed when all of them are complete. Signals
/// that end the program (interrupt, hang-up, termination) wait until then, so that no temporary
/// file stays behind. A symbolic link stays one. A file that exists and is not regular (a pipe,
/// /dev/null) is written to directly, before the others. Throws UserError for the first that cannot
/// be written.
void write_files(const std::vector<OutputFile>& files);

/// Writes all files as write_files() does, and then `text` to standard output, so that whoever
/// reads no further, as `head` does, loses no file: where standard output is a pipe that nobody
/// reads, the rest of the text is left out. Throws UserError where standard output cannot be
/// written for another reason; the files are there then.
void write_reports(const std::vector<OutputFile>& files, const std::string& text);

}  // namespace resolution
