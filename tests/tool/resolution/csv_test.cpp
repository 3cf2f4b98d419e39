// The CSV reader: what it accepts, and the line and column of what it refuses.
#include <cmath>

#include "support.hpp"

using namespace resolution;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

namespace {

const Columns ab = columns("g", {"a", "b"});

std::string error_in(const std::string& text, const Columns& wanted = ab) {
  return error_of([&] { read(text, wanted); });
}

}  // namespace

TEST_CASE("CSV: columns are found by name, groups need not be contiguous") {
  const Rollouts r = read("b,skip,g,a\n1,x,p,0.5\n2,y,q,-1e-3\n3,z,p,+4\n", ab);
  CHECK(r.rewards == std::vector<double>{0.5, 1, 4, 3, -1e-3, 2});
  CHECK(r.group_names == std::vector<std::string>{"p", "q"});
  CHECK(r.group_begin == std::vector<std::size_t>{0, 2, 3});
}

TEST_CASE("CSV: quoted fields hold commas, quotes and line breaks; names too") {
  const Rollouts r = read("\"g\",\"text\",\"a,\"\"1\"\"\"\n\"x\ny\",\"a, \"\"b\"\"\r\nc\",\"7\"\n",
                          columns("g", {"a,\"1\""}));
  CHECK(r.group_names == std::vector<std::string>{"x\\ny"});  // printable
  CHECK(r.rewards == std::vector<double>{7});
}

TEST_CASE("CSV: CRLF, byte order mark, blank lines and a missing last line break") {
  const Rollouts r = read("\xEF\xBB\xBFg,a,b\r\n\r\n1,2,3\r\n\r\n1,\"4\",\"5\"\r\n1,6,7", ab);
  CHECK(r.rewards == std::vector<double>{2, 3, 4, 5, 6, 7});
  CHECK(r.group_names == std::vector<std::string>{"1"});
}

TEST_CASE("CSV: empty, null and NaN are missing rewards; true and false are 1 and 0") {
  const Rollouts r = read("g,a,b\n1,,null\n1,NaN,None\n1,True,false\n", ab);
  REQUIRE(r.rewards.size() == 6);
  for (std::size_t i = 0; i < 4; ++i) CHECK(std::isnan(r.rewards[i]));
  CHECK(r.rewards[4] == 1);
  CHECK(r.rewards[5] == 0);
}

TEST_CASE("CSV: the usual words for missing, in any case, and those that are told") {
  std::string text = "g,a,b\n";
  const std::vector<std::string> words{"N/A",  "n/a",  "NA",   "null", "NULL",    "none", "nan",
                                       "-nan", "<NA>", "#N/A", "nil",  "Missing", " - ",  "--"};
  for (const std::string& word : words) text += "1," + word + ",1\n";
  const Rollouts r = read(text, ab);
  for (std::size_t row = 0; row < words.size(); ++row) CHECK(std::isnan(r.reward(row, 0)));

  Columns told = ab;
  told.missing = {"error", "-100", "inf"};
  const Rollouts t = read("g,a,b\n1,Error,-100\n1,inf,-100.0\n", told);
  CHECK(std::isnan(t.rewards[0]));
  CHECK(std::isnan(t.rewards[1]));
  CHECK(std::isnan(t.rewards[2]));
  CHECK(t.rewards[3] == -100);  // as it is written
}

TEST_CASE("CSV: all cells that are wrong are named at once") {
  const std::string text = "g,a,b\n1,error,1\n,1,time out\n1,error,inf\n2,1,1\n";
  CHECK(error_in(text) ==
        "5 cells cannot be read:\n"
        "log:2:3: \"error\" in \"a\" is not a finite number (in 2 cells, the first is here)\n"
        "log:3:1: the group \"g\" is empty\n"
        "log:3:4: \"time out\" in \"b\" is not a finite number\n"
        "log:4:9: \"inf\" in \"b\" is not a finite number; leave the cell empty, or write null, "
        "where there is no reward");
  const auto advice = [](const std::string& log) {
    try {
      read(log, ab);
    } catch (const UserError& error) {
      return error.advice;
    }
    return std::string("no error");
  };
  CHECK(advice(text) ==
        "Where a word stands for a missing reward, say so: --missing 'error,time out,inf'");
  CHECK(advice("g,a,b\n1,timeout,time\n1,1,timeout\n") ==
        "Where a word stands for a missing reward, say so: --missing 'timeout,time'");
  CHECK(advice("g,a,b\n1,2x,\"0,5\"\n") == "");
  // What is wrong in many ways is named in twenty, and the rest is counted.
  std::string many = "g,a,b\n";
  for (int i = 0; i < 25; ++i) many += "1,x" + std::to_string(i) + ",1\n";
  CHECK_THAT(error_in(many), StartsWith("25 cells cannot be read:"));
  CHECK_THAT(error_in(many), ContainsSubstring("\nand 5 cells more"));
}

TEST_CASE("A completion without any reward may lack its length") {
  const Columns with_length = columns("g", {"a", "b"}, "n");
  const Rollouts r = read("g,a,b,n\n1,1,,5\n1,,null,\n1,,,N/A\n1,,,7\n1,0,1,3\n", with_length);
  CHECK(r.lengths[0] == 5);
  CHECK(std::isnan(r.lengths[1]));
  CHECK(std::isnan(r.lengths[2]));
  CHECK(r.lengths[3] == 7);
  CHECK(compare(r, {}, {"gdpo"}).curves.length[0] == 4);
  const std::vector<double> weighted = advantages("gdpo renorm=tokens", {}, r);
  const std::vector<double> without =
      advantages("gdpo renorm=tokens", {}, read("g,a,b,n\n1,1,,5\n1,0,1,3\n", with_length));
  CHECK(weighted == std::vector<double>{without[0], 0, 0, 0, without[1]});
  CHECK(error_in("g,a,b,n\n1,1,,\n", with_length) ==
        "log:2:6: an empty cell in \"n\" is not a length (a number from 0); only a completion "
        "without any reward may lack it");
  CHECK_THAT(error_in("g,a,b,n\n1,,,-1\n", with_length), ContainsSubstring("is not a length"));
}

TEST_CASE("Groups of so many rows that follow each other") {
  Columns pairs{{}, {"a"}, "", {"s"}};
  pairs.group_size = 2;
  const Rollouts r = read("s,a\n1,1\n1,2\n2,5\n1,3\n2,6\n1,4\n", pairs);
  CHECK(r.rewards == std::vector<double>{1, 2, 3, 4, 5, 6});
  CHECK(r.group_begin == std::vector<std::size_t>{0, 2, 4, 6});
  CHECK(r.group_name(1) == "2 of batch 1");
  CHECK(r.group_name(2) == "1 of batch 2");
  CHECK(
      error_in("s,a\n1,1\n1,2\n2,5\n", pairs) ==
      "log: 1 row of batch \"2\", which are no groups of --group-size 2; needed: a multiple of it "
      "in each file and batch");
  CHECK(
      error_in("a\n1\n1\n2\n",
               [] {
                 Columns c{{}, {"a"}, "", {}};
                 c.group_size = 2;
                 return c;
               }()) ==
      "log: 3 rows, which are no groups of --group-size 2; needed: a multiple of it in each file");
}

TEST_CASE("Rows that are marked as padding are left out") {
  Columns wanted{{}, {"a"}, "n", {}};
  wanted.group_size = 2;
  wanted.valid = "v";
  // What stands in them is not read, and they have their places in the groups of two.
  const Rollouts r = read("a,n,v\n1,3,1\nx,,0\n2,4,True\n3,5,2\n7,1,0.0\n9,,false\n", wanted);
  CHECK(r.rewards == std::vector<double>{1, 2, 3});
  CHECK(r.lengths == std::vector<double>{3, 4, 5});
  CHECK(r.group_begin == std::vector<std::size_t>{0, 1, 3});
  CHECK(r.left_out == 3);
  CHECK_THAT(error_in("a,n,v\n1,3,\n1,2,yes\n", wanted),
             ContainsSubstring("log:2:5: an empty cell in \"v\" is neither a number nor true or "
                               "false\nlog:3:5: \"yes\" in \"v\""));
  CHECK(error_in("a,n,v\n1,3,0\n1,2,0\n", wanted) ==
        "log: \"v\" is 0 in every row, so there are no completions");
}

TEST_CASE("CSV: lengths are at least 1") {
  CHECK(read("g,a,n\n1,2,0\n1,2,7.5\n", columns("g", {"a"}, "n")).lengths ==
        std::vector<double>{1, 7.5});
}

TEST_CASE("CSV: what is wrong is named with line and column") {
  CHECK(error_in("g,a,b\n1,2,3\n1,2x,3\n") == "log:3:3: \"2x\" in \"a\" is not a finite number");
  CHECK(error_in("g,a,b\n1,2,inf\n") ==
        "log:2:5: \"inf\" in \"b\" is not a finite number; "
        "leave the cell empty, or write null, where there is no reward");
  CHECK(error_in("g,a,b\n1,2,1e999\n") == "log:2:5: \"1e999\" in \"b\" is not a finite number");
  CHECK(error_in("g,a,b\n1,2,0x10\n") == "log:2:5: \"0x10\" in \"b\" is not a finite number");
  CHECK(error_in("g,a,b\n1,2,3\n,2,3\n") == "log:3:1: the group \"g\" is empty");
  CHECK(error_in("g,a,b\n  ,2,3\n") == "log:2:1: the group \"g\" is empty");
  CHECK(error_in("g,a,c\n1,2,3\n") ==
        "log:1:1: there is no column \"b\"; the columns are \"g\", \"a\", \"c\"");
  CHECK(error_in("g,a,b,a\n1,2,3,4\n") == "log:1:7: a second column is called \"a\"");
  CHECK(error_in("g,a,b\n1,2\n") == "log:2:3: this row has 2 cells, the header has 3");
  CHECK(error_in("g,a,b\n1,2,3,4\n") == "log:2:7: this row has 4 cells, the header has 3");
  CHECK(error_in("g,a,b\n1,\"2,3\n4,5\n") ==
        "log:2:3: this quoted field has no closing quote; the file ends "
        "inside it");
  CHECK(error_in("g,a,b\n1,\"2\"3,4\n") == "log:2:6: text after the closing quote of a field");
  CHECK(error_in("") == "log:1:1: the file is empty; a header row is needed");
  CHECK(error_in("g,a,b\n") == "log: there are no completions");
  CHECK(error_in("g,a,b\n\"\xC3\xA9\n\",x,1\n") ==
        "log:3:3: \"x\" in \"a\" is not a finite number");
  CHECK(error_in("\xC3\xA9,g,a,b\n\xC3\xA9\xC3\xA9,1,x,1\n") ==
        "log:2:6: \"x\" in \"a\" is not a finite number");
}

TEST_CASE("CSV: tabs, semicolons and bars are found out, and can be said") {
  const Columns wanted = columns("g", {"a"});
  const std::string cell = "\"x,y;z|t\tu\"";
  for (const char delimiter : {',', '\t', ';', '|'}) {
    const std::string d(1, delimiter);
    const std::string text =
        "g" + d + "text" + d + "a\n1" + d + cell + d + "0.5\n1" + d + d + "2\n";
    INFO(text);
    CHECK(read(text, wanted).rewards == std::vector<double>{0.5, 2});
    CHECK(read(text, wanted, {Format::Csv, delimiter}).rewards == std::vector<double>{0.5, 2});
  }
  // The names that are wanted decide, not the number of delimiters.
  CHECK(read("g;a,b,c,d\n1;2\n1;3\n", columns("g", {"a,b,c,d"})).rewards ==
        std::vector<double>{2, 3});
  CHECK(error_of([] {
          read("g,a\n1,2\n", columns("g", {"a"}), {Format::Csv, ';'});
        }) == "log:1:1: there is no column \"g\"; the columns are \"g,a\"");
}

TEST_CASE("CSV: a cell that is a chat, in quotes") {
  const std::string chat = "[{\"\"role\"\": \"\"user\"\", \"\"content\"\": \"\"a, b;\nc\"\"}]";
  const Rollouts r =
      read("prompt,a\n\"" + chat + "\",1\n\"" + chat + "\",0\n", columns("prompt", {"a"}));
  CHECK(r.groups() == 1);
  CHECK(r.group_names[0].rfind("[{\"role\": \"user\"", 0) == 0);
}

TEST_CASE("CSV: a line number counts the line breaks inside cells") {
  CHECK(error_in("g,a,b\n\"1\n\n2\",1,2\n3,1,2\n4,x,2\n") ==
        "log:6:3: \"x\" in \"a\" is not a finite number");
}

TEST_CASE("CSV: quotes in cells and in headers") {
  std::string quotes;
  for (int i = 0; i < 1000000; ++i) quotes += "\"\"";  // took minutes while it was quadratic
  const Rollouts r = read("g,a\n\"" + quotes + "\",1\n\"a\"\"b\"\"\",2\n", columns("g", {"a"}));
  CHECK(r.group_names[1] == "a\"b\"");
  CHECK(read("h\"x\tg\ta\n1\t2\t3\n", columns("g", {"a"})).rewards == std::vector<double>{3});
  CHECK_THAT(error_in("g,a,b\n1,2,3\n", columns("g", {".a"})),
             ContainsSubstring("there is no column \".a\""));
  CHECK(read("g,.a.b\n1,2\n", columns("g", {".a\\.b"})).rewards == std::vector<double>{2});
  CHECK(read("FEA1,PAR1\n1,2\n", columns("FEA1", {"PAR1"})).rows() == 1);
  CHECK(read("g,a\n1,1e-400\n", columns("g", {"a"})).rewards == std::vector<double>{0});
}

TEST_CASE("CSV: what Excel writes") {
  const std::string rows = "g;a\r\n1;2\r\n1;3\r\n";
  CHECK(read("\xEF\xBB\xBFsep=;\r\n" + rows, columns("g", {"a"})).rewards ==
        std::vector<double>{2, 3});
  CHECK_THAT(error_in("g;a;b\n1;0,5;2\n"),
             ContainsSubstring("\"0,5\" in \"a\" is not a finite number; decimals are written"));
}

TEST_CASE("CSV: a log that was cut off says so") {
  CHECK_THAT(error_in("g,a,b\n1,2,3\n1,2"),
             StartsWith("log:3:3: this row has 2 cells, the header has 3; the file ends inside"));
  CHECK(error_in("g,a,b\n1,2,3\n1,2\n") == "log:3:3: this row has 2 cells, the header has 3");
}

TEST_CASE("CSV: a dot in a name may have its backslash") {
  CHECK(read("g,r.a\n1,2\n", columns("g", {"r.a"})).rewards == std::vector<double>{2});
  CHECK(read("g,r.a\n1,2\n", columns("g", {"r\\.a"})).rewards == std::vector<double>{2});
}

TEST_CASE("CSV: rows longer than what is read at once, and ids longer than a double") {
  const std::string text(300000, 'x');
  const Rollouts r = read("g,t,a\n9007199254740993,\"" + text + "\n" + text +
                              "\",1\n9007199254740992," + text + ",2\n9007199254740993,,3\n",
                          columns("g", {"a"}));
  CHECK(r.group_names == std::vector<std::string>{"9007199254740993", "9007199254740992"});
  CHECK(r.rewards == std::vector<double>{1, 3, 2});
  CHECK(error_in("g,a,b\n1,\"" + text + "\",x\n") ==
        "2 cells cannot be read:\nlog:2:3: \"" + text.substr(0, 48) +
            "...\" in \"a\" is not a finite number\nlog:2:300006: \"x\" in \"b\" is not a finite "
            "number");
}

TEST_CASE("CSV: a length must be a number from 0") {
  const Columns with_length = columns("g", {"a"}, "n");
  CHECK(error_in("g,a,n\n1,2,-3\n", with_length) ==
        "log:2:5: \"-3\" in \"n\" is not a length (a number from 0)");
  CHECK_THAT(error_in("g,a,n\n1,2,\n", with_length),
             ContainsSubstring("log:2:5: an empty cell in \"n\""));
}

TEST_CASE("A file that cannot be read is named") {
  CHECK(error_of([] { read_rollouts_files({data_dir + "/absent.csv"}, {}, ab); }) ==
        data_dir + "/absent.csv: cannot be opened: No such file or directory");
  CHECK(error_of([] { read_rollouts_files({data_dir}, {}, ab); }) ==
        data_dir + ": is a directory, not a file; name the files in it");
}
