// The JSON reader: what it accepts in each of its forms, and the line and column of what it
// refuses.
#include <cmath>

#include "findings.hpp"
#include "input/json_values.hpp"
#include "support.hpp"

using namespace resolution;
using Catch::Matchers::ContainsSubstring;

namespace {

const Reading json{Format::Json, '\0'};

std::string error_in(const std::string& text, const Columns& wanted = columns("g", {"r.a"})) {
  return error_of([&] { read(text, wanted, json); });
}

}  // namespace

TEST_CASE("JSON: nested values by path, elements by number, whole keys first") {
  const Rollouts r = read(
      "{\"g\": 7, \"r\": {\"a\": 0.5, \"deep\": {\"b\": [10, 20]}}, \"n\": 3}\n"
      "{\"n\": 0, \"r.a\": 2, \"r\": {\"a\": 9, \"deep\": {\"b\": [11, 21]}}, \"g\": \"seven\"}\n"
      "{\"n\": 0, \"r\": {\"a\": 9, \"deep\": {\"b\": [11, 22]}}, \"r.a\": 3, \"g\": \"seven\"}\n",
      columns("g", {"r.a", "r.deep.b.1"}, "n"));
  CHECK(r.rewards == std::vector<double>{0.5, 20, 2, 21, 3, 22});
  CHECK(r.lengths == std::vector<double>{3, 1, 1});
  CHECK(r.group_names == std::vector<std::string>{"7", "seven"});
}

TEST_CASE("JSON: a backslash makes a dot part of a key") {
  const std::string text =
      "{\"g\": 1, \"r\": {\"math.v2\": 3, \"math\": {\"v2\": 4}}, \"back\\\\slash\": 5}\n";
  CHECK(read(text, columns("g", {"r.math\\.v2", "r.math.v2", "back\\\\slash"})).rewards ==
        std::vector<double>{3, 4, 5});
  CHECK(split_path("a\\.b.c\\\\d.\\e") == std::vector<std::string>{"a.b", "c\\d", "\\e"});
  CHECK(escaped_key("a.b\\c") == "a\\.b\\\\c");
}

TEST_CASE("JSON: null, absent and NaN are missing; booleans are 1 and 0; blank lines, CRLF") {
  const Rollouts r = read(
      "\xEF\xBB\xBF{\"g\":1,\"r\":{\"a\":true}}\r\n\r\n"
      "{\"g\":1,\"r\":{\"a\":null}}\n"
      "{\"g\":1,\"r\":{}}\n"
      "{\"g\":1,\"r\":{\"a\":\"nan\"}}\n"
      "{\"g\":1,\"r\":{\"a\":NaN}}\n"
      "{\"g\":1,\"r\":{\"a\":\"\"}}\n"
      "{\"g\":1,\"r\":{\"a\":false}}\n"
      "{\"g\":1,\"r\":{\"a\":\"True\"}}\n"
      "{\"g\":1,\"r\":{\"a\":\" 0.25 \"}}",
      columns("g", {"r.a"}));
  REQUIRE(r.rewards.size() == 9);
  CHECK(r.rewards[0] == 1);
  for (std::size_t i = 1; i < 6; ++i) CHECK(std::isnan(r.rewards[i]));
  CHECK(r.rewards[6] == 0);
  CHECK(r.rewards[7] == 1);
  CHECK(r.rewards[8] == 0.25);
}

TEST_CASE("JSON: Python's NaN, Infinity and -Infinity are values wherever they stand") {
  const Rollouts r = read(
      "{\"x\": -Infinity, \"g\": 1, \"deep\": [NaN, {\"y\": Infinity}], \"a\": 1}\n"
      "{\"x\": Infinity, \"g\": 1, \"a\": NaN}\n",
      columns("g", {"a"}));
  CHECK(r.rewards[0] == 1);
  CHECK(std::isnan(r.rewards[1]));
  CHECK(error_in("{\"g\": 1, \"a\": -Infinity}\n", columns("g", {"a"})) ==
        "log:1:15: \"-Infinity\" in \"a\" is not a finite number; leave the cell empty, or write "
        "null, where there is no reward");
}

TEST_CASE("JSON: ids stay text, whatever numbers they look like") {
  const Rollouts r = read(
      "{\"g\": 9007199254740993, \"a\": 1}\n{\"g\": 9007199254740992, \"a\": 2}\n"
      "{\"g\": \"9007199254740993\", \"a\": 3}\n{\"g\": 123456789012345678901234567890, \"a\": 4}\n"
      "{\"g\": 123456789012345678901234567891, \"a\": 5}\n{\"g\": \"007\", \"a\": 6}\n"
      "{\"g\": 7, \"a\": 7}\n",
      columns("g", {"a"}));
  CHECK(r.groups() == 6);
  CHECK(r.rewards == std::vector<double>{1, 3, 2, 4, 5, 6, 7});
}

TEST_CASE("JSON: objects and lists tell groups apart by their text") {
  const Rollouts r = read(
      "{\"p\": [{\"role\": \"user\", \"content\": \"a\\\"b\"}], \"a\": 1}\n"
      "{\"p\": [{\"role\":\"user\",  \"content\":\"a\\u0022b\"}], \"a\": 2}\n"
      "{\"p\": [{\"role\": \"user\", \"content\": \"c\"}], \"a\": 3}\n"
      "{\"p\": {\"x\": [1, null, true]}, \"a\": 4}\n",
      columns("p", {"a"}));
  CHECK(r.group_begin == std::vector<std::size_t>{0, 2, 3, 4});
  CHECK(r.group_names[0] == "[{\"role\":\"user\",\"content\":\"a\\\"b\"}]");
  CHECK(r.group_names[2] == "{\"x\":[1,null,true]}");
  CHECK(read("{\"p\": [{\"role\": \"user\", \"content\": \"a\"}], \"a\": 1}\n",
             columns("p.0.content", {"a"}))
            .group_names == std::vector<std::string>{"a"});
}

TEST_CASE("JSON: an object of arrays holds a completion per element") {
  const Rollouts r = read(
      "{\"step\": 3, \"p\": [\"x\", \"y\", \"x\"], \"r\": {\"a\": [1, NaN, \"0.5\"]}, \"n\": [4, "
      "5, 6]}\n"
      "{\"step\": 4, \"p\": [\"x\"], \"r\": {\"a\": [7]}, \"n\": 8}\n"
      "{\"step\": 4, \"p\": [], \"r\": {\"a\": []}, \"n\": []}\n",
      columns("p", {"r.a"}, "n", {"step"}));
  REQUIRE(r.rows() == 4);
  CHECK(r.rewards[0] == 1);
  CHECK(r.rewards[1] == 0.5);
  CHECK(std::isnan(r.rewards[2]));
  CHECK(r.rewards[3] == 7);
  CHECK(r.lengths == std::vector<double>{4, 6, 5, 8});
  CHECK(r.batch_names == std::vector<std::string>{"3", "4"});
  CHECK(r.group_begin == std::vector<std::size_t>{0, 2, 3, 4});
}

TEST_CASE("JSON: elements of arrays of groups may be chats") {
  const Rollouts r =
      read("{\"p\": [[{\"c\": \"x\"}], [{\"c\": \"y\"}], [{\"c\": \"x\"}]], \"a\": [1, 2, 3]}\n",
           columns("p", {"a"}));
  CHECK(r.group_names == std::vector<std::string>{"[{\"c\":\"x\"}]", "[{\"c\":\"y\"}]"});
  CHECK(r.rewards == std::vector<double>{1, 3, 2});
}

TEST_CASE("JSON: an array of objects, and objects over several lines") {
  const std::string first = "{\n  \"g\": 1,\n  \"r\": {\"a\": \"}]\\\"{\"}, \"a\": 1\n}";
  const std::string second = "{\"g\": 1, \"a\": 2}";
  const Columns a = columns("g", {"a"});
  const std::vector<double> both{1, 2};
  CHECK(read("[" + first + ",\n" + second + "]\n", a).rewards == both);
  CHECK(read(" \n[\n" + first + "  ,  " + second + "\n]", a).rewards == both);
  CHECK(read(first + "\n" + second + "\n", a).rewards == both);
  CHECK(read(first + second, a).rewards == both);
  // Longer than what is read at once.
  std::string many = "[";
  for (int i = 0; i < 30000; ++i) many += (i == 0 ? "" : ",") + std::string("\n  ") + second;
  CHECK(read(many + "]", a).rows() == 30000);
  CHECK(error_in("[\n " + second + ",\n {\"g\": 1, \"a\": \"x\"}]", a) ==
        "log:3:16: \"x\" in \"a\" is not a finite number");
  CHECK(error_in("[" + second + "\n", a) == "log:2:1: the array ends without a ]");
  CHECK(error_in("[" + second + "\n" + second + "]", a) ==
        "log:2:1: a comma or ] is needed after an object");
  CHECK(error_in("[" + second + ", 7]", a) ==
        "log:1:20: every element of the array must be a JSON object");
  CHECK(error_in("[" + second + "]\n" + second, a) == "log:2:1: text after the array");
  CHECK_THAT(error_in("[" + second + ",\n{\"g\": 1, \"a\":", a),
             ContainsSubstring("log:2:14: this is not valid JSON"));
  CHECK(error_in("[" + second + ",\n", a) == "log:2:1: the array ends without a ]");
  CHECK(error_in("[" + second + ",\n]", a) == "log:2:1: a comma before the end of the array");
  CHECK(error_in("[]", a) == "log: there are no completions");
}

TEST_CASE("JSON: a record may be longer than what is read at once, and deeply nested") {
  const std::string text(700000, 'x');
  const Columns a = columns("g", {"a"});
  CHECK(read("{\"t\": \"" + text + "\", \"g\": 1, \"a\": 2}\n{\"g\": 1, \"a\": 3}\n", a).rewards ==
        std::vector<double>{2, 3});
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  CHECK(read("{\"t\": " + deep + ", \"g\": " + deep + ", \"a\": 2}\n", a).rows() == 1);
}

TEST_CASE("The format follows the first character where the name does not say it") {
  CHECK(read("{\"g\":1,\"a\":2}\n", columns("g", {"a"})).rewards == std::vector<double>{2});
  CHECK(read("\n [{\"g\":1,\"a\":2}]\n", columns("g", {"a"})).rewards == std::vector<double>{2});
  CHECK(read("g,a\n1,2\n", columns("g", {"a"})).rewards == std::vector<double>{2});
}

TEST_CASE("JSON: what is wrong is named with line and column") {
  const std::string good = "{\"g\": 1, \"r\": {\"a\": 1}}\n";
  CHECK(error_in(good + "{\"g\": 1, \"r\": {\"a\": 1]}\n") ==
        "log:2:22: this is not valid JSON: missing a comma or '}' after an object member");
  CHECK_THAT(error_in(good + "{\"g\": 1, \"r\": {\"a\"\n" + good),
             ContainsSubstring("log:2:19: this is not valid JSON: missing a colon"));
  CHECK_THAT(error_in(good + "{\"g\": 1, \"r\": {\"a\": 1}} {}\n"),
             ContainsSubstring("log:2:25: this is not valid JSON: text after the object"));
  CHECK(error_in(good + "[1, 2]\n") == "log:2:1: every record must be a JSON object");
  CHECK(error_in(good + "{\"g\": 1, \"r\": {\"a\": \"high\"}}\n") ==
        "log:2:21: \"high\" in \"r.a\" is not a finite number");
  CHECK(error_in("{\"a\": 0, \"g\": 1, \"r\": {\"b\": 2, \"a\": \"\xC3\xA9\"}}\n") ==
        "log:1:37: \"\xC3\xA9\" in \"r.a\" is not a finite number");
  CHECK(error_in(good + "{\"g\": 1, \"r\": {\"a\": {\"b\": 1, \"c\": 2}}}\n") ==
        "log:2:21: \"r.a\" is an object; name one of its members: \"r.a.b\", \"r.a.c\", or all "
        "of them, a completion each: \"r.a.*\"");
  CHECK(error_in(good + "\n{\"g\": \"\", \"r\": {\"a\": 1}}\n") ==
        "log:3:7: the group \"g\" is empty");
  CHECK(error_in(good + "{\"gg\": 2, \"x\": 1, \"r\": {\"a\": 1}}\n") ==
        "log:2:1: this object has no \"g\"; the names in it are \"gg\", \"x\", \"r.a\"");
  CHECK(error_in(good, columns("g", {"r.b"})) ==
        "log:1:1: no record has \"r.b\"; the names in the first one are \"r.a\", \"g\"");
  CHECK(error_in("\n\n") == "log: there are no completions");
}

TEST_CASE("JSON: arrays that do not fit are named") {
  const Columns two = columns("g", {"a", "b"});
  CHECK(error_in("{\"g\": 1, \"a\": [1, 2, 3], \"b\": [1, 2]}\n", two) ==
        "log:1:31: \"b\" has 2 elements, \"a\" has 3");
  CHECK(error_in("{\"g\": 1, \"a\": [1, 2], \"b\": [1, 2, 3]}\n", two) ==
        "log:1:28: \"b\" has 3 elements, \"a\" has 2");
  CHECK(error_in("{\"g\": [1], \"a\": [1, 2, 3], \"b\": 1}\n", two) ==
        "log:1:7: \"g\" has 1 element, \"a\" has 3");
  CHECK(error_in("{\"g\": 1, \"a\": [1, \"x\"], \"b\": 1}\n", two) ==
        "log:1:19: \"x\" in \"a\" is not a finite number");
  CHECK(error_in("{\"g\": 1, \"a\": [1, [2]], \"b\": 1}\n", two) ==
        "log:1:19: this element of \"a\" is no number; name a value in each element: \"a.*.0\"");
  CHECK(error_in("{\"g\": 1, \"a\": [{\"x\": 1, \"t\": \"\"}, {\"x\": 2}], \"b\": 1}\n", two) ==
        "log:1:16: this element of \"a\" is no number; name a value in each element: \"a.*.x\"");
}

TEST_CASE("JSON: a star is every element of a list or member of an object") {
  const auto rewards = [](const std::string& text, const Columns& wanted) {
    return read(text, wanted).rewards;
  };
  using List = std::vector<double>;
  // A completion per element; what an element does not have is missing.
  const Rollouts r = read(
      "{\"p\": \"x\", \"c\": [{\"r\": {\"a\": 1}, \"n\": 4}, {\"n\": 5}, {\"r\": {\"a\": 3}, "
      "\"n\": 6}, "
      "{\"n\": 7}]}\n{\"p\": \"y\", \"c\": [{\"r\": {\"a\": 8}, \"n\": 9}]}\n",
      columns("p", {"c.*.r.a"}, "c.*.n"));
  REQUIRE(r.rows() == 5);
  CHECK(r.rewards[0] == 1);
  CHECK(std::isnan(r.rewards[1]));
  CHECK(r.rewards[2] == 3);
  CHECK(std::isnan(r.rewards[3]));
  CHECK(r.lengths == List{4, 5, 6, 7, 9});
  CHECK(r.list_column == "c.*.r.a");
  CHECK(r.records == 2);
  // Whatever else the elements have, in whatever order.
  const Rollouts others = read(
      "{\"p\": 1, \"c\": [{\"x\": 0, \"y\": [1, 2], \"z\": {\"a\": 9}, \"a\": 1}, {\"x\": 0}, "
      "{\"a\": 3, \"x\": 0, \"y\": 0}, 7, {\"x\": {}, \"y\": 0, \"a\": 5}]}\n",
      columns("p", {"c.*.a"}));
  REQUIRE(others.rows() == 5);
  CHECK(others.rewards[0] == 1);
  CHECK(std::isnan(others.rewards[1]));
  CHECK(others.rewards[2] == 3);
  CHECK(std::isnan(others.rewards[3]));
  CHECK(others.rewards[4] == 5);
  // A list in which no element has the value is as long as it is; a misspelt path is found out.
  const std::string lists =
      "{\"p\": 1, \"c\": [{}, {\"x\": 1}]}\n{\"p\": 1, \"c\": [{\"a\": 1}]}\n";
  CHECK(read(lists, columns("p", {"c.*.a"})).rows() == 3);
  CHECK_THAT(error_in(lists, columns("p", {"c.*.typo"})),
             ContainsSubstring("no record has \"c.*.typo\""));
  CHECK_THAT(error_in(lists, columns("c.*.typo", {"c.*.a"})),
             ContainsSubstring("this object has no \"c.*.typo\""));
  // A group that is an object of each element, and the place of a list whose first is missing.
  CHECK(read("{\"s\": [{\"p\": {\"t\": \"a\"}, \"r\": 1}, {\"p\": {\"t\": \"b\"}, \"r\": 2}]}\n",
             columns("s.*.p", {"s.*.r"}))
            .groups() == 2);
  CHECK(error_in("{\"g\": 1, \"a\": [1, 2], \"c\": [{\"b\": 1}, {\"b\": 1}]}\n"
                 "{\"g\": 1, \"a\": [1, 2, 3], \"c\": [{}, {\"b\": 1}]}\n",
                 columns("g", {"a", "c.*.b"})) ==
        "log:2:42: \"c.*.b\" has 2 elements, \"a\" has 3");
  // Rows of a matrix, members of an object (what pandas writes), and groups that are lists.
  CHECK(rewards("{\"g\": 1, \"r\": [[1, 2], [3, 4], [5, 6]]}\n",
                columns("g", {"r.*.0", "r.*.1"})) == List{1, 2, 3, 4, 5, 6});
  const Rollouts pandas =
      read("{\"g\":{\"0\":\"p\",\"1\":\"q\",\"2\":\"p\"},\"a\":{\"0\":1,\"1\":2,\"2\":3}}\n",
           columns("g.*", {"a.*"}));
  CHECK(pandas.rewards == List{1, 3, 2});
  CHECK(pandas.list_column.empty());
  CHECK(read("{\"l\": [{\"p\": [{\"c\": 1}], \"a\": 1}, {\"p\": [{\"c\": 2}], \"a\": 2}]}\n",
             columns("l.*.p", {"l.*.a"}))
            .group_names == std::vector<std::string>{"[{\"c\":1}]", "[{\"c\":2}]"});
  // A key that is a star; what a star cannot mean.
  CHECK(rewards("{\"g\": 1, \"r\": {\"*\": 7}}\n", columns("g", {"r.*"})) == List{7});
  CHECK(error_in("{\"g\": 1, \"r\": [1, 2, 3]}\n", columns("g", {"r.*", "r.1"})) ==
        "\"r.1\": where one name has a *, no other can have a key or an index");
  CHECK(error_in("{\"g\": 1}\n", columns("g", {"a.*.b.*"})) ==
        "\"a.*.b.*\": only one * can stand in a path");
}

TEST_CASE("JSON: a list is not taken for what it may not be") {
  CHECK(error_in("{\"g\": 1, \"r\": [[1, 2], [3, 4]]}\n", columns("g", {"r.0"})) ==
        "log:1:16: \"r.0\" is an array inside an array; a value of each is \"r.*.0\"");
  // A chat beside a list of rewards is one prompt.
  const Rollouts chat =
      read("{\"p\": [{\"role\": \"s\"}, {\"role\": \"u\"}], \"a\": [1, 2]}\n", columns("p", {"a"}));
  CHECK(chat.groups() == 1);
  CHECK(chat.list_column == "a");
  CHECK_THAT(findings(compare(chat, {}, {"gdpo"}))[1].text,
             ContainsSubstring("taken as a completion: 2 in 1 object"));
}

TEST_CASE("JSON: NaN tells no batch apart, and a log that was cut off says so") {
  CHECK(error_in("{\"g\": NaN, \"a\": 1}\n", columns("g", {"a"})) ==
        "log:1:7: the group \"g\" is empty");
  CHECK(error_in("{\"g\": 1, \"a\": 1}\n{\"g\": 1, \"a\": ]}", columns("g", {"a"})) ==
        "log:2:15: this is not valid JSON: invalid value");
  CHECK_THAT(error_in("{\"g\": 1, \"a\": 1}\n{\"g\": 1, \"a", columns("g", {"a"})),
             ContainsSubstring("; the file ends inside this record: if a run was cut off"));
}

TEST_CASE("JSON: the names in an object are paths") {
  CHECK(names_in(
            "{\"a\": 1, \"b\": {\"c.d\": [1, 2], \"e\": null}, \"p\": [{\"r\": 1}, {\"r\": 2}]}") ==
        std::vector<std::string>{"a", "b.c\\.d", "b.e", "p.*.r"});
  CHECK(names_in("{\"p\": [{\"role\": \"user\"}], \"m\": [[1, 2], [3]]}") ==
        std::vector<std::string>{"p.0.role", "m.*"});
}
