// labels: sanitizers
// scale::ShrunkStd and scale::Of::Within against numbers worked out by hand, at their edges, and
// with settings that are refused.
#include <gdpo/advantages.hpp>

#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/tolerance.hpp"

namespace shrunk_std_test {

namespace {

using gdpo::EqualGroups, gdpo::GroupSpreads, gdpo::scale::ShrunkStd;
using Shrunk =
    gdpo::GroupAdvantage<gdpo::baseline::Mean, ShrunkStd, gdpo::combine::SumThenNormalize>;
using Numbers = std::vector<double>;

constexpr double inf = gdpo::math::infinity;

/// Keeps what a scale sees of the batch.
struct Spy {
  GroupSpreads* seen = nullptr;
  static constexpr bool per_group = true;
  double operator()(const gdpo::ScaleArgs& a) const {
    *seen = a.batch.within;
    return 1;
  }
};

gdpo::View<const double, 2> table(const Numbers& rewards) {
  return gdpo::view(rewards.data(), static_cast<gdpo::index_t>(rewards.size()), 1);
}
template <class Estimator>
Numbers of(const Numbers& rewards, const std::vector<int>& offsets, const Estimator& e) {
  const gdpo::RewardBatch batch{table(rewards), gdpo::by_offsets(offsets)};
  Numbers out(rewards.size(), -77);
  gdpo::Workspace workspace;
  gdpo::advantages_into(gdpo::seq, batch, e, gdpo::view(out), workspace);
  return out;
}
GroupSpreads spreads(const Numbers& rewards, const std::vector<int>& offsets) {
  GroupSpreads seen;
  gdpo::GroupAdvantage<gdpo::baseline::Mean, Spy, gdpo::combine::SumThenNormalize> e;
  e.scale.seen = &seen;
  of(rewards, offsets, e);
  return seen;
}

/// Three groups of three: their sums of squares are 2, 8 and 32, so m = 42 / 6 = 7.
const Numbers three = {0, 1, 2, 0, 2, 4, 0, 4, 8};
const std::vector<int> by_three = {0, 3, 6, 9};
/// The same with a group of equal values.
const Numbers four = {0, 1, 2, 0, 2, 4, 0, 4, 8, 5, 5, 5};
const std::vector<int> four_by_three = {0, 3, 6, 9, 12};

}  // namespace

TEST_CASE("spreads inside groups: counts and sums", "[shrunk]") {
  // Groups of 2, 1, 4, 0, 3 values: sums of squares 2, -, 20, -, 0.
  const GroupSpreads s = spreads({0, 2, 9, 0, 2, 4, 6, 3, 3, 3}, {0, 2, 3, 7, 7, 10});
  CHECK(s.all.groups == 3);
  CHECK(s.all.dof == 6);
  CHECK(s.all.dof_squares == 14);
  CHECK(s.unequal.groups == 2);
  CHECK(s.unequal.dof == 4);
  CHECK(s.unequal.dof_squares == 10);
  CHECK(s.squares == 22);
  CHECK(s.shares == Approx((4.0 / 3 + 400.0 / 5) / (22 * 22)).epsilon(tolerance::formula));
  CHECK(s.all.degrees(0) == 9);
  CHECK(s.all.degrees(1) == 6);
  CHECK(s.all.degrees(2) == 3);
  CHECK(s.all.degrees(4) == -3);
  CHECK(s.variance(4) == 5.5);
  CHECK(s.variance(0) == 0);
  CHECK(s.variance(-3) == 0);
}

TEST_CASE("nu of the batch, by hand", "[shrunk]") {
  const auto near = [](double x) { return Approx(x).epsilon(tolerance::formula); };
  // D = 6, F = 12, M = 7, Q = (4 + 64 + 1024) / 4 / 6 = 45.5,
  // P = (36 49 - (12 + 12) 45.5) / (36 - 12) = 28, nu = 91 / 17.5 = 5.2
  CHECK(ShrunkStd{}.prior_in(spreads(three, by_three)) == near(5.2));
  // A group of equal values changes nothing, unless it is included: then D = 8, F = 16, M = 5.25,
  // Q = 34.125, P = (64 27.5625 - (16 + 16) 34.125) / (64 - 16) = 14, nu = 68.25 / 20.125
  ShrunkStd include;
  include.equal_groups = EqualGroups::Include;
  CHECK(ShrunkStd{}.prior_in(spreads(four, four_by_three)) == near(5.2));
  CHECK(include.prior_in(spreads(four, four_by_three)) == near(68.25 / 20.125));
  // Groups of 2 and 4 with sums of squares 2 and 20: D = 4, F = 10, M = 5.5,
  // Q = (4 / 3 + 400 / 5) / 4 = 61 / 3, P = (16 30.25 - (10 + 8) Q) / (16 - 10) = 59 / 3
  CHECK(ShrunkStd{}.prior_in(spreads({0, 2, 0, 2, 4, 6}, {0, 2, 6})) == near(61));
  // P is below 0 where a short group has nearly all the spread: 25 - (17 + 10) 25 / (3 5) < 0.
  const Numbers one_wild = {0, 1000, 0, 1e-3, 0, 1e-3, 0};
  CHECK(ShrunkStd{}.prior_in(spreads(one_wild, {0, 2, 7})) == 2.0);
  // Groups that do not differ, groups that differ less than by chance, one group, none.
  CHECK(ShrunkStd{}.prior_in(spreads({0, 2, 3, 5, 2, 0}, {0, 2, 4, 6})) == inf);
  CHECK(ShrunkStd{}.prior_in(spreads({0, 1, 2, 0, 1, 2.5}, {0, 3, 6})) == inf);
  CHECK(ShrunkStd{}.prior_in(spreads({0, 1, 2, 5, 5, 5}, {0, 3, 6})) == inf);
  CHECK(ShrunkStd{}.prior_in(spreads({0, 1}, {0, 1, 2})) == inf);
  // Alone, groups of any size are the batch, however their sums are rounded.
  Numbers alone = {0.1};
  for (int n = 2; n < 60; ++n) {
    alone.push_back(0.1 * n * n);
    CHECK(ShrunkStd{}.prior_in(spreads(alone, {0, n})) == inf);
  }
  // A given number is that number.
  ShrunkStd given;
  given.prior_dof = 0.25;
  CHECK(given.prior_in(spreads(three, by_three)) == 0.25);
}

TEST_CASE("shrunk standard deviations, by hand", "[shrunk]") {
  const auto check = [](const Shrunk& e, const Numbers& rewards, const std::vector<int>& offsets,
                        const Numbers& variances) {
    const Numbers got = of(rewards, offsets, e);
    for (std::size_t g = 0; g < variances.size(); ++g) {
      const double step = rewards[3 * g + 1] - rewards[3 * g];
      CHECK(got[3 * g] == Approx(-step / std::sqrt(variances[g])).epsilon(tolerance::formula));
      CHECK(got[3 * g + 1] == 0);
      CHECK(got[3 * g + 2] == Approx(step / std::sqrt(variances[g])).epsilon(tolerance::formula));
    }
  };
  Shrunk e;
  check(e, three, by_three, {38.4 / 7.2, 44.4 / 7.2, 68.4 / 7.2});  // (5.2 7 + m2) / (5.2 + 2)
  e.scale.prior_dof = 3;
  check(e, three, by_three, {23.0 / 5, 29.0 / 5, 53.0 / 5});  // (3 7 + m2) / (3 + 2)
  e.scale.equal_groups = EqualGroups::Include;                // m = 42 / 8
  check(e, four, four_by_three, {(3 * 5.25 + 2) / 5, (3 * 5.25 + 8) / 5, (3 * 5.25 + 32) / 5});
  e.scale.prior_dof = inf;
  check(e, four, four_by_three, {5.25, 5.25, 5.25});
  e.scale.eps = 0.5, e.scale.eps_at = gdpo::EpsAt::Var;
  check(e, four, four_by_three, {5.75, 5.75, 5.75});
  gdpo::Grpo within;
  within.scale.of = gdpo::scale::Of::Within;
  const Numbers pooled = of(four, four_by_three, within);
  CHECK(pooled[0] == Approx(-1 / std::sqrt(5.25)).epsilon(tolerance::formula));
  within.scale.ddof = 0;  // 42 / 12
  CHECK(of(four, four_by_three, within)[0] ==
        Approx(-1 / std::sqrt(3.5)).epsilon(tolerance::formula));
  within.scale.ddof = 3;  // no degree of freedom is left
  CHECK(all_zero(of(four, four_by_three, within)));
}

TEST_CASE("shrunk: nothing to learn, nothing to divide by", "[shrunk]") {
  const Shrunk e;
  // One group: its own standard deviation.
  CHECK(difference(of({0, 1, 2, 4}, {0, 4}, e), of({0, 1, 2, 4}, {0, 4}, gdpo::Grpo{})) == "");
  // Equal values, alone and beside others.
  CHECK(all_zero(of({0.1, 0.1, 0.1, 0.3, 0.3}, {0, 3, 5}, e)));
  const Numbers beside = of(four, four_by_three, e);
  for (std::size_t i = 9; i < 12; ++i) CHECK(same_bits(beside[i], 0.0));
  CHECK(beside[0] < 0);
  // Every group is a single value; no rows at all.
  CHECK(all_zero(of({1, 2, 3}, {0, 1, 2, 3}, e)));
  CHECK(of({}, {0}, e).empty());
  // A spread so narrow that its square is 0 counts as none, as for StdDev.
  CHECK(all_zero(of({0, 1e-170, 0, 0}, {0, 2, 4}, e)));
  CHECK(spreads({0, 1e-170}, {0, 2}).unequal.groups == 0);
  // Sums of squares that overflow or are unknown: there are no shares of them.
  CHECK(spreads({0, 1e200, 0, 1}, {0, 2, 4}).squares == inf);
  CHECK(spreads({0, 1e200, 0, 1}, {0, 2, 4}).shares == 0);
  CHECK(spreads({0, inf, 0, 1}, {0, 2, 4}).shares == 0);
  // A policy of a user may ask for a group without values: the batch's variance.
  gdpo::BatchStat batch;
  batch.within = spreads(three, by_three);
  ShrunkStd one;
  one.prior_dof = 1;
  CHECK(one(gdpo::ScaleArgs{{{gdpo::GroupStat{}, batch}}}) ==
        Approx(1 / std::sqrt(7.0)).epsilon(tolerance::formula));
  CHECK(all_zero(of({0, 1e200, 0, 1}, {0, 2, 4}, e)));
  // Rewards whose squares overflow as second moments alone are no edge.
  const Numbers large = of({0, 1e150, 2e150, 0, 2e150, 4e150, 0, 4e150, 8e150}, by_three, e);
  const Numbers plain = of(three, by_three, e);
  CHECK(deviation(large, plain, tolerance::formula) == "");
}

TEST_CASE("shrunk: a group of one under Singleton::Raw", "[shrunk]") {
  // The group of one is 6; the others have the sums of squares 2 and 8, so m = 10 / 2 = 5.
  const Numbers rewards = {6, 0, 2, 0, 4};
  const std::vector<int> offsets = {0, 1, 3, 5};
  Shrunk e;
  e.singleton = gdpo::Singleton::Raw;
  for (const double nu : {gdpo::from_batch, 0.1, 3.0, inf}) {
    e.scale.prior_dof = nu;
    CHECK(of(rewards, offsets, e)[0] == 6.0 * (1 / std::sqrt(5.0)));
  }
  e.scale.prior_dof = 0;  // variance 1, as under StdDev
  CHECK(of(rewards, offsets, e)[0] == 6);
  e.scale.prior_dof = gdpo::from_batch;
  CHECK(all_zero(of({6, 7}, {0, 1, 2}, e)));
  CHECK(all_zero(of({6, 1, 1}, {0, 1, 3}, e)));
}

TEST_CASE("shrunk: infinite and missing rewards", "[shrunk]") {
  const double missing = std::nan("");
  // An infinite reward in a group of two makes every group NaN, but for equal values.
  for (Shrunk e : {Shrunk{}, [] {
                     Shrunk given;
                     given.scale.prior_dof = 4;
                     return given;
                   }()}) {
    const Numbers a = of({inf, 0, 0, 1, 2, 2}, {0, 2, 4, 6}, e);
    for (std::size_t i = 0; i < 4; ++i) CHECK(std::isnan(a[i]));
    CHECK(a[4] == 0);
    CHECK(a[5] == 0);
    // A group of one has no spread to spoil.
    const Numbers b = of({inf, 0, 1, 0, 3}, {0, 1, 3, 5}, e);
    CHECK(std::isnan(b[0]));
    CHECK(difference(Numbers(b.begin() + 1, b.end()), of({0, 1, 0, 3}, {0, 2, 4}, e)) == "");
    // A missing reward is left out, or spoils the batch.
    const Numbers c = of({0, 1, missing, 0, 3}, {0, 3, 5}, e);
    CHECK(difference(Numbers{c[0], c[1], c[3], c[4]}, of({0, 1, 0, 3}, {0, 2, 4}, e)) == "");
    CHECK(c[2] == 0);
    e.missing.entry = gdpo::MissingEntry::Propagate;
    for (const double x : of({0, 1, missing, 0, 3}, {0, 3, 5}, e)) CHECK(std::isnan(x));
  }
  gdpo::Grpo within;
  within.scale.of = gdpo::scale::Of::Within;
  CHECK(std::isnan(of({inf, 0, 0, 1}, {0, 2, 4}, within)[3]));
}

TEST_CASE("shrunk: weighted sums that are equal but for rounding are a group of equal values",
          "[shrunk]") {
  // 0.1 + 0.7 and 0.2 + 0.6 are neighbors; the group that they make has no spread.
  const Numbers rewards = {0.1, 0.7, 0.2, 0.6, 0.1, 0.7, 0, 0, 1, 0, 2, 0, 0, 0, 0, 3, 6, 0};
  const gdpo::RewardBatch batch{gdpo::view(rewards.data(), 9, 2), gdpo::groups_of(3)};
  REQUIRE(0.1 + 0.7 != 0.2 + 0.6);
  GroupSpreads seen;
  gdpo::GroupAdvantage<gdpo::baseline::Mean, Spy, gdpo::combine::SumThenNormalize> e;
  e.scale.seen = &seen;
  gdpo::advantages(gdpo::seq, batch, e);
  CHECK(seen.all.groups == 3);
  CHECK(seen.unequal.groups == 2);
  CHECK(seen.squares == 20);
  const Numbers a = gdpo::advantages(gdpo::seq, batch, Shrunk{});
  for (std::size_t i = 0; i < 3; ++i) CHECK(same_bits(a[i], 0.0));
}

TEST_CASE("shrunk: each reward has its own prior", "[shrunk]") {
  // Reward 0 has the spreads of `three`, reward 1 none that differ.
  Numbers rewards, second;
  for (std::size_t i = 0; i < 9; ++i) {
    second.push_back(static_cast<double>(i % 3));
    rewards.push_back(three[i]), rewards.push_back(second[i]);
  }
  const gdpo::RewardBatch batch{gdpo::view(rewards.data(), 9, 2), gdpo::groups_of(3)};
  const auto e = gdpo::before_renorm(gdpo::ShrunkGdpo{});
  const Numbers both = gdpo::advantages(gdpo::seq, batch, e), first = of(three, by_three, Shrunk{}),
                other = of(second, by_three, Shrunk{});
  for (std::size_t i = 0; i < 9; ++i) CHECK(both[i] == first[i] + other[i]);
}

TEST_CASE("shrunk: settings and what they read", "[shrunk]") {
  const auto message = [](double prior_dof, double eps) {
    Shrunk e;
    e.scale.prior_dof = prior_dof, e.scale.eps = eps;
    return message_of([&] { of(three, by_three, e); });
  };
  CHECK(message(gdpo::from_batch, 0) == "no error");
  CHECK(message(inf, 1) == "no error");
  CHECK(message(-0.0, 1) == "no error");
  CHECK(message(-1, 0) ==
        "gdpo::advantages: scale.prior_dof: given -1; needed: at least 0 (NaN: from_batch), or "
        "infinity: the batch alone");
  CHECK(message(-inf, 0).find("scale.prior_dof: given -inf") != std::string::npos);
  CHECK(message(0, -1).find("scale.eps") != std::string::npos);
  CHECK(message(1, inf).find("scale.eps") != std::string::npos);

  ShrunkStd scale;
  CHECK(scale.reads_batch());
  scale.prior_dof = 0;
  CHECK(!scale.reads_batch());
  scale.prior_dof = inf;
  CHECK(scale.reads_batch());
  // A rank of its own does not know the batch.
  const gdpo::RewardBatch batch{table(three), gdpo::groups_of(3)};
  gdpo::Workspace workspace;
  const auto first_stage = [&](double prior_dof) {
    Shrunk e;
    e.scale.prior_dof = prior_dof;
    return message_of([&] { gdpo::first_stage(gdpo::seq, batch, e, workspace); });
  };
  CHECK(first_stage(gdpo::from_batch).find("reads the whole batch") != std::string::npos);
  CHECK(first_stage(4).find("reads the whole batch") != std::string::npos);
  CHECK(first_stage(0) == "no error");
}

TEST_CASE("shrunk: nothing is allocated after the first call", "[shrunk]") {
  gdpo::GroupAdvantage<gdpo::baseline::Mean, ShrunkStd> e;
  const std::vector<int> offsets = {0, 0, 2, 2, 4, 4, 6, 6, 6, 6, 6};  // more groups than rows
  const Numbers rewards = {0, 1, 0, 5, 2, 9};
  Numbers out(6), again(6);
  gdpo::Workspace workspace;
  const gdpo::RewardBatch batch{table(rewards), gdpo::by_offsets(offsets)};
  gdpo::advantages_into(gdpo::seq, batch, e, gdpo::view(out), workspace);
  const long before = counted::allocations;
  gdpo::advantages_into(gdpo::seq, batch, e, gdpo::view(again), workspace);
  CHECK(counted::allocations == before);
  CHECK(difference(out, again) == "");
}

}  // namespace shrunk_std_test
