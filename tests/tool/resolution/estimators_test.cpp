// Estimators by lines of the library: every setting that it lists can be given to gdpo-resolution
// and is recorded, with no line of code for any of them; the record repeats the estimator.
#include "estimators.hpp"

#include <algorithm>
#include <cmath>
#include <gdpo/runtime.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "counting.hpp"
#include "html_report.hpp"
#include "json_report.hpp"
#include "options.hpp"
#include "support.hpp"
#include "text_report.hpp"
#include "words.hpp"

using namespace resolution;
using Catch::Matchers::ContainsSubstring;
using Json = nlohmann::ordered_json;
using gdpo::runtime::Setting;
using Lines = std::vector<std::string>;

namespace {

using Values = std::map<std::string, std::string>;

/// What the tool makes of --estimators, beside another option.
Parsed parse(const char* option, const std::string& lines) {
  const char* const argv[] = {"gdpo-resolution", option, "--estimators", lines.c_str()};
  return parse_options(4, argv);
}

/// What the JSON report records of an estimator.
Json record(const std::string& line) {
  Counting counting;
  counting.by_group_size.series.push_back({line, {}});
  return Json::parse(to_json(counting)).at("estimators").at(line);
}

/// Recorded settings, as a line has them.
Values recorded_settings(const Json& record) {
  Values values;
  for (const auto& setting : record.at("settings").items()) {
    const Json& value = setting.value();
    values[setting.key()] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return values;
}

std::vector<Setting> library_settings(const std::string& line) {
  return gdpo::runtime::settings(gdpo::runtime::configured_estimator(line));
}

/// Values of a setting other than its own: every other word, or a number.
Lines others(const Setting& setting) {
  if (setting.name == "clip.lo") return {"-0.5"};  // 0 is within the bounds
  if (setting.kind == "number") return {"0.5"};
  if (setting.kind == "integer") return {std::to_string(std::stol(setting.value) + 1)};
  if (setting.kind == "true or false") return {setting.value == "true" ? "false" : "true"};
  Lines words;
  std::istringstream in(setting.kind);
  for (std::string word; in >> word;) {
    if (word != "|" && word != setting.value) words.push_back(word);
  }
  return words;
}

std::string single_spaced(const std::string& text) { return wrapped(text, text.size(), 0); }

/// Two batches with missing rewards, a group of one, and lengths.
Rollouts small_log() {
  return read(
      "s,g,a,b,n\n1,p,1,0,4\n1,p,0,0.5,6\n1,p,0,0.25,5\n1,q,1,,3\n1,q,0.5,1,2\n1,o,1,1,9\n"
      "2,p,0,1,4\n2,p,0.5,0,6\n2,q,1,0.75,3\n2,q,0.25,1,2\n2,q,0,0,7\n",
      columns("g", {"a", "b"}, "n", {"s"}));
}

/// The advantages of an estimator of the library on that log, one call a batch.
template <class Estimator>
std::vector<double> by_library(const Estimator& estimator) {
  const Rollouts log = small_log();
  std::vector<double> all;
  for (std::size_t b = 0; b < log.batches(); ++b) {
    const Range rows = log.rows_of_batch(b);
    std::vector<gdpo::index_t> offsets;
    for (std::size_t g = log.groups_of(b).begin; g <= log.groups_of(b).end; ++g)
      offsets.push_back(static_cast<gdpo::index_t>(log.group_begin[g] - rows.begin));
    const auto values = gdpo::advantages(
        gdpo::view(log.rewards.data() + 2 * rows.begin, static_cast<gdpo::index_t>(rows.size()), 2),
        gdpo::by_offsets(offsets), estimator);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

/// Whether two lists have the same numbers, NaN among them.
bool same(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

}  // namespace

TEST_CASE("Every setting of every estimator of the library is given by its name and recorded") {
  std::size_t given = 0;
  for (const std::string& name : gdpo::runtime::estimator_names()) {
    for (const Setting& setting : library_settings(name)) {
      for (const std::string& value : others(setting)) {
        const std::string line = name + " " + setting.name + "=" + value;
        INFO(line);
        if (setting.name == "penalty.coef") {  // a log has no KL
          CHECK_THAT(error_of([&] { parse("--count", line); }),
                     ContainsSubstring("batch.penalty: given no column; needed: the KL"));
          continue;
        }
        REQUIRE(parse("--count", line).options->estimators == Lines{line});
        const Json recorded = record(line);
        CHECK(recorded.at("name") == name);
        Values expected;
        for (const Setting& now : library_settings(line)) expected[now.name] = now.value;
        for (const Setting& before : library_settings(name)) {
          // Without a second normalization it has no settings.
          if (expected.count(before.name) == 1) expected[before.name] = before.value;
        }
        expected[setting.name] = value;
        CHECK(recorded_settings(recorded) == expected);
        ++given;
      }
    }
  }
  CHECK(given > 1000);
}

TEST_CASE("Settings reach the numbers") {
  gdpo::Gdpo gdpo;
  gdpo.scale.eps = 0.5;
  gdpo.renorm.eps = 0.25;
  gdpo.missing.entry = gdpo::MissingEntry::Zero;
  const std::vector<double> wanted = by_library(gdpo);
  const char* const line = "gdpo scale.eps=0.5 renorm.eps=0.25 entry=zero";
  CHECK(same(advantages(line, {}, small_log()), wanted));
  CHECK_FALSE(same(advantages("gdpo", {}, small_log()), wanted));
  gdpo.weights = {0.5, 2.0};
  gdpo.gates = {{1, 0, 0.5}};
  CHECK(same(advantages(line, {{0.5, 2}, {{1, 0, 0.5}}}, small_log()), by_library(gdpo)));
}

TEST_CASE("The tool's own names are estimators of the library") {
  gdpo::Gdpo gdpo;
  const auto same_as = [](const char* name, const auto& estimator) {
    return same(advantages(name, {}, small_log()), by_library(estimator));
  };
  CHECK(same_as("grpo", gdpo::Grpo{}));
  CHECK(same_as("grpo_no_std", gdpo::DrGrpo{}));
  CHECK(same_as("gdpo_pre_bn", gdpo::before_renorm(gdpo)));
  CHECK(same_as("gdpo", gdpo));
  gdpo.renorm = gdpo::renorm::per_group();
  CHECK(same_as("gdpo_then_group_norm", gdpo));
  gdpo.scale.eps = 0.125;
  CHECK(same_as("gdpo_then_group_norm scale.eps=0.125", gdpo));
}

TEST_CASE("The JSON report repeats every estimator") {
  Lines lines = all_estimators();
  for (std::string& line : lines) line += " singleton=raw missing.row=keep";
  const Settings settings{{0.5, -2}, {{1, 0, 0.25}}};
  const Comparison c = compare(small_log(), settings, lines);
  const Json json = Json::parse(to_json(c));
  REQUIRE(json.at("estimators").size() == lines.size());
  for (const EstimatorResult& result : c.results) {
    const Json& recorded = json.at("estimators").at(result.info.name);
    INFO(recorded.dump());
    Settings again{recorded.at("weights"), {}};
    for (const Json& condition : recorded.at("conditions")) {
      CHECK(condition.at("reward") == "b");
      CHECK(condition.at("given") == "a");
      again.given.push_back({1, 0, condition.at("at_least")});
    }
    CHECK(again.given.size() == 1);
    std::string line = recorded.at("name");
    for (const auto& [name, value] : recorded_settings(recorded)) line += " " + name + "=" + value;
    CHECK(same(advantages(line, again, small_log()), result.advantages));
    CHECK(recorded_settings(recorded).at("singleton") == "raw");
  }
  CHECK(Json::parse(to_json(compare(small_log(), {}, {"gdpo"})))["estimators"]["gdpo"]["weights"] ==
        Json{1.0, 1.0});
}

TEST_CASE("--list has every name, and every setting with its value, what fits and its meaning") {
  for (const std::string& name : gdpo::runtime::estimator_names()) {
    const Parsed parsed = parse("--list", name + " singleton=nan");
    CHECK_FALSE(parsed.options);
    const std::string text = single_spaced(parsed.text) + " ";
    for (const std::string& other : all_estimators())
      CHECK_THAT(text, ContainsSubstring(" " + other + " "));
    for (const Setting& s : library_settings(name + " singleton=nan")) {
      CHECK_THAT(text, ContainsSubstring(" " + s.name + "=" + s.value + " (" + s.kind));
      CHECK_THAT(text, ContainsSubstring(s.fits + "): " + s.meaning + " "));
    }
  }
  CHECK_THAT(parse("--list", "gdpo_pre_bn").text,
             ContainsSubstring("gdpo_pre_bn is gdpo renorm=none\n"));
}

TEST_CASE("Reports name a configured estimator by its settings, and fit") {
  const std::string wide =
      "trl::gdpo scale.eps=0.5 renorm.eps=0.25 singleton=raw missing.entry=zero";
  const Comparison c = compare(small_log(), {}, {"grpo eps=0.5", "gdpo renorm=none", wide});
  const std::string text = to_text(c);
  CHECK_THAT(text, ContainsSubstring("grpo eps=0.5 "));
  CHECK_THAT(text, ContainsSubstring("\ntrl::gdpo scale.eps=0.5 "));
  CHECK_THAT(text, ContainsSubstring("\n  renorm.eps=0.25 singleton=raw\n  missing.entry=zero\n"));
  CHECK_THAT(text, ContainsSubstring("GRPO (eps=0.5)"));
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    INFO(line);
    CHECK(width_of(line) <= 100);
  }
  const std::string page = to_html(c);
  CHECK_THAT(page, ContainsSubstring("GDPO (renorm=none)"));
  for (const EstimatorResult& result : c.results) {
    std::string whole = result.info.preset;
    for (const Setting& s : library_settings(result.info.name))
      whole += " " + s.name + "=" + s.value;
    CHECK_THAT(page, ContainsSubstring(whole));
  }
  // Estimators are known by what they are, not by their names.
  CHECK(c.normalize_first() == &c.results[2]);
  CHECK(c.sum_first() == &c.results[0]);
  const Comparison d = compare(small_log(), {}, {"gdpo scale.eps=0.5", "gdpo renorm=group"});
  CHECK(d.gdpo() == &d.results[0]);
  CHECK(d.normalize_first("group") == &d.results[1]);
  // The step is that of the GDPO which is compared.
  const double divisor =
      advantages("gdpo scale.eps=0.5 renorm=none", {}, small_log())[0] / d.results[0].advantages[0];
  CHECK(d.batch_steps[0].std == Approx(divisor));
}

TEST_CASE("The numbers of a group are those of its batch") {
  // Group 2 is in both batches; the table names the rows of its batch.
  const Rollouts log = read("s,g,a,b\n1,2,1,0\n1,2,0,0\n2,1,3,1\n2,1,1,1\n2,2,0,4\n2,2,2,1\n",
                            columns("g", {"a", "b"}, "", {"s"}));
  const std::string text = explanation("grpo", {}, log, 2);
  CHECK_THAT(text, ContainsSubstring("grpo, batch 2, group 2, rows by their number in the batch\n"
                                     "group 1 of 2: 2 members, 2 rewards\n"));
  // Sums of 4 and 3.
  CHECK_THAT(text, ContainsSubstring("n = 2, mean = 3.5000, std = 0.7071"));
  CHECK_THAT(text, ContainsSubstring("        2   0.7071   0.7071\n"
                                     "        3  -0.7071  -0.7071\n"));
  CHECK_THAT(error_of([&] { explanation("verl::opo", {}, log, 0); }),
             ContainsSubstring("estimator verl::opo, batch \"1\": gdpo::explain: batch.tokens"));
}
