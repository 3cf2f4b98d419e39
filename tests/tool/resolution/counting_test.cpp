// The counting experiment of the GDPO paper (Figure 3): its counts, the reports of them, and a
// check that enumerating multisets instead of ordered assignments misses none.
#include "counting.hpp"

#include <nlohmann/json.hpp>
#include <set>

#include "html_report.hpp"
#include "json_report.hpp"
#include "support.hpp"
#include "text_report.hpp"
#include "words.hpp"

using namespace resolution;
using Counts = std::vector<std::size_t>;

TEST_CASE("The counting experiment has the numbers of the paper's figure") {
  const Counting counting = count_all({"grpo", "grpo_no_std", "gdpo"});
  const CountTable& by_size = counting.by_group_size;
  CHECK(by_size.sizes == Counts{2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16});
  CHECK(by_size.reward_multisets ==
        Counts{10, 20, 35, 56, 84, 120, 165, 220, 286, 364, 455, 560, 680, 816, 969});
  REQUIRE(by_size.series.size() == 3);
  CHECK(by_size.series[0].counts ==
        Counts{2, 4, 7, 11, 16, 22, 29, 37, 46, 56, 67, 79, 92, 106, 121});
  CHECK(by_size.series[1].counts ==
        Counts{3, 6, 10, 15, 21, 28, 36, 45, 55, 66, 78, 91, 105, 120, 136});
  CHECK(by_size.series[2].counts ==
        Counts{3, 6, 14, 26, 38, 59, 81, 109, 145, 186, 230, 288, 350, 419, 497});

  const CountTable& by_rewards = counting.by_rewards;
  CHECK(by_rewards.sizes == Counts{2, 3, 4, 5, 6});
  CHECK(by_rewards.reward_multisets == Counts{35, 330, 3876, 52360, 766480});
  REQUIRE(by_rewards.series.size() == 3);
  CHECK(by_rewards.series[0].counts == Counts{7, 14, 23, 41, 56});
  CHECK(by_rewards.series[1].counts == Counts{10, 20, 35, 56, 84});
  CHECK(by_rewards.series[2].counts == Counts{14, 45, 127, 318, 722});

  const auto json = nlohmann::json::parse(to_json(counting));
  CHECK(json.size() == 3);
  CHECK(json["estimators"]["grpo_no_std"]["name"] == "dr_grpo");
  CHECK(json["by_group_size"]["n"] == 2);
  CHECK(json["by_group_size"]["gdpo"]["16"] == 497);
  CHECK(json["by_group_size"]["grpo"].size() == 15);
  CHECK(json["by_rewards"]["G"] == 4);
  CHECK(json["by_rewards"]["grpo_no_std"]["6"] == 84);

  // The reports answer the question of their title first; the definition comes last.
  const std::string answer =
      "With 2 binary rewards and 16 completions in a group GDPO can give 497 different groups of "
      "advantages, GRPO without std 136, GRPO 121, out of 969 different groups of rewards. With 6 "
      "rewards and 4 completions: GDPO 722, GRPO without std 84, GRPO 56, out of 766,480.";
  CHECK(count_answer(counting) == answer);
  const std::string definition = "distinct multisets {A_1 .. A_G}";
  const std::string text = to_text(counting);
  CHECK(text.find(wrapped(answer, 100, 0)) == 0);
  CHECK(text.find(definition) > text.find("766480"));
  const std::string page = to_html(counting);
  CHECK(page.find(answer) < page.find("<figure"));
  CHECK(page.find(definition) > page.find("</table>"));
  CHECK(page.find(definition) != std::string::npos);
}

TEST_CASE("The answer names all estimators, the finest first, or the only one") {
  const auto answer = [](const CountTable& by_size, const CountTable& by_rewards) {
    return count_answer({1, 3, by_size, by_rewards});
  };
  CHECK(answer({{2, 3}, {4, 1234}, {{"gdpo", {3, 1000}}}}, {{1}, {5}, {{"gdpo", {4}}}}) ==
        "With 1 binary reward and 3 completions in a group GDPO can give 1,000 different groups of "
        "advantages, out of 1,234 different groups of rewards. With 1 reward and 3 completions: "
        "GDPO 4, out of 5.");
  CHECK(answer({{2}, {9}, {{"grpo", {5}}, {"trl::gdpo", {6}}, {"grpo_no_std", {6}}, {"gdpo", {7}}}},
               {{1}, {5}, {{"grpo", {4}}, {"trl::gdpo", {3}}}}) ==
        "With 1 binary reward and 2 completions in a group GDPO can give 7 different groups of "
        "advantages, trl::gdpo 6, GRPO without std 6, GRPO 5, out of 9 different groups of "
        "rewards. With 1 reward and 3 completions: GRPO 4, trl::gdpo 3, out of 5.");
}

TEST_CASE("A second normalization inside the group loses distinct groups") {
  const Counts by_size{2, 4, 9, 17, 28, 44, 63};
  for (std::size_t size = 2; size <= 8; ++size) {
    CHECK(count_multisets(2, size, {"gdpo_then_group_norm"}).distinct == Counts{by_size[size - 2]});
  }
  const Counts by_rewards{9, 33, 94, 262};
  for (std::size_t n = 2; n <= 5; ++n) {
    CHECK(count_multisets(n, 4, {"gdpo_then_group_norm"}).distinct == Counts{by_rewards[n - 2]});
  }
}

TEST_CASE(
    "Enumerating multisets of rewards misses none: all ordered assignments give the same count") {
  constexpr std::size_t rewards = 2;
  constexpr std::size_t size = 4;
  std::vector<double> all;
  for (unsigned bits = 0; bits < 1U << (rewards * size); ++bits) {
    for (std::size_t i = 0; i < rewards * size; ++i) all.push_back((bits >> i) & 1U);
  }
  const std::vector<double> a = advantages_before_batch_step("gdpo", all, rewards, size);
  std::set<std::vector<long>> multisets;
  for (std::size_t row = 0; row < a.size(); row += size) {
    std::vector<long> group;
    for (std::size_t i = 0; i < size; ++i) group.push_back(std::lround(a[row + i] * 1e6));
    std::sort(group.begin(), group.end());
    multisets.insert(group);
  }
  CHECK(Counts{multisets.size()} == count_multisets(rewards, size, {"gdpo"}).distinct);
}
