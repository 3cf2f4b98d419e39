// The numbers of every data set in examples/data/reference_metrics.json: integers exactly,
// everything else to 1e-9.
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "json_report.hpp"
#include "support.hpp"

using namespace resolution;
using Json = nlohmann::json;

namespace {

const Json& reference() {
  static const Json values = [] {
    std::ifstream file(data_dir + "/reference_metrics.json");
    return Json::parse(file);
  }();
  return values;
}

/// Compares everything that `expected` has, and returns how many numbers that were.
std::size_t check_equal(const Json& actual, const Json& expected, const std::string& where) {
  INFO(where << ": " << actual.dump() << " instead of " << expected.dump());
  if (expected.is_object() || expected.is_array()) {
    REQUIRE(actual.type() == expected.type());
    std::size_t compared = 0;
    for (const auto& member : expected.items()) {
      const bool there =
          expected.is_array() ? actual.size() == expected.size() : actual.contains(member.key());
      INFO(member.key());
      REQUIRE(there);
      const Json& value =
          expected.is_array() ? actual[std::stoul(member.key())] : actual[member.key()];
      compared += check_equal(value, member.value(), where + "/" + member.key());
    }
    return compared;
  }
  if (expected.is_number_float()) {
    REQUIRE(actual.is_number());
    CHECK(actual.get<double>() == Approx(expected.get<double>()).margin(1e-9).epsilon(0));
  } else {
    CHECK(actual == expected);
  }
  return 1;
}

Json run(const std::string& file, const std::vector<std::string>& rewards,
         const Settings& settings = {}, const std::string& length = "",
         const std::vector<std::string>& estimators = default_estimators()) {
  return Json::parse(to_json(compare(read_data(file, rewards, length), settings, estimators)));
}

/// The default estimators with eps 1e-4 in each standard deviation, by the names of the reference.
const std::pair<const char*, const char*> at_1e_4[] = {
    {"grpo", "grpo eps=1e-4"},
    {"grpo_no_std", "grpo_no_std"},
    {"gdpo_pre_bn", "gdpo_pre_bn eps=1e-4"},
    {"gdpo", "gdpo scale.eps=1e-4 renorm.eps=1e-4"},
    {"gdpo_then_group_norm", "gdpo_then_group_norm scale.eps=1e-4 renorm.eps=1e-4"}};

const char* const data_sets[] = {"vlm_dapo_rollouts",    "vlm_dapo_rollouts_binary2",
                                 "vlm_dapo_rollouts_k2", "wmt21_ted_mqm_ende",
                                 "gsm8k_solutions",      "gsm8k_solutions_4"};

}  // namespace

TEST_CASE("Every data set has the figures of the reference, under the same keys") {
  for (const std::string name : data_sets) {
    Json expected = reference().at(name);
    const Json weighted = reference().at("bn_sequence_vs_length_weighted").at(name);
    const Json at_eps = expected.at("methods_eps1e-4");
    const Json step_at_eps = expected.at("bn_eps1e-4");
    expected.erase("methods_eps1e-4");
    expected.erase("bn_eps1e-4");
    expected["bn_sequence_vs_length_weighted"] = weighted;
    const std::vector<std::string> rewards = expected.at("rewards");

    const Json actual = run(expected.at("file"), rewards, {}, weighted.at("length_column"));
    CHECK(check_equal(actual, expected, name) > 100);
    // The reference knows no batches, it takes each log as one, no missing rewards and no settings.
    const std::set<std::string> ours_alone{"batches",
                                           "batch_columns",
                                           "per_batch",
                                           "distinct_reward_multisets_within_batches",
                                           "completions_without_reward",
                                           "groups_without_reward",
                                           "rows_left_out",
                                           "estimators",
                                           "warnings"};
    for (const auto& member : actual.items())
      CHECK(expected.contains(member.key()) != (ours_alone.count(member.key()) == 1));
    CHECK(actual.at("batches") == 1);
    for (const auto& method : actual.at("methods").items()) {
      for (const auto& member : method.value().items()) {
        const std::string within = "_within_batches";
        const std::size_t at = member.key().find(within);
        CHECK(expected["methods"][method.key()].contains(member.key()) ==
              (at == std::string::npos));
      }
      CHECK(method.value().at("distinct_values_within_batches") ==
            method.value().at("distinct_values"));
      CHECK(method.value().at("distinct_group_vectors_within_batches") ==
            method.value().at("distinct_group_vectors_sorted"));
    }
    CHECK_FALSE(run(expected.at("file"), rewards).contains("bn_sequence_vs_length_weighted"));

    std::vector<std::string> lines;
    for (const auto& [method, line] : at_1e_4) lines.emplace_back(line);
    const Json with_eps = run(expected.at("file"), rewards, {}, "", lines);
    for (const auto& [method, line] : at_1e_4)
      check_equal(with_eps.at("methods").at(line), at_eps.at(method), name + ", " + line);
    CHECK(at_eps.size() == lines.size());
    check_equal(with_eps.at("bn"), step_at_eps, name + " eps 1e-4");
  }
}

TEST_CASE("Conditioned rewards have the figures of the reference") {
  Settings format_given_accuracy;
  format_given_accuracy.given = {{1, 0, 1.0}};
  Settings integer_given_correct;
  integer_given_correct.given = {{2, 0, 1.0}};
  const auto check = [](const std::string& name, Json actual) {
    Json expected = reference().at(name);
    expected.erase("rule");
    CHECK(check_equal(actual, expected, name) > 70);
  };
  check("conditioned_vlm_dapo_format_given_accuracy",
        run("vlm_dapo_rollouts.csv", {"accuracy", "format"}, format_given_accuracy));
  check("conditioned_gsm8k_integer_given_correct",
        run("gsm8k_solutions.csv", {"correct", "format", "integer"}, integer_given_correct));
}

TEST_CASE("Weighted rewards have the figures of the reference") {
  std::size_t entries = 0;
  for (const auto& entry : reference().items()) {
    if (entry.key().rfind("weighted_vlm_dapo_binary2", 0) != 0) continue;
    ++entries;
    Json expected = entry.value();
    Settings settings;
    settings.weights = expected.at("weights").get<std::vector<double>>();
    expected.erase("weights");
    CHECK(check_equal(run("vlm_dapo_rollouts.csv", expected.at("rewards"), settings), expected,
                      entry.key()) > 70);
  }
  CHECK(entries == 2);
}
