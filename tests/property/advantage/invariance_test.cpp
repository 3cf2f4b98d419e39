// labels: lanes
// Changes of the input that must not change the result. Where the library promises bits, bits are
// compared; elsewhere each test says how much rounding it allows.
#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/product.hpp"
#include "support/tolerance.hpp"

namespace invariance_test {

namespace {

using Permutation = std::vector<int>;

Permutation random_order(Random& random, int n) {
  Permutation order;
  for (int i = 0; i < n; ++i) order.push_back(i);
  random.shuffle(order);
  return order;
}

template <class T>
std::vector<T> permuted(const std::vector<T>& x, const Permutation& order, int width = 1) {
  std::vector<T> y;
  for (std::size_t i = 0; i < order.size() && !x.empty(); ++i) {
    const auto from = x.begin() + order[i] * width;
    y.insert(y.end(), from, from + width);
  }
  return y;
}

naive::Data permuted(const naive::Data& d, const Permutation& order) {
  naive::Data p = d;
  p.rewards = permuted(d.rewards, order, d.reward_count);
  p.ids = permuted(d.ids, order);
  p.tokens = permuted(d.tokens, order);
  p.valid = permuted(d.valid, order);
  p.penalty = permuted(d.penalty, order);
  p.external = permuted(d.external, order);
  return p;
}

naive::Settings without_missing(naive::Settings e) {
  e.entry = naive::Entry::Skip;
  return e;
}

/// Full groups of 6 rows without missing rewards, so that the condition of their statistics is
/// known.
naive::Data full_groups(Random& random, int groups, int reward_count) {
  naive::Data d;
  d.rows = 6 * groups;
  d.reward_count = reward_count;
  for (int i = 0; i < d.rows; ++i) {
    d.ids.push_back(i / 6);
    d.tokens.push_back(1 + random.below(9));
    for (int c = 0; c < reward_count; ++c) d.rewards.push_back(0.125 * random.below(33));
  }
  return d;
}

}  // namespace

TEST_CASE("shuffled rows and relabeled ids give the same bits", "[permutation]") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    naive::Data data = random_batch(random, 1 + random.below(12), random.pick({2, 7, 20}),
                                    1 + random.below(10), random.pick({0.0, 0.2}));
    add_columns(random, data);
    if (seed % 2) data.valid.clear();
    const Permutation order = random_order(random, data.rows);
    naive::Data shuffled = permuted(data, order), reversed = shuffled;
    for (long long& id : reversed.ids) id = -3 * id + 1;
    for (const product::Preset& preset : product::presets()) {
      INFO(preset.name);
      const product::Outcome a = product::advantages(preset.settings, data);
      const product::Outcome b = product::advantages(preset.settings, shuffled),
                             c = product::advantages(preset.settings, reversed);
      CHECK(difference(permuted(a.advantages, order), b.advantages) == "");
      CHECK(difference(permuted(a.sums, order), b.sums) == "");
      CHECK(difference(b.advantages, c.advantages) == "");
    }
  }
}

TEST_CASE("shuffled rows of float rewards give the same bits", "[permutation]") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const naive::Data data = random_batch(random, 1 + random.below(30), 9, 4, 0.05);
    const Permutation order = random_order(random, data.rows);
    const naive::Data shuffled = permuted(data, order);
    const auto run = [](const naive::Data& d) {
      const std::vector<float> rewards(d.rewards.begin(), d.rewards.end());
      return gdpo::advantages(gdpo::view(rewards.data(), d.rows, d.reward_count),
                              gdpo::by_id(d.ids));
    };
    CHECK(difference(permuted(run(data), order), run(shuffled)) == "");
  }
}

TEST_CASE("the report of a grouping by id does not depend on the order of the rows",
          "[permutation][report]") {
  Random random(5);
  for (int round = 0; round < 60; ++round) {
    naive::Data data = random_batch(random, 9, 7, 3, 0.1);
    naive::Data shuffled = permuted(data, random_order(random, data.rows));
    for (long long& id : shuffled.ids) id = -id;
    const naive::Settings e = product::presets()[0].settings;
    gdpo::GroupReport a, b;
    product::advantages(e, data, &a);
    product::advantages(e, shuffled, &b);
    INFO("round " << round);
    CHECK(difference(
              std::vector<double>{a.reward_mean, a.reward_std, a.reward_std_mean_of_groups,
                                  a.combined_std, a.rewards[0].mean, a.rewards[2].std,
                                  a.correlation(0, 1), a.correlation(1, 2), a.rewards[1].explained},
              std::vector<double>{b.reward_mean, b.reward_std, b.reward_std_mean_of_groups,
                                  b.combined_std, b.rewards[0].mean, b.rewards[2].std,
                                  b.correlation(0, 1), b.correlation(1, 2),
                                  b.rewards[1].explained}) == "");
    std::reverse(b.group_std.begin(), b.group_std.end());
    std::reverse(b.degenerate.begin(), b.degenerate.end());
    CHECK(difference(a.group_std, b.group_std) == "");
    CHECK(a.degenerate == b.degenerate);
  }
}

TEST_CASE(
    "consecutive groups: moving rows inside a group, or groups, moves results by rounding only",
    "[permutation]") {
  // Rewards and their spread are of order 1, so tolerance::formula applies.
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const int groups = 5, members = 8, reward_count = 3;
    std::vector<double> rewards;
    for (int i = 0; i < groups * members * reward_count; ++i)
      rewards.push_back(0.25 * random.below(9));
    const Permutation group_order = random_order(random, groups);
    Permutation order;
    for (const int g : group_order) {
      for (const int k : random_order(random, members)) order.push_back(g * members + k);
    }
    const std::vector<double> moved = permuted(rewards, order, reward_count);
    const std::vector<int> offsets{0, 8, 16, 24, 32, 40};
    const auto check = [&](const auto& e) {
      const auto run = [&](const std::vector<double>& x, const auto& grouping) {
        return gdpo::advantages(gdpo::view(x.data(), groups * members, reward_count), grouping, e);
      };
      const std::vector<double> a = run(rewards, gdpo::groups_of(members));
      CHECK(deviation(permuted(a, order), run(moved, gdpo::groups_of(members)),
                      tolerance::formula) == "");
      // The three groupings of the same rows. groups_of and by_offsets add in the same order; by_id
      // does not.
      CHECK(difference(a, run(rewards, gdpo::by_offsets(offsets))) == "");
      std::vector<int> ids;
      for (int i = 0; i < groups * members; ++i) ids.push_back(i / members);
      CHECK(deviation(a, run(rewards, gdpo::by_id(ids)), tolerance::formula) == "");
    };
    check(gdpo::Gdpo{});
    check(gdpo::Rloo{});
  }
}

TEST_CASE("a shift of a group's rewards changes nothing but rounding", "[invariance]") {
  // The tolerance is tolerance::offset for a shift of at most 64 and a std of at least 0.05
  // (rewards are multiples of 1/8, six rows in a group), times a factor for the two normalizations.
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    naive::Data data = full_groups(random, 6, 3), shifted = data;
    for (int i = 0; i < data.rows; ++i) {
      for (int c = 0; c < 3; ++c)
        shifted.rewards[static_cast<std::size_t>(i * 3 + c)] += (c + 1) * (1 + i / 6) * 3.5;
    }
    for (const product::Preset& preset : product::presets()) {
      // Scale::Batch is the spread of the rewards themselves, which a shift changes; so it does the
      // mean of a group as a scale, and what no baseline of the group is taken from.
      if (preset.settings.scale == naive::Scale::Batch ||
          preset.settings.scale == naive::Scale::GroupMean ||
          !naive::detail::compares(preset.settings.baseline))
        continue;
      INFO("seed " << seed << ", " << preset.name);
      CHECK(deviation(product::advantages(preset.settings, data).advantages,
                      product::advantages(preset.settings, shifted).advantages,
                      64 * tolerance::offset(64, 0.05)) == "");
    }
  }
}

TEST_CASE("a positive scale of a reward changes nothing where std has no eps", "[invariance]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    const naive::Data data = full_groups(random, 6, 3);
    naive::Data doubled = data, scaled = data;
    for (std::size_t k = 0; k < data.rewards.size(); ++k) {
      doubled.rewards[k] *= k % 3 == 0 ? 0.25 : k % 3 == 1 ? 1024 : 1;
      scaled.rewards[k] *= k % 3 == 0 ? 0.3 : k % 3 == 1 ? 700 : 1;
    }
    const naive::Settings gdpo = product::settings_of(gdpo::Gdpo{});
    INFO("seed " << seed);
    // Powers of two change no bit.
    CHECK(difference(product::advantages(gdpo, data).advantages,
                     product::advantages(gdpo, doubled).advantages) == "");
    CHECK(deviation(product::advantages(gdpo, data).advantages,
                    product::advantages(gdpo, scaled).advantages, 64 * tolerance::formula) == "");
    naive::Data all = data;
    for (double& x : all.rewards) x *= 512;
    const naive::Settings grpo = product::settings_of(gdpo::Grpo{});
    CHECK(difference(product::advantages(grpo, data).advantages,
                     product::advantages(grpo, all).advantages) == "");
  }
}

TEST_CASE("weights: (1, 0) is the single reward, a common power of two is nothing, bit for bit",
          "[invariance]") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    naive::Data data = random_batch(random, 6, 7, 2, 0.1), single = data;
    add_columns(random, data);
    single.tokens = data.tokens;
    data.valid.clear();
    data.penalty.clear();
    single.reward_count = 1;
    single.rewards.clear();
    for (int i = 0; i < data.rows; ++i)
      single.rewards.push_back(data.rewards[static_cast<std::size_t>(2 * i)]);
    for (const product::Preset& preset : product::presets()) {
      INFO(preset.name);
      naive::Settings e = preset.settings;
      // TRL's rule asks a reward of weight 0 too whether the row has one.
      if (e.row == naive::Row::ExcludeUnscored) e.row = naive::Row::Exclude;
      const naive::Settings of_single = e;
      e.weights = {1, 0};
      CHECK(difference(product::advantages(e, data).advantages,
                       product::advantages(of_single, single).advantages) == "");
    }
    naive::Settings e = product::settings_of(gdpo::Gdpo{}), twice = e;
    e.weights = {1, -0.75};
    twice.weights = {8, -6};
    CHECK(difference(product::advantages(e, data).advantages,
                     product::advantages(twice, data).advantages) == "");
  }
}

TEST_CASE("a reward that is constant in every group changes no bit of GDPO", "[invariance]") {
  // The sum of at most two varying rewards has one order only. With more, the sum is a tree over
  // the columns, so a further column moves roundings: tolerance::formula.
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Random random(seed);
    for (const int live : {1, 2, 3, 5, 8}) {
      const naive::Data data = full_groups(random, 5, live);
      for (int place = 0; place <= live; ++place) {
        naive::Data wider = data;
        wider.reward_count = live + 1;
        wider.rewards.clear();
        for (int i = 0; i < data.rows; ++i) {
          for (int c = 0; c <= live; ++c) {
            const int from = c < place ? c : c - 1;
            wider.rewards.push_back(c == place
                                        ? 0.1 * (1 + i / 6)
                                        : data.rewards[static_cast<std::size_t>(i * live + from)]);
          }
        }
        INFO("seed " << seed << ", live rewards " << live << ", place " << place);
        const naive::Settings gdpo = product::settings_of(gdpo::Gdpo{});
        const auto a = product::advantages(gdpo, data).advantages,
                   b = product::advantages(gdpo, wider).advantages;
        if (live <= 2) CHECK(difference(a, b) == "");
        CHECK(deviation(a, b, 8 * tolerance::formula) == "");
      }
    }
  }
}

TEST_CASE("a batch given twice changes the batch std by its ddof alone", "[invariance]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const naive::Data data = full_groups(random, 4, 2);
    naive::Data twice = data;
    twice.rows *= 2;
    twice.rewards.insert(twice.rewards.end(), data.rewards.begin(), data.rewards.end());
    for (const long long id : data.ids) twice.ids.push_back(id + 100);
    twice.tokens.clear();
    naive::Settings e = product::settings_of(gdpo::Gdpo{});
    auto a = product::advantages(e, data), b = product::advantages(e, twice);
    b.sums.resize(a.sums.size());
    CHECK(difference(a.sums, b.sums) == "");
    e.renorm_spread.ddof = 0;
    a = product::advantages(e, data), b = product::advantages(e, twice);
    b.advantages.resize(a.advantages.size());
    CHECK(deviation(a.advantages, b.advantages, 8 * tolerance::formula) == "");
  }
}

TEST_CASE("group sums are 0 before the renormalization, the batch has std 1 after it",
          "[invariance]") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const naive::Data data = full_groups(random, 1 + random.below(8), 1 + random.below(4));
    for (const product::Preset& preset : product::presets()) {
      if (preset.settings.baseline != naive::Baseline::Mean) continue;
      // A mean near 0 makes values of any size.
      if (preset.settings.scale == naive::Scale::GroupMean) continue;
      INFO(preset.name);
      const product::Outcome outcome = product::advantages(without_missing(preset.settings), data);
      for (int g = 0; 6 * g < data.rows; ++g) {
        double sum = 0;
        for (int k = 0; k < 6; ++k) sum += outcome.sums[static_cast<std::size_t>(6 * g + k)];
        CHECK(std::abs(sum) <= 24 * tolerance::formula);  // four rewards, each up to 4
      }
    }
    const std::vector<double> a =
        product::advantages(product::settings_of(gdpo::Gdpo{}), data).advantages;
    double sum = 0, square = 0;
    for (const double x : a) sum += x, square += x * x;
    const double n = static_cast<double>(a.size());
    CHECK(std::abs((square - sum * sum / n) / (n - 1) - 1) <= 8 * tolerance::formula);
  }
}

TEST_CASE(
    "grouping by id: the result of a group is that of the group alone, before the renormalization",
    "[invariance]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const naive::Data data = random_batch(random, 5, 6, 3, 0.2);
    const naive::Settings e = product::settings_of(gdpo::Gdpo{});
    const product::Outcome whole = product::advantages(e, data);
    for (const auto& group : data.groups()) {
      naive::Data alone;
      alone.reward_count = 3;
      std::vector<double> expected;
      for (const int i : group.second) {
        alone.ids.push_back(0);
        alone.rewards.insert(alone.rewards.end(), data.rewards.begin() + 3 * i,
                             data.rewards.begin() + 3 * i + 3);
        expected.push_back(whole.sums[static_cast<std::size_t>(i)]);
      }
      alone.rows = static_cast<int>(alone.ids.size());
      CHECK(difference(product::advantages(e, alone).sums, expected) == "");
    }
  }
}

}  // namespace invariance_test
