// labels: lanes, sanitizers
// select_groups: its verdicts against the estimators' own reports and plain loops, laws of the
// selection, and the loop of dynamic sampling.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <gdpo/advantages.hpp>
#include <gdpo/update/select_groups.hpp>
#include <limits>
#include <map>
#include <utility>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/indices.hpp"
#include "support/message.hpp"
#include "support/tolerance.hpp"

namespace select_groups_test {

namespace {

using gdpo::index_t;
using gdpo::RewardBatch;
using gdpo::update::FlatIn;
using gdpo::update::GiveUp;
using gdpo::update::GroupSelection;
using gdpo::update::select_groups;
using gdpo::update::SelectedGroups;
using gdpo::update::Verdict;
using Vector = std::vector<double>;
using Indices = std::vector<index_t>;
using Verdicts = std::vector<Verdict>;
constexpr double infinity = std::numeric_limits<double>::infinity();
const double missing = std::nan("");

RewardBatch<double, gdpo::ById> batch_of(const naive::Data& d) {
  RewardBatch<double, gdpo::ById> batch{gdpo::view(d.rewards.data(), d.rows, d.reward_count),
                                        gdpo::by_id(d.ids)};
  if (!d.valid.empty()) batch.valid = gdpo::view(d.valid);
  return batch;
}
/// C rewards in groups of K rows.
RewardBatch<double, gdpo::GroupsOf> groups_of(const Vector& rewards, index_t C, index_t K) {
  return {gdpo::view(rewards.data(), static_cast<index_t>(rewards.size()) / C, C),
          gdpo::groups_of(K)};
}
GroupSelection in(FlatIn flat_in) {
  GroupSelection s;
  s.flat_in = flat_in;
  return s;
}
/// Groups of 2 rows with one reward each, with these distances between the two, whose std is the
/// distance over sqrt 2.
Vector pairs(const Vector& distances) {
  Vector rewards;
  for (const double d : distances) rewards.push_back(0), rewards.push_back(d);
  return rewards;
}
bool same(const SelectedGroups& a, const SelectedGroups& b) {
  return a.groups == b.groups && a.rows == b.rows && a.offsets == b.offsets &&
         a.verdict == b.verdict && difference(a.group_std, b.group_std) == "" &&
         a.flat_in_sum_only == b.flat_in_sum_only && a.refill == b.refill && a.gave_up == b.gave_up;
}
GroupSelection random_settings(Random& random, int reward_count) {
  GroupSelection s;
  s.flat_in = random.pick({FlatIn::EveryReward, FlatIn::Sum, FlatIn::Reward});
  s.reward = random.below(reward_count);
  if (random.chance(0.6)) {
    Vector weights;
    for (int c = 0; c < reward_count; ++c)
      weights.push_back(random.pick({1.0, 0.5, -2.0, 0.3, 0.0}));
    s.weights = weights;
  }
  s.missing.entry = random.pick({gdpo::MissingEntry::Skip, gdpo::MissingEntry::Skip,
                                 gdpo::MissingEntry::Zero, gdpo::MissingEntry::Propagate});
  s.missing.row = random.pick({gdpo::MissingRow::Exclude, gdpo::MissingRow::Keep});
  if (random.chance(0.3)) s.gates = {{random.below(reward_count), random.below(reward_count), 0.5}};
  s.min_std = random.chance(0.3) ? 0.3 * random.uniform() : 0.0;
  s.top_p = random.chance(0.5) ? 0.05 + 0.95 * random.uniform() : 1.0;
  s.wanted = random.chance(0.5) ? random.below(8) : 0;
  return s;
}
naive::Data any_batch(Random& random) {
  naive::Data d = random_batch(random, random.below(12), 6, 1 + random.below(4),
                               random.pick({0.0, 0.0, 0.1, 0.5}));
  if (random.chance(0.5)) add_columns(random, d);
  for (double& x : d.rewards)
    if (random.chance(0.005)) x = random.pick({infinity, -infinity});
  return d;
}
constexpr std::uint64_t rounds = 300;

/// The std of a group as the formula says, in long double; NaN: not finite. Without gates, and with
/// missing rewards left out.
double naive_std(const naive::Data& d, const std::vector<int>& members, const GroupSelection& s) {
  const auto weight = [&](int c) { return s.weights.empty() ? 1.0 : s.weights[c]; };
  const auto std_of = [&](const auto& value) {
    std::vector<naive::Real> x;
    for (const int i : members) {
      const naive::Real v = value(i);
      if ((d.valid.empty() || d.valid[at(i)] != 0) && !std::isnan(v)) x.push_back(v);
    }
    if (x.size() < 2) return naive::Real(0);
    return std::sqrt(naive::detail::statistics(x).square / static_cast<naive::Real>(x.size() - 1));
  };
  const auto reward = [&](int i, int c) {
    return static_cast<naive::Real>(d.rewards[at(i * d.reward_count + c)]);
  };
  if (s.flat_in == FlatIn::Reward) {
    const int c = static_cast<int>(s.reward);
    return static_cast<double>(std_of([&](int i) { return reward(i, c); }));
  }
  if (s.flat_in == FlatIn::Sum) {
    return static_cast<double>(std_of([&](int i) {
      naive::Real sum = 0;
      bool any = false;
      for (int c = 0; c < d.reward_count; ++c) {
        if (weight(c) == 0 || std::isnan(reward(i, c))) continue;
        sum += weight(c) * reward(i, c), any = true;
      }
      return any ? sum : std::numeric_limits<naive::Real>::quiet_NaN();
    }));
  }
  naive::Real square = 0;
  for (int c = 0; c < d.reward_count; ++c) {
    if (weight(c) == 0) continue;
    const naive::Real std = weight(c) * std_of([&](int i) { return reward(i, c); });
    square += std * std;
  }
  return static_cast<double>(std::sqrt(square));
}

}  // namespace

TEST_CASE("select_groups drops what the estimator's report calls degenerate", "[update]") {
  index_t flat = 0, kept = 0, sum_only = 0;
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const naive::Data d = any_batch(random);
    const auto batch = batch_of(d);
    GroupSelection s = random_settings(random, d.reward_count);
    s.min_std = 0, s.top_p = 1, s.wanted = 0;
    if (s.missing.entry == gdpo::MissingEntry::Propagate) s.missing = {};
    gdpo::Grpo grpo;
    grpo.weights = s.weights, grpo.gates = s.gates, grpo.missing = s.missing;
    gdpo::GroupReport report;
    gdpo::advantages(gdpo::seq, batch, grpo, &report);
    const auto weighted = [&](index_t c) { return s.weights.empty() || s.weights[c] != 0; };

    const SelectedGroups got = select_groups(batch, s);
    REQUIRE(got.verdict.size() == at(report.groups));
    index_t expected_sum_only = 0;
    for (index_t g = 0; g < report.groups; ++g) {
      bool by_reward = true;
      for (index_t c = 0; c < d.reward_count; ++c)
        by_reward =
            by_reward && (!weighted(c) || report.reward_degenerate[at(g * d.reward_count + c)]);
      const bool sum = report.degenerate[at(g)] != 0;
      const Verdict v = got.verdict[at(g)];
      if (v == Verdict::NotFinite) continue;
      expected_sum_only += sum && !by_reward;
      const bool is_flat = s.flat_in == FlatIn::Sum ? sum
                           : s.flat_in == FlatIn::EveryReward
                               ? by_reward
                               : report.reward_degenerate[at(g * d.reward_count + s.reward)] != 0;
      CHECK((v == Verdict::Flat || v == Verdict::Empty) == is_flat);
      flat += v == Verdict::Flat, kept += v == Verdict::Kept;
    }
    if (got.count(Verdict::NotFinite) == 0) CHECK(got.flat_in_sum_only == expected_sum_only);
    sum_only += got.flat_in_sum_only;

    // The caller's own flags: those of the report.
    s.flat_in = FlatIn::Given;
    s.given = gdpo::view(std::as_const(report.degenerate));
    const SelectedGroups given = select_groups(batch, s);
    for (index_t g = 0; g < report.groups; ++g) {
      const Verdict v = given.verdict[at(g)];
      if (v == Verdict::NotFinite || v == Verdict::Empty) continue;
      CHECK((v == Verdict::Flat) == (report.degenerate[at(g)] != 0));
    }
  }
  CHECK(flat > 50);
  CHECK(kept > 50);
  CHECK(sum_only > 0);
}

TEST_CASE("select_groups drops the groups with an infinite reward", "[update]") {
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    naive::Data d = random_batch(random, 1 + random.below(6), 5, 1 + random.below(3), 0);
    if (random.chance(0.5)) add_columns(random, d);
    const bool poison = random.chance(0.7);
    const int row = random.below(d.rows), c = random.below(d.reward_count);
    double& x = d.rewards[at(row * d.reward_count + c)];
    if (poison) x = random.pick({infinity, -infinity, missing});
    GroupSelection s = in(random.pick({FlatIn::EveryReward, FlatIn::Sum, FlatIn::Reward}));
    s.reward = random.below(d.reward_count);
    s.missing.entry = gdpo::MissingEntry::Propagate;
    if (random.chance(0.3)) {
      Vector weights(at(d.reward_count), 1.0);
      weights[at(c)] = 0;
      s.weights = weights;
    }
    const bool used = d.valid.empty() || d.valid[at(row)] != 0,
               read = s.weights.empty() || (s.flat_in == FlatIn::Reward && s.reward == c);
    const SelectedGroups got = select_groups(batch_of(d), s);
    index_t g = 0;
    for (const auto& group : d.groups()) {
      const bool here = poison && used && read && group.first == d.ids[at(row)];
      CHECK((got.verdict[at(g)] == Verdict::NotFinite) == here);
      CHECK((std::isnan(got.group_std[at(g)])) == here);
      ++g;
    }
  }
}

TEST_CASE("select_groups computes the std of a group as its formula says", "[update]") {
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    naive::Data d =
        random_batch(random, 1 + random.below(8), 6, 1 + random.below(4), random.pick({0.0, 0.2}));
    if (random.chance(0.5)) add_columns(random, d);
    GroupSelection s = random_settings(random, d.reward_count);
    s.gates = {}, s.missing = {}, s.min_std = 0;
    const SelectedGroups got = select_groups(batch_of(d), s);
    Vector expected;
    for (const auto& group : d.groups()) expected.push_back(naive_std(d, group.second, s));
    // The values are at most 4 weights of at most 2 times rewards of at most 4 in magnitude. Their
    // rounding is that much times `unit`, and a std moves by no more than its values do. Where
    // the sums of a group are equal up to rounding, the formula has that rounding as std.
    CHECK(deviation(got.group_std, expected, 32 * tolerance::chain) == "");
  }
}

TEST_CASE("select_groups: laws of the selection", "[update]") {
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const naive::Data d = any_batch(random);
    const auto batch = batch_of(d);
    const GroupSelection s = random_settings(random, d.reward_count);
    const SelectedGroups got = select_groups(batch, s);
    const index_t groups = batch.groups.count(d.rows);

    // Every group has a verdict, and those that are kept are selected with all their rows.
    index_t counted = 0;
    for (const Verdict v : {Verdict::Kept, Verdict::Empty, Verdict::NotFinite, Verdict::Flat,
                            Verdict::SmallStd, Verdict::BelowTopP, Verdict::Surplus})
      counted += got.count(v);
    CHECK(counted == groups);
    Indices kept, rows, offsets{0};
    for (index_t g = 0; g < groups; ++g) {
      if (got.verdict[at(g)] != Verdict::Kept) continue;
      kept.push_back(g);
      for (index_t k = 0; k < batch.groups.length(g); ++k) rows.push_back(batch.groups.row(g, k));
      offsets.push_back(static_cast<index_t>(rows.size()));
    }
    CHECK(got.groups == kept);
    CHECK(got.rows == rows);
    CHECK(got.offsets == offsets);
    const auto selected = static_cast<index_t>(kept.size());
    CHECK(got.refill == std::max(index_t{0}, s.wanted - selected));
    CHECK_FALSE(got.gave_up);

    // `wanted` keeps the first of those that are kept without it.
    GroupSelection all = s;
    all.wanted = 0;
    const SelectedGroups everything = select_groups(batch, all);
    Indices first = everything.groups;
    if (s.wanted > 0) first.resize(std::min(first.size(), at(s.wanted)));
    CHECK(got.groups == first);
    CHECK(everything.refill == 0);

    // top_p keeps the fewest groups of largest std that reach the share, and at least one.
    all.top_p = 1;
    const SelectedGroups before = select_groups(batch, all);
    naive::Real total = 0, reached = 0;
    double least = infinity, most_dropped = 0;
    for (const index_t g : before.groups) {
      const double std = before.group_std[at(g)];
      total += std;
      if (everything.verdict[at(g)] == Verdict::Kept) {
        reached += std, least = std::min(least, std);
      } else {
        CHECK(everything.verdict[at(g)] == Verdict::BelowTopP);
        most_dropped = std::max(most_dropped, std);
      }
    }
    CHECK(most_dropped <= least);
    CHECK((before.groups.empty() == everything.groups.empty()));
    const naive::Real slack = 64 * naive::Real(tolerance::unit) * total;
    CHECK(reached >= s.top_p * total - slack);
    if (s.top_p < 1 && everything.groups.size() > 1)
      CHECK(reached - least < s.top_p * total + slack);

    // min_std splits what is not flat.
    all.min_std = 0;
    const SelectedGroups any_std = select_groups(batch, all);
    for (const index_t g : any_std.groups) {
      const bool small = s.min_std > 0 && any_std.group_std[at(g)] <= s.min_std;
      CHECK(before.verdict[at(g)] == (small ? Verdict::SmallStd : Verdict::Kept));
    }
  }
}

TEST_CASE("select_groups is blind to the order of rows, unused rows and rewards of weight 0",
          "[update]") {
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const naive::Data d = any_batch(random);
    GroupSelection s = random_settings(random, d.reward_count);
    s.gates = {};
    const SelectedGroups got = select_groups(batch_of(d), s);

    naive::Data shuffled = d;
    Indices order;
    for (int i = 0; i < d.rows; ++i) order.push_back(i);
    random.shuffle(order);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const std::size_t from = at(order[i]);
      shuffled.ids[i] = d.ids[from];
      if (!d.valid.empty()) shuffled.valid[i] = d.valid[from];
      for (std::size_t c = 0; c < at(d.reward_count); ++c)
        shuffled.rewards[i * at(d.reward_count) + c] = d.rewards[from * at(d.reward_count) + c];
    }
    const SelectedGroups other = select_groups(batch_of(shuffled), s);
    CHECK(other.verdict == got.verdict);
    CHECK(difference(other.group_std, got.group_std) == "");
    CHECK(other.groups == got.groups);

    naive::Data poisoned = d;
    for (int i = 0; i < d.rows; ++i) {
      for (int c = 0; c < d.reward_count; ++c) {
        const bool unread = !s.weights.empty() && s.weights[c] == 0 &&
                            !(s.flat_in == FlatIn::Reward && s.reward == c);
        if (unread || (!d.valid.empty() && d.valid[at(i)] == 0))
          poisoned.rewards[at(i * d.reward_count + c)] = random.pick({missing, infinity, -7.0});
      }
    }
    CHECK(same(select_groups(batch_of(poisoned), s), got));

    // Powers of two change no bit of the decision.
    if (s.flat_in != FlatIn::Reward && s.missing.entry != gdpo::MissingEntry::Propagate) {
      GroupSelection scaled = s;
      Vector weights;
      for (int c = 0; c < d.reward_count; ++c)
        weights.push_back(4 * (s.weights.empty() ? 1.0 : s.weights[c]));
      scaled.weights = weights, scaled.min_std = 4 * s.min_std;
      CHECK(select_groups(batch_of(d), scaled).verdict == got.verdict);
    }
  }
}

namespace {

/// The spread of a group by a plain loop: `columns` are added, each with its weight, and each value
/// of a row is value(row, column, magnitude).
template <class Batch, class Value>
gdpo::detail::GroupSpread plain_spread(const Batch& batch, index_t g, const Vector& weights,
                                       bool skips, index_t terms, const Value& value) {
  gdpo::detail::GroupSpread all;
  for (std::size_t c = 0; c < weights.size(); ++c) {
    Vector values;
    double largest = 0;
    for (index_t k = 0; k < batch.groups.length(g); ++k) {
      const index_t i = batch.groups.row(g, k);
      if (batch.valid && batch.valid(i) == 0) continue;
      double magnitude = 0;
      const double x = value(i, static_cast<index_t>(c), magnitude);
      largest = std::max(largest, magnitude);
      if (!skips || !gdpo::math::is_nan(x)) values.push_back(x);
    }
    using Order = typename std::decay_t<decltype(batch.groups)>::Order;
    gdpo::GroupStat stat =
        gdpo::detail::group_stat(Order{}, values.data(), static_cast<index_t>(values.size()));
    if (terms > 0) gdpo::detail::equate_sums(stat, terms, largest);
    all.add(stat, weights[c]);
  }
  return all;
}
bool same_spread(const gdpo::detail::GroupSpread& a, const gdpo::detail::GroupSpread& b) {
  const bool same_variance = gdpo::math::bits_of(a.variance) == gdpo::math::bits_of(b.variance) ||
                             (gdpo::math::is_nan(a.variance) && gdpo::math::is_nan(b.variance));
  return a.any == b.any && a.unknown == b.unknown && a.flat == b.flat && same_variance &&
         a.values == b.values;
}

template <class Groups>
void check_spreads(const Vector& rewards, index_t C, const Groups& groups,
                   const std::vector<unsigned char>& valid, const Vector& weights,
                   const gdpo::List<gdpo::Gate, 16>& gates, const gdpo::Missing& rule) {
  const auto rows = static_cast<index_t>(rewards.size()) / C;
  RewardBatch<double, Groups> batch{gdpo::view(rewards.data(), rows, C), groups};
  if (!valid.empty()) batch.valid = gdpo::view(valid);
  gdpo::Grpo estimator;
  estimator.weights = weights, estimator.gates = gates, estimator.missing = rule;
  gdpo::detail::EstimatorScratch work;
  const gdpo::detail::RewardReader<double, Groups> plain(
      "", batch, gdpo::detail::reward_settings(estimator), work);
  gdpo::detail::SpreadReader<double, Groups> spreads("", batch, weights, gates, rule, C - 1);
  const auto reward = [&](index_t i, index_t c, double&) { return plain(i, c); };
  const auto used = [&](index_t i, index_t j, double&) {
    return plain(i, work.used_rewards[static_cast<std::size_t>(j)]);
  };
  for (index_t g = 0; g < groups.count(rows); ++g) {
    INFO("group " << g);
    spreads.read(g);
    REQUIRE(same_spread(spreads.of_rewards(),
                        plain_spread(batch, g, work.reward_weights, plain.skips(), 0, used)));
    REQUIRE(same_spread(spreads.of_reward(), plain_spread(batch, g, {1.0}, plain.skips(), 0,
                                                          [&](index_t i, index_t, double& m) {
                                                            return reward(i, C - 1, m);
                                                          })));
    REQUIRE(same_spread(
        spreads.of_sum(),
        plain_spread(batch, g, {1.0}, plain.skips(), plain.terms(),
                     [&](index_t i, index_t, double& m) { return plain.weighted_sum(i, m); })));
  }
}

}  // namespace

TEST_CASE("select_groups: columns side by side have the bits of a plain loop", "[update]") {
  for (std::uint64_t seed = 1; seed <= 800; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const index_t C = random.chance(0.2) ? 7 + random.below(14) : 1 + random.below(5),
                  K = 1 + random.below(20), rows = K * random.below(6);
    const double wild = random.pick({0.0, 0.0, 0.02, 0.3}), size = random.pick({1.0, 1e308});
    Vector rewards, weights;
    for (index_t i = 0; i < rows * C; ++i) {
      rewards.push_back(random.pick({0.0, -0.0, 1.0, 0.1, random.uniform()}) * size);
      if (random.chance(wild))
        rewards.back() = random.pick({missing, missing, infinity, -infinity, 1e308});
    }
    for (index_t c = 0; c < C; ++c) weights.push_back(random.pick({0.0, 1.0, 0.3, -2.0}));
    std::vector<unsigned char> valid;
    std::vector<int> ids;
    const bool has_valid = random.chance(0.5);
    for (index_t i = 0; i < rows; ++i) {
      if (has_valid) valid.push_back(random.chance(0.8));
      ids.push_back(random.below(4));
    }
    gdpo::List<gdpo::Gate, 16> gates;
    if (random.chance(0.3)) gates = {{0, C - 1, 0.05}};
    gdpo::Missing rule;
    using Entry = gdpo::MissingEntry;
    using Infinite = gdpo::InfiniteEntry;
    rule.entry = random.pick({Entry::Skip, Entry::Propagate, Entry::Zero});
    rule.infinite = random.pick({Infinite::Propagate, Infinite::Missing, Infinite::NanToNum});
    rule.row = random.pick({gdpo::MissingRow::Keep, gdpo::MissingRow::Exclude});
    check_spreads(rewards, C, gdpo::groups_of(K), valid, weights, gates, rule);
    check_spreads(rewards, C, gdpo::by_id(ids), valid, weights, gates, rule);
  }
}

TEST_CASE("select_groups keeps all of what it selected", "[update]") {
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const naive::Data d = any_batch(random);
    GroupSelection s = random_settings(random, d.reward_count);
    s.top_p = 1;
    const SelectedGroups got = select_groups(batch_of(d), s);
    Vector rewards, valid;
    for (const index_t i : got.rows) {
      for (index_t c = 0; c < d.reward_count; ++c)
        rewards.push_back(d.rewards[at(i * d.reward_count + c)]);
      if (!d.valid.empty()) valid.push_back(d.valid[at(i)]);
    }
    RewardBatch<double, gdpo::ByOffsets<index_t>> again{
        gdpo::view(rewards.data(), got.rows.size(), d.reward_count), gdpo::by_offsets(got.offsets)};
    if (!d.valid.empty()) again.valid = gdpo::view(valid);
    const SelectedGroups second = select_groups(again, s);
    CHECK(second.verdict == Verdicts(got.groups.size(), Verdict::Kept));
    CHECK(second.refill == got.refill);
  }
}

TEST_CASE("select_groups takes every storage and grouping", "[update]") {
  const Vector rewards{0, 1, 1, 1, 0.5, 0, 0.25, 0.25};
  const std::vector<float> floats(rewards.begin(), rewards.end());
  const std::vector<int> offsets{0, 2, 4, 6, 8}, ids{3, 3, 5, 5, 7, 7, 9, 9};
  const auto expected = select_groups(groups_of(rewards, 1, 2));
  CHECK(expected.groups == Indices{0, 2});
  CHECK(same(expected, select_groups(RewardBatch<float, gdpo::GroupsOf>{
                           gdpo::view(floats.data(), 8, 1), gdpo::groups_of(2)})));
  CHECK(same(expected, select_groups(RewardBatch{gdpo::view(rewards.data(), 8, 1),
                                                 gdpo::by_offsets(offsets)})));
  CHECK(same(expected,
             select_groups(RewardBatch{gdpo::view(rewards.data(), 8, 1), gdpo::by_id(ids)})));
  std::vector<gdpo::Float16> halves(8);
  for (std::size_t i = 0; i < 8; ++i) gdpo::store(halves[i], rewards[i]);
  CHECK(same(expected, select_groups(RewardBatch<gdpo::Float16, gdpo::GroupsOf>{
                           gdpo::view(halves.data(), 8, 1), gdpo::groups_of(2)})));
}

TEST_CASE("select_groups: DAPO keeps the prompts that are neither all right nor all wrong",
          "[update]") {
  // 0 < number of correct answers < G, arXiv 2503.14476, eq. 11.
  const index_t G = 4;
  Vector correct;
  for (int right = 0; right <= G; ++right)
    for (int i = 0; i < G; ++i) correct.push_back(i < right);
  GroupSelection s = in(FlatIn::Sum);
  s.wanted = 4;
  const SelectedGroups got = select_groups(groups_of(correct, 1, G), s);
  CHECK(got.groups == Indices{1, 2, 3});
  CHECK(got.rows == Indices{4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
  CHECK(got.offsets == Indices{0, 4, 8, 12});
  CHECK(got.refill == 1);
  // std of 1 right of 4: sqrt(3/4 / 3) = 1/2.
  CHECK(got.group_std[1] == 0.5);
  CHECK(got.group_std[2] == std::sqrt(1.0 / 3));
  CHECK(got.group_std[0] == 0);
}

TEST_CASE("select_groups: a filter on the sum drops what GDPO learns from", "[update]") {
  // Rows of three rewards. Group 0: the sum is 1 in every row, but the rewards vary.
  // Group 1: everything is equal. Group 2: the sum varies.
  const Vector rewards{1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0,  //
                       1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0,  //
                       1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0};
  const auto batch = groups_of(rewards, 3, 4);
  const SelectedGroups by_reward = select_groups(batch),
                       by_sum = select_groups(batch, in(FlatIn::Sum));
  CHECK(by_reward.verdict == Verdicts{Verdict::Kept, Verdict::Flat, Verdict::Kept});
  CHECK(by_sum.verdict == Verdicts{Verdict::Flat, Verdict::Flat, Verdict::Kept});
  CHECK(by_reward.flat_in_sum_only == 1);
  CHECK(by_sum.flat_in_sum_only == 1);
  // Two rewards with a std of 1/2 each: sqrt(1/4 + 1/4).
  CHECK(by_reward.group_std[0] == std::sqrt(0.5));
  CHECK(by_sum.group_std[0] == 0);

  // In group 0 the two standardized rewards cancel, so GDPO learns nothing there: its report says.
  gdpo::GroupReport report;
  gdpo::advantages(gdpo::seq, batch, gdpo::before_renorm(gdpo::Gdpo{}), &report);
  CHECK(report.degenerate == std::vector<unsigned char>{1, 1, 0});
  GroupSelection given = in(FlatIn::Given);
  given.given = gdpo::view(std::as_const(report.degenerate));
  CHECK(select_groups(batch, given).groups == Indices{2});

  GroupSelection reward = in(FlatIn::Reward);
  reward.reward = 1;
  CHECK(select_groups(batch, reward).groups == Indices{0, 2});
  reward.reward = 2;
  CHECK(select_groups(batch, reward).groups.empty());
  reward.reward = 0, reward.weights = {0, 1, 0};  // the weight of the reward does not matter
  CHECK(select_groups(batch, reward).groups == Indices{0, 2});
}

TEST_CASE("select_groups: sums that differ by rounding alone are equal", "[update]") {
  // 0.1 + 0.2 and 0.3 differ by one rounding.
  const Vector rewards{0.1, 0.2, 0.3, 0.0};
  CHECK(0.1 + 0.2 != 0.3 + 0.0);
  const SelectedGroups got = select_groups(groups_of(rewards, 2, 2), in(FlatIn::Sum));
  CHECK(got.verdict == Verdicts{Verdict::Flat});
  CHECK(got.group_std == Vector{0});
  CHECK(got.flat_in_sum_only == 1);
  // A stored reward is compared exactly.
  const Vector stored{0.1 + 0.2, 0.3};
  CHECK(select_groups(groups_of(stored, 1, 2), in(FlatIn::Sum)).groups == Indices{0});
  CHECK(select_groups(groups_of(stored, 1, 2)).groups == Indices{0});
  // Equal rewards at an offset have no std, whatever the rounding of their mean.
  const Vector equal(7, 0.1);
  CHECK(select_groups(groups_of(equal, 1, 7)).verdict == Verdicts{Verdict::Flat});
  // A spread whose square underflows is a spread.
  const Vector tiny{0, 1e-200};
  CHECK(select_groups(groups_of(tiny, 1, 2)).groups == Indices{0});
}

TEST_CASE("select_groups takes std for equal that differ by rounding alone", "[update]") {
  const Vector two{0, 0, 0, 1, 0, 1, 0, 0, 0, 0};
  GroupSelection s;
  s.top_p = 0.4;
  CHECK(select_groups(groups_of(two, 1, 5), s).groups == Indices{0});
  // The std of the second is the larger by a bit; both are at the bound.
  s.top_p = 1;
  const Vector std = select_groups(groups_of(two, 1, 5), s).group_std;
  REQUIRE(std[0] < std[1]);
  s.min_std = std[0];
  CHECK(select_groups(groups_of(two, 1, 5), s).groups.empty());
  s.min_std = std[0] * (1 - 1e-14);
  CHECK(select_groups(groups_of(two, 1, 5), s).groups == Indices{0, 1});

  // Groups with the same rewards in any order, or 1 minus them: the first ones are kept, as many as
  // the share says. Two groups with a larger and a smaller std keep their ranks.
  index_t differ = 0;
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const int members = 3 + random.below(30), reward_count = 1 + random.below(3), groups = 10;
    std::vector<Vector> first(at(reward_count));
    for (Vector& reward : first) {
      for (int k = 0; k < members; ++k)
        reward.push_back(random.chance(0.5) ? 1.0 : random.pick({0.0, 0.1, 0.3}));
      reward[0] = 1, reward[1] = 0;
    }
    const int large = random.below(groups), small = (large + 1 + random.below(groups - 1)) % groups;
    Vector rewards;
    for (int g = 0; g < groups; ++g) {
      std::vector<int> order;
      for (int k = 0; k < members; ++k) order.insert(order.begin() + random.below(k + 1), k);
      const bool other_way = reward_count == 1 && random.chance(0.5);
      for (const int k : order) {
        for (int c = 0; c < reward_count; ++c) {
          const double x = first[at(c)][at(k)];
          rewards.push_back((g == large   ? 1 + 1e-9
                             : g == small ? 1 - 1e-9
                                          : 1.0) *
                            (other_way ? 1 - x : x));
        }
      }
    }
    GroupSelection by = in(random.pick({FlatIn::EveryReward, FlatIn::Sum, FlatIn::Reward}));
    Vector weights;
    for (int c = 0; c < reward_count; ++c) weights.push_back(random.pick({1.0, 0.3, 0.7}));
    by.weights = weights;
    const auto batch = groups_of(rewards, reward_count, members);
    const Vector stds = select_groups(batch, by).group_std;
    for (int g = 1; g < groups; ++g) {
      if (g != large && g != small && g - 1 != large && g - 1 != small)
        differ += stds[at(g)] != stds[at(g - 1)];
    }
    for (int keep = 1; keep < groups; ++keep) {
      by.top_p = keep / 10.0;
      Indices expected{large};
      for (index_t g = 0; static_cast<int>(expected.size()) < keep; ++g) {
        if (g != large && g != small) expected.push_back(g);
      }
      std::sort(expected.begin(), expected.end());
      // The large group alone is a bit more than a tenth, and all but the small one than nine.
      CHECK(select_groups(batch, by).groups == expected);
    }
  }
  CHECK(differ > 100);  // by rounding, without which nothing is tested
}

TEST_CASE("select_groups ranks by the std for top_p", "[update]") {
  // Distances 4, 1, 3, 0, 2: std in that ratio, of which group 3 is flat. The total is 10.
  const Vector rewards = pairs({4, 1, 3, 0, 2});
  const auto batch = groups_of(rewards, 1, 2);
  const auto kept = [&](double top_p, index_t wanted = 0) {
    GroupSelection s;
    s.top_p = top_p, s.wanted = wanted;
    return select_groups(batch, s).groups;
  };
  CHECK(kept(1) == Indices{0, 1, 2, 4});
  CHECK(kept(0.95) == Indices{0, 1, 2, 4});
  CHECK(kept(0.85) == Indices{0, 2, 4});
  CHECK(kept(0.65) == Indices{0, 2});
  CHECK(kept(0.39) == Indices{0});
  CHECK(kept(1e-9) == Indices{0});
  CHECK(kept(0.85, 2) == Indices{0, 2});  // the earliest two
  GroupSelection s;
  s.top_p = 0.65, s.wanted = 1;
  CHECK(select_groups(batch, s).verdict == Verdicts{Verdict::Kept, Verdict::BelowTopP,
                                                    Verdict::Surplus, Verdict::Flat,
                                                    Verdict::BelowTopP});
  // Of equal ones the earlier is kept.
  const Vector equal = pairs({2, 2, 2, 2});
  s.top_p = 0.5, s.wanted = 0;
  CHECK(select_groups(groups_of(equal, 1, 2), s).groups == Indices{0, 1});

  // Where the squares underflow every std is 0: top_p keeps the first group, and 1 keeps all.
  const Vector tiny = pairs({1e-200, 1e-200, 1});
  s.top_p = 1;
  CHECK(select_groups(groups_of(tiny, 1, 2), s).groups == Indices{0, 1, 2});
  s.top_p = 0.5;
  CHECK(select_groups(groups_of(tiny, 1, 2), s).groups == Indices{2});
  const Vector all_tiny = pairs({1e-200, 1e-200});
  CHECK(select_groups(groups_of(all_tiny, 1, 2), s).groups == Indices{0});

  s.top_p = 1, s.min_std = 1.5;  // 2 / sqrt 2 = 1.41
  CHECK(select_groups(batch, s).groups == Indices{0, 2});
  s.min_std = select_groups(batch).group_std[2];  // at the bound: dropped
  CHECK(select_groups(batch, s).verdict == Verdicts{Verdict::Kept, Verdict::SmallStd,
                                                    Verdict::SmallStd, Verdict::Flat,
                                                    Verdict::SmallStd});
}

TEST_CASE("select_groups: groups without anything to compare", "[update]") {
  // Groups of 0, 1, 2 and 2 rows; the last has no reward.
  const Vector rewards{5, 1, missing, missing, missing};
  const std::vector<int> offsets{0, 0, 1, 3, 5};
  const RewardBatch batch{gdpo::view(rewards.data(), 5, 1), gdpo::by_offsets(offsets)};
  const Verdicts expected{Verdict::Empty, Verdict::Flat, Verdict::Flat, Verdict::Empty};
  CHECK(select_groups(batch).verdict == expected);
  CHECK(select_groups(batch, in(FlatIn::Sum)).verdict == expected);
  CHECK(select_groups(batch, in(FlatIn::Reward)).verdict == expected);
  CHECK(select_groups(batch).group_std == Vector{0, 0, 0, 0});
  CHECK(select_groups(batch).offsets == Indices{0});

  GroupSelection s;
  s.missing.entry = gdpo::MissingEntry::Zero;  // 1 and 0; 0 and 0
  CHECK(select_groups(batch, s).verdict ==
        Verdicts{Verdict::Empty, Verdict::Flat, Verdict::Kept, Verdict::Flat});

  const Vector none;
  const SelectedGroups empty = select_groups(groups_of(none, 1, 4));
  CHECK(empty.verdict.empty());
  CHECK(empty.rows.empty());
  CHECK(empty.offsets == Indices{0});
  CHECK(empty.refill == 0);

  // No reward has a weight.
  GroupSelection weightless;
  weightless.weights = {0};
  CHECK(select_groups(batch, weightless).verdict == Verdicts(4, Verdict::Empty));

  // Two rows that have no reward in common: nothing to compare in a reward, but their sums differ.
  const Vector apart{1, missing, missing, 2};
  CHECK(select_groups(groups_of(apart, 2, 2)).verdict == Verdicts{Verdict::Flat});
  CHECK(select_groups(groups_of(apart, 2, 2), in(FlatIn::Sum)).verdict == Verdicts{Verdict::Kept});

  // A std that overflows.
  const Vector huge{-1e200, 1e200};
  CHECK(select_groups(groups_of(huge, 1, 2)).verdict == Verdicts{Verdict::NotFinite});
}

TEST_CASE("select_groups reads gates as the estimators do", "[update]") {
  // Reward 1 counts only where reward 0 is at least 1: the group is then flat in reward 1.
  const Vector rewards{0, 1, 0, 0, 0, 1};
  GroupSelection s = in(FlatIn::Reward);
  s.reward = 1;
  CHECK(select_groups(groups_of(rewards, 2, 3), s).groups == Indices{0});
  s.gates = {{1, 0, 1.0}};
  CHECK(select_groups(groups_of(rewards, 2, 3), s).groups.empty());
}

TEST_CASE("select_groups: sampling again until the batch is full", "[update]") {
  // Prompts of 4 answers of which a fraction is right; hard and easy ones are often flat.
  for (const GiveUp give_up : {GiveUp::KeepShort, GiveUp::KeepFirst}) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      INFO("seed " << seed);
      Random random(seed);
      Vector rewards;
      GroupSelection settings = in(FlatIn::Sum);
      settings.wanted = 6, settings.max_attempts = 3, settings.give_up = give_up;
      SelectedGroups chosen;
      index_t prompts = settings.wanted, attempts = 0;
      for (index_t attempt = 1;; ++attempt, ++attempts) {
        for (index_t p = 0; p < prompts; ++p) {
          const double right = random.pick({0.02, 0.3, 0.98});
          for (int i = 0; i < 4; ++i) rewards.push_back(random.chance(right));
        }
        chosen = select_groups(groups_of(rewards, 1, 4), settings, attempt);
        if (chosen.refill == 0 || chosen.gave_up) break;
        REQUIRE(attempt < 3);
        prompts = chosen.refill;
      }
      CHECK(attempts <= 2);
      if (!chosen.gave_up) {
        CHECK(chosen.groups.size() == 6);
        CHECK(chosen.refill == 0);
        CHECK(chosen.count(Verdict::Surplus) == 0);  // no more than the refill was sampled
      } else if (give_up == GiveUp::KeepFirst) {
        CHECK(chosen.groups == Indices{0, 1, 2, 3, 4, 5});  // the original batch
        CHECK(chosen.rows.size() == 24);
        CHECK(chosen.refill == 0);
      } else {
        CHECK(static_cast<index_t>(chosen.groups.size()) == 6 - chosen.refill);
        CHECK(chosen.refill > 0);
      }
    }
  }
}

TEST_CASE("select_groups: the last attempt", "[update]") {
  const Vector rewards = pairs({0, 1, 0, 1});
  const auto batch = groups_of(rewards, 1, 2);
  GroupSelection s;
  s.wanted = 3, s.max_attempts = 2;
  SelectedGroups got = select_groups(batch, s, 1);
  CHECK_FALSE(got.gave_up);
  CHECK(got.groups == Indices{1, 3});
  CHECK(got.refill == 1);
  got = select_groups(batch, s, 2);
  CHECK(got.gave_up);
  CHECK(got.groups == Indices{1, 3});
  CHECK(got.refill == 1);
  s.give_up = GiveUp::KeepFirst;
  CHECK(select_groups(batch, s, 1).groups == Indices{1, 3});
  got = select_groups(batch, s, 2);
  CHECK(got.gave_up);
  CHECK(got.groups == Indices{0, 1, 2});
  CHECK(got.rows == Indices{0, 1, 2, 3, 4, 5});
  CHECK(got.offsets == Indices{0, 2, 4, 6});
  CHECK(got.verdict == Verdicts{Verdict::Flat, Verdict::Kept, Verdict::Flat, Verdict::Kept});
  CHECK(got.refill == 0);
  s.wanted = 6;  // more than there are
  got = select_groups(batch, s, 2);
  CHECK(got.groups == Indices{0, 1, 2, 3});
  CHECK(got.refill == 2);
  s.give_up = GiveUp::Refuse;
  CHECK(select_groups(batch, s, 1).refill == 4);
  CHECK(message_of([&] { select_groups(batch, s, 2); }) ==
        "gdpo::update::select_groups: batch: given 2 groups to train on, at attempt 2, the last; "
        "needed: 6 groups, because give_up is Refuse");
  s.wanted = 2;
  CHECK_FALSE(select_groups(batch, s, 2).gave_up);
  s.wanted = 6, s.max_attempts = 0;  // no limit
  CHECK_FALSE(select_groups(batch, s, 1000).gave_up);
  s.wanted = 0, s.max_attempts = 1;  // nothing is wanted, so nothing is missing
  CHECK_FALSE(select_groups(batch, s, 1).gave_up);
}

TEST_CASE("select_groups refuses settings out of their range", "[update]") {
  const Vector rewards = pairs({0, 1});
  const auto refused = [&](const auto& change, index_t attempt = 1) {
    GroupSelection s;
    change(s);
    return message_of([&] { select_groups(groups_of(rewards, 1, 2), s, attempt); });
  };
  const std::string f = "gdpo::update::select_groups: ";
  CHECK(refused([](GroupSelection&) {}) == "no error");
  for (const double top_p : {0.0, -0.5, 1.5, missing, infinity}) {
    INFO(top_p);
    const std::string message = refused([&](GroupSelection& s) { s.top_p = top_p; });
    CHECK_THAT(message,
               Catch::Matchers::ContainsSubstring("; needed: more than 0 and at most 1 (1: all)"));
  }
  CHECK(refused([](GroupSelection& s) { s.top_p = 0; }) ==
        f + "top_p: given 0; needed: more than 0 and at most 1 (1: all)");
  for (const double min_std : {-1.0, missing, infinity}) {
    const std::string message = refused([&](GroupSelection& s) { s.min_std = min_std; });
    CHECK_THAT(message, Catch::Matchers::ContainsSubstring("min_std: given "));
    CHECK_THAT(message,
               Catch::Matchers::ContainsSubstring("needed: a finite number of at least 0"));
  }
  for (const index_t reward : {index_t{-1}, index_t{1}}) {
    CHECK(refused([&](GroupSelection& s) { s.flat_in = FlatIn::Reward, s.reward = reward; }) ==
          f + "reward: given " + std::to_string(reward) +
              "; needed: one of 1 rewards, counted from 0");
    CHECK(refused([&](GroupSelection& s) { s.reward = reward; }) == "no error");  // not read
  }
  CHECK(refused([](GroupSelection& s) { s.flat_in = FlatIn::Given; }) ==
        f + "given: given 0 entries; needed: one for each of the 2 groups");
  CHECK(refused([](GroupSelection& s) {
          s.flat_in = FlatIn::Given, s.given = {nullptr, {2}, {1}};
        }) == f + "given: given a null pointer; needed: (2) elements");
  CHECK(refused([](GroupSelection& s) { s.flat_in = static_cast<FlatIn>(9); }) ==
        f + "flat_in: given 9, which is no enumerator; needed: one of every_reward, sum, reward, "
            "given");
  CHECK(refused([](GroupSelection& s) { s.give_up = static_cast<GiveUp>(9); }) ==
        f + "give_up: given 9, which is no enumerator; needed: one of keep_short, keep_first, "
            "refuse");
  CHECK(refused([](GroupSelection& s) {
          s.weights = {1, 2};
        }) == f + "weights: given 2 weights; needed: one for each of the 1 rewards, or none");
  CHECK(refused([](GroupSelection& s) { s.weights = {infinity}; }) ==
        f + "weights[0]: given inf; needed: a finite number");
  CHECK(refused([](GroupSelection& s) {
          s.gates = {{1, 0, 0}};
        }) == f + "gates: given reward 1; needed: a reward from 0 to 0");
  CHECK(refused([](GroupSelection& s) { s.wanted = -1; }) ==
        f + "wanted: given -1; needed: at least 0 (0: all that pass)");
  CHECK(refused([](GroupSelection& s) { s.max_attempts = -1; }) ==
        f + "max_attempts: given -1; needed: at least 0 (0: no limit)");
  CHECK(refused([](GroupSelection&) {}, 0) == "no error");
  CHECK(refused([](GroupSelection&) {}, -1) ==
        f + "attempt: given -1; needed: 1 for the first, then 2, and so on");
  CHECK(refused([](GroupSelection& s) { s.max_attempts = 3; }, 0) ==
        f + "attempt: given 0; needed: 1 for the first, then 2, and so on");
  CHECK(refused([](GroupSelection& s) { s.max_attempts = 3; }, 3) == "no error");
  CHECK(refused([](GroupSelection& s) { s.max_attempts = 3; }, 4) ==
        f + "attempt: given 4; needed: at most max_attempts, which is 3");
}

TEST_CASE("select_groups refuses batches that do not fit", "[update]") {
  const Vector rewards{0, 1, missing, 0};
  CHECK(
      message_of([&] { select_groups(groups_of(rewards, 1, 3)); }) ==
      "gdpo::update::select_groups: groups: given 4 rows, which leaves a last group (number 1) of "
      "1; needed: a multiple of 3 rows, as groups_of(3) says");
  CHECK(message_of([&] {
          select_groups(
              RewardBatch<double, gdpo::GroupsOf>{{nullptr, {4, 1}, {1, 1}}, gdpo::groups_of(2)});
        }) ==
        "gdpo::update::select_groups: rewards: given a null pointer; needed: (4, 1) elements");
  auto batch = groups_of(rewards, 1, 2);
  const Vector valid(3, 1.0);
  batch.valid = gdpo::view(valid);
  CHECK(message_of([&] { select_groups(batch); }) ==
        "gdpo::update::select_groups: batch.valid: given 3 entries; needed: one for each of the 4 "
        "rows");
  GroupSelection s;
  s.missing.entry = gdpo::MissingEntry::Reject;
  CHECK(message_of([&] { select_groups(groups_of(rewards, 1, 2), s); }) ==
        "gdpo::update::select_groups: rewards: given NaN in row 2, reward 0; needed: a number, "
        "because missing.entry is Reject");
}

}  // namespace select_groups_test
