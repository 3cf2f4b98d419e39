// labels: lanes
// Infinite rewards, sums that overflow, and NaN penalties show in their group, as NaN or as an
// infinity; they are never taken for a group of equal values.
#include <cmath>
#include <gdpo/runtime.hpp>
#include <limits>

#include "support/catch.hpp"

namespace extremes_test {

namespace {

constexpr double inf = std::numeric_limits<double>::infinity(),
                 missing = std::numeric_limits<double>::quiet_NaN();

template <class Estimator>
std::vector<double> of(const std::vector<double>& rewards, gdpo::index_t C, gdpo::index_t K,
                       const Estimator& e, gdpo::GroupReport* report = nullptr) {
  return gdpo::advantages(
      gdpo::view(rewards.data(), static_cast<gdpo::index_t>(rewards.size()) / C, C),
      gdpo::groups_of(K), e, report);
}

/// scaled: the estimator divides by a std, which an infinity makes NaN. Else the finite member has
/// an infinite distance from the mean.
template <class Estimator>
void shows_infinite_rewards(bool scaled, const Estimator& estimator) {
  for (const bool all : {false, true}) {
    gdpo::GroupReport report;
    const std::vector<double> a =
        of({inf, 0, all ? inf : 1, 1, 0, 1, 1, 1}, 2, 2, estimator, &report);
    CHECK(std::isnan(a[0]));
    if (all || scaled) {
      CHECK(std::isnan(a[1]));
    } else {
      CHECK(a[1] == -inf);
    }
    CHECK(a[2] < 0);  // the other group is not touched
    CHECK(a[3] > 0);
    CHECK(report.degenerate == std::vector<unsigned char>{0, 0});
    CHECK(report.infinite_rewards == (all ? 2 : 1));
  }
}

}  // namespace

TEST_CASE("an infinite reward gives its group nothing finite and touches no other") {
  shows_infinite_rewards(true, gdpo::Grpo{});
  shows_infinite_rewards(false, gdpo::DrGrpo{});
  shows_infinite_rewards(false, gdpo::Rloo{});
  shows_infinite_rewards(true, gdpo::before_renorm(gdpo::Gdpo{}));
  using gdpo::combine::SumThenNormalize;
  gdpo::GroupAdvantage<gdpo::baseline::ShiftedMean, gdpo::scale::None, SumThenNormalize> shifted;
  shifted.baseline.shift = -0.1;
  shows_infinite_rewards(false, shifted);
  shows_infinite_rewards(true, gdpo::MaxRl{});
  gdpo::GroupAdvantage<gdpo::baseline::LogMeanExp, gdpo::scale::None, SumThenNormalize> log_mean;
  shows_infinite_rewards(true, log_mean);
}

TEST_CASE("a sum that overflows is not a degenerate sum") {
  const std::vector<double> a = of({1.7e308, 1.7e308, 1, 1}, 2, 2, gdpo::DrGrpo{});
  CHECK(std::isnan(a[0]));
  CHECK(a[1] == -inf);
}

TEST_CASE("a NaN penalty shows") {
  const std::vector<double> rewards = {1, 0, 1, 0};
  for (const bool all : {false, true}) {
    const std::vector<double> kl = {missing, all ? missing : .1, .1, .2};
    gdpo::RewardBatch batch{gdpo::view(rewards.data(), 4, 1), gdpo::groups_of(2)};
    batch.penalty = gdpo::view(kl);
    gdpo::Grpo sum_first;
    sum_first.penalty.coef = .1;
    auto each_reward = gdpo::before_renorm(gdpo::Gdpo{});
    each_reward.penalty = {.1, 0};
    for (const std::vector<double>& a : {gdpo::advantages(gdpo::seq, batch, sum_first),
                                         gdpo::advantages(gdpo::seq, batch, each_reward)}) {
      CHECK(std::isnan(a[0]));
      CHECK(std::isnan(a[1]));
      CHECK(a[2] > 0);
    }
  }
}

TEST_CASE("a missing reward that counts as 0 counts as 0 in the degenerate flags too") {
  gdpo::Gdpo e;
  e.missing.entry = gdpo::MissingEntry::Zero;
  gdpo::GroupReport report;
  of({1, missing, 1, missing}, 1, 2, e, &report);
  CHECK(report.reward_degenerate == std::vector<unsigned char>{0, 0});
  CHECK(report.rewards[0].zero_std_groups == 0);
  CHECK(report.rewards[0].n == 2);
}

}  // namespace extremes_test
