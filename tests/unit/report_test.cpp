// Every field of GroupReport against numbers worked out by hand. Counts are exact; sums and roots
// are within tolerance::formula.
#include <gdpo/advantages.hpp>

#include "support/catch.hpp"
#include "support/tolerance.hpp"

namespace {

const double no = std::nan("");
using Flags = std::vector<unsigned char>;

bool near_to(double a, double b) { return std::abs(a - b) <= tolerance::formula; }

template <class Estimator = gdpo::Gdpo>
gdpo::GroupReport report_of(const std::vector<double>& rewards, gdpo::index_t channels,
                            gdpo::index_t group, const Estimator& e = {},
                            const std::vector<double>& valid = {}) {
  gdpo::RewardBatch batch{
      gdpo::view(rewards.data(), static_cast<gdpo::index_t>(rewards.size()) / channels, channels),
      gdpo::groups_of(group)};
  if (!valid.empty()) batch.valid = gdpo::view(valid);
  gdpo::GroupReport report;
  gdpo::advantages(gdpo::seq, batch, e, &report);
  return report;
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
  CHECK(!r.one_group);
  CHECK(r.excluded_rewards == 3);
  CHECK(r.infinite_rewards == 0);
  CHECK(r.excluded_rows == 1);
  CHECK(r.unused_rows == 0);
  CHECK(r.degenerate == Flags{0, 1, 1, 1});
  CHECK(r.channel_degenerate == Flags{0, 0, 1, 1, 1, 1, 1, 1});

  REQUIRE(r.channels.size() == 2);
  CHECK(r.channels[0].n == 5);
  CHECK(near_to(r.channels[0].mean, 1.4));
  CHECK(near_to(r.channels[0].std, std::sqrt(1.3)));
  CHECK(r.channels[0].min == 0);
  CHECK(r.channels[0].max == 3);
  CHECK(near_to(r.channels[0].zero_std_groups, 2.0 / 3));  // share of the groups with a value
  CHECK(r.channels[1].n == 4);
  CHECK(near_to(r.channels[1].mean, 1.75));
  CHECK(near_to(r.channels[1].std, std::sqrt(14.75 / 3)));
  CHECK(r.channels[1].min == 0);
  CHECK(r.channels[1].max == 5);
  CHECK(r.channels[1].zero_std_groups == 0.5);

  // The reward sums of the groups: 1 1 2 | 7 | | 3.
  REQUIRE(r.group_std.size() == 4);
  CHECK(near_to(r.group_std[0], std::sqrt(1.0 / 3)));
  CHECK(r.group_std[1] == 0);
  CHECK(std::isnan(r.group_std[2]));
  CHECK(std::isnan(r.group_std[3]));
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
    CHECK(r.channel_degenerate == Flags{0, 0});
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
  CHECK(r.channels[1].n == 3);
  CHECK(r.channel_degenerate == Flags{0, 1, 0, 1});
  CHECK(report_of({1, no, 2, inf, 3, 4, 5, 4}, 2, 2).infinite_rewards == 1);
  CHECK(report_of({1, no, 2, inf, 3, 4, 5, 4}, 2, 2).excluded_rewards == 1);
}

TEST_CASE("unused rows are counted and are in nothing else", "[report]") {
  const gdpo::GroupReport r =
      report_of({1, 2, 100, 3, 4, -100}, 1, 3, gdpo::Grpo{}, {1, 1, 0, 1, 1, 0});
  CHECK(r.unused_rows == 2);
  CHECK(r.excluded_rows == 0);
  CHECK(r.rows == 6);
  CHECK(r.channels[0].n == 4);
  CHECK(r.channels[0].max == 4);
  CHECK(r.reward_mean == 2.5);
  CHECK(near_to(r.group_std[1], std::sqrt(0.5)));
  CHECK(r.largest_group == 3);
}

TEST_CASE("gates and penalty are in the report's rewards", "[report]") {
  gdpo::Grpo e;
  e.gates = {gdpo::Gate{1, 0, 1}};
  // The 7 fails the condition of its gate and counts as 0.
  CHECK(report_of({1, 5, 0, 7}, 2, 2, e).channels[1].mean == 2.5);
  const std::vector<double> rewards{1, 2}, kl{4, 8};
  gdpo::RewardBatch batch{gdpo::view(rewards.data(), 2, 1), gdpo::groups_of(2)};
  batch.penalty = gdpo::view(kl);
  gdpo::Grpo penalised;
  penalised.penalty.coef = 0.5;
  gdpo::GroupReport r;
  gdpo::advantages(gdpo::seq, batch, penalised, &r);
  CHECK(r.reward_mean == -1.5);      // the mean of the penalised sums -1 and -2
  CHECK(r.channels[0].mean == 1.5);  // the reward itself
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
  CHECK(r.channels.size() == 2);
  CHECK(r.channels[0].n == 0);
  CHECK(std::isnan(r.channels[0].mean));
  CHECK(r.channels[0].zero_std_groups == 0);
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
  CHECK(used.channel_degenerate == fresh.channel_degenerate);
  CHECK(difference(used.group_std, fresh.group_std) == "");
  CHECK(used.channels.size() == 1);
  CHECK(used.reward_std == fresh.reward_std);
}

TEST_CASE("a report does not refuse what the estimator does not read", "[report]") {
  // MissingEntry::Reject refuses NaN in rewards that are read. Reward 1 has weight 0, so its NaN
  // changes neither the advantages nor, with a report, whether the call succeeds.
  gdpo::Gdpo e;
  e.weights = {1, 0};
  e.missing.entry = gdpo::MissingEntry::Reject;
  const gdpo::GroupReport r = report_of({1, no, 0, 2}, 2, 2, e);
  CHECK(r.channels[1].n == 1);
  CHECK(r.excluded_rewards == 0);
  CHECK_THROWS_AS(report_of({no, 1, 0, 2}, 2, 2, e), gdpo::invalid_input);
}
