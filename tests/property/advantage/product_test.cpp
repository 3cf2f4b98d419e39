// labels: lanes
// The whole product of axes compared with the plain formulas of reference/naive.hpp.
#include "support/product.hpp"

#include "support/catch.hpp"
#include "support/few_rounds.hpp"
#include "support/generators.hpp"
#include "support/tolerance.hpp"

namespace product_test {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Counts the cases. One that rounding decides (1 / 0 or 0, from a spread that is 0 only in exact
/// arithmetic) has no number to compare with.
struct Tally {
  int compared = 0, undecided = 0;
};

void compare(const naive::Settings& settings, const naive::Data& data, Tally& tally) {
  const naive::Result expected = naive::advantages(settings, data);
  const product::Outcome got = product::advantages(settings, data);
  const double tolerance = tolerance::chain * static_cast<double>(expected.sensitivity);
  if (tolerance > 1e-6) {
    ++tally.undecided;
    return;
  }
  ++tally.compared;
  const std::string sums = deviation(got.sums, expected.sums, tolerance);
  const std::string advantages = deviation(got.advantages, expected.advantages, tolerance);
  if (sums.empty() && advantages.empty()) return;
  std::string rewards;
  for (std::size_t i = 0; i < data.rewards.size(); ++i) {
    if (i % static_cast<std::size_t>(data.reward_count) == 0) {
      const std::size_t row = i / static_cast<std::size_t>(data.reward_count);
      rewards += "\n  id " + std::to_string(data.ids[row]);
      if (!data.tokens.empty()) rewards += " tokens " + std::to_string(data.tokens[row]);
      if (!data.valid.empty()) rewards += " valid " + std::to_string(data.valid[row]);
      rewards += ":";
    }
    rewards += " " + std::to_string(data.rewards[i]);
  }
  INFO(product::describe(settings) << rewards);
  CHECK(sums == "");
  CHECK(advantages == "");
}

}  // namespace

TEST_CASE("every estimator of the product of axes gives what its formulas give", "[product]") {
  Tally tally;
  std::uint64_t seed = 0;
  for (int round = 0; round < 60; ++round) {
    product::for_each_type([&](naive::Settings e) {
      Random random(++seed);
      INFO("seed " << seed);
      const int reward_count = random.pick({1, 2, 3, 5, 9, 12});
      naive::Data data = random_batch(random, random.pick({1, 2, 4, 8}), random.pick({2, 5, 8}),
                                      reward_count, random.pick({0.0, 0.1, 0.5}));
      for (naive::Spread* spread : {&e.scale_spread, &e.renorm_spread}) {
        spread->ddof = random.pick({1, 1, 0, 2});
        spread->eps = random.pick({0.0, 0.0, 1e-6, 1e-4, 0.3});
        spread->eps_at = static_cast<naive::EpsAt>(random.below(6));
      }
      if (e.scale == naive::Scale::Shrunk) {
        e.prior_dof = random.pick({e.prior_dof, e.prior_dof, 0.0, 0.5, 6.0, infinity});
        e.equal_groups = random.chance(0.5);
      }
      if (e.scale == naive::Scale::GroupMean) e.any_mean = random.chance(0.5);
      e.tau = random.pick({1.0, 0.1, 0.7, 3.0, 1e6});
      e.shift = random.pick({0.0, -0.1, 0.25});
      e.others = random.chance(0.5);
      e.renorm_spread.count_eps = random.pick({0.0, 0.0, 1e-8, 0.5});
      e.renorm_spread.keep_mean = random.chance(0.2);
      e.entry = static_cast<naive::Entry>(random.below(3));
      e.row = static_cast<naive::Row>(random.below(3));
      e.singleton = random.pick({naive::Singleton::Zero, naive::Singleton::Exclude,
                                 naive::Singleton::Raw, naive::Singleton::Nan});
      if (random.chance(0.2)) e.reward_low = random.pick({-0.5, 0.1}), e.reward_high = 0.75;
      if (random.chance(0.2)) e.low = random.pick({0.0, -0.5}), e.high = random.pick({0.5, 2.0});
      if (random.chance(0.6)) {
        for (int c = 0; c < reward_count; ++c)
          e.weights.push_back(random.pick({1.0, 0.5, -1.0, 0.0, 2.5}));
      }
      for (int k = random.below(3); k > 0; --k) {
        e.gates.push_back({random.below(reward_count), random.below(reward_count),
                           random.pick({0.5, 1.0, 0.25, -1.0})});
      }
      add_columns(random, data);
      if (random.chance(0.5)) data.external.clear();
      if (random.chance(0.5)) e.fraction = random.pick({0.0, 0.1, 0.4, 0.49});
      if (random.chance(0.3)) {
        e.penalty_coef = random.pick({0.1, -0.5, 1.0});
        e.penalty_reward =
            e.combine == naive::Combine::SumThenNormalize ? -1 : random.below(reward_count);
      }
      if (random.chance(0.6)) data.valid.clear();
      compare(e, data, tally);
    });
  }
  INFO(tally.compared << " compared, " << tally.undecided << " decided by rounding");
  CHECK(tally.undecided * 10 < tally.compared);
}

TEST_CASE("every pattern of missing rewards in a group of three gives what the formulas give",
          "[product][missing]") {
  Tally tally;
  const double group[] = {1, 0.25, 0, 1, 0.5, 0}, other[] = {1, 0, 0, 0.5, 0, 0.25};
  for (unsigned mask = 0; mask < 64; mask += few_rounds ? 9 : 1) {
    naive::Data data;
    data.rows = 6;
    data.reward_count = 2;
    data.ids = {5, 5, 5, 2, 2, 2};
    data.tokens = {3, 1, 0, 2, 7, 5};
    for (unsigned k = 0; k < 6; ++k)
      data.rewards.push_back(mask >> k & 1 ? std::nan("") : group[k]);
    data.rewards.insert(data.rewards.end(), other, other + 6);
    product::for_each_type([&](naive::Settings e) {
      for (const auto entry : {naive::Entry::Skip, naive::Entry::Zero, naive::Entry::Propagate}) {
        for (const auto row :
             {naive::Row::Exclude, naive::Row::ExcludeUnscored, naive::Row::Keep}) {
          for (const auto singleton :
               {naive::Singleton::Zero, naive::Singleton::Raw, naive::Singleton::Exclude}) {
            e.entry = entry, e.row = row, e.singleton = singleton;
            INFO("mask " << mask);
            compare(e, data, tally);
          }
        }
      }
    });
  }
  INFO(tally.compared << " compared, " << tally.undecided << " decided by rounding");
  CHECK(tally.undecided * 10 < tally.compared);
}

}  // namespace product_test
