// Checks how gdpo-resolution (examples/resolution) reads its command line: what it makes of the
// arguments that it accepts, and with which message it refuses the others.
#include "options.hpp"

#include <initializer_list>

#include "support.hpp"

using namespace resolution;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
using Paths = std::vector<std::string>;

namespace {

Parsed parse(std::initializer_list<const char*> arguments) {
  std::vector<const char*> argv{"gdpo-resolution"};
  argv.insert(argv.end(), arguments);
  return parse_options(static_cast<int>(argv.size()), argv.data());
}

Options options(std::initializer_list<const char*> arguments) {
  const Parsed parsed = parse(arguments);
  REQUIRE(parsed.options);
  return *parsed.options;
}

std::string error(std::initializer_list<const char*> arguments) {
  return error_of([&] { parse(arguments); });
}

}  // namespace

TEST_CASE("Defaults") {
  const Options o = options({"--group", "g", "--rewards", "a,b"});
  CHECK(o.inputs.empty());
  CHECK(o.columns.group == std::vector<std::string>{"g"});
  CHECK(o.columns.batch.empty());
  CHECK(o.reading.format == Format::Auto);
  CHECK(o.columns.rewards == std::vector<std::string>{"a", "b"});
  CHECK(o.settings.weights.empty());
  CHECK(o.estimators == std::vector<std::string>{"grpo", "grpo_no_std", "gdpo_pre_bn", "gdpo",
                                                 "gdpo_then_group_norm"});
  CHECK(options({"--count"}).estimators == std::vector<std::string>{"grpo", "grpo_no_std", "gdpo"});
}

TEST_CASE("The log may stand before or after the options") {
  CHECK(options({"log.csv", "--group", "g", "--rewards", "a,b"}).inputs == Paths{"log.csv"});
  const Options o = options({"--group", "g", "--given", "b:a>=1", "--rewards", "a,b", "log.csv"});
  CHECK(o.inputs == Paths{"log.csv"});
  CHECK(o.columns.rewards.size() == 2);
  CHECK(options({"--group", "g", "--rewards", "a,b", "--given", "b:a>=1", "log.csv"}).inputs ==
        Paths{"log.csv"});
  CHECK(options({"--group", "g", "--rewards", "a,b", "-"}).inputs == Paths{"-"});
}

TEST_CASE("Every option") {
  const Options o = options({"log.csv",      "more.csv",
                             "--format",     "csv",
                             "--batch",      "s,t",
                             "--group",      "g,h",
                             "--delimiter",  "tab",
                             "--rewards",    "a,b",
                             "--weights",    "-1,0.5",
                             "--given",      "b:a>=1",
                             "--given",      "a:b>=-2e-1",
                             "--length",     "n",
                             "--estimators", "trl::gdpo  scale.eps=1e-4, gdpo",
                             "--json",       "x.json",
                             "--html",       "x.html"});
  CHECK(o.inputs == Paths{"log.csv", "more.csv"});
  CHECK(o.reading.format == Format::Csv);
  CHECK(o.reading.delimiter == '\t');
  CHECK(o.columns.batch == std::vector<std::string>{"s", "t"});
  CHECK(o.columns.group == std::vector<std::string>{"g", "h"});
  CHECK(o.settings.weights == std::vector<double>{-1, 0.5});
  REQUIRE(o.settings.given.size() == 2);
  CHECK(o.settings.given[0].reward == 1);
  CHECK(o.settings.given[0].given == 0);
  CHECK(o.settings.given[0].at_least == 1);
  CHECK(o.settings.given[1].at_least == -0.2);
  CHECK(o.columns.length == "n");
  CHECK(o.estimators == std::vector<std::string>{"trl::gdpo scale.eps=1e-4", "gdpo"});
  CHECK(o.json == "x.json");
  CHECK(o.html == "x.html");
  CHECK(options({"--group", "g", "--rewards", "a", "--file-is-batch"}).columns.file_is_batch);
}

TEST_CASE("Groups by size, words for missing, and padding") {
  const Options o = options({"--group-size", "8", "--rewards", "a", "--missing",
                             "error,time out,a\\,b,-100", "--valid", "mask"});
  CHECK(o.columns.group.empty());
  CHECK(o.columns.group_size == 8);
  CHECK(o.columns.missing == std::vector<std::string>{"error", "time out", "a,b", "-100"});
  CHECK(o.columns.valid == "mask");
  CHECK(options({"--group-size", "8", "--rewards", "a", "--missing", "-1"}).columns.missing ==
        std::vector<std::string>{"-1"});
  CHECK_THAT(error({"--group", "g", "--group-size", "8", "--rewards", "a"}),
             ContainsSubstring("--group and --group-size do not go together"));
  CHECK_THAT(error({"--rewards", "a"}), ContainsSubstring("or --group-size"));
  for (const char* size : {"0", "1", "-2", "many"}) {
    CHECK_THAT(error({"--group-size", size, "--rewards", "a"}), ContainsSubstring("--group-size"));
  }
}

TEST_CASE("A backslash makes a comma part of a name") {
  const Options o = options({"--group", "g", "--rewards", "a\\,b,c\\.d"});
  CHECK(o.columns.rewards == std::vector<std::string>{"a,b", "c\\.d"});
  CHECK(options({"--group", "g", "--rewards", "a\\\\,b"}).columns.rewards ==
        std::vector<std::string>{"a\\\\", "b"});
}

TEST_CASE("A condition may write a comma as --rewards does") {
  const Options o = options({"--group", "g", "--rewards", "a\\,b,c", "--given", "c:a\\,b>=1"});
  CHECK(o.settings.given[0].given == 0);
}

TEST_CASE("Formats and delimiters") {
  const auto reading = [](const char* name, const char* value) {
    return options({"--group", "g", "--rewards", "a", name, value}).reading;
  };
  CHECK(reading("--format", "tsv").delimiter == '\t');
  CHECK(reading("--format", "json").format == Format::Json);
  CHECK(reading("--format", "jsonl").format == Format::Json);
  CHECK(reading("--delimiter", ";").format == Format::Csv);
  CHECK(reading("--delimiter", "\\t").delimiter == '\t');
  CHECK_THAT(error({"--group", "g", "--rewards", "a", "--delimiter", "::"}),
             ContainsSubstring("\"::\" is neither one character nor tab"));
  CHECK_THAT(error({"--group", "g", "--rewards", "a", "--delimiter", ";", "--format", "json"}),
             ContainsSubstring("--delimiter does not go with --format json"));
}

TEST_CASE("A condition finds its names whatever they contain") {
  const std::vector<std::string> rewards{"a:b", "c>=d", "e"};
  const Condition condition = parse_condition("a:b:c>=d>=0.5", rewards);
  CHECK(condition.reward == 0);
  CHECK(condition.given == 1);
  CHECK(condition.at_least == 0.5);
  CHECK_THAT(error_of([&] { parse_condition("e", rewards); }),
             ContainsSubstring("must look like 'b:a>=1'"));
  CHECK_THAT(error_of([&] { parse_condition("e:x>=1", rewards); }),
             ContainsSubstring("must be among --rewards"));
  CHECK_THAT(error_of([&] { parse_condition("e:a:b>=high", rewards); }),
             ContainsSubstring("\"high\" is not a number"));
  CHECK_THAT(error_of([&] { parse_condition("e:e>=1", rewards); }),
             ContainsSubstring("cannot depend on itself"));
}

TEST_CASE("What does not fit is refused") {
  CHECK_THAT(error({"--rewards", "a"}), ContainsSubstring("--group is required"));
  CHECK_THAT(error({"--group", "g"}), ContainsSubstring("--rewards is required"));
  CHECK_THAT(error({"--group", "g", "--rewards", "a,b,a"}),
             ContainsSubstring("\"a\" is given twice"));
  CHECK_THAT(error({"--group", "g", "--rewards", "a,b", "--weights", "1"}),
             ContainsSubstring("1 weight for 2 rewards"));
  CHECK_THAT(error({"--group", "g", "--rewards", "a", "--weights", "heavy"}),
             ContainsSubstring("--weights"));
  const auto refused = [](const char* lines) {
    return error({"--group", "g", "--rewards", "a", "--estimators", lines});
  };
  CHECK_THAT(refused("gdpo,best"),
             StartsWith("estimator best: gdpo::runtime::estimator: name: given 'best'; needed: one "
                        "of gdpo, grpo, "));
  CHECK_THAT(
      refused("gdpo scale.epsilon=1"),
      StartsWith("estimator gdpo scale.epsilon=1: gdpo::runtime::configured_estimator: line: "
                 "given the setting 'scale.epsilon'; needed: one of scale.of, scale.ddof, "));
  CHECK(refused("gdpo_pre_bn eps=wide") ==
        "estimator gdpo_pre_bn eps=wide: gdpo::runtime::configured_estimator: eps: given 'wide'; "
        "needed: a number");
  CHECK(
      refused("trl::gdpo scale.eps=-1") ==
      "estimator trl::gdpo scale.eps=-1: gdpo::runtime::configured_estimator: scale.eps: given -1; "
      "needed: a finite number of at least 0");
  CHECK(refused("gdpo scale.eps=1, gdpo  scale.eps=1 ") ==
        "--estimators: \"gdpo scale.eps=1\" is given twice");
  CHECK_THAT(error({"--group", "g", "--rewards", "a", "--surprise"}),
             ContainsSubstring("--surprise"));
  CHECK_THAT(error({"--count", "--group", "g"}),
             ContainsSubstring("--count reads no log, so --group does not go with it"));
  CHECK_THAT(error({"--list", "--group", "g"}),
             ContainsSubstring("--list reads no log, so --group does not go with it"));
  CHECK_THAT(error({"--count", "log.csv"}), ContainsSubstring("so input does not go with it"));
  CHECK_THAT(error({"--surrogates", "log.csv"}),
             ContainsSubstring("--surrogates reads no log, so input does not go with it"));
  for (const char* empty : {"a,,b", "a,b,", ",a"}) {
    CHECK_THAT(error({"--group", "g", "--rewards", empty}), ContainsSubstring("a name is empty"));
  }
  CHECK_THAT(error({"--group", "g,g", "--rewards", "a"}), ContainsSubstring("is given twice"));
  CHECK_THAT(error({"--group", "g", "--rewards", "a", "--batch", "s,"}),
             ContainsSubstring("--batch: a name is empty"));
  CHECK_THAT(error({"--group", "g", "--rewards", "a", "--weights", "1,"}),
             ContainsSubstring("--weights: \"\" is not a finite number"));
  CHECK_THAT(error({"--group", "g", "--rewards", "a", "--format", "xml"}),
             ContainsSubstring("\"xml\" is none of"));
  for (const char* same : {"x", "./x", "y/../x"}) {
    CHECK_THAT(error({"--count", "--json", "x", "--html", same}),
               ContainsSubstring("name the same file"));
  }
  CHECK_THAT(error({"--group", "g", "--rewards", "a", "log.csv", "--json", "./log.csv"}),
             ContainsSubstring("is the log itself"));
}

TEST_CASE("Help says how missing rewards are treated") {
  const Parsed parsed = parse({"--help"});
  CHECK_FALSE(parsed.options);
  CHECK_THAT(parsed.text,
             ContainsSubstring("An empty cell, null or NaN\nin a reward is a missing reward"));
}

TEST_CASE("Surrogates instead of a log") {
  const Options o = options({"--surrogates", "--html", "x.html", "--svg", "folder"});
  CHECK(o.surrogates);
  CHECK(o.html == "x.html");
  CHECK(o.svg == "folder");
  CHECK(!options({"--count"}).surrogates);
  for (const char* other : {"--count", "--list"}) {
    CHECK_THAT(error({"--surrogates", other}),
               ContainsSubstring("--surrogates shows policy losses, so " + std::string(other) +
                                 " does not go with it"));
  }
  CHECK_THAT(error({"--surrogates", "--estimators", "gdpo"}),
             ContainsSubstring("so --estimators does not go with it"));
  CHECK_THAT(error({"--count", "--svg", "folder"}),
             ContainsSubstring("--svg goes with --surrogates only"));
}

TEST_CASE("A group instead of the comparison") {
  const Options o = options({"log.csv", "--group", "g", "--rewards", "a", "--explain", "7"});
  CHECK(o.explain == "7");
  CHECK(o.estimators == std::vector<std::string>{"gdpo"});
  CHECK(options({"--group", "g", "--rewards", "a", "--explain", "7", "--estimators", "rloo,grpo"})
            .estimators == std::vector<std::string>{"rloo", "grpo"});
  for (const char* form : {"--json", "--html"}) {
    CHECK_THAT(error({"--group", "g", "--rewards", "a", "--explain", "7", form, "x"}),
               ContainsSubstring("--explain prints text"));
  }
  CHECK_THAT(error({"--count", "--explain", "7"}), ContainsSubstring("does not go with it"));
}
