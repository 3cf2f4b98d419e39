// What a log is recognized as by its first bytes, gzip, and how little of a log a message shows.
#ifdef GDPO_HAS_ZLIB
#include <zlib.h>
#endif

#include "support.hpp"
#include "words.hpp"

using namespace resolution;
using namespace std::string_literals;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

namespace {

const Columns a = columns("g", {"a"});

std::string error_in(const std::string& text, const std::string& name = "x") {
  return error_of([&] {
    std::istringstream stream(text);
    read_rollouts(stream, name, {}, a);
  });
}

}  // namespace

TEST_CASE("Formats that are not read are named, with the command that converts them") {
  const auto check = [](const std::string& bytes, const std::string& what,
                        const std::string& command) {
    INFO(what);
    const std::string message = error_in(bytes + "\x01rest\n", "my log's.bin");
    CHECK_THAT(message, StartsWith("my log's.bin: this is " + what));
    CHECK(message.find('\n') == std::string::npos);
    if (command.empty()) return;
    CHECK_THAT(message, ContainsSubstring("run: " + command));
    CHECK_THAT(message, ContainsSubstring(" 'my log'\\''s.bin'"));
    CHECK_THAT(message, Catch::Matchers::EndsWith(" | gdpo-resolution - ..."));
  };
  check("PAR1\x15", "a parquet file", "python3 -c 'import sys,json,pyarrow.parquet");
  check("ARROW1\0\0"s, "an Arrow file", "python3 -c 'import sys,json,pyarrow.feather");
  check("\xFF\xFF\xFF\xFF\x10\0\0\0"s, "an Arrow stream", "python3 -c 'import sys,json,pyarrow");
  check("\x28\xB5\x2F\xFD", "a zstd file", "zstdcat");
  check(
      "\xFD"
      "7zXZ\0"s,
      "an xz file", "xzcat");
  check("BZh91AY&SY", "a bzip2 file", "bzcat");
  check("PK\x03\x04", "a zip file", "unzip -p");
  check("\xFF\xFEg\0,\0"s, "UTF-16 text", "iconv -f UTF-16 -t UTF-8");
  check("\xFE\xFF\0g\0,"s, "UTF-16 text", "iconv -f UTF-16 -t UTF-8");
  check("g\0,\0a\0"s, "UTF-16 text", "iconv -f UTF-16LE -t UTF-8");
  check("\0g\0,\0a"s, "UTF-16 text", "iconv -f UTF-16BE -t UTF-8");
  check(std::string(257, 'x') + "ustar\0"s, "a tar archive", "tar -xOf");
  check("\x89HDF\r\n", "an HDF5 file", "");
  check("g,a\n1,\0"s, "binary data (byte 7 is NUL)", "");
  // Standard input has no name to put into the command.
  CHECK_THAT(error_in("PAR1\x15", standard_input), ContainsSubstring("' FILE | gdpo-resolution"));
}

TEST_CASE("Text that begins like nothing else is read") {
  CHECK(read("\xEF\xBB\xBFg,a\n1,2\n", a).rows() == 1);
  CHECK(read("\xEF\xBD\x87,g,a\n1,1,2\n", a).rows() == 1);  // a fullwidth g, no byte order mark
  CHECK(error_in("") == "x:1:1: the file is empty; a header row is needed");
}

#ifdef GDPO_HAS_ZLIB
namespace {

std::string gzipped(std::string text) {
  z_stream z{};
  REQUIRE(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(text.size() + 100, '\0');
  z.next_in = reinterpret_cast<Bytef*>(text.data());
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&z, Z_FINISH) == Z_STREAM_END);
  out.resize(out.size() - z.avail_out);
  deflateEnd(&z);
  return out;
}

}  // namespace

TEST_CASE("Gzip is read: one member, several, padding, and what is inside") {
  std::string rows = "g,a\n";
  for (int i = 0; i < 200000; ++i) rows += std::to_string(i / 4) + "," + std::to_string(i) + "\n";
  const Rollouts plain = read(rows, a);
  CHECK(read(gzipped(rows), a).rewards == plain.rewards);
  const std::size_t half = rows.find('\n', rows.size() / 2) + 1;
  CHECK(read(gzipped(rows.substr(0, half)) + gzipped(rows.substr(half)), a).rewards ==
        plain.rewards);
  CHECK(read(gzipped(rows) + std::string(512, '\0'), a).rewards == plain.rewards);
  CHECK(read(gzipped("{\"g\": 1, \"a\": 2}\n"), a).rows() == 1);
  // Padding may stand between members; what is neither padding nor a member is an error.
  CHECK(read(gzipped(rows.substr(0, half)) + std::string(512, '\0') + gzipped(rows.substr(half)), a)
            .rewards == plain.rewards);
  CHECK(error_in(gzipped(rows.substr(0, half)) + "x") == "x: the gzip data is damaged");
  CHECK(error_in(gzipped(gzipped(rows))) == "x: this is gzip inside gzip; run zcat first");
  CHECK_THAT(error_in(gzipped("PAR1\x15")), StartsWith("x: this is a parquet file"));
  CHECK(error_in(gzipped("g,a\n1,x\n")) == "x:2:3: \"x\" in \"a\" is not a finite number");

  const std::string whole = gzipped(rows);
  CHECK(error_in(whole.substr(0, whole.size() / 2)) == "x: the gzip data ends too early");
  std::string damaged = whole;
  damaged[damaged.size() - 6] = static_cast<char>(damaged[damaged.size() - 6] ^ 1);  // the checksum
  CHECK(error_in(damaged) == "x: the gzip data is damaged");
}
#endif

TEST_CASE("A message shows little of a log, and nothing that cannot be printed") {
  const std::string hostile = "\x1B[31m\xE2\x80\xAE\xFF\x07" + std::string(5000, 'x');
  std::vector<std::string> messages{
      error_in("g,a\n1,\"" + hostile + "\"\n"),
      error_in("{\"g\": 1, \"a\": \"\\u001b[31m" + std::string(5000, 'y') + "\"}\n"),
      error_in("{\"g\": 1, \"a\": {\"" + std::string(5000, 'z') + "\": 1}}\n"),
      error_in("{\"g\": 1, \x1B[31m\xFF}\n"),
  };
  std::string header = "h";
  std::string keys = "{\"h\": 1";
  for (int i = 0; i < 500; ++i) {
    header += "," + std::to_string(i) + hostile.substr(0, 100);
    keys += ", \"" + std::to_string(i) + std::string(100, 'k') + "\": 1";
  }
  messages.push_back(error_in(header + "\n1\n"));
  messages.push_back(error_in(keys + "}\n"));
  for (const std::string& message : messages) {
    INFO(message);
    CHECK(message.size() < 400);
    for (const char c : message) CHECK(static_cast<unsigned char>(c) >= 0x20);
    CHECK(message.find("\xE2\x80\xAE") == std::string::npos);
    CHECK(message.find('\xFF') == std::string::npos);
  }
  std::string many = "h";
  for (int i = 0; i < 100; ++i) many += ",c" + std::to_string(i);
  CHECK_THAT(error_in(many + "\n"), ContainsSubstring("\"c18\" and 81 more"));
}

TEST_CASE("Names from a log and of files are printable in messages and names of groups") {
  CHECK(error_in("g\n", "a\n\x1B[31m.csv") ==
        "a\\n\\x1b[31m.csv:1:1: there is no column \"a\"; the columns are \"g\"");
  CHECK(read("{\"g\": \"\\u001b[31m\\u0007\\u061c\", \"a\": 1}\n", a).group_names[0] ==
        "\\x1b[31m\\x07\\u061c");
  // Overlong, a surrogate, beyond the last character: no UTF-8.
  CHECK(printable("\xE0\x9F\xBF\xED\xA0\x80\xF4\x90\x80\x80") ==
        "\\xe0\\x9f\\xbf\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80");
}

TEST_CASE("The nearest name comes first") {
  CHECK(error_in("step,promt_id,text,G,a\n") ==
        "x:1:1: there is no column \"g\"; the columns are \"G\", \"a\", \"step\", \"text\", "
        "\"promt_id\"");
  CHECK(nearest_first({"accuracy", "format", "prompt_id"}, "promt_id")[0] == "prompt_id");
  CHECK(nearest_first({"b", "Prompt"}, "prompt")[0] == "Prompt");
}
