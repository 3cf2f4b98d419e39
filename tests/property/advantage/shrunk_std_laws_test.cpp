// labels: lanes
// Laws of scale::ShrunkStd and scale::Of::Within on random batches: their limits, what they do not
// depend on, the formulas in long double, and that the estimated prior is the one that the rewards
// were drawn with. property/advantage/product_test.cpp has both in the product of axes.
#include <gdpo/advantages.hpp>
#include <gdpo/with/thread_pool.hpp>
#include <map>

#include "support/catch.hpp"
#include "support/few_rounds.hpp"
#include "support/row_settings.hpp"
#include "support/tolerance.hpp"

namespace shrunk_std_laws_test {

namespace {

using gdpo::EqualGroups, gdpo::index_t;
using gdpo::scale::ShrunkStd;
namespace combine = gdpo::combine;
using Numbers = std::vector<double>;

constexpr double inf = gdpo::math::infinity;

template <class Scale, class Combine = combine::NormalizeThenSum,
          class Baseline = gdpo::baseline::Mean>
gdpo::GroupAdvantage<Baseline, Scale, Combine> estimator(const Scale& scale = {}) {
  gdpo::GroupAdvantage<Baseline, Scale, Combine> e{{}, scale};
  e.renorm = gdpo::renorm::none();
  return e;
}

template <class Exec, class E>
Numbers by_id(const Exec& exec, const naive::Data& data, const E& e) {
  gdpo::RewardBatch batch{gdpo::view(data.rewards.data(), data.rows, data.reward_count),
                          gdpo::by_id(data.ids)};
  if (!data.valid.empty()) batch.valid = gdpo::view(data.valid);
  if (!data.penalty.empty()) batch.penalty = gdpo::view(data.penalty);
  Numbers out(static_cast<std::size_t>(data.rows));
  gdpo::Workspace workspace;
  gdpo::advantages_into(exec, batch, e, gdpo::view(out), workspace);
  return out;
}
template <class E>
Numbers by_id(const naive::Data& data, const E& e) {
  return by_id(gdpo::seq, data, e);
}
template <class Exec, class E>
Numbers by_offsets(const Exec& exec, const naive::Data& data, const std::vector<int>& offsets,
                   const E& e) {
  gdpo::RewardBatch batch{gdpo::view(data.rewards.data(), data.rows, data.reward_count),
                          gdpo::by_offsets(offsets)};
  if (!data.valid.empty()) batch.valid = gdpo::view(data.valid);
  Numbers out(static_cast<std::size_t>(data.rows));
  gdpo::Workspace workspace;
  gdpo::advantages_into(exec, batch, e, gdpo::view(out), workspace);
  return out;
}

naive::Data random_rewards(Random& random, double missing = 0.1) {
  naive::Data data = random_batch(random, random.pick({1, 2, 5, 12}), random.pick({2, 5, 8}),
                                  random.pick({1, 2, 5, 9}), missing);
  add_columns(random, data);
  if (random.chance(0.5)) data.valid.clear();
  return data;
}
/// Calls check(seed, random) for as many seeds.
template <class Check>
void for_seeds(std::uint64_t first, int rounds, const Check& check) {
  for (std::uint64_t seed = first; seed < first + static_cast<std::uint64_t>(rounds); ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    check(random);
  }
}
constexpr int rounds = few_rounds ? 20 : 150;

/// Rows `from` of the data in their order.
naive::Data rows_of(const naive::Data& data, const std::vector<int>& from) {
  naive::Data to;
  to.rows = static_cast<int>(from.size()), to.reward_count = data.reward_count;
  const auto reward_count = static_cast<std::size_t>(data.reward_count);
  for (const int row : from) {
    const auto i = static_cast<std::size_t>(row);
    for (std::size_t c = 0; c < reward_count; ++c)
      to.rewards.push_back(data.rewards[i * reward_count + c]);
    to.ids.push_back(data.ids[i]);
    if (!data.tokens.empty()) to.tokens.push_back(data.tokens[i]);
    if (!data.valid.empty()) to.valid.push_back(data.valid[i]);
    if (!data.penalty.empty()) to.penalty.push_back(data.penalty[i]);
  }
  return to;
}

template <class E>
void check_limits(Random& random, E shrunk) {
  naive::Data data = random_rewards(random);
  shrunk.singleton = random.pick({gdpo::Singleton::Zero, gdpo::Singleton::Raw});
  shrunk.scale.eps = random.pick({0.0, 0.1});
  shrunk.scale.eps_at = static_cast<gdpo::EpsAt>(random.below(6));
  using Plain = gdpo::GroupAdvantage<decltype(shrunk.baseline), gdpo::scale::StdDev,
                                     decltype(shrunk.combine)>;
  Plain plain;
  plain.renorm = shrunk.renorm;
  plain.singleton = shrunk.singleton;
  plain.scale.eps = shrunk.scale.eps, plain.scale.eps_at = shrunk.scale.eps_at;
  shrunk.scale.prior_dof = random.pick({0.0, -0.0});
  shrunk.scale.equal_groups = random.pick({EqualGroups::Exclude, EqualGroups::Include});
  CHECK(difference(by_id(data, shrunk), by_id(data, plain)) == "");
  CHECK(difference(by_id(gdpo::simd, data, shrunk), by_id(data, plain)) == "");
  shrunk.scale.prior_dof = inf, shrunk.scale.equal_groups = EqualGroups::Include;
  plain.scale.of = gdpo::scale::Of::Within;
  CHECK(difference(by_id(data, shrunk), by_id(data, plain)) == "");
}

/// A scale that keeps its multipliers by the means of the groups.
template <class Scale>
struct Multipliers {
  Scale of;
  std::map<double, double>* found;
  static constexpr bool per_group = true;
  double operator()(const gdpo::ScaleArgs& a) const {
    const double factor = of(a);
    (*found)[a.group.mean] = factor;
    return factor;
  }
};
/// A scale that keeps what it sees of the batch.
struct Spreads {
  gdpo::GroupSpreads* seen;
  static constexpr bool per_group = true;
  double operator()(const gdpo::ScaleArgs& a) const {
    *seen = a.batch.within;
    return 1;
  }
};

/// The stds that a scale divides by, by id of the group: for rows of one reward.
template <class Scale>
std::map<long long, double> stds(const naive::Data& data, const Scale& scale) {
  std::map<double, double> found;
  by_id(data, estimator(Multipliers<Scale>{scale, &found}));
  std::map<long long, double> by_group;
  for (const auto& [id, members] : data.groups()) {
    double mean = 0;
    for (const int i : members) mean += data.rewards[static_cast<std::size_t>(i)];
    mean /= static_cast<double>(members.size());
    for (const auto& [at, factor] : found) {
      if (std::abs(at - mean) < 1e-9) by_group[id] = 1 / factor;
    }
  }
  return by_group;
}

}  // namespace

TEST_CASE("shrunk: without a prior the group's std, with an infinite one the pooled std",
          "[shrunk]") {
  for_seeds(1, rounds, [](Random& random) {
    check_limits(random, estimator<ShrunkStd>());
    check_limits(random, estimator<ShrunkStd, combine::SumThenNormalize>());
    check_limits(random, estimator<ShrunkStd, combine::SumThenNormalize, gdpo::baseline::None>());
  });
}

TEST_CASE("shrunk: groups of equal values that are left out change no bit of the others",
          "[shrunk]") {
  for_seeds(1001, rounds, [](Random& random) {
    naive::Data data = random_rewards(random, 0);
    data.valid.clear();
    data.reward_count = 1, data.rewards.resize(static_cast<std::size_t>(data.rows));
    std::vector<int> unequal;
    for (const auto& [id, members] : data.groups()) {
      const double first = data.rewards[static_cast<std::size_t>(members[0])];
      for (const int i : members) {
        if (data.rewards[static_cast<std::size_t>(i)] != first) {
          unequal.insert(unequal.end(), members.begin(), members.end());
          break;
        }
      }
    }
    std::sort(unequal.begin(), unequal.end());
    const naive::Data others = rows_of(data, unequal);
    const auto check = [&](const auto& e, const auto& of_others) {
      const Numbers all = by_id(data, e);
      Numbers got;
      for (const int i : unequal) got.push_back(all[static_cast<std::size_t>(i)]);
      CHECK(difference(got, by_id(others, of_others)) == "");
    };
    auto e = estimator<ShrunkStd>();
    check(e, e);
    e.scale.prior_dof = 3;
    check(e, e);
    e.scale.prior_dof = inf;
    check(e, e);
    auto within = estimator<gdpo::scale::StdDev>();
    within.scale.of = gdpo::scale::Of::Within;
    check(e, within);
  });
}

TEST_CASE("shrunk: sums over the groups do not depend on the order of rows or on ids", "[shrunk]") {
  for_seeds(2001, rounds, [](Random& random) {
    const naive::Data data = random_rewards(random);
    std::vector<int> order(static_cast<std::size_t>(data.rows));
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    random.shuffle(order);
    naive::Data shuffled = rows_of(data, order);
    for (long long& id : shuffled.ids) id = 3 - id;
    auto e = estimator<ShrunkStd>();
    e.scale.prior_dof = random.pick({gdpo::from_batch, 2.5, inf});
    e.scale.equal_groups = random.pick({EqualGroups::Exclude, EqualGroups::Include});
    const Numbers before = by_id(data, e), after = by_id(shuffled, e);
    Numbers moved;
    for (const int i : order) moved.push_back(before[static_cast<std::size_t>(i)]);
    CHECK(difference(moved, after) == "");
  });
}

TEST_CASE("shrunk: another unit or another zero of the reward changes nothing", "[shrunk]") {
  for_seeds(3001, rounds, [](Random& random) {
    naive::Data data = random_rewards(random, 0.1);
    auto e = estimator<ShrunkStd, combine::SumThenNormalize>();
    e.scale.prior_dof = random.pick({gdpo::from_batch, gdpo::from_batch, 4.0, inf});
    const Numbers before = by_id(data, e);
    // A power of two is exact, however large.
    for (const double unit : {0x1p-300, 0.5, 0x1p300}) {
      naive::Data scaled = data;
      for (double& x : scaled.rewards) x *= unit;
      CHECK(difference(by_id(scaled, e), before) == "");
    }
    // Another number and a shift round each reward twice more. What a rounding of a value does to
    // an advantage is what the oracle computes as sensitivity.
    naive::Data moved = data;
    moved.reward_count = 1, moved.rewards.resize(static_cast<std::size_t>(data.rows));
    const Numbers plain = by_id(moved, e);
    for (double& x : moved.rewards) x = 3.7 * x + 11;
    naive::Settings s;
    s.scale = naive::Scale::Shrunk, s.prior_dof = e.scale.prior_dof;
    s.combine = naive::Combine::SumThenNormalize, s.renorm = naive::Renorm::None;
    const double within =
        2 * tolerance::chain * static_cast<double>(naive::advantages(s, moved).sensitivity);
    if (within < 1e-6) CHECK(deviation(by_id(moved, e), plain, within) == "");
  });
}

TEST_CASE("shrunk: every std lies between that of its group and that of the batch", "[shrunk]") {
  for_seeds(4001, rounds, [](Random& random) {
    naive::Data data;
    data.reward_count = 1;
    for (int g = 0; g < 8; ++g) {
      const double width = 0.25 + random.uniform() * 4;
      for (int k = 1 + random.below(6); k >= 0; --k) {
        data.ids.push_back(g);
        data.rewards.push_back(100 * g + width * random.uniform());
      }
    }
    data.rows = static_cast<int>(data.ids.size());
    ShrunkStd of;
    const auto at = [&](double prior_dof) {
      of.prior_dof = prior_dof;
      return stds(data, of);
    };
    std::map<long long, double> before = at(0);
    const std::map<long long, double> group = before, batch = at(inf),
                                      estimated = at(gdpo::from_batch);
    REQUIRE(group.size() == 8);
    // A mean of two numbers with rounded weights may pass them by some roundings.
    const double within = 16 * tolerance::unit;
    const auto between = [&](double x, double a, double b) {
      CHECK(x >= std::min(a, b) * (1 - within));
      CHECK(x <= std::max(a, b) * (1 + within));
    };
    for (const auto& [id, std] : estimated) between(std, group.at(id), batch.at(id));
    for (const double nu : {1e-12, 0.1, 1.0, 7.0, 1e4, 1e15, 1e300}) {
      const std::map<long long, double> now = at(nu);
      for (const auto& [id, std] : now) between(std, before.at(id), batch.at(id));
      before = now;
    }
    for (const auto& [id, std] : before) between(std, batch.at(id), batch.at(id));
  });
}

TEST_CASE("shrunk: equal rewards and single rows are exactly 0, whatever the batch", "[shrunk]") {
  for_seeds(5001, rounds, [](Random& random) {
    naive::Data data = random_rewards(random, 0);
    data.valid.clear();
    const auto reward_count = static_cast<std::size_t>(data.reward_count);
    const auto groups = data.groups();
    std::vector<bool> zero(static_cast<std::size_t>(data.rows), false);
    for (const auto& [id, members] : groups) {
      if (members.size() > 1 && !random.chance(0.4)) continue;
      for (const int i : members) {
        zero[static_cast<std::size_t>(i)] = true;
        for (std::size_t c = 0; c < reward_count; ++c)
          data.rewards[static_cast<std::size_t>(i) * reward_count + c] = 0.1 * double(c) + 0.3;
      }
    }
    const auto check = [&](auto e) {
      e.scale.prior_dof = random.pick({gdpo::from_batch, 0.0, 2.0, inf});
      e.scale.equal_groups = random.pick({EqualGroups::Exclude, EqualGroups::Include});
      const Numbers out = by_id(data, e);
      for (std::size_t i = 0; i < out.size(); ++i) {
        CHECK(std::isfinite(out[i]));
        if (zero[i]) CHECK(same_bits(out[i], 0.0));
      }
    };
    check(estimator<ShrunkStd>());
    check(estimator<ShrunkStd, combine::SumThenNormalize>());
    check(gdpo::GroupAdvantage<gdpo::baseline::Mean, ShrunkStd>{});
  });
}

TEST_CASE("shrunk: unused rows change no bit, and get what their group's moments give",
          "[shrunk]") {
  for_seeds(6001, rounds, [](Random& random) {
    naive::Data data = random_rewards(random, 0);
    if (data.valid.empty()) return;
    auto e = estimator<ShrunkStd>();
    const Numbers before = by_id(data, e);
    naive::Data poisoned = data;
    const auto reward_count = static_cast<std::size_t>(data.reward_count);
    for (std::size_t i = 0; i < before.size(); ++i) {
      for (std::size_t c = 0; data.valid[i] == 0 && c < reward_count; ++c)
        poisoned.rewards[i * reward_count + c] = random.pick({1e300, -inf, std::nan("")});
    }
    const Numbers after = by_id(poisoned, e);
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (data.valid[i] != 0) CHECK(same_bits(before[i], after[i]));
    }
  });
}

TEST_CASE("shrunk: every execution gives the bits of seq", "[shrunk][parallel]") {
  gdpo::ThreadPool pool(3);
  for_seeds(7001, few_rounds ? 2 : 6, [&](Random& random) {
    naive::Data data;
    data.reward_count = random.pick({1, 3, 10});
    std::vector<int> offsets{0};
    while (data.rows * data.reward_count < 3 * gdpo::detail::worth_a_thread) {
      const int members = random.below(6);
      const bool equal = random.chance(0.2);
      for (int k = 0; k < members * data.reward_count; ++k) {
        data.rewards.push_back(random.chance(0.05) ? std::nan("") : equal ? 0.3 : random.uniform());
      }
      for (int k = 0; k < members; ++k) {
        data.ids.push_back(static_cast<long long>(offsets.size()) * 31 % 2003);
        data.valid.push_back(random.chance(0.9));
      }
      data.rows += members;
      offsets.push_back(data.rows);
    }
    const auto check = [&](auto e) {
      e.scale.prior_dof = random.pick({gdpo::from_batch, 3.0, inf});
      const Numbers one = by_offsets(gdpo::seq, data, offsets, e), id = by_id(data, e);
      CHECK(difference(by_offsets(gdpo::simd, data, offsets, e), one) == "");
      CHECK(difference(by_offsets(gdpo::parallel(pool), data, offsets, e), one) == "");
      CHECK(difference(by_id(gdpo::simd, data, e), id) == "");
      CHECK(difference(by_id(gdpo::parallel(pool), data, e), id) == "");
    };
    check(estimator<ShrunkStd>());
    check(estimator<ShrunkStd, combine::SumThenNormalize>());
  });
}

namespace {

template <class E>
void check_oracle(Random& random, E e, int& compared) {
  naive::Data data = random_rewards(random);
  e.scale.prior_dof = random.pick({gdpo::from_batch, gdpo::from_batch, 0.7, 12.0, inf});
  e.scale.equal_groups = random.pick({EqualGroups::Exclude, EqualGroups::Include});
  e.scale.eps = random.pick({0.0, 0.3});
  e.scale.eps_at = random.pick({gdpo::EpsAt::Std, gdpo::EpsAt::Var, gdpo::EpsAt::ClampStd});
  e.singleton = random.pick({gdpo::Singleton::Zero, gdpo::Singleton::Raw});
  std::vector<double> weights;
  for (int c = 0; c < data.reward_count; ++c) weights.push_back(random.pick({1.0, 0.5, -2.0, 0.0}));
  e.weights = weights;
  const int reward = random.below(data.reward_count);
  e.gates = {{reward, random.below(data.reward_count), 0.5}};
  const naive::Result expected = naive::advantages(product::settings_of(e), data);
  const double within = tolerance::chain * static_cast<double>(expected.sensitivity);
  if (within > 1e-6) return;
  ++compared;
  CHECK(deviation(by_id(data, e), expected.advantages, within) == "");
}

}  // namespace

TEST_CASE("shrunk: other baselines give what the formulas give", "[shrunk]") {
  int compared = 0;
  for_seeds(8001, rounds, [&](Random& random) {
    using gdpo::baseline::LeaveOneOut, gdpo::baseline::None;
    using Sums = combine::SumThenNormalize;
    using Each = combine::NormalizeThenSum;
    check_oracle(random, estimator<ShrunkStd, Each, LeaveOneOut>(), compared);
    check_oracle(random, estimator<ShrunkStd, Sums, None>(), compared);
    check_oracle(random, estimator<ShrunkStd, Sums>(), compared);
  });
  CHECK(compared > 2 * rounds);
}

TEST_CASE("shrunk: the estimated prior is the one that rewards were drawn with", "[shrunk]") {
  const auto normal = [](Random& random) {  // Box and Muller
    return std::sqrt(-2 * std::log(1 - random.uniform())) *
           std::cos(6.283185307179586 * random.uniform());
  };
  const auto spreads = [](const naive::Data& data, const std::vector<int>& offsets) {
    gdpo::GroupSpreads seen;
    by_offsets(gdpo::seq, data, offsets, estimator(Spreads{&seen}));
    return seen;
  };
  for (const int nu : {8, 14, 40}) {
    const std::uint64_t seed = 9000 + static_cast<std::uint64_t>(nu);
    INFO("seed " << seed << ", nu " << nu);
    Random random(seed);
    naive::Data data;
    data.reward_count = 1;
    std::vector<int> offsets{0};
    for (int g = 0; g < 20000; ++g) {
      // 1/v is chi-square of nu + 2 degrees of freedom, and the mean of v is 3.
      double chi = 0;
      for (int k = 0; k < nu + 2; ++k) chi += std::pow(normal(random), 2);
      const double sigma = std::sqrt(3.0 * nu / chi), mean = 10 * random.uniform();
      for (int k = nu == 14 ? 2 + random.below(7) : 5; k > 0; --k) {
        data.rewards.push_back(mean + sigma * normal(random));
      }
      offsets.push_back(data.rows = static_cast<int>(data.rewards.size()));
    }
    const gdpo::GroupSpreads seen = spreads(data, offsets);
    // Over 200 seeds the standard deviation of m / 3 is 0.008, and that of nu / estimate 0.06, or
    // 0.1 for nu = 40; both have the mean 1. Three of them are allowed.
    CHECK(seen.variance(seen.all.dof) / 3 == Approx(1).margin(0.024));
    CHECK(nu / ShrunkStd{}.prior_in(seen) == Approx(1).margin(nu == 40 ? 0.3 : 0.18));
  }
  // Groups of one variance: a group of 5 has nearly no weight in its own variance.
  Random random(9100);
  naive::Data same;
  same.reward_count = 1;
  std::vector<int> offsets{0};
  for (int i = 0; i < 20000; ++i) {
    same.rewards.push_back(normal(random));
    if (i % 5 == 4) offsets.push_back(same.rows = i + 1);
  }
  CHECK(4 / (4 + ShrunkStd{}.prior_in(spreads(same, offsets))) < 0.05);
}

}  // namespace shrunk_std_laws_test
