#include "formats.hpp"

#include <filesystem>

#include "../errors.hpp"
#include "../words.hpp"

namespace resolution {
namespace {

// What a trainer's environment has: TRL and everything else that writes parquet depends on pyarrow.
constexpr const char* from_parquet =
    "python3 -c 'import sys,json,pyarrow.parquet as q; [print(json.dumps(r,default=str)) for f in "
    "sys.argv[1:] for r in q.ParquetFile(f).read().to_pylist()]' FILE";
constexpr const char* from_arrow =
    "python3 -c 'import sys,json,pyarrow.feather as q; [print(json.dumps(r,default=str)) for f in "
    "sys.argv[1:] for r in q.read_table(f).to_pylist()]' FILE";
constexpr const char* from_arrow_stream =
    "python3 -c 'import sys,json,pyarrow as q; [print(json.dumps(r,default=str)) for f in "
    "sys.argv[1:] for r in q.ipc.open_stream(open(f,\"rb\")).read_all().to_pylist()]' FILE";

/// A format by the bytes that files of it have at `place`.
struct Signature {
  std::string_view bytes;
  std::size_t place;
  const char* what;
  const char* command;  ///< writes the log as text; FILE stands for the file, null: there is none
};

using namespace std::string_view_literals;

constexpr Signature signatures[] = {
    {"PAR1\x15"sv, 0, "a parquet file", from_parquet},
    {"ARROW1\0"sv, 0, "an Arrow file", from_arrow},
    {"FEA1\0"sv, 0, "a Feather file", from_arrow},
    {"\xFF\xFF\xFF\xFF"sv, 0, "an Arrow stream", from_arrow_stream},
    {"\x1F\x8B"sv, 0, "a gzip file, and this program was built without zlib", "zcat FILE"},
    {"\x28\xB5\x2F\xFD"sv, 0, "a zstd file", "zstdcat FILE"},
    {"\3757zXZ"sv, 0, "an xz file", "xzcat FILE"},
    {"1AY&SY"sv, 4, "a bzip2 file", "bzcat FILE"},
    {"\x04\x22\x4D\x18"sv, 0, "an lz4 file", "lz4cat FILE"},
    {"PK\x03\x04"sv, 0, "a zip file", "unzip -p FILE"},
    {"7z\xBC\xAF\x27\x1C"sv, 0, "a 7z file", "7z x -so FILE"},
    {"\xFF\xFE\0\0"sv, 0, "UTF-32 text", "iconv -f UTF-32 -t UTF-8 FILE"},
    {"\0\0\xFE\xFF"sv, 0, "UTF-32 text", "iconv -f UTF-32 -t UTF-8 FILE"},
    {"\xFF\xFE"sv, 0, "UTF-16 text", "iconv -f UTF-16 -t UTF-8 FILE"},
    {"\xFE\xFF"sv, 0, "UTF-16 text", "iconv -f UTF-16 -t UTF-8 FILE"},
    {"ustar\0"sv, 257, "a tar archive", "tar -xOf FILE"},
    {"ustar  \0"sv, 257, "a tar archive", "tar -xOf FILE"},
    {"SQLite format 3"sv, 0, "an SQLite database", "sqlite3 -csv -header FILE 'SELECT * FROM ...'"},
    {"\x89HDF"sv, 0, "an HDF5 file", nullptr},
    {"\x93NUMPY"sv, 0, "a NumPy file", nullptr},
    {"%PDF"sv, 0, "a PDF file", nullptr},
    {"\177ELF"sv, 0, "a program", nullptr},
};

/// The command with the file's name in quotes for the shell in place of FILE. Standard input has no
/// name: FILE remains.
std::string command_for(std::string command, const std::string& name) {
  const std::size_t at = command.find("FILE");
  if (name == standard_input || at == std::string::npos) return command;
  std::string quoted = "'";
  for (const char c : name) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return command.replace(at, 4, quoted + "'");
}

[[noreturn]] void refuse(const std::string& name, const std::string& what, const char* command) {
  std::string message = printable(name) + ": this is " + what;
  if (command == nullptr) {
    throw UserError(message + ", not a log as text; CSV and JSON are read");
  }
  throw UserError(message + "; run: " + printable(command_for(command, name)) +
                  " | gdpo-resolution - ...");
}

}  // namespace

bool is_gzip(std::string_view first) { return first.substr(0, 2) == "\x1F\x8B"sv; }

void refuse_other_formats(std::string_view first, const std::string& name) {
  for (const Signature& s : signatures) {
#ifdef GDPO_HAS_ZLIB
    if (is_gzip(s.bytes)) continue;
#endif
    if (first.size() >= s.place && first.substr(s.place, s.bytes.size()) == s.bytes)
      refuse(name, s.what, s.command);
  }
#ifdef GDPO_HAS_ZLIB
  if (is_gzip(first)) return;
#endif
  // Text has no NUL. In UTF-16 every second byte of Latin text is one.
  const std::size_t nul = first.substr(0, 4096).find('\0');
  if (nul == std::string_view::npos) return;
  if (nul == 0 && first.size() > 1 && first[1] != '\0')
    refuse(name, "UTF-16 text", "iconv -f UTF-16BE -t UTF-8 FILE");
  if (nul == 1 && first.size() > 3 && first[3] == '\0')
    refuse(name, "UTF-16 text", "iconv -f UTF-16LE -t UTF-8 FILE");
  refuse(name, "binary data (byte " + grouped(nul + 1) + " is NUL)", nullptr);
}

Format recognized(const std::string& name, std::string_view first) {
  std::filesystem::path path(name);
  if (path.extension() == ".gz") path = path.stem();
  const std::string extension = path.extension().string();
  if (extension == ".csv" || extension == ".tsv") return Format::Csv;
  if (extension == ".json" || extension == ".jsonl" || extension == ".ndjson") return Format::Json;
  const std::size_t at = first.find_first_not_of(" \t\r\n");
  const bool json = at != std::string_view::npos && (first[at] == '{' || first[at] == '[');
  return json ? Format::Json : Format::Csv;
}

}  // namespace resolution
