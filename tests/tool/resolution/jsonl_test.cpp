// The JSON Lines reader: what it accepts, and the line and column of what it refuses.
#include <cmath>

#include "support.hpp"

using namespace resolution;
using Catch::Matchers::ContainsSubstring;

namespace {

std::string error_in(const std::string& text, const Columns& columns = {"g", {"r.a"}, ""}) {
  return error_of([&] { read(text, columns, Format::Jsonl); });
}

}  // namespace

TEST_CASE("JSONL: nested values by dotted path, array members by index, whole keys first") {
  const Rollouts r = read(
      "{\"g\": 7, \"r\": {\"a\": 0.5, \"deep\": {\"b\": [10, 20]}}, \"n\": 3}\n"
      "{\"n\": 0, \"r.a\": 2, \"r\": {\"a\": 9, \"deep\": {\"b\": [11, 21]}}, \"g\": \"seven\"}\n",
      {"g", {"r.a", "r.deep.b.1"}, "n"});
  CHECK(r.rewards == std::vector<double>{0.5, 20, 2, 21});
  CHECK(r.lengths == std::vector<double>{3, 1});
  CHECK(r.group_names == std::vector<std::string>{"7", "seven"});
}

TEST_CASE(
    "JSONL: null, absent and NaN text are missing; booleans are 1 and 0; blank lines and CRLF are "
    "skipped") {
  const Rollouts r = read(
      "\xEF\xBB\xBF{\"g\":1,\"r\":{\"a\":true}}\r\n\r\n"
      "{\"g\":1,\"r\":{\"a\":null}}\n"
      "{\"g\":1,\"r\":{}}\n"
      "{\"g\":1,\"r\":{\"a\":\"nan\"}}\n"
      "{\"g\":1,\"r\":{\"a\":false}}",
      {"g", {"r.a"}, ""}, Format::Jsonl);
  REQUIRE(r.rewards.size() == 5);
  CHECK(r.rewards[0] == 1);
  CHECK(std::isnan(r.rewards[1]));
  CHECK(std::isnan(r.rewards[2]));
  CHECK(std::isnan(r.rewards[3]));
  CHECK(r.rewards[4] == 0);
}

TEST_CASE("The format follows the first character where the name does not say it") {
  CHECK(read("{\"g\":1,\"a\":2}\n", {"g", {"a"}, ""}).rewards == std::vector<double>{2});
  CHECK(read("g,a\n1,2\n", {"g", {"a"}, ""}).rewards == std::vector<double>{2});
}

TEST_CASE("JSONL: what is wrong is named with line and column") {
  const std::string good = "{\"g\": 1, \"r\": {\"a\": 1}}\n";
  CHECK(error_in(good + "{\"g\": 1, \"r\": {\"a\": 1]}\n") ==
        "log:2:22: this line is not valid JSON");
  CHECK(error_in(good + "[1, 2]\n") == "log:2:1: a line must be one JSON object");
  CHECK(error_in(good + "{\"g\": 1, \"r\": {\"a\": \"high\"}}\n") ==
        "log:2:16: \"high\" in \"r.a\" is not a finite number");
  CHECK(error_in("{\"a\": 0, \"g\": 1, \"r\": {\"b\": 2, \"a\": \"\xC3\xA9\"}}\n") ==
        "log:1:32: \"\xC3\xA9\" in \"r.a\" is not a finite number");
  CHECK(error_in(good + "{\"g\": 1, \"r\": {\"a\": {\"b\": 1}}}\n") ==
        "log:2:16: \"r.a\" is an object; name one of its members by a dotted path");
  CHECK(error_in(good + "\n{\"g\": \"\", \"r\": {\"a\": 1}}\n") ==
        "log:3:2: the group \"g\" is empty");
  CHECK(error_in(good + "{\"r\": {\"a\": 1}}\n") == "log:2:1: the group \"g\" is empty");
  CHECK_THAT(error_in(good, {"g", {"r.b"}, ""}),
             ContainsSubstring("no line has \"r.b\"; the keys are \"g\", \"r\""));
  CHECK(error_in("\n\n") == "log: there are no completions");
}
