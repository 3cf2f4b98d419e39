// labels: none
// Laws of the robust baselines and scales, and of the others that product_test.cpp has no scales
// for: the oracle on random batches, equivariance, breakdown, permutations, zeros, executions.
#include <gdpo/advantages.hpp>
#include <gdpo/group/by_offsets.hpp>

#include "support/catch.hpp"
#include "support/few_rounds.hpp"
#include "support/generators.hpp"
#include "support/row_settings.hpp"
#include "support/tolerance.hpp"

namespace robust_laws_test {

namespace {

using gdpo::GroupAdvantage;
using gdpo::index_t;
using gdpo::combine::NormalizeThenSum;
using gdpo::combine::SumThenNormalize;
using product::batch_of, product::estimator_of;
namespace baseline = gdpo::baseline;
namespace scale = gdpo::scale;
using Vector = std::vector<double>;

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

/// The advantages on `seq`, and a check that `simd` gives the same bits.
template <class Groups, class Estimator>
Vector run(const gdpo::RewardBatch<double, Groups>& batch, const Estimator& e) {
  Vector one(at(batch.rewards.extent[0])), lanes(one);
  gdpo::Workspace workspace;
  gdpo::advantages_into(gdpo::seq, batch, e, gdpo::view(one), workspace);
  gdpo::advantages_into(gdpo::simd, batch, e, gdpo::view(lanes), workspace);
  CHECK(difference(one, lanes) == "");
  return one;
}

/// Calls visit(estimator type, oracle's combine) for a cover of the pairs.
template <class E>
struct Type {
  using type = E;
};
template <class B, class S, class Visit>
void both_combines(const Visit& visit) {
  visit(Type<GroupAdvantage<B, S, SumThenNormalize>>{}, naive::Combine::SumThenNormalize);
  visit(Type<GroupAdvantage<B, S, NormalizeThenSum>>{}, naive::Combine::NormalizeThenSum);
}
template <class Visit>
void for_each_pair(const Visit& visit) {
  both_combines<baseline::Median, scale::Mad>(visit);
  both_combines<baseline::TrimmedMean, scale::Iqr>(visit);
  both_combines<baseline::WinsorizedMean, scale::LeaveOneOutStd>(visit);
  both_combines<baseline::SecondBest, scale::NonzeroShare>(visit);
  both_combines<baseline::LengthWeighted, scale::Mad>(visit);
  both_combines<baseline::External, scale::Iqr>(visit);
  both_combines<baseline::LeaveOneOut, scale::LeaveOneOutStd>(visit);
  both_combines<baseline::None, scale::Mad>(visit);
}

}  // namespace

TEST_CASE("robust policies give what their formulas give", "[robust]") {
  int compared = 0, undecided = 0;
  std::uint64_t seed = 0;
  for (int round = 0; round < (few_rounds ? 15 : 100); ++round) {
    for_each_pair([&](auto of, naive::Combine c) {
      Random random(++seed);
      const int reward_count = random.pick({1, 2, 3, 9});
      naive::Data data = random_batch(random, random.pick({1, 3, 6}), random.pick({2, 5, 9, 40}),
                                      reward_count, random.pick({0.0, 0.1, 0.4}));
      add_columns(random, data);
      if (random.chance(0.5)) data.valid.clear();
      naive::Settings e = product::settings_of(typename decltype(of)::type{});
      e.renorm = naive::Renorm::None;
      e.fraction = random.pick({0.25, 0.0, 0.1, 0.45});
      e.zero_at_zero = random.chance(0.3);
      e.scale_spread.ddof = random.pick({1, 1, 0});
      e.scale_spread.eps = random.pick({0.0, 0.0, 1e-4, 0.3});
      e.scale_spread.eps_at = static_cast<naive::EpsAt>(random.below(6));
      e.entry = static_cast<naive::Entry>(random.below(3));
      e.row = static_cast<naive::Row>(random.below(3));
      e.singleton =
          random.pick({naive::Singleton::Zero, naive::Singleton::Raw, naive::Singleton::Nan});
      if (random.chance(0.6)) {
        for (int k = 0; k < reward_count; ++k)
          e.weights.push_back(random.pick({1.0, 0.5, -1.0, 0.3}));
      }
      if (random.chance(0.3))
        e.gates = {{random.below(reward_count), random.below(reward_count), 0.5}};
      if (random.chance(0.2)) {
        e.penalty_coef = random.pick({0.1, -0.5});
        e.penalty_reward = c == naive::Combine::SumThenNormalize ? -1 : random.below(reward_count);
      }
      INFO("seed " << seed << ", baseline " << static_cast<int>(e.baseline) << ", scale "
                   << static_cast<int>(e.scale) << ", combine " << static_cast<int>(c)
                   << ", eps at " << static_cast<int>(e.scale_spread.eps_at));
      const naive::Result expected = naive::advantages(e, data);
      const gdpo::ById groups = gdpo::by_id(data.ids);
      const Vector got = run(batch_of(data, groups), estimator_of<typename decltype(of)::type>(e));
      // Groups have up to 40 members, where those of tolerance::chain have 8.
      const double tolerance = 8 * tolerance::chain * static_cast<double>(expected.sensitivity);
      if (!(tolerance <= 1e-6)) {
        ++undecided;
        return;
      }
      ++compared;
      CHECK(deviation(got, expected.advantages, tolerance) == "");
    });
  }
  INFO(compared << " compared, " << undecided << " decided by rounding");
  CHECK(undecided * 5 < compared);
}

namespace {

/// A group of n rewards of a kind, with ties.
Vector random_group(Random& random, int n) {
  Vector x;
  const int kind = random.below(4);
  for (int i = 0; i < n; ++i) x.push_back(random_reward(random, kind));
  return x;
}
template <class Estimator>
Vector of_group(const Vector& x, const Estimator& e, const Vector& tokens) {
  gdpo::RewardBatch batch{gdpo::view(x.data(), static_cast<index_t>(x.size()), 1),
                          gdpo::groups_of(static_cast<index_t>(x.size()))};
  batch.tokens = gdpo::view(tokens), batch.baseline = gdpo::view(tokens);
  return run(batch, e);
}
template <class Baseline, class Scale = scale::None>
using Plain = GroupAdvantage<Baseline, Scale, SumThenNormalize>;

/// Calls visit(estimator, is a scale) for each policy by itself that compares a group with itself.
template <class Visit>
void for_each_policy(const Visit& visit) {
  visit(Plain<baseline::Median>{}, false);
  visit(Plain<baseline::TrimmedMean>{}, false);
  visit(Plain<baseline::WinsorizedMean>{}, false);
  visit(Plain<baseline::SecondBest>{}, false);
  visit(Plain<baseline::LengthWeighted>{}, false);
  visit(Plain<baseline::Median, scale::Mad>{}, true);
  visit(Plain<baseline::TrimmedMean, scale::Iqr>{}, true);
  visit(Plain<baseline::LeaveOneOut, scale::LeaveOneOutStd>{}, true);
}
double largest(const Vector& x) {
  double most = 0;
  for (const double value : x) most = (std::max)(most, std::abs(value));
  return most;
}

}  // namespace

TEST_CASE("robust policies follow an offset and a factor of the rewards",
          "[robust][equivariance]") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const Vector x = random_group(random, 2 + random.below(40));
    Vector tokens, doubled, shifted;
    for (std::size_t i = 0; i < x.size(); ++i) tokens.push_back(random.below(9));
    // Rewards in steps of 2^-26, which is the spacing of doubles at 1e8: a reward at the offset is
    // exact, and what is computed from it there would not be.
    Vector exact = x;
    for (double& value : exact) value = std::floor(value * 0x1p26) * 0x1p-26;
    const double factor = random.pick({0x1p-40, 8.0, 0x1p60});
    for (const double value : exact) {
      doubled.push_back(factor * value);
      shifted.push_back(value + 1e8);
    }
    for_each_policy([&](const auto& e, bool is_scale) {
      const Vector a = of_group(exact, e, tokens), b = of_group(doubled, e, tokens),
                   c = of_group(shifted, e, tokens);
      Vector scaled = a;
      for (double& value : scaled) value *= is_scale ? 1 : factor;
      CHECK(difference(b, scaled) == "");  // a power of two moves no digit
      // Differences from a value of the group are exact at any offset. Those from its mean, which
      // LeaveOneOut takes, are rounded like numbers of order 1.
      CHECK(deviation(c, a, 4 * tolerance::formula * (1 + largest(a)) * (1 + largest(a))) == "");
      // Half of one, a tenth of the next: an offset costs no digits.
      if (std::is_same_v<std::decay_t<decltype(e)>, Plain<baseline::Median>> ||
          std::is_same_v<std::decay_t<decltype(e)>, Plain<baseline::SecondBest>>)
        CHECK(difference(c, a) == "");
    });
  }
}

TEST_CASE("an outlier of 1e12 moves robust baselines and scales no further than the bulk",
          "[robust][breakdown]") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const int n = 5 + random.below(30);
    Vector x = random_group(random, n);
    const Vector tokens(x.size(), 1);
    const int outliers = 1 + random.below((n - 1) / 4);
    std::vector<double> bulk(x.begin() + outliers, x.end());
    const double low = *std::min_element(bulk.begin(), bulk.end()),
                 high = *std::max_element(bulk.begin(), bulk.end());
    const double sign = random.pick({1e12, -1e12});
    for (int i = 0; i < outliers; ++i) x[at(i)] = sign * (1 + random.uniform());
    const auto last = x.size() - 1;  // of the bulk
    // The baseline stays between the ends of the bulk: x - b of one of them says what b is.
    const auto base = [&](const auto& e) { return x[last] - of_group(x, e, tokens)[last]; };
    const double slack = 64 * tolerance::unit * (1 + std::abs(low) + std::abs(high));
    const double cut = 0.25 + 0.01;
    for (const double b :
         {base(Plain<baseline::Median>{}), base(Plain<baseline::TrimmedMean>{{cut}}),
          base(Plain<baseline::WinsorizedMean>{{cut}})}) {
      CHECK(b >= low - slack);
      CHECK(b <= high + slack);
    }
    CHECK(std::abs(base(Plain<baseline::Mean>{})) > 1e9);
    // The measure of the spread stays below the range of the bulk, so that its members keep their
    // distance: advantages of the ends differ by at least 1 / c.
    if (high == low) continue;
    const auto distance = [&](auto e) {
      e.scale.at_zero = gdpo::AtZero::Zero;
      const Vector a = of_group(x, e, tokens);
      double least = 0, most = 0;
      for (std::size_t i = at(outliers); i < x.size(); ++i)
        least = (std::min)(least, a[i]), most = (std::max)(most, a[i]);
      return all_zero(a) ? 1.0 : most - least;
    };
    CHECK(distance(Plain<baseline::Median, scale::Mad>{}) >= 0.99 / 1.4826022185056018);
    CHECK(distance(Plain<baseline::Median, scale::Iqr>{}) >= 0.99 / 1.4826022185056018);
    // Under the std they nearly meet.
    Vector by_std = of_group(x, Plain<baseline::Median, scale::StdDev>{}, tokens);
    by_std.erase(by_std.begin(), by_std.begin() + outliers);
    CHECK(largest(by_std) < 1e-9);
  }
}

TEST_CASE("rows in another order give the same bits, in groups of any kind",
          "[robust][permutation]") {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Vector x = random_group(random, 2 + random.below(80)), tokens;
    for (double& value : x) {
      if (random.chance(0.1)) value = -0.0;
      tokens.push_back(0.1 * random.below(20));
    }
    std::vector<int> order;
    for (int i = 0; i < static_cast<int>(x.size()); ++i) order.push_back(i);
    random.shuffle(order);
    Vector y, lengths;
    for (const int i : order) y.push_back(x[at(i)]), lengths.push_back(tokens[at(i)]);
    const auto same = [&](const auto& e) {
      const Vector a = of_group(x, e, tokens), b = of_group(y, e, lengths);
      Vector moved;
      for (const int i : order) moved.push_back(a[at(i)]);
      CHECK(difference(moved, b) == "");
    };
    same(Plain<baseline::Median>{});
    same(Plain<baseline::TrimmedMean>{});
    same(Plain<baseline::WinsorizedMean>{});
    same(Plain<baseline::SecondBest>{});
    if (largest(tokens) > 0) same(Plain<baseline::LengthWeighted>{});
    auto mad = Plain<baseline::Median, scale::Mad>{};
    auto iqr = Plain<baseline::TrimmedMean, scale::Iqr>{};
    mad.scale.at_zero = iqr.scale.at_zero = gdpo::AtZero::Zero;
    same(mad);
    same(iqr);
  }
}

TEST_CASE("groups of equal rewards get exactly 0 from robust policies", "[robust][zero]") {
  for (const double value : {0.1, 3.3, 1e5 + 0.1, -7.0, 1e30, 1.0 / 3, 0.0}) {
    for (const int n : {1, 2, 3, 7, 33, 100}) {
      INFO(value << ", " << n);
      const Vector x(at(n), value);
      Vector tokens;
      for (int i = 0; i < n; ++i) tokens.push_back(0.3 * i);
      for_each_policy([&](auto e, bool is_scale) {
        CHECK(all_zero(of_group(x, e, tokens)));
        if constexpr (!std::is_same_v<decltype(e.scale), scale::None>) {
          e.scale.eps = 1e-6;
          CHECK(all_zero(of_group(x, e, tokens)));
          e.scale.eps_at = gdpo::EpsAt::StdOrOne;
          CHECK(all_zero(of_group(x, e, tokens)));
        }
        static_cast<void>(is_scale);
      });
    }
  }
}

TEST_CASE("means of the middle: fraction 0 is the mean, and the two agree without outliers",
          "[robust]") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const Vector x = random_group(random, 2 + random.below(60)), tokens(x.size(), 1);
    const Vector mean = of_group(x, Plain<baseline::Mean>{}, tokens);
    // The sum of up to 62 differences of order 1 is rounded as many times.
    const double within = 64 * tolerance::unit * 4;
    CHECK(deviation(of_group(x, Plain<baseline::TrimmedMean>{{0.0}}, tokens), mean, within) == "");
    CHECK(deviation(of_group(x, Plain<baseline::WinsorizedMean>{{0.0}}, tokens), mean, within) ==
          "");
    CHECK(deviation(of_group(x, Plain<baseline::LengthWeighted>{}, tokens), mean, within) == "");
  }
}

TEST_CASE("what is not read changes no bit of robust policies", "[robust][poison]") {
  const double poisons[] = {std::nan(""), std::numeric_limits<double>::infinity(), 1e38, -1e308};
  std::uint64_t seed = 100;
  for (int round = 0; round < 6; ++round) {
    for_each_pair([&](auto of, naive::Combine) {
      Random random(++seed);
      INFO("seed " << seed);
      naive::Data data = random_batch(random, 4, 9, 2, 0.1);
      add_columns(random, data);
      naive::Settings settings;
      settings.renorm = naive::Renorm::None, settings.weights = {1, 0};
      settings.row = naive::Row::Keep;
      const auto e = estimator_of<typename decltype(of)::type>(settings);
      const auto used = [&](const naive::Data& d) {
        Vector out = run(batch_of(d, gdpo::by_id(d.ids)), e);
        for (int i = 0; i < d.rows; ++i) {
          if (d.valid[at(i)] == 0) out[at(i)] = 0;
        }
        return out;
      };
      const Vector clean = used(data);
      for (const double poison : poisons) {
        naive::Data bad = data;
        for (int i = 0; i < bad.rows; ++i) {
          bad.rewards[at(2 * i + 1)] = poison;
          if (bad.valid[at(i)] != 0) continue;
          bad.rewards[at(2 * i)] = poison;
          bad.external[at(i)] = poison;
        }
        CHECK(difference(used(bad), clean) == "");
      }
    });
  }
}

}  // namespace robust_laws_test
