// The reports: findings in words, the HTML page and tables. The figures of the
// shipped data sets are those of examples/data/README.md.
#include <fstream>
#include <regex>
#include <sstream>

#include "charts.hpp"
#include "findings.hpp"
#include "html.hpp"
#include "html_report.hpp"
#include "separated.hpp"
#include "support.hpp"
#include "text_report.hpp"
#include "text_table.hpp"
#include "words.hpp"

using namespace resolution;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

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
  CHECK_THAT(text, StartsWith("Inside groups GRPO ties 138 of 3,097 pairs that differ, GDPO 60. "));
  CHECK_THAT(text,
             ContainsSubstring("GRPO gives 138 (4.46 %) the same advantage, GDPO 60 (1.94 %)"));
  CHECK_THAT(text, ContainsSubstring("GDPO has 641 distinct values, GRPO 680"));
  CHECK_THAT(
      text,
      ContainsSubstring(
          "fewer distinct group vectors (181 against 185, from 260 different groups of rewards)"));
  CHECK_THAT(text, ContainsSubstring("Every group is centered (sizes: 540 of 4, 74 of 8)"));
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
  CHECK_THAT(text, StartsWith("GDPO is not finer than GRPO on this log"));
  CHECK_THAT(text,
             ContainsSubstring("GRPO gives 18 (0.58 %) the same advantage, GDPO 21 (0.68 %)"));
}

TEST_CASE("The findings say what a second normalization inside the group undoes") {
  const std::string text = all_findings(compare(
      read_data("vlm_dapo_rollouts_k2.csv", {"accuracy", "format"}), {}, default_estimators()));
  CHECK_THAT(text, ContainsSubstring("undoes part of the gain"));
  CHECK_THAT(text, ContainsSubstring("Of 3 distinct group vectors 2 remain, as many as GRPO has"));
  CHECK_THAT(text, StartsWith("Inside groups GDPO and GRPO tie equally many: 6 of 201 pairs"));
}

TEST_CASE("The headline speaks in proportion") {
  // One group of 2,001 different completions; two pairs have rewards with the same sum, and GDPO
  // tells one of the two apart.
  std::string log = "g,a,b\n";
  for (int i = 0; i < 2000; ++i)
    log += "x," + std::to_string(i * i) + "," + std::to_string(i) + "\n";
  const Comparison none = compare(read(log, columns("g", {"a", "b"})), {}, default_estimators());
  REQUIRE(none.rewards.pairs_with_different_vectors == 1999000);
  CHECK_THAT(headline(none).title, StartsWith("No ties inside groups"));
  log += "x,1,3\n";  // the sum of (2 * 2, ...) is not 4, that of (1, 3) is met by no i * i + i
  log += "x,5,1\n";  // 6 = 2 * 2 + 2
  const Comparison one = compare(read(log, columns("g", {"a", "b"})), {}, default_estimators());
  REQUIRE(one.find("grpo")->metrics.pairs_collapsed == 1);
  REQUIRE(one.find("gdpo")->metrics.pairs_collapsed == 0);
  CHECK(headline(one).title ==
        "Hardly any ties inside groups: 1 with GRPO, 0 with GDPO, of 2,003,001 pairs");
  const std::string text = all_findings(one);
  CHECK_THAT(text, ContainsSubstring("GRPO gives 1 (under 0.01 %) the same advantage, GDPO 0."));
  CHECK(text.find("0.00 %") == std::string::npos);
}

TEST_CASE("No finding is about nothing") {
  const Comparison c =
      compare(read("g,a,b,n\nx,1,0,3\nx,0,0,4\ny,1,1,5\ny,0,1,9\n", columns("g", {"a", "b"}, "n")),
              {}, default_estimators());
  const std::string text = all_findings(c);
  for (const std::string nothing : {"0.00 %", " 0 (", "In 0 ", "the 0 "}) {
    INFO(nothing);
    CHECK(text.find(nothing) == std::string::npos);
  }
  CHECK_THAT(text, ContainsSubstring("In every group some completions have different rewards."));
}

TEST_CASE("The report shows where GDPO separates most of what GRPO ties") {
  // In z GRPO ties more than elsewhere; the tie of y is set further apart.
  const Comparison c =
      compare(read("g,a,b\nx,1,0\nx,0,1\nx,1,1\nx,1,1\ny,1,0\ny,0,1\ny,0,1\ny,0,1\nz,1,0\nz,1,0\n"
                   "z,0,1\nz,0,1\n",
                   columns("g", {"a", "b"})),
              {}, default_estimators());
  const std::vector<SeparatedGroup> groups = separated_groups(c);
  for (const SeparatedGroup& g : groups) {
    const auto& grpo = c.find("grpo")->advantages;
    const auto& gdpo = c.find("gdpo")->advantages;
    CHECK(grpo[g.low] == Approx(grpo[g.high]));
    CHECK(gdpo[g.high] - gdpo[g.low] == Approx(g.apart));
    CHECK(g.apart > 0.1);
  }
  CHECK(std::is_sorted(groups.begin(), groups.end(),
                       [](const auto& a, const auto& b) { return a.apart > b.apart; }));
  // Two ties in one group: the larger distance counts, and only rows of one tie are compared.
  Comparison two =
      compare(read("g,a,b\nx,1,0\nx,0,1\nx,0,1\nx,0,0\nx,0,0\n", columns("g", {"a", "b"})), {},
              default_estimators());
  auto& sum = two.results[0].advantages;
  auto& normalized = two.results[3].advantages;
  REQUIRE((two.sum_first() == &two.results[0] && two.normalize_first() == &two.results[3]));
  sum = {1, 1, 2, 2, 2 + 9e-7};
  normalized = {-1, 4, 0, 0.5, 9};
  REQUIRE(separated_groups(two).size() == 1);
  CHECK(separated_groups(two)[0].apart == 9);
  normalized = {-1, 4, 9, 9.5, std::nan("")};
  CHECK(separated_groups(two)[0].apart == 5);
  sum = {0, 9e-7, 18e-7, 27e-7, 36e-7};  // a chain of ties is not one tie
  normalized = {0, 1, 3, 6, 10};
  CHECK(separated_groups(two)[0].apart == 3);

  const std::string page = to_html(rollouts());
  CHECK_THAT(page, ContainsSubstring("Groups that GRPO ties and GDPO tells apart"));
  const SeparatedGroup most = separated_groups(rollouts()).front();
  CHECK_THAT(page, ContainsSubstring("Group " + rollouts().rollouts.group_name(most.group)));
  CHECK_THAT(all_findings(rollouts()),
             ContainsSubstring("most in group " + rollouts().rollouts.group_name(most.group)));
}

TEST_CASE("The findings warn where rounding decides the count") {
  std::string log = "g,a\n";
  for (int i = 0; i < 3000; ++i) log += "x," + (i == 0 ? "-1" : std::to_string(i) + "e-7") + "\n";
  CHECK_THAT(all_findings(compare(read(log, columns("g", {"a"})), {}, {"grpo_no_std"})),
             ContainsSubstring("Distinct values are limited by rounding"));
}

TEST_CASE("The findings name an estimator that gives NaN") {
  const Comparison c = compare(read("g,a\nx,1\ny,1\ny,2\n", columns("g", {"a"})), {},
                               {"gdpo", "nvlabs::trl_grpo_nan_singleton"});
  CHECK_THAT(all_findings(c),
             ContainsSubstring("nvlabs::trl_grpo_nan_singleton gives no number. 1 advantage of 3"));
}

TEST_CASE("The findings know when there is nothing to tell apart") {
  const std::string equal =
      all_findings(compare(read("g,a\nx,1\nx,1\n", columns("g", {"a"})), {}, default_estimators()));
  CHECK_THAT(equal, ContainsSubstring("No group has two completions with different rewards"));
  const std::string one =
      all_findings(compare(read("g,a\nx,1\nx,2\n", columns("g", {"a"})), {}, default_estimators()));
  CHECK_THAT(one, ContainsSubstring("There is only one group"));
}

TEST_CASE("A negative weight is followed, and a reward of weight 0 is not missed") {
  Settings settings;
  settings.weights = {1, -1, 0};
  const std::string text =
      all_findings(compare(read("g,up,down,none\nx,1,5,1\nx,2,3,0\nx,4,4,0\nx,3,0,1\n",
                                columns("g", {"up", "down", "none"})),
                           settings, default_estimators()));
  CHECK_THAT(text, ContainsSubstring("follows \"up\" least"));
  CHECK(text.find("follows \"down\" least: mean correlation -") == std::string::npos);
  CHECK(text.find("\"none\" least") == std::string::npos);
}

TEST_CASE("With one reward there is nothing to sum first") {
  CHECK_THAT(
      all_findings(compare(read("g,a\nx,1\nx,0\n", columns("g", {"a"})), {}, default_estimators())),
      ContainsSubstring("With a single reward GDPO is GRPO divided by one number a batch"));
}

TEST_CASE("Groups of one are named as what they are") {
  const Comparison c =
      compare(read("id,a\n1,1\n2,0\n", columns("id", {"a"})), {}, default_estimators());
  CHECK(headline(c).title == "Every group holds a single completion");
  CHECK_THAT(headline(c).text, ContainsSubstring("in each of the 2 rows."));
}

TEST_CASE("Group 465: the small dip of one reward cancels the only correct answer") {
  const Comparison& c = rollouts();
  const std::vector<std::size_t> groups = canceled_groups(c);
  REQUIRE(groups.size() == 8);
  CHECK(c.rollouts.group_names[groups.front()] == "465");
  const Range rows = c.rollouts.rows_of(groups.front());
  const double grpo[] = {-0.5, -0.5, -0.5, 1.5};
  REQUIRE(rows.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(c.find("grpo")->advantages[rows.begin + i] == Approx(grpo[i]).margin(1e-12));
    CHECK(c.find("gdpo")->advantages[rows.begin + i] == 0);
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
  // A point without neighbors is drawn as a dot.
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
      compare(read(text, columns("g", {hostile, "b"})), settings, default_estimators());
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
  CHECK(percent(1e-7) == "under 0.01 %");
  CHECK(percent(0) == "0.00 %");
  CHECK(share(0, 7) == "0");
  CHECK(printable("a\x1B\n\xC3\xA9\xFF\xE2\x80\x8B") == "a\\x1b\\n\xC3\xA9\\xff\\u200b");
  CHECK(printable("\xC3\xA9\xC3\xA9", 3) == "\xC3\xA9...");
  CHECK(compact(std::nan("")) == "-");
  CHECK(shortened("\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9", 4) == "\xC3\xA9...");
  CHECK(wrapped("aa bb cc", 5, 2) == "aa bb\n  cc");
  CHECK(charts::ticks(4.13, 3) == std::vector<double>{0, 2, 4});
}
