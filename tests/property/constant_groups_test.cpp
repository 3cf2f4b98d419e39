// A group whose used rewards are all equal gets exactly 0: every stored type, size, value and estimator. No tolerance.
#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/product.hpp"
#include "support/sanitized.hpp"
#include "support/tolerance.hpp"

namespace {

naive::Data constant_group(int size, int channels, double value) {
  naive::Data d;
  d.rows = size;
  d.channels = channels;
  d.ids.assign(static_cast<std::size_t>(size), 7);
  for (int i = 0; i < size; ++i) {
    for (int c = 0; c < channels; ++c) d.rewards.push_back(c % 2 ? -value / 3 : value);
    d.tokens.push_back(1 + i % 5);
  }
  return d;
}

/// A second group with rewards that differ.
void add_varying_group(naive::Data& d) {
  for (int i = 0; i < 3; ++i) {
    for (int c = 0; c < d.channels; ++c) d.rewards.push_back(i * (c + 1));
    d.ids.push_back(-4);
    d.tokens.push_back(2);
  }
  d.rows += 3;
}

}  // namespace

TEST_CASE("constant groups are exactly 0 for every estimator with a name", "[zero]") {
  const double values[] = {0.1, 3.3, 1e5 + 0.1, -7, 1e30, 1.0 / 3};
  for (const product::Preset& preset : product::presets()) {
    for (const int size : group_sizes()) {
      if (size == 1 && preset.settings.singleton != naive::Singleton::Zero)
        continue;  // has a rule of its own
      for (const int channels : {1, 2, 3}) {
        for (const double value : values) {
          if (size > (sanitized ? 4 : 64) && value != 0.1 && value != 1e5 + 0.1) continue;
          naive::Data data = constant_group(size, channels, value);
          INFO(preset.name << ", group of " << size << ", rewards " << channels << ", value "
                           << value);
          if (!all_zero(product::advantages(preset.settings, data).advantages))
            CHECK("alone" == std::string("0"));
          add_varying_group(data);
          product::Outcome outcome = product::advantages(preset.settings, data);
          // Token-weighted renormalisation subtracts the batch's mean: there the combined values are 0, not the
          // advantages.
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
    // The same addends in another order in every row: 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ in the last bit.
    const int channels = 2 + random.below(9), rows = 2 + random.below(10);
    std::vector<double> addends;
    for (int c = 0; c < channels; ++c)
      addends.push_back(random.pick({0.1, 0.2, 0.3, 0.7, random.uniform(), -random.uniform()}));
    naive::Data d;
    d.rows = rows;
    d.channels = channels;
    d.ids.assign(static_cast<std::size_t>(rows), 1);
    d.tokens.assign(static_cast<std::size_t>(rows), 3);
    for (int i = 0; i < rows; ++i) {
      random.shuffle(addends);
      d.rewards.insert(d.rewards.end(), addends.begin(), addends.end());
    }
    INFO("round " << round);
    for (const product::Preset& preset : product::presets()) {
      if (preset.settings.combine != naive::Combine::SumThenNormalize) continue;
      INFO(preset.name);
      CHECK(all_zero(product::advantages(preset.settings, d).advantages));
    }
  }
}

namespace {

/// Groups in which the second reward is `total` minus the first, the first `offset` away from where it would be.
void check_constant_sums(double offset) {
  Random random(12);
  for (int round = 0; round < 150; ++round) {
    const int groups = 1 + random.below(4), members = 2 + random.below(15);
    const double total = random.pick({1.0, 0.75, 3.0});
    naive::Data d;
    d.rows = groups * members;
    d.channels = 2;
    for (int i = 0; i < d.rows; ++i) {
      const double x =
          random.pick({0.0, 1.0, 0.25, 0.5});  // exact, so that the sum is constant in double
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
      CHECK(all_zero(outcome.sums));
      CHECK(all_zero(outcome.advantages));
    }
  }
}

}  // namespace

// z_2 = -z_1. The GDPO paper's section 3.1 says that r1 = (1,1,0), r2 = (0,0,1) is told apart; it cannot be.
TEST_CASE("two rewards with a constant sum cancel exactly in GDPO", "[zero]") {
  check_constant_sums(0);
}

// The mean of one of them is rounded at 1e5; a residue would be scaled to unit size in a batch of nothing else.
TEST_CASE("they do so at an offset of 1e5 too", "[zero]") { check_constant_sums(1e5); }

TEST_CASE("what differs by more than rounding is not equal", "[zero]") {
  // 0.1 + 0.2 against 0.3 in the first column's place: 5.6e-17 apart, 4 C 2^-53 sum|x| = 2.7e-16; then 4e-16 apart.
  const std::vector<double> rounding{0.1, 0.2, 0.3, 0.0}, more{0.1, 0.2, 0.3, 0x1p-50};
  const auto run = [](const std::vector<double>& x) {
    return gdpo::advantages(gdpo::view(x.data(), 2, 2), gdpo::groups_of(2), gdpo::Grpo{});
  };
  CHECK(all_zero(run(rounding)));
  CHECK(std::abs(run(more)[0] + std::sqrt(0.5)) <
        0.1);  // the sums' own rounding is a tenth of their difference
  // One stored reward has no such allowance: one last bit is a difference of full scale.
  const std::vector<double> last_bit{1, 1 + 0x1p-52};
  const std::vector<double> full =
      gdpo::advantages(gdpo::view(last_bit.data(), 2, 1), gdpo::groups_of(2));
  CHECK(std::abs(full[1] - full[0] - std::sqrt(2.0)) < tolerance::formula);
}
