// labels: sanitizers
// shape_rewards by group: the rules against their formulas in long double, numbers by hand, and the
// laws of their application: order, unused rows, missing rewards, groupings, ranks.
#include <cmath>
#include <cstdint>
#include <gdpo/runtime.hpp>
#include <gdpo/update/shape_groups.hpp>
#include <numeric>

#include "support/catch.hpp"
#include "support/few_rounds.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "support/thread_ranks.hpp"
#include "support/tolerance.hpp"

namespace shape_groups_test {

namespace {

namespace shaping = gdpo::update::shaping;
using gdpo::index_t;
using gdpo::update::shape_rewards;
using Vector = std::vector<double>;
using real = long double;
constexpr double infinity = std::numeric_limits<double>::infinity();
const double missing = std::nan("");
constexpr std::uint64_t rounds = few_rounds ? 40 : 200;

/// Rows of a batch.
struct Rows {
  Vector rewards, tokens, input, turns, valid;
  std::vector<int> ids;
  shaping::Columns columns() const {
    shaping::Columns c;
    c.lengths = gdpo::view(tokens), c.input_lengths = gdpo::view(input);
    c.turns = gdpo::view(turns), c.valid = gdpo::view(valid);
    return c;
  }
  /// The rows in another order.
  Rows in_order(const std::vector<std::size_t>& order) const {
    Rows r;
    for (const std::size_t i : order) {
      r.rewards.push_back(rewards[i]), r.tokens.push_back(tokens[i]), r.input.push_back(input[i]);
      r.turns.push_back(turns[i]), r.valid.push_back(valid[i]), r.ids.push_back(ids[i]);
    }
    return r;
  }
};
Rows random_rows(Random& random, int groups) {
  Rows r;
  for (int g = 0; g < groups; ++g) {
    const int kind = random.below(4), n = 1 + random.below(6);
    const bool same_length = random.chance(0.15);
    for (int k = 0; k < n; ++k) {
      r.ids.push_back(g);
      r.rewards.push_back(random.chance(0.15) ? missing : random_reward(random, kind));
      r.tokens.push_back(same_length ? 30 : random.below(200));
      r.input.push_back(random.chance(0.2) ? 0 : random.below(50));
      r.turns.push_back(1 + random.below(4));
      r.valid.push_back(random.chance(0.85));
    }
  }
  return r;
}
template <class... Rules>
Vector shaped(const Rows& rows, const Rules&... rules) {
  Vector x = rows.rewards;
  shape_rewards(gdpo::view(x), gdpo::by_id(rows.ids), rows.columns(), rules...);
  return x;
}

// The rules from their formulas. `used` are the used rows of the group that have a reward.
using Used = std::vector<std::size_t>;
real largest(const Vector& x, const Used& used) {
  real most = 0;
  for (const std::size_t i : used) most = std::max(most, real(x[i]));
  return most;
}
real naive(const shaping::RelativeCost& s, const Rows& r, const Used& used, std::size_t i) {
  real mean = 0, cost = 0;
  for (const std::size_t j : used) mean += real(r.rewards[j]) / real(used.size());
  const auto add = [&](double weight, const Vector& x) {
    const real most = largest(x, used);
    if (most > 0) cost += real(weight) * real(x[i]) / most;
  };
  add(s.output, r.tokens), add(s.input, r.input), add(s.turns, r.turns);
  return real(r.rewards[i]) - mean * cost;
}
real naive(const shaping::RelativeLength& s, const Rows& r, const Used& used, std::size_t i) {
  const real most = largest(r.tokens, used);
  real least = most;
  for (const std::size_t j : used) least = std::min(least, real(r.tokens[j]));
  if (most == least) return r.rewards[i];
  const real l = real(0.5) - (real(r.tokens[i]) - least) / (most - least);
  const bool right = r.rewards[i] > s.right;
  return real(r.rewards[i]) + real(s.weight) * (right || l < 0 ? l : 0);
}
real naive(const shaping::LengthAmongRight& s, const Rows& r, const Used& used, std::size_t i) {
  real n = 0, mean = 0, square = 0;
  for (const std::size_t j : used)
    if (r.rewards[j] > s.right) ++n, mean += real(r.tokens[j]);
  if (n == 0 || !(r.rewards[i] > s.right)) return r.rewards[i];
  mean /= n;
  for (const std::size_t j : used)
    if (r.rewards[j] > s.right) square += (real(r.tokens[j]) - mean) * (real(r.tokens[j]) - mean);
  if (square < 1e-9L) return r.rewards[i];  // lengths are whole numbers
  const real z = (real(r.tokens[i]) - mean) / (std::sqrt(square / n) + real(s.eps));
  return real(r.rewards[i]) * std::exp(-real(s.alpha) * z);
}
real naive(const shaping::SolveRateLength& s, const Rows& r, const Used& used, std::size_t i) {
  real right = 0;
  for (const std::size_t j : used) right += r.rewards[j] > s.right;
  const real n = real(used.size());
  return real(r.rewards[i]) - real(s.alpha) * std::max(right / n, 1 / n) * real(r.tokens[i]);
}
template <class Rule>
void check_formula(const Rule& rule, const Rows& rows) {
  INFO(Rule::name);
  Vector expected;
  for (std::size_t i = 0; i < rows.rewards.size(); ++i) {
    Used used;
    for (std::size_t j = 0; j < rows.rewards.size(); ++j) {
      if (rows.ids[j] == rows.ids[i] && rows.valid[j] != 0 && !std::isnan(rows.rewards[j]))
        used.push_back(j);
    }
    expected.push_back(used.empty() || std::isnan(rows.rewards[i])
                           ? rows.rewards[i]
                           : static_cast<double>(naive(rule, rows, used, i)));
  }
  // Sums of at most six numbers below 8, up to 200 counts, and an exp: a few dozen roundings of
  // values below 512.
  CHECK(deviation(shaped(rows, rule), expected, 64 * tolerance::formula) == "");
}
/// A rule of a user: the reward minus the best of the group.
struct BelowBest {
  auto in_group(const shaping::Group& g) const {
    const double best = shaping::Group::moments(g.rewards).max;
    return [best](const shaping::Args& a) { return a.reward - best; };
  }
};
/// One that reads an array of its own.
struct Price {
  const Vector& prices;
  double operator()(const shaping::Args& a) const {
    return a.reward - prices[static_cast<std::size_t>(a.row)];
  }
};

}  // namespace

TEST_CASE("shaping by group: by hand", "[update]") {
  // Two groups of four. All numbers are exact in binary.
  Vector x{1, 0, 1, 0, 0, 0, 0, 0};
  const Vector tokens{8, 16, 4, 2, 8, 16, 4, 2}, turns{1, 2, 4, 4, 1, 1, 1, 1};
  shaping::Columns columns;
  columns.lengths = gdpo::view(tokens), columns.turns = gdpo::view(turns);
  const auto groups = gdpo::groups_of(4);
  const auto after = [&](const auto&... rules) {
    Vector y = x;
    shape_rewards(gdpo::view(y), groups, columns, rules...);
    return y;
  };
  // The mean is 1/2, the largest counts 16 and 4. A group without a reward pays nothing.
  CHECK(after(shaping::RelativeCost{0.5, 0, 0.25}) ==
        Vector{1 - 0.5 * (0.25 + 0.0625), -0.5 * (0.5 + 0.125), 1 - 0.5 * (0.125 + 0.25),
               -0.5 * (0.0625 + 0.25), 0, 0, 0, 0});
  // Lengths from 2 to 16: 1/2 - 6/14 and so on; a wrong answer gains nothing.
  const Vector kimi = after(shaping::RelativeLength{14, 0.5});
  CHECK(deviation(kimi, Vector{2, -7, 6, 0, 0, -7, 0, 0}, tolerance::formula) == "");
  // Right answers have 8 and 4 tokens: mean 6, std 2.
  CHECK(deviation(after(shaping::LengthAmongRight{0.5}),
                  Vector{std::exp(-0.5), 0, std::exp(0.5), 0, 0, 0, 0, 0},
                  tolerance::formula) == "");
  // Half of the answers are right; where none is, one of four is taken.
  CHECK(after(shaping::SolveRateLength{0.125}) ==
        Vector{0.5, -1, 0.75, -0.125, -0.25, -0.5, -0.125, -0.0625});
  // Rules are applied one after the other.
  CHECK(after(shaping::Affine{2, 0}, shaping::RelativeCost{1, 0, 0}) ==
        Vector{1.5, -1, 1.75, -0.125, 0, 0, 0, 0});
  CHECK(after(BelowBest{}, shaping::Clip{-0.5, 0}) == Vector{0, -0.5, 0, -0.5, 0, 0, 0, 0});
  CHECK(after(Price{tokens}) == Vector{-7, -16, -3, -2, -8, -16, -4, -2});
  CHECK(after() == x);
}

TEST_CASE("shaping by group: the formulas", "[update]") {
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Rows rows = random_rows(random, 1 + random.below(6));
    check_formula(
        shaping::RelativeCost{random.uniform(), random.pick({0.0, 0.1}), random.pick({0.0, 0.3})},
        rows);
    check_formula(shaping::RelativeLength{random.uniform(), random.pick({0.0, 0.4})}, rows);
    check_formula(shaping::LengthAmongRight{0.01 * random.uniform(), random.pick({0.0, 3.0}), 0.1},
                  rows);
    check_formula(shaping::SolveRateLength{0.01 * random.uniform(), random.pick({0.0, 0.4})}, rows);
  }
}

TEST_CASE("shaping by group: laws of the application", "[update]") {
  const shaping::RelativeCost cost{0.25, 0.1, 0.1};
  const shaping::RelativeLength length{0.3};
  const shaping::LengthAmongRight among{0.2};
  const shaping::SolveRateLength rate{0.001};
  const auto all = [&](const Rows& r) {
    return shaped(r, cost, length, shaping::Clip{-1, 1}, among, rate);
  };
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Rows rows = random_rows(random, 1 + random.below(6));
    const Vector expected = all(rows);

    // Several rules in one call are the calls one after the other.
    Rows step = rows;
    step.rewards = shaped(step, cost), step.rewards = shaped(step, length);
    step.rewards = shaped(step, shaping::Clip{-1, 1}), step.rewards = shaped(step, among);
    CHECK(difference(shaped(step, rate), expected) == "");

    // The rows in another order, and other ids: the same bits.
    std::vector<std::size_t> order(rows.rewards.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    random.shuffle(order);
    Rows moved = rows.in_order(order);
    for (int& id : moved.ids) id = 100 - 7 * id;
    Vector at_place;
    for (const std::size_t i : order) at_place.push_back(expected[i]);
    CHECK(difference(all(moved), at_place) == "");

    // Groups by offsets are those by id.
    std::vector<int> offsets{0};
    for (std::size_t i = 1; i < rows.ids.size(); ++i)
      if (rows.ids[i] != rows.ids[i - 1]) offsets.push_back(static_cast<int>(i));
    offsets.push_back(static_cast<int>(rows.ids.size()));
    Vector by_offsets = rows.rewards;
    shape_rewards(gdpo::view(by_offsets), gdpo::by_offsets(offsets), rows.columns(), cost, length,
                  shaping::Clip{-1, 1}, among, rate);
    CHECK(difference(by_offsets, expected) == "");

    // By name.
    Vector named = rows.rewards;
    const std::vector<gdpo::runtime::Shaping> rules{
        cost, gdpo::runtime::configured_shaping("relative_length weight=0.3"),
        gdpo::runtime::configured_shaping("clip min=-1 max=1"), among,
        gdpo::runtime::configured_shaping("solve_rate_length alpha=0.001")};
    gdpo::runtime::shape_rewards(gdpo::view(named), gdpo::by_id(rows.ids), rows.columns(), rules);
    CHECK(difference(named, expected) == "");

    // An unused row is in no statistic: without it the others get the same.
    const std::size_t last = rows.rewards.size() - 1;
    Rows without = rows, unused = rows;
    unused.valid[last] = 0, without.rewards[last] = missing;
    Vector a = all(without), b = all(unused);
    a.pop_back(), b.pop_back();
    CHECK(difference(a, b) == "");

    // Rules by row are those of the call without groups.
    Vector by_row = rows.rewards;
    shape_rewards(gdpo::view(by_row), gdpo::view(rows.tokens), shaping::LengthTarget{9, 0.1},
                  shaping::Clip{-1, 1});
    CHECK(difference(shaped(rows, shaping::LengthTarget{9, 0.1}, shaping::Clip{-1, 1}), by_row) ==
          "");
  }
}

TEST_CASE("shaping by group over ranks: the rows are gathered", "[update][dist]") {
  constexpr int ranks = 3;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Rows rows = random_rows(random, 5);
    const shaping::RelativeCost cost{0.25, 0.1, 0.1};
    const Vector expected = shaped(rows, cost);
    std::vector<std::vector<std::size_t>> own(ranks);  // in any order
    for (std::size_t i = 0; i < rows.ids.size(); ++i)
      own[static_cast<std::size_t>(random.below(ranks))].push_back(i);
    std::vector<Vector> got(ranks), wanted(ranks);
    for (std::size_t r = 0; r < ranks; ++r)
      for (const std::size_t i : own[r]) wanted[r].push_back(expected[i]);
    CHECK(test::on_ranks(ranks, [&](const test::ThreadRank& comm) {
            const auto r = static_cast<std::size_t>(comm.rank());
            const Rows mine = rows.in_order(own[r]);
            const auto n = static_cast<index_t>(own[r].size());
            // The reward and the counts that a batch has no column for.
            Vector table;
            for (std::size_t i = 0; i < own[r].size(); ++i)
              table.insert(table.end(), {mine.rewards[i], mine.input[i], mine.turns[i]});
            gdpo::RewardBatch batch{gdpo::view(table.data(), n, 3), gdpo::by_id(mine.ids)};
            batch.tokens = gdpo::view(mine.tokens), batch.valid = gdpo::view(mine.valid);
            const auto all = gdpo::dist::gather_rows(comm, batch);
            const auto whole = all.batch();
            Vector x(static_cast<std::size_t>(all.rows()));
            for (std::size_t i = 0; i < x.size(); ++i)
              x[i] = whole.rewards(static_cast<index_t>(i), 0);
            shaping::Columns columns;
            columns.lengths = whole.tokens, columns.valid = whole.valid;
            columns.input_lengths = gdpo::column<const double>(whole.rewards, 1);
            columns.turns = gdpo::column<const double>(whole.rewards, 2);
            shape_rewards(gdpo::view(x), whole.groups, columns, cost);
            got[r] = all.own(x);
          }) == std::vector<std::string>(ranks));
    for (std::size_t r = 0; r < ranks; ++r) CHECK(difference(got[r], wanted[r]) == "");
  }
}

TEST_CASE("shaping by group: infinite rewards, and what is NaN", "[update]") {
  Vector x{infinity, 0, 1, 1};
  const Vector tokens{1, 2, 4, 0};
  shaping::Columns columns;
  columns.lengths = gdpo::view(tokens);
  const auto report = shape_rewards(gdpo::view(x), gdpo::groups_of(2), columns,
                                    shaping::RelativeCost{0.5, 0, 0}, shaping::Affine{1, 1});
  // The mean of the first group is unknown. NaN would say that its rewards are missing. The largest
  // length of the other group is 4.
  CHECK(x == Vector{infinity, infinity, 1.5, 2});
  CHECK(report.not_finite == 2);
  CHECK(report.changed == 3);
  x = {missing, 1, missing, missing};
  CHECK(shape_rewards(gdpo::view(x), gdpo::groups_of(2), columns, shaping::RelativeCost{0.5, 0, 0})
            .missing == 3);
  CHECK(x[1] == 0.5);
  // No used row: rules by group do nothing.
  const Vector none(4, 0.0);
  columns.valid = gdpo::view(none);
  x = {1, 1, 2, 2};
  CHECK(shape_rewards(gdpo::view(x), gdpo::groups_of(2), columns, shaping::RelativeCost{1, 0, 0},
                      shaping::SolveRateLength{})
            .changed == 0);
}

TEST_CASE("shaping by group refuses mistakes and writes nothing", "[update]") {
  const Vector before{1, 2, 3};
  Vector x = before;
  const Vector two{1, 2}, counts{1, 2, 3}, negative{1, -1, 2};
  const std::string f = "gdpo::update::shape_rewards: ";
  const auto refused = [&](const shaping::Columns& columns, const auto& rule, index_t size = 3) {
    const std::string message = message_of([&] {
      shape_rewards(gdpo::view(x), gdpo::groups_of(size), columns, shaping::Affine{2, 0}, rule);
    });
    CHECK(x == before);
    return message;
  };
  shaping::Columns columns;
  const std::string needed = ": given no column; needed: token counts, because a rule reads them";
  CHECK(refused(columns, shaping::SolveRateLength{}) == f + "columns.lengths" + needed);
  CHECK(refused(columns, shaping::RelativeCost{0, 1, 1}) == f + "columns.input_lengths" + needed);
  CHECK(refused(columns, shaping::RelativeCost{0, 0, 1}) ==
        f + "columns.turns: given no column; needed: counts of turns, because a rule reads them");
  CHECK(message_of([&] {
          shape_rewards(gdpo::view(x), gdpo::groups_of(3), columns, shaping::RelativeCost{0, 0, 0});
        }) == "no error");
  columns.lengths = columns.turns = columns.input_lengths = gdpo::view(counts);
  CHECK_THAT(refused(columns, shaping::Clip{}, 2),
             Catch::Matchers::ContainsSubstring(f + "groups: given 3 rows"));
  CHECK(refused(columns, shaping::RelativeCost{-1, 0, 0}) ==
        f + "relative_cost.output: given -1; needed: a finite number of at least 0");
  CHECK(refused(columns, shaping::LengthAmongRight{0.1, -1}) ==
        f + "length_among_right.eps: given -1; needed: a finite number of at least 0");
  CHECK_THAT(refused(columns, shaping::RelativeLength{1, missing}),
             Catch::Matchers::ContainsSubstring(f + "relative_length.right: given "));
  CHECK_THAT(refused(columns, shaping::SolveRateLength{infinity}),
             Catch::Matchers::ContainsSubstring(f + "solve_rate_length.alpha: given inf"));
  columns.valid = gdpo::view(two);
  CHECK(refused(columns, shaping::Clip{}) ==
        f + "columns.valid: given 2 entries; needed: one for each of the 3 rows");
  columns.valid = {}, columns.turns = gdpo::view(negative);
  CHECK(refused(columns, shaping::Clip{}) ==
        f + "columns.turns(1): given -1; needed: a count of at least 0");
}

}  // namespace shape_groups_test
