#pragma once

#include <string>
#include <string_view>

namespace resolution {

/// The name of standard input in messages.
inline const std::string standard_input = "standard input";

/// How the records of a log are written.
enum class Format { Auto, Csv, Json };

/// Whether these first bytes of a file are those of gzip.
bool is_gzip(std::string_view first);

/// Throws UserError for the first bytes of a file that is no text, or text that is not UTF-8:
/// parquet, Arrow, zstd, xz, zip, UTF-16 and others, also gzip where the tool was built without
/// zlib. The message is one line, with a command that makes the file readable.
void refuse_other_formats(std::string_view first, const std::string& name);

/// What the format of a log called `name` is: by its extension (.csv, .tsv, .json, .jsonl, .ndjson,
/// also followed by .gz), else JSON where the first character after blanks is `{` or `[`, else CSV.
Format recognized(const std::string& name, std::string_view first);

}  // namespace resolution
