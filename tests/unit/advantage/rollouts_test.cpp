// labels: sanitizers
// rollouts: numbers worked out by hand, other scalars, memory, and what is refused.
#include <gdpo/advantages.hpp>

#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "support/tolerance.hpp"

namespace rollouts_test {

namespace {

using gdpo::index_t;
using gdpo::Take;
using Vector = std::vector<double>;

constexpr double none = std::numeric_limits<double>::quiet_NaN();

/// Group 0 has the rollouts 9 (rows 0, 2) and 4 (row 1); group 1 has rollout 7 (rows 3, 4, 5).
const Vector rewards{1, 3,  none, 4,  5,  none,  // two rewards a row
                     2, 10, none, 20, -1, 30};
const std::vector<int> ids{9, 4, 9, 7, 7, 7};

Vector rewards_of(Take take) {
  const gdpo::RewardBatch batch{gdpo::view(rewards.data(), 6, 2), gdpo::groups_of(3)};
  const auto one = gdpo::rollouts(batch, gdpo::view(ids), take);
  CHECK(one.count() == 3);
  CHECK(one.batch().groups.length(0) == 2);
  CHECK(one.batch().groups.length(1) == 1);
  CHECK(one.lengths()(0) == 2);
  CHECK(one.lengths()(1) == 1);
  CHECK(one.lengths()(2) == 3);
  Vector out;
  for (index_t m = 0; m < 3; ++m)
    for (index_t c = 0; c < 2; ++c) out.push_back(one.batch().rewards(m, c));
  return out;
}

}  // namespace

TEST_CASE("what stands for the rows of a rollout", "[rollouts]") {
  CHECK(difference(rewards_of(Take::Last), Vector{5, none, none, 4, -1, 30}) == "");
  CHECK(difference(rewards_of(Take::First), Vector{1, 3, none, 4, 2, 10}) == "");
  CHECK(difference(rewards_of(Take::Sum), Vector{6, 3, none, 4, 1, 60}) == "");
  CHECK(difference(rewards_of(Take::Mean), Vector{3, 3, none, 4, 0.5, 20}) == "");
  CHECK(difference(rewards_of(Take::Max), Vector{5, 3, none, 4, 2, 30}) == "");
}

TEST_CASE("columns of rollouts", "[rollouts]") {
  const Vector tokens{10, 20, 30}, kl{1, 2, 4}, base{0.5, 1.5, 7}, valid{1, 1, 0};
  const Vector one_reward{1, 2, 100};
  const std::vector<int> same{3, 3, 3};
  gdpo::RewardBatch batch{gdpo::view(one_reward), gdpo::groups_of(3)};
  batch.tokens = gdpo::view(tokens), batch.penalty = gdpo::view(kl);
  batch.baseline = gdpo::view(base), batch.weights = gdpo::view(base);
  const auto row = [&](Take take) {
    const auto one = gdpo::rollouts(batch, gdpo::view(same), take);
    const auto& b = one.batch();
    return Vector{b.rewards(0, 0), b.tokens(0), b.penalty(0), b.baseline(0), b.weights(0)};
  };
  CHECK(row(Take::Last) == Vector{100, 30, 4, 7, 7});
  CHECK(row(Take::First) == Vector{1, 10, 1, 0.5, 0.5});
  CHECK(row(Take::Sum) == Vector{103, 60, 7, 9, 9});
  CHECK(row(Take::Mean) == Vector{103 / 3.0, 60, 7, 3, 3});
  CHECK(row(Take::Max) == Vector{100, 60, 7, 7, 7});
  batch.valid = gdpo::view(valid);
  CHECK(row(Take::Last) == Vector{2, 20, 2, 1.5, 1.5});
  CHECK(row(Take::Sum) == Vector{3, 30, 3, 2, 2});
  const Vector nobody{0, 0, 0};
  batch.valid = gdpo::view(nobody);
  CHECK(row(Take::Sum) == Vector{103, 60, 7, 9, 9});
  const auto unused = gdpo::rollouts(batch, gdpo::view(same));
  CHECK(unused.batch().valid(0) == 0);
}

TEST_CASE("a rollout counts once", "[rollouts]") {
  // Three completions of one prompt; the second has two turns. The mean is that of 1, 5 and 3.
  const Vector one_reward{1, 0, 5, 3};
  const std::vector<int> rollout{0, 1, 1, 2};
  const gdpo::RewardBatch batch{gdpo::view(one_reward), gdpo::groups_of(4)};
  const auto one = gdpo::rollouts(batch, gdpo::view(rollout));
  gdpo::GroupReport report;
  const Vector a = one.spread(gdpo::advantages(gdpo::simd, one.batch(), gdpo::DrGrpo{}, &report));
  CHECK(a == Vector{-2, 2, 2, 0});
  CHECK(report.rows == 3);
  CHECK(report.reward_mean == 3);
}

TEST_CASE("infinite rewards stay infinite, and sums are exact", "[rollouts]") {
  const double inf = HUGE_VAL;
  const auto sum_of = [](const Vector& values, Take take) {
    const std::vector<int> same(values.size(), 1);
    const gdpo::RewardBatch batch{gdpo::view(values), gdpo::by_id(same)};
    const auto one = gdpo::rollouts(batch, gdpo::view(same), take);
    return one.batch().rewards(0, 0);
  };
  CHECK(sum_of({1, inf, 2}, Take::Sum) == inf);
  CHECK(sum_of({1, -inf, 2}, Take::Mean) == -inf);
  // Of both signs it shows: NaN would be a missing reward.
  CHECK(sum_of({inf, -inf}, Take::Sum) == inf);
  CHECK(sum_of({-inf, 1, inf}, Take::Mean) == inf);
  CHECK(sum_of({-inf, 3}, Take::Max) == 3);
  CHECK(sum_of({1, 1e100, 1, -1e100}, Take::Sum) == 2);
  CHECK(sum_of({none, none}, Take::Max) != sum_of({none, none}, Take::Max));
}

TEST_CASE("rewards of other scalars, and strides", "[rollouts]") {
  const std::vector<int> counts{1, 0, 2, 0, 3, 0};
  const std::vector<std::uint8_t> rollout{1, 1, 2};
  const gdpo::RewardBatch batch{gdpo::View<const int, 1>{counts.data(), {3}, {2}},
                                gdpo::groups_of(3)};
  const auto one = gdpo::rollouts(batch, gdpo::view(rollout), Take::Mean);
  static_assert(std::is_same_v<decltype(one)::Scalar, double>);
  CHECK(one.batch().rewards(0, 0) == 1.5);
  CHECK(one.batch().rewards(1, 0) == 3);
  static_assert(std::is_same_v<gdpo::Rollouts<float, gdpo::ById>::Scalar, float>);
}

TEST_CASE("no rows, and moved objects", "[rollouts]") {
  const Vector empty;
  const std::vector<int> no_ids;
  const gdpo::RewardBatch batch{gdpo::view(empty), gdpo::groups_of(3)};
  auto one = gdpo::rollouts(batch, gdpo::view(no_ids));
  CHECK(one.count() == 0);
  CHECK(one.spread(gdpo::advantages(gdpo::simd, one.batch(), gdpo::Gdpo{})).empty());

  const Vector two{1, 3};
  const std::vector<int> names{1, 2};
  const gdpo::RewardBatch pair{gdpo::view(two), gdpo::groups_of(2)};
  one.assign(pair, gdpo::view(names));
  auto other = std::move(one);
  CHECK(other.spread(gdpo::advantages(gdpo::simd, other.batch(), gdpo::DrGrpo{})) == Vector{-1, 1});
  CHECK(one.count() == 0);
  CHECK(one.rows() == 0);
  CHECK(message_of([&] { one.batch(); }) ==
        "gdpo::Rollouts::batch: object: given one that has no batch; needed: one to which assign() "
        "has given a batch");
  CHECK(gdpo::Rollouts<float, gdpo::ById>{}.count() == 0);
  one.assign(pair, gdpo::view(names));
  CHECK(one.count() == 2);
}

TEST_CASE("a loop allocates nothing after the first batch of a shape", "[rollouts]") {
  const auto check = [](const auto& groups, const std::vector<int>& rollout) {
    const auto rows = static_cast<index_t>(rollout.size());
    Vector x(rollout.size() * 2), tokens(rollout.size(), 5), a(rollout.size()), out(rollout.size());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.1 * static_cast<double>(i * i % 7);
    gdpo::RewardBatch batch{gdpo::view(std::as_const(x).data(), rows, 2), groups};
    batch.tokens = gdpo::view(tokens);
    gdpo::Rollouts one(batch, gdpo::view(rollout));
    gdpo::Workspace workspace;
    const auto step = [&](Take take) {
      one.assign(batch, gdpo::view(rollout), take);
      const auto of_rollouts = gdpo::view(a.data(), one.count());
      gdpo::advantages_into(gdpo::simd, one.batch(), gdpo::Gdpo{}, of_rollouts, workspace);
      one.spread_into(of_rollouts, gdpo::view(out));
    };
    step(Take::Sum);
    const long before = counted::allocations;
    for (const Take take : {Take::Last, Take::First, Take::Sum, Take::Mean, Take::Max}) step(take);
    const long after = counted::allocations;
    CHECK(after == before);
  };
  const std::vector<int> rollout{8, 5, 8, 5, 1, 3, 3, 3};
  check(gdpo::groups_of(4), rollout);
  check(gdpo::by_id(std::vector<int>{7, 7, 7, 7, 2, 2, 2, 2}), rollout);
  check(gdpo::by_id(std::vector<int>{7, 2, 7, 2, 2, 7, 7, 7}), rollout);
}

TEST_CASE("what rollouts refuse", "[rollouts]") {
  const Vector x{1, 2, 3, 4};
  const gdpo::RewardBatch batch{gdpo::view(x), gdpo::groups_of(2)};
  const std::vector<int> three{1, 2, 3}, split{1, 7, 2, 7}, good{1, 1, 2, 2};
  CHECK(message_of([&] { gdpo::rollouts(batch, gdpo::view(three)); }) ==
        "gdpo::rollouts: ids: given 3 entries; needed: one for each of the 4 rows");
  CHECK(message_of([&] {
          gdpo::rollouts(batch, gdpo::View<const int, 1>{nullptr, {4}, {1}});
        }) == "gdpo::rollouts: ids: given a null pointer; needed: (4) elements");
  CHECK(message_of([&] { gdpo::rollouts(batch, gdpo::view(split)); }) ==
        "gdpo::rollouts: ids: given rows 1 and 3 of rollout 7 in groups 0 and 1; needed: the rows "
        "of a rollout in one group");
  gdpo::RewardBatch columns = batch;
  columns.tokens = gdpo::view(three);
  CHECK(message_of([&] { gdpo::rollouts(columns, gdpo::view(good)); }) ==
        "gdpo::rollouts: batch.tokens: given 3 entries; needed: one for each of the 4 rows");
  const gdpo::RewardBatch groups{gdpo::view(x), gdpo::groups_of(3)};
  CHECK(message_of([&] {
          gdpo::rollouts(groups, gdpo::view(good));
        }).find("gdpo::rollouts: groups: given 4 rows") == 0);

  auto one = gdpo::rollouts(batch, gdpo::view(good));
  CHECK(message_of([&] { one.spread(x); }) ==
        "gdpo::Rollouts::spread_into: values: given 4 entries; needed: one for each of the 2 "
        "rollouts");
  Vector out(3);
  const Vector two{1, 2};
  CHECK(message_of([&] { one.spread_into(gdpo::view(two), gdpo::view(out)); }) ==
        "gdpo::Rollouts::spread_into: out: given 3 entries; needed: one for each of the 4 rows");
  // After an error there are no rollouts.
  CHECK(message_of([&] { one.assign(batch, gdpo::view(split)); }) != "no error");
  CHECK(one.count() == 0);
  CHECK(one.rows() == 0);
  one.assign(batch, gdpo::view(good));
  CHECK(one.count() == 2);
}

TEST_CASE("ids are grouped again in the memory of the ones before", "[groups]") {
  gdpo::ById groups = gdpo::by_id(std::vector<int>{3, 1, 3, 2});
  const std::vector<long long> other{5, 5, -1};
  groups.assign(gdpo::view(other));
  CHECK(groups.count(3) == 2);
  CHECK(groups.ids()(0) == -1);
  CHECK(groups.row(1, 1) == 1);
  gdpo::ById pairs = gdpo::by_id(std::vector<int>{3, 3}, 2);
  CHECK(message_of([&] { pairs.assign(gdpo::view(other)); }).find("1 rows of id -1") !=
        std::string::npos);
  CHECK(pairs.count(3) == 0);
}

}  // namespace rollouts_test
