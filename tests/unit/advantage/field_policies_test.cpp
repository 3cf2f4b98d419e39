// labels: sanitizers
// Policies of the field next to means and stds, by hand: MaxRL, OPMD, ASYMRE, means of the batch,
// stds about other means, bounds, and rows that are alone.
#include <gdpo/advantages.hpp>
#include <gdpo/presets/trinity.hpp>
#include <gdpo/presets/trl.hpp>

#include "support/catch.hpp"
#include "support/tolerance.hpp"

namespace field_policies_test {
namespace {

using gdpo::combine::SumThenNormalize;

template <class Estimator>
std::vector<double> of(const std::vector<double>& rewards, gdpo::index_t group, const Estimator& e,
                       gdpo::GroupReport* report = nullptr) {
  const gdpo::RewardBatch batch{
      gdpo::view(rewards.data(), static_cast<gdpo::index_t>(rewards.size()), 1),
      gdpo::groups_of(group)};
  return gdpo::advantages(gdpo::simd, batch, e, report);
}
void check(const std::vector<double>& got, const std::vector<long double>& expected,
           double allowed = tolerance::formula) {
  CHECK(deviation(got, expected, allowed) == "");
}

}  // namespace

TEST_CASE("MaxRL divides by the mean of the group", "[maxrl]") {
  check(of({1, 0, 0, 0, 1, 1, 0, 0}, 4, gdpo::MaxRl{}), {3, -1, -1, -1, 1, 1, -1, -1});
  // Nobody is right, or all are: nothing to learn.
  check(of({0, 0, 0, 0, 1, 1, 1, 1}, 4, gdpo::MaxRl{}), {0, 0, 0, 0, 0, 0, 0, 0});
  // A mean of 0 or below.
  gdpo::MaxRl e;
  check(of({-1, -3, -1, 1}, 2, e), {0, 0, 0, 0});
  e.scale.divide_by = gdpo::scale::DivideBy::AnyMean;
  check(of({-1, -3, -1, 1}, 2, e), {-0.5, 0.5, 0, 0});
  e.scale.eps = 0.5;
  check(of({-1, -3, -1, 1}, 2, e), {-2 / 3.0L, 2 / 3.0L, -2, 2});
  // A group of one keeps its value under Singleton::Raw.
  e.singleton = gdpo::Singleton::Raw;
  check(of({0.25, -3}, 1, e), {0.25, -3});
  // Also an infinite one, where nothing compares it.
  gdpo::GroupAdvantage<gdpo::baseline::None, gdpo::scale::GroupMean, SumThenNormalize> alone;
  CHECK(of({gdpo::math::infinity, 2}, 1, alone) == std::vector<double>{gdpo::math::infinity, 2});
  // A mean whose reciprocal overflows is no divisor, and a sum that overflows has no mean.
  for (const auto divide_by :
       {gdpo::scale::DivideBy::PositiveMeans, gdpo::scale::DivideBy::AnyMean}) {
    gdpo::MaxRl extreme;
    extreme.scale.divide_by = divide_by;
    CHECK(of({1e-310, 0, 2, 0}, 2, extreme) == std::vector<double>{0, 0, 1, -1});
    for (const double x : of({1.7e308, 1.6e308, 1, 1}, 4, extreme)) CHECK(std::isnan(x));
  }
}

TEST_CASE("the log of the mean exponential lies between the mean and the best", "[opmd]") {
  auto e = gdpo::trinity::opmd_logavgexp;
  const long double base = std::log((std::exp(1.0L) + 3) / 4);
  check(of({1, 0, 0, 0}, 4, e), {1 - base, -base, -base, -base});
  e.baseline.tau = 1e9;
  check(of({1, 0, 0, 0}, 4, e), {0.75L, -0.25L, -0.25L, -0.25L}, 1e-9);
  e.baseline.tau = 1e-3;
  const long double low = 1e-3L * std::log(4.0L);
  check(of({1, 0, 0, 0}, 4, e), {low, low - 1, low - 1, low - 1});
  // Equal rewards give exactly 0, however large they are.
  for (const double x : of({1e300, 1e300, -7, -7}, 2, e)) CHECK(x == 0);
}

TEST_CASE("a shifted mean leaves its shift to equal rewards", "[asymre]") {
  auto e = gdpo::trinity::asymre;
  check(of({1, 0, 0.5, 0.5}, 2, e), {0.6L, -0.4L, 0.1L, 0.1L});
  check(of({2, 3}, 1, e), {2, 3});
}

TEST_CASE("the mean of the batch", "[batch]") {
  gdpo::GroupAdvantage<gdpo::baseline::BatchMean, gdpo::scale::None, SumThenNormalize> e;
  check(of({1, 0, 0, 3}, 2, e), {0, -1, -1, 2});
  check(of({1, 0, 0, 3}, 1, e), {0, -1, -1, 2});
  e.baseline.leave_one_out = true;
  check(of({1, 0, 0, 3}, 2, e), {0, -4 / 3.0L, -4 / 3.0L, 8 / 3.0L});
  check(of({1.5}, 1, e), {1.5L});
}

TEST_CASE("stds about 0 and about the means of the others", "[areal]") {
  gdpo::GroupAdvantage<gdpo::baseline::None, gdpo::scale::StdDev, SumThenNormalize> e;
  e.scale.of = gdpo::scale::Of::GroupRms;
  e.scale.ddof = 0;
  check(of({1, 7, 3, 4}, 2, e), {0.2L, 1.4L, 3 / std::sqrt(12.5L), 4 / std::sqrt(12.5L)});
  e.scale.of = gdpo::scale::Of::BatchRms;
  check(of({1, 7, 1, 7}, 2, e), {0.2L, 1.4L, 0.2L, 1.4L});
  gdpo::GroupAdvantage<gdpo::baseline::LeaveOneOut, gdpo::scale::StdDev, SumThenNormalize> others;
  others.scale.of = gdpo::scale::Of::GroupOthers;
  // Without eps the factor n / (n - 1) of baseline and std cancels.
  gdpo::Grpo plain;
  const std::vector<double> rewards{0.5, 1, -2, 0.25};
  const std::vector<double> expected = of(rewards, 4, plain);
  check(of(rewards, 4, others), {expected.begin(), expected.end()});
}

TEST_CASE("bounds of rewards come before every statistic, bounds of advantages last", "[clip]") {
  gdpo::DrGrpo e;
  e.reward_clip = {-1, 2};
  check(of({5, 0, -9, 1}, 2, e), {1, -1, -1, 1});
  // Sums at a bound are equal, whatever they were.
  for (const double x : of({5, 1e30, gdpo::math::infinity, 2}, 4, e)) CHECK(x == 0);
  e.clip = {-0.25, 0.75};
  check(of({5, 0, -9, 1}, 2, e), {0.75L, -0.25L, -0.25L, 0.75L});
  // With NormalizeThenSum they are bounds of each reward, before its penalty.
  gdpo::GroupAdvantage<gdpo::baseline::Mean, gdpo::scale::None> each;
  each.reward_clip = {0, 1};
  each.renorm = gdpo::renorm::none();
  each.penalty = {1, 0};
  const std::vector<double> rewards{4, 1, 0, -3}, kl{0.5, 0};
  gdpo::RewardBatch batch{gdpo::view(rewards.data(), 2, 2), gdpo::groups_of(2)};
  batch.penalty = gdpo::view(kl);
  check(gdpo::advantages(gdpo::seq, batch, each), {0.75L, -0.75L});
  // A sum that was far outside does not make the others count as equal.
  e.clip = {};
  e.reward_clip = {-1, 1};
  const std::vector<double> wide{1e20, 1, 0.25, 0.25};
  check(gdpo::advantages(gdpo::view(wide.data(), 2, 2), gdpo::groups_of(2), e), {0.25L, -0.25L});
  // NaN stays NaN.
  gdpo::Grpo nan;
  nan.missing.entry = gdpo::MissingEntry::Propagate;
  nan.reward_clip = {-1, 1}, nan.clip = {-1, 1};
  for (const double x : of({std::nan(""), 1}, 2, nan)) CHECK(std::isnan(x));
}

TEST_CASE("a row that is alone enters no renormalization under Singleton::Exclude", "[singleton]") {
  // The second group of each batch has one scored row.
  const double no = std::nan("");
  const std::vector<double> rewards{1, 0, 2, 7, no, no, 1, 3, 2};
  gdpo::Rloo e = gdpo::trl::rloo_normalized;
  gdpo::GroupReport report;
  const std::vector<double> a = of(rewards, 3, e, &report);
  const std::vector<double> without = of({1, 0, 2, 1, 3, 2}, 3, e);
  check({a[0], a[1], a[2], a[6], a[7], a[8]}, {without.begin(), without.end()});
  for (const std::size_t i : {3u, 4u, 5u}) CHECK(a[i] == 0);
  // It counts in what is reported of the rewards.
  CHECK(report.reward_sums.n == 7);
  CHECK(report.singletons == 1);
  CHECK(report.excluded_rows == 2);
  e.singleton = gdpo::Singleton::Zero;
  CHECK(of(rewards, 3, e)[1] != a[1]);
  // Its 0 stays where the renormalization subtracts a mean.
  auto shifted = gdpo::trinity::asymre;
  shifted.singleton = gdpo::Singleton::Exclude, shifted.renorm = gdpo::renorm::batch();
  const long double half = std::sqrt(0.5L);
  check(of({7, 1, 0, 4}, 1, shifted), {0, 0, 0, 0});
  const std::vector<double> sizes{7, 1, 0};
  const std::vector<int> ids{1, 2, 2};
  check(gdpo::advantages(gdpo::view(sizes), gdpo::by_id(ids), shifted), {0, half, -half});
  // Without a renormalization the two are the same.
  const std::vector<double> plain = of(rewards, 3, gdpo::trl::rloo);
  e = gdpo::trl::rloo;
  e.singleton = gdpo::Singleton::Zero;
  CHECK(difference(of(rewards, 3, e), plain) == "");
}

}  // namespace field_policies_test
