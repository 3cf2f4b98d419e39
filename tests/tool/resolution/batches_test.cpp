// Batches: rows that agree in the columns of --batch. Estimators see one at a time, groups lie
// inside them, and counts are added up over them.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "batch_series.hpp"
#include "findings.hpp"
#include "html_report.hpp"
#include "input/batch_order.hpp"
#include "json_report.hpp"
#include "support.hpp"
#include "text_report.hpp"

using namespace resolution;
using Catch::Matchers::ContainsSubstring;
using Json = nlohmann::json;

namespace {

const Comparison& shipped() {
  static const Comparison comparison = compare(
      read_data("vlm_dapo_rollouts.csv", {"accuracy", "format", "length_penalty", "attention"},
                "completion_chars", {"run", "step"}),
      {}, all_estimators());
  return comparison;
}

/// The shipped log as one batch.
const Comparison& pooled() {
  static const Comparison comparison = compare(
      read_data("vlm_dapo_rollouts.csv", {"accuracy", "format", "length_penalty", "attention"}), {},
      default_estimators());
  return comparison;
}

/// Two steps with the same two prompts, four completions each.
const char* const two_steps =
    "step,g,a,b\n"
    "1,p,1,0\n1,p,0,1\n1,p,1,1\n1,p,0,0\n1,q,1,0\n1,q,0,0\n1,q,0,0\n1,q,0,0\n"
    "2,p,1,1\n2,p,0,0\n2,p,0,0\n2,p,0,0\n2,q,0,1\n2,q,0,0\n2,q,0,1\n2,q,1,0\n";

}  // namespace

TEST_CASE("The shipped log has 267 batches, and its counts in them") {
  const Comparison& c = shipped();
  CHECK(c.rollouts.batches() == 267);
  CHECK(c.find("grpo")->metrics.distinct_values_within_batches == 1439);
  CHECK(c.find("gdpo")->metrics.distinct_values_within_batches == 1483);
  CHECK(c.find("grpo")->metrics.distinct_values == 680);
  CHECK(c.find("gdpo")->metrics.distinct_values == 935);
  CHECK(c.find("grpo")->metrics.pairs_collapsed == 138);
  CHECK(c.find("gdpo")->metrics.pairs_collapsed == 60);
  CHECK(pooled().find("gdpo")->metrics.distinct_values == 641);
  CHECK(pooled().find("grpo")->metrics.distinct_values == 680);

  const Json json = Json::parse(to_json(c));
  CHECK(json["batches"] == 267);
  CHECK(json["batch_columns"] == Json({"run", "step"}));
  CHECK(json["methods"]["gdpo"]["distinct_values_within_batches"] == 1483);
  CHECK_FALSE(json.contains("bn"));
  for (const char* list : {"name", "groups", "completions", "bn_std", "length_mean",
                           "zero_variance_groups_sum", "zero_variance_groups_all_rewards"}) {
    INFO(list);
    CHECK(json["per_batch"][list].size() == 267);
  }
  CHECK(json["per_batch"]["reward_mean"]["attention"].size() == 267);
  CHECK(json["per_batch"]["reward_std"]["accuracy"].size() == 267);
  CHECK(json["per_batch"]["collapse_rate"]["trl::gdpo"].size() == 267);
}

TEST_CASE("A batch has the advantages that it has alone") {
  const Rollouts& all = shipped().rollouts;
  for (std::size_t b = 0; b < all.batches(); b += 29) {
    Rollouts one = all;
    const Range rows = all.rows_of_batch(b);
    const Range groups = all.groups_of(b);
    const auto part = [](const auto& values, std::size_t from, std::size_t to) {
      return std::decay_t<decltype(values)>(values.begin() + static_cast<std::ptrdiff_t>(from),
                                            values.begin() + static_cast<std::ptrdiff_t>(to));
    };
    one.rewards = part(all.rewards, rows.begin * all.reward_count(), rows.end * all.reward_count());
    one.lengths = part(all.lengths, rows.begin, rows.end);
    one.group_names = part(all.group_names, groups.begin, groups.end);
    one.group_begin = part(all.group_begin, groups.begin, groups.end + 1);
    for (std::size_t& begin : one.group_begin) begin -= rows.begin;
    one.batch_names = {all.batch_names[b]};
    one.batch_begin = {0, groups.size()};
    for (const EstimatorResult& result : shipped().results) {
      INFO(result.info.name << ", batch " << b);
      CHECK(advantages(result.info.name, {}, one) == part(result.advantages, rows.begin, rows.end));
    }
  }
}

TEST_CASE("A group lies inside its batch, and its rows may stand anywhere") {
  const Rollouts merged = read(two_steps, columns("g", {"a", "b"}));
  CHECK(merged.groups() == 2);
  CHECK(merged.batches() == 1);
  const Rollouts steps = read(two_steps, columns("g", {"a", "b"}, "", {"step"}));
  CHECK(steps.groups() == 4);
  CHECK(steps.batch_names == std::vector<std::string>{"1", "2"});
  CHECK(steps.batch_begin == std::vector<std::size_t>{0, 2, 4});
  CHECK(steps.group_begin == std::vector<std::size_t>{0, 4, 8, 12, 16});
  CHECK(steps.group_name(1) == "q of batch 1");
  CHECK(steps.group_name(2) == "p of batch 2");
  CHECK(steps.group_name(3) == "q of batch 2");
  CHECK(merged.group_name(1) == "q");

  // Interleaved rows are put in order; the rows of a group keep theirs.
  const Rollouts mixed = read("s,g,a\n1,p,1\n2,p,2\n1,q,3\n1,p,4\n2,q,5\n2,p,6\n1,q,7\n",
                              columns("g", {"a"}, "", {"s"}));
  CHECK(mixed.rewards == std::vector<double>{1, 4, 3, 7, 2, 6, 5});
  CHECK(mixed.group_begin == std::vector<std::size_t>{0, 2, 4, 6, 7});
  CHECK(mixed.batch_begin == std::vector<std::size_t>{0, 2, 4});
}

TEST_CASE("Several columns are one name, and their texts are not confused") {
  const Rollouts r =
      read("r,s,g,h,a\nx,1,p,q,1\nx,1,p,q,2\nx1,,p,q,3\n", {{"g", "h"}, {"a"}, "", {"r"}});
  CHECK(r.batch_names == std::vector<std::string>{"x", "x1"});
  CHECK(r.group_names == std::vector<std::string>{"p / q", "p / q"});
  // "ab" + "c" is another group than "a" + "bc".
  CHECK(read("g,h,a\nab,c,1\na,bc,2\n", {{"g", "h"}, {"a"}, "", {}}).groups() == 2);
  CHECK(error_of([] { read("r,g,a\n1,p,1\n,p,2\n", columns("g", {"a"}, "", {"r"})); }) ==
        "log:3:1: the batch \"r\" is empty");
}

TEST_CASE("Without --batch the reports say that the log is one batch, and name a step") {
  const Comparison merged =
      compare(read(two_steps, columns("g", {"a", "b"})), {}, default_estimators());
  CHECK_THAT(to_text(merged), ContainsSubstring("one batch: the whole log"));
  CHECK_THAT(to_text(merged), ContainsSubstring("a column \"step\": name"));
  CHECK_THAT(to_html(merged), ContainsSubstring("one batch: the whole log"));
  CHECK_THAT(to_html(merged), ContainsSubstring("The log has a column &quot;step&quot;: name"));
  for (const std::string name : {"step", "global_step", "iteration", "Epoch", "run", "meta.step"}) {
    const Rollouts csv = read(name + ",g,a\n1,p,1\n", columns("g", {"a"}));
    CHECK(csv.unused_step_columns == std::vector<std::string>{name});
  }
  CHECK(read("{\"meta\": {\"step\": 1}, \"g\": 1, \"a\": 1}\n", columns("g", {"a"}))
            .unused_step_columns == std::vector<std::string>{"meta.step"});
  CHECK(read("steps,g,a\n1,p,1\n", columns("g", {"a"})).unused_step_columns.empty());
  CHECK(read("step,g,a\n1,p,1\n", columns("step", {"a"})).unused_step_columns.empty());
  // A run that is not named beside its steps is a trap of its own.
  const Rollouts runs =
      read("run,epoch,step,g,a\n1,1,1,p,1\n1,1,2,p,1\n", columns("g", {"a"}, "", {"step"}));
  CHECK(runs.unused_step_columns == std::vector<std::string>{"run"});
  CHECK_THAT(findings(compare(runs, {}, {"gdpo"}))[0].text,
             ContainsSubstring("The log also has a column \"run\", which --batch does not name"));

  const Comparison steps =
      compare(read(two_steps, columns("g", {"a", "b"}, "", {"step"})), {}, default_estimators());
  for (const std::string& report : {to_text(steps), to_html(steps)}) {
    CHECK(report.find("whole log") == std::string::npos);
    CHECK_THAT(report, ContainsSubstring("2 batches (step)"));
  }
}

TEST_CASE("Batches stand in the order of their numbers, or of the log") {
  using Texts = std::vector<std::vector<std::string>>;
  using Order = std::vector<std::size_t>;
  CHECK(order_of_batches(Texts{{"10"}, {"9"}, {"1"}, {"011"}}) == Order{2, 1, 0, 3});
  CHECK(order_of_batches(Texts{{"step_10.jsonl"}, {"step_9.jsonl"}}) == Order{1, 0});
  CHECK(order_of_batches(Texts{{"18446744073709551617"}, {"18446744073709551616"}}) == Order{1, 0});
  CHECK(order_of_batches(Texts{{"b"}, {"a"}, {"10"}, {"9"}}) == Order{0, 1, 2, 3});
  CHECK(order_of_batches(Texts{{"b", "2"}, {"a", "1"}, {"b", "1"}, {"a", "10"}, {"a", "9"}}) ==
        Order{2, 0, 1, 4, 3});
  CHECK(order_of_batches({}).empty());

  const Rollouts r = read("s,g,a\n10,p,1\n9,p,2\n9,q,3\n10,p,4\n", columns("g", {"a"}, "", {"s"}));
  CHECK(r.batch_names == std::vector<std::string>{"9", "10"});
  CHECK(r.rewards == std::vector<double>{2, 3, 1, 4});
}

TEST_CASE("A file may be a batch") {
  namespace fs = std::filesystem;
  const fs::path folder =
      fs::temp_directory_path() / ("gdpo_resolution_batches_" + std::to_string(getpid()));
  fs::create_directories(folder / "r2");
  std::vector<std::string> paths;
  for (const std::string name : {"step_10.csv", "step_9.csv"}) {
    paths.push_back((folder / name).string());
    std::ofstream(paths.back()) << "s,g,a\n1,p," << name.substr(5, 2) << "\n2,p,0\n";
  }
  Columns wanted = columns("g", {"a"});
  wanted.file_is_batch = true;
  const Rollouts files = read_rollouts_files(paths, {}, wanted);
  CHECK(files.batch_names == std::vector<std::string>{"step_9.csv", "step_10.csv"});
  CHECK(files.batch_columns == std::vector<std::string>{"file"});
  CHECK(files.rewards == std::vector<double>{9, 0, 10, 0});
  CHECK(files.groups() == 2);
  wanted.batch = {"s"};
  CHECK(read_rollouts_files(paths, {}, wanted).batch_names ==
        std::vector<std::string>{"step_9.csv / 1", "step_9.csv / 2", "step_10.csv / 1",
                                 "step_10.csv / 2"});
  // A file of the same name in another folder is another batch, and folders stay together.
  wanted.batch = {};
  paths.push_back((folder / "r2/step_9.csv").string());
  fs::copy(folder / "step_9.csv", paths.back());
  const Rollouts three = read_rollouts_files(paths, {}, wanted);
  const std::vector<std::string> names = three.batch_names;
  REQUIRE(names.size() == 3);
  CHECK(names[0] == (folder.string() + " / step_9.csv"));
  CHECK(names[1] == (folder.string() + " / step_10.csv"));
  CHECK(names[2] == ((folder / "r2").string() + " / step_9.csv"));
  // Two of them hold the same rows, which is said, and so are groups that lie in several files.
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  CHECK(three.repeated_files == Pairs{{paths[2], paths[1]}});
  CHECK(three.shared_groups == 0);
  const auto warned = [](const Rollouts& log) {
    std::string text;
    for (const Finding& w : warnings(compare(log, {}, {"gdpo", "grpo"}))) text += w.title + "\n";
    return text;
  };
  CHECK(warned(three) == paths[2] + " has the rows of " + paths[1] + "\n");
  wanted.file_is_batch = false;
  const Rollouts merged = read_rollouts_files({paths[0], paths[1]}, {}, wanted);
  CHECK(merged.repeated_files.empty());
  CHECK(warned(merged) == "Groups that lie in several files: 1 of 1\n");
  CHECK_THAT(to_text(compare(merged, {}, {"gdpo", "grpo"})),
             ContainsSubstring("\nWarning: Groups that lie in several files: 1 of 1. "));
  // One file by two names.
  CHECK(error_of([&] {
          read_rollouts_files({paths[0], (folder / "r2/../step_10.csv").string()}, {}, wanted);
        }) == (folder / "r2/../step_10.csv").string() +
                  ": is given twice, so that each of its completions would count twice");
  fs::remove_all(folder);
}

TEST_CASE("Groups by size lie inside their file") {
  namespace fs = std::filesystem;
  const fs::path folder =
      fs::temp_directory_path() / ("gdpo_resolution_sizes_" + std::to_string(getpid()));
  fs::create_directories(folder);
  std::ofstream(folder / "a.csv") << "a\n1\n2\n";
  std::ofstream(folder / "b.csv") << "a\n3\n4\n5\n6\n";
  Columns wanted{{}, {"a"}, "", {}};
  wanted.group_size = 2;
  const std::vector<std::string> paths{(folder / "a.csv").string(), (folder / "b.csv").string()};
  const Rollouts one = read_rollouts_files(paths, {}, wanted);
  CHECK(one.group_names == std::vector<std::string>{"1", "2", "3"});
  CHECK(one.shared_groups == 0);
  wanted.group_size = 3;
  CHECK(error_of([&] { read_rollouts_files(paths, {}, wanted); }) ==
        paths[0] +
            ": 2 rows, which are no groups of --group-size 3; needed: a multiple of it in "
            "each file");
  fs::remove_all(folder);
}

TEST_CASE("A log in which most groups are single is warned of") {
  const auto log = [](const std::string& rows) {
    return compare(read("g,a\n" + rows, columns("g", {"a"})), {}, default_estimators());
  };
  const Comparison most = log("x,1\nx,0\ny,1\nz,0\n");
  REQUIRE(warnings(most).size() == 1);
  CHECK(warnings(most)[0].title == "Most groups hold a single completion: 2 of 3");
  CHECK_THAT(warnings(most)[0].text, ContainsSubstring("--group-size"));
  for (const std::string& report : {to_text(most), to_html(most), to_json(most)})
    CHECK_THAT(report, ContainsSubstring("Most groups hold a single completion: 2 of 3."));
  CHECK(warnings(log("x,1\nx,0\ny,1\n")).empty());               // half of them
  CHECK(warnings(log("x,1\ny,1\n")).empty());                    // the headline says it
  CHECK(warnings(log("x,1\nx,\ny,1\ny,\nz,1\nz,0\n")).empty());  // of a right --group
}

TEST_CASE("The curves are those of each batch") {
  const Comparison c =
      compare(read("s,g,a,b,n\n1,p,1,,10\n1,p,3,,20\n1,q,2,,30\n1,q,2,,40\n2,p,0,1,5\n2,p,1,0,5\n",
                   columns("g", {"a", "b"}, "n", {"s"})),
              {}, default_estimators());
  CHECK(c.curves.rewards[0].mean == std::vector<double>{2, 0.5});
  CHECK(c.curves.rewards[0].std[0] == Approx(std::sqrt(2.0 / 3)));
  CHECK(std::isnan(c.curves.rewards[1].mean[0]));
  CHECK(c.curves.rewards[1].mean[1] == 0.5);
  CHECK(c.curves.zero_variance_groups_sum == std::vector<double>{0.5, 1});
  CHECK(c.curves.zero_variance_groups_all == std::vector<double>{0.5, 0});
  CHECK(c.curves.length == std::vector<double>{25, 5});
  CHECK(c.find("gdpo")->metrics.collapse_rate_of_batch == std::vector<double>{0, 1});
  // Every series of the reports has a value per batch.
  for (const BatchSeries& series : batch_series(c)) {
    for (const auto& line : series.lines) CHECK(line.values.size() == 2);
  }
  CHECK_THAT(to_html(c), ContainsSubstring("Over the batches"));
  CHECK(to_html(pooled()).find("Over the batches") == std::string::npos);
}

TEST_CASE("The batch step has a divisor in every batch") {
  const Comparison& c = shipped();
  const std::vector<double>& sums = c.find("gdpo_pre_bn")->advantages;
  const std::vector<double>& gdpo = c.find("gdpo")->advantages;
  REQUIRE(c.batch_steps.size() == 267);
  for (std::size_t b = 0; b < 267; ++b) {
    for (std::size_t row = c.rollouts.rows_of_batch(b).begin; row < c.rollouts.rows_of_batch(b).end;
         ++row) {
      if (sums[row] == 0) continue;
      CHECK(gdpo[row] == Approx(sums[row] / c.batch_steps[b].std));
    }
  }
}

TEST_CASE("The step over lengths is that of each batch, over rows with a reward") {
  // Sums before the step: -1 and 1 over the square root of 2; lengths 1 and 3, then 5 and 5.
  const Comparison c = compare(read("s,g,a,n\n1,p,0,1\n1,p,1,3\n1,q,,9\n2,p,0,5\n2,p,1,5\n",
                                    columns("g", {"a"}, "n", {"s"})),
                               {}, default_estimators());
  const double z = std::sqrt(0.5);
  REQUIRE(c.length->batches.size() == 2);
  CHECK(c.length->batches[0].weighted.mean == Approx(z / 2));
  CHECK(c.length->batches[0].weighted.std ==
        Approx(std::sqrt((1 * std::pow(1.5 * z, 2) + 3 * std::pow(0.5 * z, 2)) / 3)));
  CHECK(c.length->batches[1].weighted.mean == Approx(0).margin(1e-15));
  CHECK(c.length->batches[1].weighted.std == Approx(z * std::sqrt(10.0 / 9)));
  // The row without a reward takes part in no step: the divisor is that of the two others.
  const double divisor = c.find("gdpo_pre_bn")->advantages[1] / c.find("gdpo")->advantages[1];
  CHECK(c.batch_steps[0].std == Approx(divisor));
  CHECK(c.batch_steps[0].std == Approx(1));
}
