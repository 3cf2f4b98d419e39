// labels: lanes
// The whole product of axes compared with the plain formulas of reference/naive.hpp.
#include "support/product.hpp"

#include "support/catch.hpp"
#include "support/few_rounds.hpp"
#include "support/generators.hpp"
#include "support/tolerance.hpp"

namespace product_test {

namespace {

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
      const naive::Data data = product::random_case(random, e);
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
