// labels: lanes, long
// A group whose used rewards are all equal gets exactly 0, for every size, value and estimator.
// There is no tolerance.
#include "support/catch.hpp"
#include "support/few_rounds.hpp"
#include "support/generators.hpp"
#include "support/product.hpp"
#include "support/tolerance.hpp"

namespace constant_groups_test {

namespace {

/// One group in which every reward is constant.
naive::Data constant_group(int size, int reward_count, double value) {
  naive::Data d;
  d.rows = size;
  d.reward_count = reward_count;
  d.ids.assign(static_cast<std::size_t>(size), 7);
  for (int i = 0; i < size; ++i) {
    for (int c = 0; c < reward_count; ++c) d.rewards.push_back(c % 2 ? -value / 3 : value);
    d.tokens.push_back(1 + i % 5);
  }
  return d;
}

/// Adds a second group, whose rewards differ.
void add_varying_group(naive::Data& d) {
  for (int i = 0; i < 3; ++i) {
    for (int c = 0; c < d.reward_count; ++c) d.rewards.push_back(i * (c + 1));
    d.ids.push_back(-4);
    d.tokens.push_back(2);
  }
  d.rows += 3;
}

}  // namespace

TEST_CASE("constant groups are exactly 0 for every name whose baseline is of the group", "[zero]") {
  const double values[] = {0.1, 3.3, 1e5 + 0.1, -7, 1e30, 1.0 / 3};
  for (const product::Preset& preset : product::presets()) {
    if (!naive::detail::from_group(preset.settings.baseline)) continue;
    for (const int size : group_sizes()) {
      // A group of one has a rule of its own.
      if (size == 1 && preset.settings.singleton != naive::Singleton::Zero) continue;
      for (const int reward_count : {1, 2, 3}) {
        for (const double value : values) {
          if (size > (few_rounds ? 4 : 64) && value != 0.1 && value != 1e5 + 0.1) continue;
          naive::Data data = constant_group(size, reward_count, value);
          INFO(preset.name << ", group of " << size << ", rewards " << reward_count << ", value "
                           << value);
          if (!all_zero(product::advantages(preset.settings, data).advantages))
            CHECK("alone" == std::string("0"));
          add_varying_group(data);
          product::Outcome outcome = product::advantages(preset.settings, data);
          // Token-weighted renormalization subtracts the mean of the batch, which is not 0: there
          // the combined values of the group are 0, not its advantages.
          std::vector<double>& zero =
              preset.settings.renorm == naive::Renorm::Tokens ? outcome.sums : outcome.advantages;
          const std::vector<double> others(zero.begin() + size, zero.end());
          zero.resize(static_cast<std::size_t>(size));
          if (!all_zero(zero)) CHECK("beside another group" == std::string("0"));
          if (all_zero(others)) CHECK("the other group" == std::string("not 0"));
        }
      }
    }
  }
  SUCCEED();
}

TEST_CASE("sums that differ by the rounding of their order alone are equal", "[zero]") {
  Random random(11);
  for (int round = 0; round < 300; ++round) {
    // Every row has the same addends in another order: 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ
    // in the last bit.
    const int reward_count = 2 + random.below(9), rows = 2 + random.below(10);
    std::vector<double> addends;
    for (int c = 0; c < reward_count; ++c)
      addends.push_back(random.pick({0.1, 0.2, 0.3, 0.7, random.uniform(), -random.uniform()}));
    naive::Data d;
    d.rows = rows;
    d.reward_count = reward_count;
    d.ids.assign(static_cast<std::size_t>(rows), 1);
    d.tokens.assign(static_cast<std::size_t>(rows), 3);
    for (int i = 0; i < rows; ++i) {
      random.shuffle(addends);
      d.rewards.insert(d.rewards.end(), addends.begin(), addends.end());
    }
    INFO("round " << round);
    for (const product::Preset& preset : product::presets()) {
      if (preset.settings.combine != naive::Combine::SumThenNormalize) continue;
      if (!naive::detail::from_group(preset.settings.baseline)) continue;
      INFO(preset.name);
      CHECK(all_zero(product::advantages(preset.settings, d).advantages));
    }
  }
}

namespace {

/// Checks groups in which the second reward is `total` minus the first, and the first is then moved
/// by `offset`.
void check_constant_sums(double offset) {
  Random random(12);
  for (int round = 0; round < 150; ++round) {
    const int groups = 1 + random.below(4), members = 2 + random.below(15);
    const double total = random.pick({1.0, 0.75, 3.0});
    naive::Data d;
    d.rows = groups * members;
    d.reward_count = 2;
    for (int i = 0; i < d.rows; ++i) {
      // Exact numbers, so that the sum is constant in double.
      const double x = random.pick({0.0, 1.0, 0.25, 0.5});
      d.rewards.push_back(offset + x);
      d.rewards.push_back(total - x);
      d.ids.push_back(i % groups);
    }
    d.tokens.assign(static_cast<std::size_t>(d.rows), 3);
    INFO("round " << round);
    for (const product::Preset& preset : product::presets()) {
      if (preset.settings.combine != naive::Combine::NormalizeThenSum) continue;
      INFO(preset.name);
      const product::Outcome outcome = product::advantages(preset.settings, d);
      if (preset.settings.scale == naive::Scale::Others) {
        // Each member has a multiplier of its own, so the values of a group do not sum to 0 by
        // construction, and their rounding stays: some units of 2^-53 of terms below 10.
        for (const double sum : outcome.sums) CHECK(std::abs(sum) <= 1e-14);
        continue;
      }
      CHECK(all_zero(outcome.sums));
      CHECK(all_zero(outcome.advantages));
    }
  }
}

}  // namespace

// With a constant sum, the second normalized reward is minus the first, so their sum is 0. Section
// 3.1 of the GDPO paper says that GDPO tells r1 = (1,1,0), r2 = (0,0,1) apart; it cannot.
TEST_CASE("two rewards with a constant sum cancel exactly in GDPO", "[zero]") {
  check_constant_sums(0);
}

// At an offset of 1e5 the mean of the first reward is rounded. If that left a residue, the batch
// step would scale it to unit size, because the batch holds nothing else.
TEST_CASE("they do so at an offset of 1e5 too", "[zero]") { check_constant_sums(1e5); }

TEST_CASE("what differs by more than rounding is not equal", "[zero]") {
  // Two rows with sums 0.1 + 0.2 and 0.3 + 0, which are 5.6e-17 apart. The bound below which sums
  // are equal is 4 C 2^-53 max_i sum_c |r_ic| = 2.7e-16. With 2^-50 in place of 0 the sums are
  // 8.3e-16 apart.
  const std::vector<double> rounding{0.1, 0.2, 0.3, 0.0}, more{0.1, 0.2, 0.3, 0x1p-50};
  const auto run = [](const std::vector<double>& x) {
    return gdpo::advantages(gdpo::view(x.data(), 2, 2), gdpo::groups_of(2), gdpo::Grpo{});
  };
  CHECK(all_zero(run(rounding)));
  // The rounding of the sums is nearly a tenth of their difference.
  CHECK(std::abs(run(more)[0] + std::sqrt(0.5)) < 0.1);
  // A stored reward has no such allowance: one last bit is a difference, and becomes one of full
  // size.
  const std::vector<double> last_bit{1, 1 + 0x1p-52};
  const std::vector<double> full =
      gdpo::advantages(gdpo::view(last_bit.data(), 2, 1), gdpo::groups_of(2));
  CHECK(std::abs(full[1] - full[0] - std::sqrt(2.0)) < tolerance::formula);
}

}  // namespace constant_groups_test
