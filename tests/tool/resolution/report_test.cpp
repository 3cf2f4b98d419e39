// The reports: findings in words, the HTML page, tables, files and progress. The figures of the
// shipped data sets are those of examples/data/README.md.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "charts.hpp"
#include "findings.hpp"
#include "html.hpp"
#include "html_report.hpp"
#include "output_file.hpp"
#include "progress.hpp"
#include "support.hpp"
#include "text_report.hpp"
#include "text_table.hpp"
#include "words.hpp"

using namespace resolution;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

const Comparison& rollouts() {
  static const Comparison comparison =
      compare(read_data("vlm_dapo_rollouts.csv",
                        {"accuracy", "format", "length_penalty", "attention"}, "completion_chars"),
              {}, default_estimators());
  return comparison;
}

/// The headline and all findings as one text.
std::string all_findings(const Comparison& comparison) {
  const Finding first = headline(comparison);
  std::string text = first.title + ". " + first.text + "\n";
  for (const Finding& finding : findings(comparison))
    text += finding.title + ". " + finding.text + "\n";
  return text;
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size())
    ++count;
  return count;
}

/// The first group of every match of a regular expression.
std::vector<std::string> matches(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), expression), end; match != end; ++match)
    found.push_back((*match)[1]);
  return found;
}

/// The path of the only curve of a chart.
std::string path_of(const std::vector<double>& values) {
  const charts::Axis steps{"step", 1, static_cast<double>(values.size())};
  const std::string chart =
      charts::curves({{"", values, charts::Tone::Own}}, steps, {"rate", 0, 1}, "rates");
  const std::vector<std::string> paths = matches(chart, "<path d=\"([^\"]*)\" class=\"curve");
  REQUIRE(paths.size() == 1);
  return paths.front();
}

}  // namespace

TEST_CASE("The findings say where GDPO is finer and where it is not") {
  const std::string text = all_findings(rollouts());
  CHECK_THAT(text, ContainsSubstring("Inside a group GDPO ties 57 % fewer pairs than GRPO"));
  CHECK_THAT(text,
             ContainsSubstring("GRPO gives 138 (4.46 %) the same advantage, GDPO 60 (1.94 %)"));
  CHECK_THAT(text, ContainsSubstring("GDPO has fewer distinct values (641 against 680)"));
  CHECK_THAT(
      text,
      ContainsSubstring(
          "fewer distinct group vectors (181 against 185, from 260 different groups of rewards)"));
  CHECK_THAT(text, ContainsSubstring("Every group is centred (sizes: 540 of 4, 74 of 8)"));
  CHECK_THAT(text, ContainsSubstring(
                       "Of 181 distinct group vectors 174 remain, fewer than the 185 of GRPO"));
  CHECK_THAT(text,
             ContainsSubstring(
                 "removes 7 groups in which a reward does vary; GDPO would use none of them"));
  CHECK_THAT(text,
             ContainsSubstring("group 465: \"accuracy\" spans 1 and \"attention\" spans 0.00199"));
}

TEST_CASE("The findings do not praise GDPO where it ties more") {
  const std::string text = all_findings(
      compare(read_data("gsm8k_solutions.csv", {"correct", "format", "integer", "calc_valid"}), {},
              default_estimators()));
  CHECK_THAT(text, ContainsSubstring("GDPO is not finer on this data"));
  CHECK_THAT(text,
             ContainsSubstring("GRPO gives 18 (0.58 %) the same advantage, GDPO 21 (0.68 %)"));
}

TEST_CASE("The findings say what a second normalisation inside the group undoes") {
  const std::string text = all_findings(compare(
      read_data("vlm_dapo_rollouts_k2.csv", {"accuracy", "format"}), {}, default_estimators()));
  CHECK_THAT(text, ContainsSubstring("undoes part of the gain"));
  CHECK_THAT(text, ContainsSubstring("Of 3 distinct group vectors 2 remain, as many as GRPO has"));
  CHECK_THAT(text, ContainsSubstring("equally fine"));
}

TEST_CASE("The findings warn where rounding decides the count") {
  std::string log = "g,a\n";
  for (int i = 0; i < 3000; ++i) log += "x," + (i == 0 ? "-1" : std::to_string(i) + "e-7") + "\n";
  CHECK_THAT(all_findings(compare(read(log, {"g", {"a"}, ""}), {}, {"grpo_no_std"})),
             ContainsSubstring("Distinct values are limited by rounding"));
}

TEST_CASE("The findings name an estimator that gives NaN") {
  const Comparison c = compare(read("g,a\nx,1\ny,1\ny,2\n", {"g", {"a"}, ""}), {},
                               {"gdpo", "nvlabs::trl_grpo_nan_singleton"});
  CHECK_THAT(all_findings(c),
             ContainsSubstring("nvlabs::trl_grpo_nan_singleton gives no number. 1 advantage of 3"));
}

TEST_CASE("The findings know when there is nothing to tell apart") {
  const std::string equal =
      all_findings(compare(read("g,a\nx,1\nx,1\n", {"g", {"a"}, ""}), {}, default_estimators()));
  CHECK_THAT(equal, ContainsSubstring("No group has two completions with different rewards"));
  const std::string one =
      all_findings(compare(read("g,a\nx,1\nx,2\n", {"g", {"a"}, ""}), {}, default_estimators()));
  CHECK_THAT(one, ContainsSubstring("There is only one group"));
}

TEST_CASE("Group 465: the small dip of one reward cancels the only correct answer") {
  const Comparison& c = rollouts();
  const std::vector<std::size_t> groups = cancelled_groups(c);
  REQUIRE(groups.size() == 8);
  CHECK(c.rollouts.group_names[groups.front()] == "465");
  const auto& rows = c.rollouts.members[groups.front()];
  const double grpo[] = {-0.5, -0.5, -0.5, 1.5};
  REQUIRE(rows.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(c.find("grpo")->advantages[rows[i]] == Approx(grpo[i]).margin(1e-12));
    CHECK(c.find("gdpo")->advantages[rows[i]] == 0);
  }
}

TEST_CASE("The page is self-contained and balanced") {
  const std::string page = to_html(rollouts());
  for (const std::string outside :
       {"http://", "https://", "<script", "<link", "@import", "url(", "src="}) {
    CHECK(occurrences(page, outside) == 0);
  }
  for (const std::string tag : {"svg", "span", "i", "figure", "table", "tr", "td", "th", "div", "p",
                                "text", "h1", "h2", "h3", "dl", "main"}) {
    INFO(tag);
    CHECK(occurrences(page, "<" + tag + " ") + occurrences(page, "<" + tag + ">") ==
          occurrences(page, "</" + tag + ">"));
  }
  CHECK(occurrences(page, "class=\"chart\" role=\"img\" aria-label=") == 4 + 5 + 4);
  CHECK(occurrences(page, "class=\"bars\"") == 4 + 4);
  CHECK(occurrences(page, "<svg class=\"plot\"") == 5);
  CHECK_THAT(page, ContainsSubstring("Group 465"));
  for (const std::string number : {">nan<", ">-nan<", ">inf<"})
    CHECK(occurrences(page, number) == 0);
}

TEST_CASE("Charts fit any width, and their texts keep the size of the style sheet") {
  using charts::Tone;
  const std::string long_name = "GDPO before batch step";
  const std::string page =
      to_html(rollouts()) +
      charts::lines({2, 3}, {{"GRPO", {1, 2}, Tone::Sum}, {long_name, {1, 3}, Tone::Norm}}, "G",
                    "counts") +
      charts::curves({{"GRPO", {1, 2}, Tone::Sum}, {long_name, {1, 3}, Tone::Norm}},
                     {"batch", 1, 2}, {"rate", 0, 3}, "rates");
  const std::vector<std::string> sizes = matches(page, "font(?:-size)?: *([0-9.]+)px");
  CHECK(sizes.size() > 10);
  for (const std::string& size : sizes) CHECK(std::stod(size) >= 12);

  // Texts are not scaled: they stand directly in a plot, which has no viewBox, and they and all
  // that has a place across have it as a share of the width.
  CHECK(occurrences(page, "<svg class=\"plot\"") == 5 + 2);
  for (const std::string& plot : matches(page, "(<svg class=\"plot\"[^>]*>)"))
    CHECK(occurrences(plot, "viewBox") == 0);
  const std::vector<std::string> scaled = matches(page, "(<svg [^>]*viewBox[^]*?</svg>)");
  CHECK(scaled.size() > 5);
  for (const std::string& svg : scaled) CHECK(occurrences(svg, "<text") == 0);
  const std::vector<std::string> places = matches(page, " x[12]?=\"([^\"]*)\"");
  CHECK(places.size() > 100);
  for (const std::string& place : places) CHECK(place.back() == '%');
}

TEST_CASE(
    "Names of lines stand at their ends, in the key, or where the page is narrow in the key") {
  using charts::Tone;
  const auto chart = [](const std::string& name) {
    return charts::lines({2, 3}, {{"GRPO", {1, 2}, Tone::Sum}, {name, {1, 3}, Tone::Norm}}, "G",
                         "counts");
  };
  const auto both = [](const std::string& text) {
    return std::pair(occurrences(text, "class=\"end \""), occurrences(text, "class=\"names\""));
  };
  CHECK(both(chart("GDPO")) == std::pair<std::size_t, std::size_t>(2, 0));
  CHECK(both(chart("GDPO before batch step")) == std::pair<std::size_t, std::size_t>(2, 1));
  CHECK_THAT(chart("GDPO before batch step"), ContainsSubstring("class=\"chart either\""));
  CHECK(both(chart(std::string(40, 'x'))) == std::pair<std::size_t, std::size_t>(0, 1));
}

TEST_CASE("A curve has at most 400 points, and gaps where there is no number") {
  CHECK(path_of({0.5, 1}) == "M0.00 80.0L100.00 8.0");
  const double none = std::nan("");
  CHECK(path_of({0, 1, none, 0, 1}) == "M0.00 152.0L25.00 8.0M75.00 152.0L100.00 8.0");
  std::vector<double> many;
  for (int i = 0; i < 5000; ++i) many.push_back(i % 13 == 12 ? none : i < 13 ? 0.25 : 0.5);
  const std::string path = path_of(many);
  CHECK(occurrences(path, "L") + occurrences(path, "M") == 385);  // 13 at a time
  CHECK(path.substr(0, 24) == "M0.12 116.0L0.38 80.0L0.");
  // A point without neighbours is drawn as a dot.
  const std::string one =
      charts::curves({{"", {none, 0.5}, charts::Tone::Own}}, {"x", 1, 1}, {"y", 1, 1}, "one");
  CHECK_THAT(one, ContainsSubstring("class=\"fill own\""));
  CHECK(occurrences(one, "nan") == 0);
}

TEST_CASE("Names and groups from the file are escaped everywhere") {
  const std::string hostile = "a<b>\"&'</svg><script>x</script>";
  std::string text = "g,\"a<b>\"\"&'</svg><script>x</script>\",b\n";
  for (const char* row : {"<i>,0,1\n", "<i>,1,0\n", "<i>,0,1\n"}) text += row;
  Settings settings;
  settings.given = {{0, 1, -5}};
  const Comparison c =
      compare(read(text, {"g", {hostile, "b"}, ""}), settings, default_estimators());
  const std::string page = to_html(c);
  CHECK(occurrences(page, "<script") == 0);
  CHECK(occurrences(page, "<i>") == 0);
  CHECK_THAT(page, ContainsSubstring(
                       "a&lt;b&gt;&quot;&amp;&#39;&lt;/svg&gt;&lt;script&gt;x&lt;/script&gt;"));
  CHECK_THAT(charts::bars({{"<i>", 1, "< 1 %"}}, 1, "<i>"),
             ContainsSubstring(">&lt;\u00A01\u00A0%<") && !ContainsSubstring("<i>"));
  CHECK(html::escaped("a\xFF\xC3") == "a\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST_CASE("The text report fits a terminal of 100 columns") {
  std::istringstream lines(to_text(rollouts()));
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    CHECK(width_of(line) <= 100);
  }
  TextTable wide({"name", "column number one", "column number two", "column number three"});
  wide.add({"row", "1", "2", "3"});
  CHECK(wide.text(45) ==
        "name  column number one  column number two\n"
        "------------------------------------------\n"
        "row                   1                  2\n"
        "\n"
        "name  column number three\n"
        "-------------------------\n"
        "row                     3\n");
}

TEST_CASE("Numbers in words") {
  CHECK(grouped(1234567) == "1,234,567");
  CHECK(grouped(999) == "999");
  CHECK(fixed(-0.0001, 2) == "0.00");
  CHECK(fixed(-0.005001, 2) == "-0.01");
  CHECK(fixed(-1e308, 4) == "-1e+308");
  CHECK(percent(0.0445593) == "4.46 %");
  CHECK(compact(std::nan("")) == "-");
  CHECK(shortened("\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9", 4) == "\xC3\xA9...");
  CHECK(wrapped("aa bb cc", 5, 2) == "aa bb\n  cc");
  CHECK(charts::ticks(4.13, 3) == std::vector<double>{0, 2, 4});
}

TEST_CASE("A file is written whole or not at all") {
  const fs::path folder =
      fs::temp_directory_path() / ("gdpo_resolution_" + std::to_string(std::rand()));
  fs::create_directory(folder);
  const std::string path = (folder / "report.json").string();
  write_whole_file(path, "first");
  write_whole_file(path, "second");
  std::ifstream file(path);
  std::string text;
  file >> text;
  CHECK(text == "second");
  CHECK(std::distance(fs::directory_iterator(folder), fs::directory_iterator()) == 1);
  CHECK_THAT(error_of([&] { write_whole_file((folder / "no/such.json").string(), "x"); }),
             ContainsSubstring("cannot be written"));
  CHECK_THAT(error_of([&] { write_whole_file(folder.string(), "x"); }),
             ContainsSubstring("is a directory"));
  fs::remove_all(folder);
}

TEST_CASE("Progress is silent for a second, then says how far it is") {
  std::ostringstream out;
  Progress progress("reading", 2000, out, false);
  const auto now = Progress::Clock::now();
  progress.update_at(10, now);
  CHECK(out.str().empty());
  progress.update_at(500, now + std::chrono::milliseconds(1500));
  progress.update_at(600, now + std::chrono::milliseconds(1600));
  progress.update_at(1000, now + std::chrono::milliseconds(2700));
  CHECK(out.str() == "reading: 500 of 2,000 (25 %)\nreading: 1,000 of 2,000 (50 %)\n");
}
