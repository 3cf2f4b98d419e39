// labels: sanitizers
// update::shard: the laws of a sharding, plain longest processing time first as oracle, the best
// sharding by brute force, numbers by hand, edges and errors.
#include <gdpo/group/by_id.hpp>
#include <gdpo/group/by_offsets.hpp>
#include <gdpo/update/shard.hpp>
#include <limits>
#include <numeric>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/indices.hpp"
#include "support/message.hpp"

namespace shard_test {

namespace {

using gdpo::index_t;
using gdpo::update::shard;
using gdpo::update::Sharding;
using gdpo::update::ShardSizes;
namespace cost = gdpo::update::cost;
using Numbers = std::vector<index_t>;
using Vector = std::vector<double>;

Numbers ranks_of(const Sharding& sharding, index_t rows) {
  Numbers ranks;
  for (index_t i = 0; i < rows; ++i) ranks.push_back(sharding.rank_of(i));
  return ranks;
}
std::vector<Numbers> rows_of(const Sharding& sharding) {
  std::vector<Numbers> rows;
  for (index_t r = 0; r < sharding.ranks(); ++r) rows.push_back(list(sharding.rows(r)));
  return rows;
}
Vector costs_of(const Sharding& sharding) {
  Vector costs;
  for (index_t r = 0; r < sharding.ranks(); ++r) costs.push_back(sharding.cost(r));
  return costs;
}

/// Plain longest processing time first: every row looks at every rank.
Numbers naive_ranks(const Vector& costs, index_t ranks, ShardSizes counts) {
  Numbers order(costs.size()), rank_of(costs.size()), given(at(ranks), 0);
  std::iota(order.begin(), order.end(), index_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](index_t a, index_t b) { return costs[at(a)] > costs[at(b)]; });
  Vector load(at(ranks), 0.0);
  const index_t rows = static_cast<index_t>(costs.size()), share = rows / ranks;
  for (const index_t row : order) {
    index_t larger = 0, best = -1;
    for (const index_t n : given) larger += n > share;
    for (index_t r = 0; r < ranks; ++r) {
      const index_t most = share + (larger < rows % ranks ? 1 : 0);
      if (counts == ShardSizes::Equal && given[at(r)] >= most) continue;
      if (best < 0 || load[at(r)] < load[at(best)]) best = r;
    }
    rank_of[at(row)] = best;
    load[at(best)] += costs[at(row)];
    ++given[at(best)];
  }
  return rank_of;
}

/// Each row on one rank, costs and imbalance as said. The costs are integers, so sums are exact.
void check_laws(const Sharding& sharding, const Vector& costs, index_t ranks) {
  const auto rows = static_cast<index_t>(costs.size());
  REQUIRE(sharding.ranks() == ranks);
  std::vector<int> seen(costs.size());
  double largest = 0, sum = 0;
  index_t wrong = 0;
  for (index_t r = 0; r < ranks; ++r) {
    const Numbers of_rank = list(sharding.rows(r));
    wrong += !std::is_sorted(of_rank.begin(), of_rank.end());
    double load = 0;
    for (const index_t row : of_rank) {
      ++seen[at(row)];
      wrong += sharding.rank_of(row) != r;
      load += costs[at(row)];
    }
    CHECK(sharding.cost(r) == load);
    largest = (std::max)(largest, load), sum += load;
  }
  CHECK(wrong == 0);
  CHECK(std::count(seen.begin(), seen.end(), 1) == rows);
  if (largest > 0) {
    CHECK(sharding.imbalance() == largest / (sum / static_cast<double>(ranks)));
    CHECK(sharding.imbalance() >= 1);
  } else {
    CHECK(sharding.imbalance() == 1);
  }
}

/// 0 to 300 lengths: even, many equal ones, or a few that are much longer than the others.
Numbers random_lengths(Random& random) {
  Numbers lengths(at(random.below(300)));
  const int kind = random.below(3);
  for (index_t& length : lengths) {
    length = kind == 0                ? random.below(10000)
             : kind == 1              ? 100 * random.below(4)
             : random.chance(1.0 / 8) ? 10000 + random.below(10000)
                                      : random.below(100);
  }
  return lengths;
}

Vector as_costs(const Numbers& lengths) { return Vector(lengths.begin(), lengths.end()); }

/// The least largest load of any sharding.
double best_load(const Vector& costs, std::size_t row, Vector& load, double best) {
  if (row == costs.size()) return (std::min)(best, *std::max_element(load.begin(), load.end()));
  for (double& of_rank : load) {
    of_rank += costs[row];
    if (of_rank < best) best = best_load(costs, row + 1, load, best);
    of_rank -= costs[row];
  }
  return best;
}

}  // namespace

TEST_CASE("shard is longest processing time first and keeps its laws", "[update]") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Numbers lengths = random_lengths(random);
    const index_t ranks = random.pick({1, 2, 3, 7, 8, 9, 64, 65, 100});
    for (const ShardSizes counts : {ShardSizes::Free, ShardSizes::Equal}) {
      INFO("counts " << static_cast<int>(counts));
      const Vector tokens = as_costs(lengths);
      const Sharding sharding = shard(lengths, ranks, {}, counts);
      check_laws(sharding, tokens, ranks);
      CHECK(ranks_of(sharding, static_cast<index_t>(lengths.size())) ==
            naive_ranks(tokens, ranks, counts));
      Vector attention;  // 24576 L + L^2 below 2^30 each
      for (const double l : tokens) attention.push_back(24576 * l + l * l);
      const Sharding by_work = shard(lengths, ranks, cost::Attention{}, counts);
      check_laws(by_work, attention, ranks);
      CHECK(ranks_of(by_work, static_cast<index_t>(lengths.size())) ==
            naive_ranks(attention, ranks, counts));
      if (counts == ShardSizes::Free) continue;
      Numbers given;
      for (const Numbers& rows : rows_of(sharding))
        given.push_back(static_cast<index_t>(rows.size()));
      CHECK(*std::max_element(given.begin(), given.end()) -
                *std::min_element(given.begin(), given.end()) <=
            1);
    }
  }
}

TEST_CASE("shard keeps groups on one rank, balanced by the sums of their costs", "[update]") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    Numbers lengths = random_lengths(random), ids, offsets{0};
    while (offsets.back() < static_cast<index_t>(lengths.size())) {  // some groups are empty
      offsets.push_back(
          (std::min)(offsets.back() + random.below(12), static_cast<index_t>(lengths.size())));
    }
    for (std::size_t g = 1; g < offsets.size(); ++g)
      ids.insert(ids.end(), at(offsets[g] - offsets[g - 1]), static_cast<index_t>(g));
    random.shuffle(ids);
    const index_t ranks = 1 + random.below(9);
    const ShardSizes counts = random.pick({ShardSizes::Free, ShardSizes::Equal});
    const auto check_groups = [&](const auto& groups) {
      const auto rows = static_cast<index_t>(lengths.size());
      const Sharding sharding = shard(lengths, groups, ranks, cost::Tokens{}, counts);
      check_laws(sharding, as_costs(lengths), ranks);
      Vector sums;
      for (index_t g = 0; g < groups.count(rows); ++g) {
        sums.push_back(0);
        for (index_t k = 0; k < groups.length(g); ++k)
          sums.back() += static_cast<double>(lengths[at(groups.row(g, k))]);
      }
      const Numbers of_group = naive_ranks(sums, ranks, counts);
      index_t apart = 0;
      for (index_t g = 0; g < groups.count(rows); ++g) {
        for (index_t k = 0; k < groups.length(g); ++k)
          apart += sharding.rank_of(groups.row(g, k)) != of_group[at(g)];
      }
      CHECK(apart == 0);
    };
    check_groups(gdpo::by_offsets(offsets));
    check_groups(gdpo::by_id(ids));
    lengths.resize(lengths.size() / 4 * 4);
    check_groups(gdpo::groups_of(4));
  }
}

TEST_CASE("shard has at most 4/3 - 1/(3 ranks) of the least possible cost", "[update]") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const int ranks = 2 + random.below(2), rows = 1 + random.below(9);
    Numbers lengths;
    for (int i = 0; i < rows; ++i) lengths.push_back(random.below(random.pick({4, 12, 1000})));
    Vector load(at(ranks), 0.0);
    const double best =
        best_load(as_costs(lengths), 0, load, std::numeric_limits<double>::infinity());
    const Vector costs = costs_of(shard(lengths, ranks));
    const double largest = *std::max_element(costs.begin(), costs.end());
    CHECK(largest >= best);
    CHECK(3 * ranks * largest <= (4 * ranks - 1) * best);  // integers
  }
  // The family that reaches it (Graham 1969): two rows each of 2 m - 1 down to m + 1, and three
  // of m. The best is 3 m; longest processing time first needs 4 m - 1.
  for (index_t m = 2; m <= 20; ++m) {
    Numbers lengths(3, m);
    for (index_t length = m + 1; length < 2 * m; ++length) lengths.insert(lengths.end(), 2, length);
    const Vector costs = costs_of(shard(lengths, m));
    CHECK(*std::max_element(costs.begin(), costs.end()) == static_cast<double>(4 * m - 1));
  }
}

TEST_CASE("shard does not depend on the order of rows of different lengths", "[update]") {
  Random random(5);
  Numbers lengths;
  for (index_t i = 0; i < 200; ++i) lengths.push_back(3 * i + random.below(3));
  const Vector first = costs_of(shard(lengths, 7));
  random.shuffle(lengths);
  CHECK(costs_of(shard(lengths, 7)) == first);
  // Rows of equal length change places, ranks keep theirs.
  const Numbers two{5, 5, 2, 2};
  CHECK(rows_of(shard(two, 2)) == std::vector<Numbers>{{0, 2}, {1, 3}});
}

TEST_CASE("shard by hand", "[update]") {
  // 7 to rank 0; 6 to 1; 5 to 1 makes 11; 3 to 0 makes 10; 2 to 0 makes 12.
  const std::vector<int> lengths{5, 3, 7, 2, 6};
  const Sharding sharding = shard(lengths, 2);
  CHECK(rows_of(sharding) == std::vector<Numbers>{{1, 2, 3}, {0, 4}});
  CHECK(costs_of(sharding) == Vector{12, 11});
  CHECK(sharding.imbalance() == 12 / 11.5);
  // L^2 alone: 49; 36; 25 to 1 makes 61; 9 and 4 to 0 make 62.
  CHECK(costs_of(shard(lengths, 2, cost::Attention{0, 1})) == Vector{62, 61});
  // The defaults: 24576 * 2 + 4 and 24576 + 1.
  CHECK(costs_of(shard(std::vector<int>{1, 2}, 2, cost::Attention{})) == Vector{49156, 24577});
  CHECK(cost::Attention{0.5, 0.25}(6) == 12);
  // A cost of one's own: each row the same. Ranks take turns.
  const auto one = [](index_t) { return 1.0; };
  CHECK(rows_of(shard(lengths, 2, one)) == std::vector<Numbers>{{0, 2, 4}, {1, 3}});
  // Free: 9 | 3 2 1 1. Equal: rank 1 is full after 3 2 1, and rank 0 gets the last row.
  const std::vector<int> skewed{9, 3, 2, 1, 1};
  CHECK(rows_of(shard(skewed, 2)) == std::vector<Numbers>{{0}, {1, 2, 3, 4}});
  CHECK(rows_of(shard(skewed, 2, {}, ShardSizes::Equal)) ==
        std::vector<Numbers>{{0, 4}, {1, 2, 3}});
  // 10 and 9 as groups of two.
  CHECK(rows_of(shard(std::vector<int>{1, 9, 5, 4}, gdpo::groups_of(2), 2)) ==
        std::vector<Numbers>{{0, 1}, {2, 3}});
  const std::vector<int> ids{7, 3, 7, 3, 1};  // groups 1: row 4; 3: rows 1, 3; 7: rows 0, 2
  CHECK(rows_of(shard(lengths, gdpo::by_id(ids), 2)) == std::vector<Numbers>{{0, 2}, {1, 3, 4}});
}

TEST_CASE("shard of nothing, of few rows and of rows without cost", "[update]") {
  const Sharding none = shard(Numbers{}, 3);
  CHECK(rows_of(none) == std::vector<Numbers>{{}, {}, {}});
  check_laws(none, {}, 3);
  check_laws(shard(gdpo::View<const int, 1>{}, 1), {}, 1);
  CHECK(rows_of(shard(Numbers{4}, 1)) == std::vector<Numbers>{{0}});
  CHECK(shard(Numbers{4}, 1).imbalance() == 1);
  CHECK(rows_of(shard(Numbers{4, 6}, 3)) == std::vector<Numbers>{{1}, {0}, {}});
  CHECK(shard(Numbers{4, 6}, 3).imbalance() == 6 / (10 / 3.0));
  CHECK(rows_of(shard(Numbers{4, 6}, 3, {}, ShardSizes::Equal)) ==
        std::vector<Numbers>{{1}, {0}, {}});
  // Rows without cost go to the first of the ranks with the least.
  CHECK(rows_of(shard(Numbers{0, 0, 5, 0}, 2)) == std::vector<Numbers>{{2}, {0, 1, 3}});
  CHECK(shard(Numbers{0, 0}, 2).imbalance() == 1);
  CHECK(rows_of(shard(Numbers{0, 0, 0}, 2, {}, ShardSizes::Equal)) ==
        std::vector<Numbers>{{0, 1}, {2}});
  // -0 is no cost either, and does not sort before others.
  CHECK(rows_of(shard(Numbers{0, 1, 2}, 2, [](index_t l) {
          return l == 0 ? -0.0 : static_cast<double>(l);
        })) == std::vector<Numbers>{{2}, {0, 1}});
  // One group: the other ranks are idle.
  const Sharding one = shard(Numbers{4, 6, 5}, gdpo::groups_of(3), 3);
  CHECK(rows_of(one) == std::vector<Numbers>{{0, 1, 2}, {}, {}});
  CHECK(one.imbalance() == 3);
}

TEST_CASE("shard takes costs of any size, down to the smallest double", "[update]") {
  const double least = std::numeric_limits<double>::denorm_min();
  const auto scaled = [](double unit) {
    return [unit](index_t l) { return unit * static_cast<double>(l); };
  };
  const Numbers lengths{5, 3, 7, 2, 6};
  for (const double unit : {least, 0x1p-1000, 0.125, 0x1p1000}) {
    const Sharding sharding = shard(lengths, 2, scaled(unit));
    CHECK(rows_of(sharding) == std::vector<Numbers>{{1, 2, 3}, {0, 4}});
    CHECK(costs_of(sharding) == Vector{12 * unit, 11 * unit});
  }
}

TEST_CASE("shard reads lengths of every integer type and stride", "[update]") {
  const Numbers lengths{5, 3, 7, 2, 6};
  const auto want = rows_of(shard(lengths, 2));
  const auto same = [&](auto type) {
    std::vector<decltype(type)> typed;
    for (const index_t length : lengths) typed.push_back(static_cast<decltype(type)>(length));
    CHECK(rows_of(shard(typed, 2)) == want);
    CHECK(rows_of(shard(gdpo::view(typed), 2)) == want);
    CHECK(rows_of(shard(gdpo::view(typed), gdpo::groups_of(1), 2)) == want);
    // Backwards, every second element.
    std::vector<decltype(type)> spread(2 * typed.size(), 99);
    for (std::size_t i = 0; i < typed.size(); ++i) spread[spread.size() - 1 - 2 * i] = typed[i];
    CHECK(rows_of(shard(gdpo::view(spread.data() + 9, {5}, {-2}), 2)) == want);
  };
  same(std::uint8_t{}), same(std::int8_t{}), same(std::int32_t{}), same(std::uint32_t{});
  same(std::int64_t{}), same(std::uint64_t{});
}

TEST_CASE("shard refuses what it cannot deal out", "[update]") {
  const Numbers lengths{3, 11, 12};
  const auto said = [](auto call) { return message_of(call).substr(sizeof "gdpo::update::shard"); };
  for (const index_t ranks : {index_t{0}, index_t{-4}, (index_t{1} << 20) + 1}) {
    CHECK(message_of([&] { shard(lengths, ranks); }) == "gdpo::update::shard: ranks: given " +
                                                            std::to_string(ranks) +
                                                            "; needed: from 1 to 2^20 ranks");
  }
  CHECK(said([] {
          shard(Numbers{1, -2}, 2);
        }) == " lengths: given the length -2 for row 1; needed: lengths of at least 0");
  CHECK(said([] {
          shard(Numbers{1, index_t{1} << 53}, 2);
        }) ==
        " lengths: given the length 9007199254740992 for row 1 after 1 tokens; needed: at most "
        "2^53 tokens in all");
  CHECK(said([] {
          shard(gdpo::View<const int, 1>{nullptr, {2}, {1}}, 2);
        }) == " lengths: given a null pointer; needed: (2) elements");
  CHECK(said([&] { shard(lengths, 2, {}, static_cast<ShardSizes>(9)); }) ==
        " counts: given 9, which is no enumerator; needed: one of free, equal");
  CHECK(said([&] {
          shard(lengths, 2, cost::Attention{1, -0.5});
        }) == " cost_of.quadratic: given -0.5; needed: a finite number of at least 0");
  CHECK(said([] {  // although no cost is negative
          shard(Numbers{1, 2}, 2, cost::Attention{-1, 2});
        }) == " cost_of.linear: given -1; needed: a finite number of at least 0");
  CHECK(said([&] { shard(lengths, 2, [](index_t) { return -1.5; }); }) ==
        " cost_of: given the cost -1.5 for row 0; needed: finite costs of at least 0");
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    CHECK(said([&] { shard(lengths, 2, [&](index_t l) { return l == 11 ? bad : 1; }); }) ==
          " cost_of: given the cost " + std::string(gdpo::contract::text(bad)) +
              " for row 1; needed: finite costs of at least 0");
  }
  CHECK(said([&] { shard(lengths, 2, [](index_t) { return 0x1p1022; }); }) ==
        " cost_of: given costs with the sum " + std::string(gdpo::contract::text(3 * 0x1p1022)) +
            "; needed: a sum below 2^1023");
  CHECK(said([&] { shard(lengths, 2, [](index_t) { return 0x1p1023; }); }) ==
        " cost_of: given costs with the sum inf; needed: a sum below 2^1023");
  CHECK(said([&] { shard(lengths, gdpo::groups_of(2), 2); }) ==
        " groups: given 3 rows, which leaves a last group (number 1) of 1; needed: a multiple of 2 "
        "rows, as groups_of(2) says");
  CHECK(said([&] { shard(lengths, gdpo::by_id(Numbers{1}), 2); }) ==
        " groups: given 1 ids; needed: one id for each of the 3 rows");
}

TEST_CASE("shard: a Sharding refuses ranks and rows that are not there", "[update]") {
  const Sharding sharding = shard(Numbers{3, 8}, 3);
  CHECK(message_of([&] { sharding.rows(3); }) ==
        "gdpo::update::Sharding::rows: rank: given 3; needed: at least 0 and below 3");
  CHECK(message_of([&] { sharding.cost(-1); }) ==
        "gdpo::update::Sharding::cost: rank: given -1; needed: at least 0 and below 3");
  CHECK(message_of([&] { sharding.rank_of(2); }) ==
        "gdpo::update::Sharding::rank_of: row: given 2; needed: at least 0 and below 2");
}

}  // namespace shard_test
