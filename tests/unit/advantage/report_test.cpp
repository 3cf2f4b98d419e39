// labels: sanitizers
// Every field of GroupReport against numbers worked out by hand, the keys that trainers log, and
// the laws of merge. Counts are exact; sums and roots are within tolerance::formula, and merged
// means and stds within tolerance::merge.
#include <gdpo/advantages.hpp>
#include <unordered_map>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "support/tolerance.hpp"

namespace report_test {

namespace {

const double no = std::nan("");
using Flags = std::vector<unsigned char>;

bool near_to(double a, double b) { return std::abs(a - b) <= tolerance::formula; }

template <class Estimator = gdpo::Gdpo>
gdpo::GroupReport report_of(const std::vector<double>& rewards, gdpo::index_t reward_count,
                            gdpo::index_t group, const Estimator& e = {},
                            const std::vector<double>& valid = {}) {
  gdpo::RewardBatch batch{
      gdpo::view(rewards.data(), static_cast<gdpo::index_t>(rewards.size()) / reward_count,
                 reward_count),
      gdpo::groups_of(group)};
  if (!valid.empty()) batch.valid = gdpo::view(valid);
  gdpo::GroupReport report;
  gdpo::advantages(gdpo::seq, batch, e, &report);
  return report;
}

using Keys = std::map<std::string, double>;

/// Checks a map against the keys and numbers that it should have, and no other.
void check_keys(const Keys& got, const Keys& expected) {
  for (const auto& [key, value] : expected) {
    INFO(key);
    REQUIRE(got.count(key) == 1);
    CHECK(near_to(got.at(key), value));
  }
  CHECK(got.size() == expected.size());
}

/// The completions of one prompt: (rows, 3) rewards, and which rows are used.
struct Prompt {
  std::vector<double> rewards, valid;
};

/// 12 prompts of 0 to 6 completions, with missing rewards, unused rows, groups without a spread,
/// and means far from 0.
std::vector<Prompt> random_prompts(Random& random) {
  std::vector<Prompt> prompts(12);
  for (Prompt& prompt : prompts) {
    const bool flat = random.chance(0.2);
    for (int rows = random.below(7); rows > 0; --rows) {
      for (int c = 0; c < 3; ++c) {
        const double value = 1000.0 * c + random_reward(random, flat ? 0 : 3);
        prompt.rewards.push_back(random.chance(0.15) ? no : flat ? 1000.0 * c : value);
      }
      prompt.valid.push_back(random.chance(0.1) ? 0 : 1);
    }
  }
  return prompts;
}

/// The report of one call over these prompts.
template <class Estimator>
gdpo::GroupReport report_of(const std::vector<Prompt>& prompts, const Estimator& e) {
  std::vector<double> rewards, valid;
  std::vector<int> offsets{0};
  for (const Prompt& prompt : prompts) {
    rewards.insert(rewards.end(), prompt.rewards.begin(), prompt.rewards.end());
    valid.insert(valid.end(), prompt.valid.begin(), prompt.valid.end());
    offsets.push_back(static_cast<int>(valid.size()));
  }
  const auto rows = static_cast<gdpo::index_t>(valid.size());
  gdpo::RewardBatch batch{gdpo::view(rewards.data(), rows, 3), gdpo::by_offsets(offsets)};
  batch.valid = gdpo::view(valid.data(), rows);
  gdpo::GroupReport report;
  gdpo::advantages(gdpo::seq, batch, e, &report);
  return report;
}

/// Prompts begin to end - 1.
std::vector<Prompt> some(const std::vector<Prompt>& prompts, int begin, int end) {
  return {prompts.begin() + begin, prompts.begin() + end};
}

gdpo::index_t at(std::size_t c) { return static_cast<gdpo::index_t>(c); }

/// Checks a mean or std within tolerance::merge of `size`: for a std the std itself, for a mean the
/// larger of mean and std. NaN equals NaN.
void check_near(double got, double expected, double size) {
  if (std::isnan(expected)) {
    CHECK(std::isnan(got));
  } else {
    CHECK(std::abs(got - expected) <= tolerance::merge * size);
  }
}

/// Checks what does not depend on the order of the groups.
void check_same_figures(const gdpo::GroupReport& got, const gdpo::GroupReport& expected) {
  for (const auto& count : gdpo::detail::report_counts) {
    INFO(count.name);
    CHECK(got.*count.member == expected.*count.member);
  }
  CHECK(got.one_group == expected.one_group);
  CHECK(got.zero_std_group_rows == expected.zero_std_group_rows);
  check_near(got.reward_mean, expected.reward_mean,
             std::max(std::abs(expected.reward_mean), expected.reward_std));
  check_near(got.reward_std, expected.reward_std, expected.reward_std);
  check_near(got.reward_std_mean_of_groups, expected.reward_std_mean_of_groups,
             expected.reward_std_mean_of_groups);
  check_near(got.combined_std, expected.combined_std, expected.combined_std);
  REQUIRE(got.rewards.size() == expected.rewards.size());
  for (std::size_t c = 0; c < expected.rewards.size(); ++c) {
    const gdpo::RewardReport &a = got.rewards[c], &b = expected.rewards[c];
    CHECK(a.n == b.n);
    check_near(a.mean, b.mean, std::max(std::abs(b.mean), b.std));
    check_near(a.std, b.std, b.std);
    CHECK(difference(std::vector{a.min, a.max}, std::vector{b.min, b.max}) == "");
    CHECK(a.zero_std_groups == b.zero_std_groups);
    // Sums of products may cancel: their roundings are those of the sums of squares.
    check_near(a.explained, b.explained, 64);
    for (std::size_t d = 0; d < expected.rewards.size(); ++d) {
      check_near(got.correlation(at(c), at(d)), expected.correlation(at(c), at(d)), 1);
    }
  }
  CHECK(got.canceled_groups() == expected.canceled_groups());
}

/// Checks every field.
void check_same(const gdpo::GroupReport& got, const gdpo::GroupReport& expected) {
  check_same_figures(got, expected);
  CHECK(got.degenerate == expected.degenerate);
  CHECK(got.reward_degenerate == expected.reward_degenerate);
  CHECK(difference(got.group_std, expected.group_std) == "");
  CHECK(difference(got.reward_group_std, expected.reward_group_std) == "");
  CHECK(difference(got.group_squares, expected.group_squares) == "");
}

}  // namespace

TEST_CASE("a ragged batch with missing rewards, field by field", "[report]") {
  // Group 0 has three rows, group 1 one, group 2 none, and group 3 a row with one reward and a row
  // without any.
  const std::vector<double> rewards{1, 0, 0, 1, 1, 1, 2, 5, 3, no, no, no};
  const std::vector<int> offsets{0, 3, 4, 4, 6};
  gdpo::GroupReport r;
  gdpo::advantages(gdpo::view(rewards.data(), 6, 2), gdpo::by_offsets(offsets), &r);

  CHECK(r.rows == 6);
  CHECK(r.groups == 4);
  CHECK(r.smallest_group == 0);
  CHECK(r.largest_group == 3);
  CHECK(r.singletons == 2);  // groups 1 and 3
  CHECK(r.empty_groups == 1);
  CHECK(!r.one_group);
  CHECK(r.excluded_rewards == 3);
  CHECK(r.infinite_rewards == 0);
  CHECK(r.excluded_rows == 1);
  CHECK(r.unused_rows == 0);
  CHECK(r.degenerate == Flags{0, 1, 1, 1});
  CHECK(r.reward_degenerate == Flags{0, 0, 1, 1, 1, 1, 1, 1});

  REQUIRE(r.rewards.size() == 2);
  CHECK(r.rewards[0].n == 5);
  CHECK(near_to(r.rewards[0].mean, 1.4));
  CHECK(near_to(r.rewards[0].std, std::sqrt(1.3)));
  CHECK(r.rewards[0].min == 0);
  CHECK(r.rewards[0].max == 3);
  CHECK(near_to(r.rewards[0].zero_std_groups, 2.0 / 3));  // share of the groups with a value
  CHECK(r.rewards[1].n == 4);
  CHECK(near_to(r.rewards[1].mean, 1.75));
  CHECK(near_to(r.rewards[1].std, std::sqrt(14.75 / 3)));
  CHECK(r.rewards[1].min == 0);
  CHECK(r.rewards[1].max == 5);
  CHECK(r.rewards[1].zero_std_groups == 0.5);

  // The reward sums of the groups: 1 1 2 | 7 | | 3.
  REQUIRE(r.group_std.size() == 4);
  CHECK(near_to(r.group_std[0], std::sqrt(1.0 / 3)));
  CHECK(r.group_std[1] == 0);
  CHECK(std::isnan(r.group_std[2]));
  CHECK(std::isnan(r.group_std[3]));
  // The values of the rewards: 1 0 1 and 0 1 1 | 2 and 5 | none | 3 and none.
  REQUIRE(r.reward_group_std.size() == 8);
  CHECK(near_to(r.reward_group_std[0], std::sqrt(1.0 / 3)));
  CHECK(near_to(r.reward_group_std[1], std::sqrt(1.0 / 3)));
  for (std::size_t k = 2; k < 8; ++k) CHECK(std::isnan(r.reward_group_std[k]));
  // The combined values: -0.577 -0.577 1.155 | 0 | none | 0 and one that does not count.
  REQUIRE(r.group_squares.size() == 4);
  CHECK(near_to(r.group_squares[0], 2));
  CHECK(std::vector<double>(r.group_squares.begin() + 1, r.group_squares.end()) ==
        std::vector<double>{0, 0, 0});
  CHECK(near_to(r.largest_z(), 2 / std::sqrt(3.0)));
  CHECK(near_to(r.reward_mean, 2.8));
  CHECK(near_to(r.reward_std, std::sqrt(6.2)));
  CHECK(near_to(r.reward_std_mean_of_groups, std::sqrt(1.0 / 3) / 2));
  CHECK(near_to(r.combined_std, std::sqrt(0.5)));  // of -0.577 -0.577 1.155 0 0
  CHECK(near_to(r.zero_std_rows(gdpo::ZeroStd::Groups), 1.0 / 6));
  CHECK(r.zero_std_rows(gdpo::ZeroStd::Batch) == 0);
  CHECK(r.zero_std_rows(gdpo::ZeroStd::Sum) == 0);
}

TEST_CASE("a constant sum is degenerate, its rewards are not", "[report]") {
  const std::vector<double> rewards{1, 0, 0, 1};
  const gdpo::GroupReport grpo = report_of(rewards, 2, 2, gdpo::Grpo{}),
                          gdpo = report_of(rewards, 2, 2);
  for (const gdpo::GroupReport& r : {grpo, gdpo}) {
    CHECK(r.degenerate == Flags{1});
    CHECK(r.reward_degenerate == Flags{0, 0});
    CHECK(r.one_group);
    CHECK(r.reward_std == 0);
    CHECK(r.zero_std_rows(gdpo::ZeroStd::Groups) == 1);
    CHECK(r.zero_std_rows(gdpo::ZeroStd::Batch) == 1);
    CHECK(r.zero_std_rows(gdpo::ZeroStd::Sum) == 1);
  }
  // With unequal weights or three rewards GDPO distinguishes the rows, though a filter on the plain
  // sum would drop the group.
  gdpo::Gdpo weighted;
  weighted.weights = {1, 0.5};
  CHECK(report_of(rewards, 2, 2, weighted).degenerate == Flags{0});
  const std::vector<double> three{1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1};
  CHECK(report_of(three, 3, 4).degenerate == Flags{0});
  CHECK(report_of(three, 3, 4, gdpo::Grpo{}).degenerate == Flags{1});
  CHECK(report_of(three, 3, 4).zero_std_rows(gdpo::ZeroStd::Groups) == 1);  // by the reward sums
  CHECK(report_of(three, 3, 4).zero_std_rows(gdpo::ZeroStd::Sum) == 0);  // by the combined values
}

TEST_CASE("a reward of weight 0 is described, but is neither missing nor infinite", "[report]") {
  gdpo::Gdpo e;
  e.weights = {1, 0};
  const double inf = std::numeric_limits<double>::infinity();
  const gdpo::GroupReport r = report_of({1, no, 2, inf, 3, 4, 5, 4}, 2, 2, e);
  CHECK(r.excluded_rewards == 0);
  CHECK(r.infinite_rewards == 0);
  CHECK(r.rewards[1].n == 3);
  CHECK(r.reward_degenerate == Flags{0, 1, 0, 1});
  CHECK(report_of({1, no, 2, inf, 3, 4, 5, 4}, 2, 2).infinite_rewards == 1);
  CHECK(report_of({1, no, 2, inf, 3, 4, 5, 4}, 2, 2).excluded_rewards == 1);
}

TEST_CASE("unused rows are counted and are in nothing else", "[report]") {
  const gdpo::GroupReport r =
      report_of({1, 2, 100, 3, 4, -100}, 1, 3, gdpo::Grpo{}, {1, 1, 0, 1, 1, 0});
  CHECK(r.unused_rows == 2);
  CHECK(r.excluded_rows == 0);
  CHECK(r.rows == 6);
  CHECK(r.rewards[0].n == 4);
  CHECK(r.rewards[0].max == 4);
  CHECK(r.reward_mean == 2.5);
  CHECK(near_to(r.group_std[1], std::sqrt(0.5)));
  CHECK(r.largest_group == 3);
}

TEST_CASE("gates and penalty are in the report's rewards", "[report]") {
  gdpo::Grpo e;
  e.gates = {gdpo::Gate{1, 0, 1}};
  // The 7 fails the condition of its gate and counts as 0.
  CHECK(report_of({1, 5, 0, 7}, 2, 2, e).rewards[1].mean == 2.5);
  const std::vector<double> rewards{1, 2}, kl{4, 8};
  gdpo::RewardBatch batch{gdpo::view(rewards.data(), 2, 1), gdpo::groups_of(2)};
  batch.penalty = gdpo::view(kl);
  gdpo::Grpo penalized;
  penalized.penalty.coef = 0.5;
  gdpo::GroupReport r;
  gdpo::advantages(gdpo::seq, batch, penalized, &r);
  CHECK(r.reward_mean == -1.5);     // the mean of the penalized sums -1 and -2
  CHECK(r.rewards[0].mean == 1.5);  // the reward itself
}

TEST_CASE("groups that are narrow against the batch, and groups that hold its squares",
          "[report]") {
  // Stds of the groups: 10 / sqrt 2, 0.01 / sqrt 2, 0 and 4 / sqrt 2. That of the batch is about 4.
  const std::vector<double> rewards{0, 10, 5, 5.01, 5, 5, 3, 7};
  const gdpo::GroupReport r = report_of(rewards, 1, 2, gdpo::DrGrpo{});
  CHECK(r.narrow_groups() == 1);  // the second; the third has no spread
  CHECK(r.narrow_groups(0.001) == 0);
  CHECK(r.narrow_groups(1) == 2);
  CHECK(r.narrow_groups(100) == 3);
  CHECK(r.narrow_groups(0) == 0);
  CHECK(r.narrow_groups(1, 0) == 2);  // one reward: its stds are those of the sum
  CHECK(r.largest_z() == 5);
  // Squares: 50, 0.00005, 0 and 8.
  CHECK(near_to(r.top_groups_share(), 50 / 58.00005));
  CHECK(near_to(r.top_groups_share(0), 50 / 58.00005));     // at least one group
  CHECK(near_to(r.top_groups_share(0.26), 58 / 58.00005));  // two groups: rounded up
  CHECK(r.top_groups_share(1) == 1);
  // Under the group's own std each group with a spread weighs the same.
  const gdpo::GroupReport scaled = report_of(rewards, 1, 2, gdpo::Grpo{});
  CHECK(near_to(scaled.top_groups_share(), 1.0 / 3));
  CHECK(near_to(scaled.largest_z(), std::sqrt(0.5)));

  // A reward that is narrow in a group may hide in a sum that is not.
  const gdpo::GroupReport two = report_of({0, 1, 9, 1.01, 0, 5, 9, 9}, 2, 2);
  CHECK(two.narrow_groups(0.1) == 0);
  CHECK(two.narrow_groups(0.1, 0) == 0);
  CHECK(two.narrow_groups(0.1, 1) == 1);

  // What cannot be known counts as nothing, and NaN shows.
  const gdpo::GroupReport nothing;
  CHECK(nothing.narrow_groups() == 0);
  CHECK(nothing.largest_z() == 0);
  CHECK(nothing.top_groups_share() == 0);
  CHECK(report_of({1, 1, 2, 2}, 1, 2).top_groups_share() == 0);
  const double inf = std::numeric_limits<double>::infinity();
  const gdpo::GroupReport infinite = report_of({1, 2, inf, 0}, 1, 2, gdpo::Grpo{});
  CHECK(std::isnan(infinite.largest_z()));
  CHECK(std::isnan(infinite.top_groups_share()));
  CHECK(infinite.narrow_groups(100) == 0);
}

TEST_CASE("a group with an infinite reward explains nothing", "[report]") {
  const double inf = std::numeric_limits<double>::infinity();
  // In the second group the mean of the first reward is infinite.
  const std::vector<double> rewards{1, 0, 0, 2, inf, 1, 0, 0}, finite{1, 0, 0, 2};
  const auto check = [&](auto e) {
    e.weights = {1, 0.25};
    for (const auto infinite : {gdpo::InfiniteEntry::NanToNum, gdpo::InfiniteEntry::Propagate}) {
      e.missing.infinite = infinite;
      const gdpo::GroupReport r = report_of(rewards, 2, 2, e), wanted = report_of(finite, 2, 2, e);
      CHECK(near_to(r.within_squares, wanted.within_squares));
      for (const std::size_t c : {0u, 1u})
        CHECK(near_to(r.rewards[c].explained, wanted.rewards[c].explained));
      CHECK(near_to(r.rewards[0].explained + r.rewards[1].explained, 1));
    }
  };
  check(gdpo::DrGrpo{});
  check(gdpo::RawReward{});
  check(gdpo::GroupAdvantage<gdpo::baseline::Mean, gdpo::scale::None>{});
  // Squares that overflow are no correlation.
  CHECK(std::isnan(report_of({1e200, 1e200, 0, 0}, 2, 2).correlation(0, 1)));
  CHECK(report_of({1e140, 1e140, 0, 0}, 2, 2).correlation(0, 1) == 1);
}

TEST_CASE("two rewards that vary apart: how they go together, and what each explains", "[report]") {
  // Weighted 1 and 1/2, the sums are 1.5, 0.5, 1 and 0: variances 1 and 1/4 of 5/4.
  const std::vector<double> apart{1, 1, 0, 1, 1, 0, 0, 0};
  gdpo::DrGrpo half;
  half.weights = {1, 0.5};
  gdpo::GroupReport r = report_of(apart, 2, 4, half);
  CHECK(r.correlation(0, 1) == 0);
  CHECK(r.correlation(1, 1) == 1);
  CHECK(near_to(r.rewards[0].explained, 0.8));
  CHECK(near_to(r.rewards[1].explained, 0.2));
  CHECK(near_to(r.within_squares, 1.25));
  // GDPO divides both by the same std.
  gdpo::Gdpo gdpo_half;
  gdpo_half.weights = {1, 0.5};
  r = report_of(apart, 2, 4, gdpo_half);
  CHECK(near_to(r.rewards[0].explained, 0.8));
  CHECK(near_to(r.rewards[1].explained, 0.2));

  // Reward 1 is large: under GRPO it explains all but 1 / 1e4, under GDPO half.
  const std::vector<double> large{1, 100, 0, 100, 1, 0, 0, 0};
  CHECK(near_to(report_of(large, 2, 4, gdpo::Grpo{}).rewards[0].explained, 1 / 10001.0));
  CHECK(near_to(report_of(large, 2, 4).rewards[0].explained, 0.5));

  // Groups far from each other say nothing of what goes together inside them.
  const std::vector<double> groups{1, 11, 0, 10, 5, 3, 6, 2};  // +1, +1; then +1, -1
  r = report_of(groups, 2, 2);
  CHECK(r.correlation(0, 1) == 0);
  CHECK(report_of({1, 11, 0, 10}, 2, 2).correlation(1, 0) == 1);
  CHECK(report_of({5, 3, 6, 2}, 2, 2).correlation(0, 1) == -1);
  CHECK(r.canceled_groups() == 1);
  // Products 4, squares 2 and 56/3.
  const gdpo::GroupReport unequal = report_of({1, 2, 2, 8, 3, 6}, 2, 3);
  CHECK(near_to(unequal.correlation(0, 1), 4 / std::sqrt(112 / 3.0)));
  CHECK(near_to(unequal.correlation(1, 0), 4 / std::sqrt(112 / 3.0)));

  // One reward explains all; one without a weight, or without a spread, nothing.
  CHECK(report_of({1, 2, 3, 5}, 1, 2).rewards[0].explained == 1);
  half.weights = {0, 2};
  r = report_of(apart, 2, 4, half);
  CHECK(r.rewards[0].explained == 0);
  CHECK(r.rewards[1].explained == 1);
  r = report_of({1, 7, 0, 7}, 2, 2);
  CHECK(r.rewards[1].explained == 0);
  CHECK(std::isnan(r.correlation(0, 1)));
  CHECK(std::isnan(report_of({1, 1, 1, 1}, 2, 2).rewards[0].explained));

  // A missing reward leaves its pair alone; an unused row is in nothing.
  const std::vector<double> missing{1, no, 3, 1, 0, 0, 2, 1};
  r = report_of(missing, 2, 4);
  CHECK(near_to(r.correlation(0, 1), report_of({3, 1, 0, 0, 2, 1}, 2, 3).correlation(0, 1)));
  r = report_of(missing, 2, 4, gdpo::Gdpo{}, {0, 1, 1, 1});
  CHECK(near_to(r.correlation(0, 1), report_of({3, 1, 0, 0, 2, 1}, 2, 3).correlation(0, 1)));

  // With a penalty in the sum the shares leave out its own.
  gdpo::RewardBatch batch{gdpo::view(apart.data(), 4, 2), gdpo::groups_of(4)};
  const std::vector<double> kl{0, 1, 0, 1};  // moves with reward 0
  batch.penalty = gdpo::view(kl);
  gdpo::DrGrpo penalized;
  penalized.penalty.coef = 1;
  gdpo::advantages(gdpo::seq, batch, penalized, &r);
  // x = 2, 0, 1, -1: variance 5, covariances 2 and 1 with the rewards, 2 with the penalty.
  CHECK(near_to(r.rewards[0].explained, 0.4));
  CHECK(near_to(r.rewards[1].explained, 0.2));
}

TEST_CASE("what the rewards explain adds up to 1, and follows from the advantages", "[report]") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const int groups = 5, members = random.pick({2, 3, 8});
    std::vector<double> rewards;
    for (int i = 0; i < groups * members * 3; ++i) {
      rewards.push_back(random.chance(0.1) ? no : 0.25 * random.below(9));
      if (random.chance(0.02)) rewards.back() = 1e6;
    }
    const std::vector<double> weights{1, random.pick({0.5, -1.0}), random.pick({2.0, 0.0})};
    const auto check = [&](auto e) {
      e.weights = weights;
      e.renorm = gdpo::renorm::none();
      const gdpo::GroupReport r = report_of(rewards, 3, members, e);
      gdpo::GroupReport lanes;
      gdpo::advantages(gdpo::view(rewards.data(), at(rewards.size() / 3), 3),
                       gdpo::groups_of(members), e, &lanes);
      for (std::size_t c = 0; c < 3; ++c) {
        CHECK((same_bits(lanes.rewards[c].explained, r.rewards[c].explained) ||
               std::isnan(r.rewards[c].explained)));
      }
      // Those of one reward at a time: the engine's terms, where each is standardized by itself.
      double total = 0, sizes = 0, expected[3] = {0, 0, 0}, squares = 0;
      for (const gdpo::RewardReport& reward : r.rewards) {
        total += reward.explained;
        sizes += std::abs(reward.explained);
      }
      if (std::isnan(total)) return;
      CHECK(std::abs(total - 1) <= 64 * tolerance::formula * (1 + sizes));
      if constexpr (!std::is_same_v<decltype(e), gdpo::Gdpo>) return;
      const auto n = static_cast<gdpo::index_t>(rewards.size() / 3);
      const auto table = gdpo::view(rewards.data(), n, 3);
      const auto s = gdpo::advantages(table, gdpo::groups_of(members), e);
      for (std::size_t c = 0; c < 3; ++c) {
        auto alone = e;
        std::vector<double> w(3, 0.0);
        w[c] = weights[c];
        alone.weights = w;
        const auto z = gdpo::advantages(table, gdpo::groups_of(members), alone);
        for (std::size_t i = 0; i < s.size(); ++i) expected[c] += z[i] * s[i];
      }
      for (const double x : s) squares += x * x;
      for (std::size_t c = 0; c < 3; ++c)
        CHECK(std::abs(r.rewards[c].explained - expected[c] / squares) <=
              64 * tolerance::formula * (1 + sizes));
    };
    check(gdpo::Gdpo{});
    check(gdpo::Grpo{});
    check(gdpo::Rloo{});
  }
}

TEST_CASE("what a report cannot be asked", "[report][errors]") {
  const gdpo::GroupReport r = report_of({1, 0, 0, 1}, 2, 2);
  CHECK(message_of([&] { r.correlation(0, 2); }) ==
        "gdpo::GroupReport::correlation: b: given 2; needed: 0 to 1, a reward");
  CHECK(message_of([] { gdpo::GroupReport{}.correlation(0, 0); }) ==
        "gdpo::GroupReport::correlation: a: given 0; needed: a report that a call has filled in");
  CHECK(message_of([&] { r.narrow_groups(-0.5); }) ==
        "gdpo::GroupReport::narrow_groups: s: given -0.5; needed: a factor of the batch's std, at "
        "least 0");
  CHECK(message_of([&] { r.narrow_groups(no); }) ==
        "gdpo::GroupReport::narrow_groups: s: given nan; needed: a factor of the batch's std, at "
        "least 0");
  CHECK(message_of([&] { r.narrow_groups(0.1, 2); }) ==
        "gdpo::GroupReport::narrow_groups: reward: given 2; needed: 0 to 1, a reward");
  CHECK(message_of([] { gdpo::GroupReport{}.narrow_groups(0.1, 0); }) ==
        "gdpo::GroupReport::narrow_groups: reward: given 0; needed: a report that a call has "
        "filled in");
  CHECK(message_of([&] { r.top_groups_share(1.5); }) ==
        "gdpo::GroupReport::top_groups_share: fraction: given 1.5; needed: a share of the groups, "
        "0 to 1");
}

TEST_CASE("nothing at all has a report", "[report]") {
  gdpo::GroupReport r;
  const std::vector<double> none;
  gdpo::advantages(gdpo::view(none.data(), 0, 2), gdpo::groups_of(4), &r);
  CHECK(r.rows == 0);
  CHECK(r.groups == 0);
  CHECK(r.smallest_group == 0);
  CHECK(r.largest_group == 0);
  CHECK(!r.one_group);
  CHECK(r.rewards.size() == 2);
  CHECK(r.rewards[0].n == 0);
  CHECK(std::isnan(r.rewards[0].mean));
  CHECK(r.rewards[0].zero_std_groups == 0);
  CHECK(std::isnan(r.reward_mean));
  CHECK(std::isnan(r.reward_std_mean_of_groups));
  CHECK(r.degenerate.empty());
  CHECK(r.zero_std_rows(gdpo::ZeroStd::Groups) == 0);
}

TEST_CASE("a report used again for another shape holds the new call alone", "[report]") {
  gdpo::GroupReport used = report_of({1, no, no, no, 3, 4, 5, 9}, 2, 1), fresh;
  const std::vector<double> rewards{1, 2, 3, 5, 5, 5};
  gdpo::advantages(gdpo::view(rewards.data(), 6, 1), gdpo::groups_of(3), &used);
  gdpo::advantages(gdpo::view(rewards.data(), 6, 1), gdpo::groups_of(3), &fresh);
  CHECK(used.excluded_rewards == 0);
  CHECK(used.excluded_rows == 0);
  CHECK(used.degenerate == fresh.degenerate);
  CHECK(used.reward_degenerate == fresh.reward_degenerate);
  CHECK(difference(used.group_std, fresh.group_std) == "");
  CHECK(used.rewards.size() == 1);
  CHECK(used.reward_std == fresh.reward_std);
}

TEST_CASE("a report does not refuse what the estimator does not read", "[report]") {
  // MissingEntry::Reject refuses NaN in rewards that are read. Reward 1 has weight 0, so its NaN
  // changes neither the advantages nor, with a report, whether the call succeeds.
  gdpo::Gdpo e;
  e.weights = {1, 0};
  e.missing.entry = gdpo::MissingEntry::Reject;
  const gdpo::GroupReport r = report_of({1, no, 0, 2}, 2, 2, e);
  CHECK(r.rewards[1].n == 1);
  CHECK(r.excluded_rewards == 0);
  CHECK_THROWS_AS(report_of({no, 1, 0, 2}, 2, 2, e), gdpo::invalid_input);
}

TEST_CASE("rewards under the keys of trainers", "[report]") {
  // The reward sums of the groups: 1 3 | 2 2 | 9.
  const std::vector<double> rewards{1, 0, 0, 3, 2, 0, 1, 1, 9, no};
  const std::vector<int> offsets{0, 2, 4, 5};
  gdpo::GroupReport r;
  gdpo::advantages(gdpo::view(rewards.data(), 5, 2), gdpo::by_offsets(offsets), gdpo::Grpo{}, &r);

  // TRL's default: the std over all rows, whose mean is 3.4.
  const Keys trl{{"train/reward", 3.4},
                 {"train/reward_std", std::sqrt((2.4 * 2.4 + 0.16 + 2 * 1.96 + 5.6 * 5.6) / 4)},
                 {"train/frac_reward_zero_std", 0.6},
                 {"train/rewards/correct/mean", 2.6},
                 {"train/rewards/correct/std", std::sqrt((2.56 + 6.76 + 0.36 + 2.56 + 40.96) / 4)},
                 {"train/rewards/short/mean", 1},
                 {"train/rewards/short/std", std::sqrt(2.0)}};
  check_keys(r.to_map("train/", {"correct", "short"}), trl);

  // ms-swift's default: the mean of the stds of the groups, that of a group of one being 0.
  Keys swift = trl;
  swift["train/reward_std"] = std::sqrt(2.0) / 3;
  check_keys(r.to_map("train/", {"correct", "short"}, gdpo::ZeroStd::Groups,
                      gdpo::RewardStd::MeanOfGroups),
             swift);

  // The other ways of counting, on rewards without any spread in the batch.
  const gdpo::GroupReport flat = report_of({1, 0, 0, 1}, 2, 1);
  for (const auto by : {gdpo::ZeroStd::Groups, gdpo::ZeroStd::Batch, gdpo::ZeroStd::Sum})
    CHECK(flat.to_map("", {}, by).at("frac_reward_zero_std") == 1);
  CHECK(r.to_map("", {}, gdpo::ZeroStd::Batch).at("frac_reward_zero_std") == 0);

  // Without names, rewards have numbers; any map from strings to numbers will do.
  const auto numbers = r.to_map<std::unordered_map<std::string, double>>();
  CHECK(numbers.at("rewards/0/mean") == 2.6);
  CHECK(numbers.at("rewards/1/mean") == 1);
}

TEST_CASE("what cannot be known has no key", "[report]") {
  CHECK(gdpo::GroupReport{}.to_map().empty());
  CHECK(message_of([&] { gdpo::GroupReport{}.to_map("", {}, static_cast<gdpo::ZeroStd>(3)); }) ==
        "gdpo::GroupReport::to_map: zero_std: given 3, which is no enumerator; needed: one of "
        "groups, batch, sum");
  CHECK(message_of(
            [&] { gdpo::GroupReport{}.to_map("", {}, {}, static_cast<gdpo::RewardStd>(2)); }) ==
        "gdpo::GroupReport::to_map: std: given 2, which is no enumerator; needed: one of batch, "
        "mean_of_groups");
  const std::vector<double> none;
  gdpo::GroupReport r;
  gdpo::advantages(gdpo::view(none.data(), 0, 2), gdpo::groups_of(4), &r);
  CHECK(r.to_map("", {"a", "b"}).empty());
  // One row, in which one of two rewards is missing: there is no std.
  check_keys(report_of({2, no}, 2, 1).to_map(),
             {{"reward", 2}, {"frac_reward_zero_std", 1}, {"rewards/0/mean", 2}});
  // The std of a group of one is 0 as ms-swift counts it.
  CHECK(report_of({2, no}, 2, 1)
            .to_map("", {}, gdpo::ZeroStd::Groups, gdpo::RewardStd::MeanOfGroups)
            .at("reward_std") == 0);
  // An infinite reward is not unknown: the mean is NaN, as a trainer logs it.
  const double inf = std::numeric_limits<double>::infinity();
  CHECK(std::isnan(report_of({1, inf}, 1, 2).to_map().at("reward")));
}

TEST_CASE("names that do not fit the rewards", "[report]") {
  const gdpo::GroupReport r = report_of({1, 0, 0, 1}, 2, 2);
  CHECK(message_of([&] { r.to_map("", {"one"}); }) ==
        "gdpo::GroupReport::to_map: names: given 1 names; needed: 2, one for each reward, or none");
  CHECK(message_of([&] {
          r.to_map("", {"a", "b", "c"});
        }).find("given 3 names") != std::string::npos);
  CHECK(message_of([&] {
          r.to_map("", {"a", "a"});
        }) ==
        "gdpo::GroupReport::to_map: names: given \"a\" twice; needed: a name of its own for each "
        "reward");
}

TEST_CASE("merged reports are those of one call, however they are merged", "[report][merge]") {
  gdpo::Gdpo weighted;
  weighted.weights = {1, 0.5, 2};
  weighted.gates = {gdpo::Gate{1, 0, 0.5}};
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    std::vector<Prompt> prompts = random_prompts(random);
    const auto check = [&](const auto& e) {
      const gdpo::GroupReport whole = report_of(prompts, e);
      const int cut = random.below(13), second = cut + random.below(13 - cut);
      const gdpo::GroupReport a = report_of(some(prompts, 0, cut), e),
                              b = report_of(some(prompts, cut, second), e),
                              c = report_of(some(prompts, second, 12), e);
      check_same(merge(merge(a, b), c), whole);
      check_same(merge(a, merge(b, c)), whole);
      // One report for each prompt, from the left.
      gdpo::GroupReport each;
      for (int i = 0; i < 12; ++i) each = merge(each, report_of(some(prompts, i, i + 1), e));
      check_same(each, whole);
      // The prompts in another order, in other reports.
      std::vector<Prompt> shuffled = prompts;
      random.shuffle(shuffled);
      check_same_figures(
          merge(report_of(some(shuffled, cut, 12), e), report_of(some(shuffled, 0, cut), e)),
          whole);
    };
    check(gdpo::Gdpo{});
    check(weighted);
    check(gdpo::Grpo{});
  }
}

TEST_CASE("an empty report is neutral, and so is one of no rows", "[report][merge]") {
  const gdpo::GroupReport r = report_of({1, 2, 3, 5, no, 4}, 3, 2), empty;
  for (const gdpo::GroupReport& m : {merge(r, empty), merge(empty, r)}) {
    check_same(m, r);
    CHECK(m.reward_mean == r.reward_mean);
    CHECK(m.rewards[0].std == r.rewards[0].std);
  }
  CHECK(merge(empty, empty).to_map().empty());
  gdpo::GroupReport no_rows;
  const std::vector<double> none;
  gdpo::advantages(gdpo::view(none.data(), 0, 3), gdpo::groups_of(2), &no_rows);
  check_same(merge(r, no_rows), r);
  check_same(merge(no_rows, r), r);
  CHECK(merge(no_rows, r).smallest_group == 2);
}

TEST_CASE("infinite rewards merge as one call sees them", "[report][merge]") {
  const double inf = std::numeric_limits<double>::infinity();
  for (const std::vector<double>& values : {std::vector<double>{1, 2, inf, 3},
                                            {inf, 3, 1, 2},
                                            {inf, inf, inf, inf},
                                            {-inf, 1, 2, inf},
                                            {1, 1, inf, inf},
                                            {-inf, -inf, -inf, 4}}) {
    const std::vector<double> first(values.begin(), values.begin() + 2),
        last(values.begin() + 2, values.end());
    const gdpo::GroupReport whole = report_of(values, 1, 2),
                            m = merge(report_of(first, 1, 2), report_of(last, 1, 2));
    CHECK(m.infinite_rewards == whole.infinite_rewards);
    const gdpo::RewardReport &got = m.rewards[0], &expected = whole.rewards[0];
    const std::vector<std::pair<double, double>> pairs{{got.mean, expected.mean},
                                                       {got.std, expected.std},
                                                       {got.min, expected.min},
                                                       {got.max, expected.max},
                                                       {m.reward_mean, whole.reward_mean},
                                                       {m.reward_std, whole.reward_std}};
    for (const auto& [a, b] : pairs) CHECK((a == b || (std::isnan(a) && std::isnan(b))));
  }
}

TEST_CASE("reports of different rewards do not merge", "[report][merge]") {
  CHECK(message_of([] {
          merge(report_of({1, 2}, 1, 2), report_of({1, 2}, 2, 1));
        }) == "gdpo::merge: b.rewards: given 2 rewards; needed: 1, as in a");
}

}  // namespace report_test
