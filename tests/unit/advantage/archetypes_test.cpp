// labels: sanitizers
// User policies of every kind give the numbers of their formulas, with both combines. Rewards and
// advantages are of order 1, so the tolerance is tolerance::formula.
#include "support/archetypes.hpp"

#include <gdpo/with/eigen.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/tolerance.hpp"

namespace archetypes_test {

namespace {

using gdpo::combine::NormalizeThenSum;
using gdpo::combine::SumThenNormalize;
using Vector = std::vector<double>;

template <class Baseline, class Scale, class Combine = SumThenNormalize>
gdpo::GroupAdvantage<Baseline, Scale, Combine> estimator(Baseline baseline = {}, Scale scale = {}) {
  gdpo::GroupAdvantage<Baseline, Scale, Combine> e;
  e.baseline = baseline;
  e.scale = scale;
  e.renorm = gdpo::renorm::none();
  return e;
}

template <class Estimator>
Vector run(const Vector& rewards, gdpo::index_t reward_count, gdpo::index_t group,
           const Estimator& e, const Vector& tokens = {}, const Vector& valid = {},
           const Vector& external = {}, const Vector& weights = {}) {
  gdpo::RewardBatch batch{
      gdpo::view(rewards.data(), static_cast<gdpo::index_t>(rewards.size()) / reward_count,
                 reward_count),
      gdpo::groups_of(group)};
  if (!tokens.empty()) batch.tokens = gdpo::view(tokens);
  if (!valid.empty()) batch.valid = gdpo::view(valid);
  if (!external.empty()) batch.baseline = gdpo::view(external);
  if (!weights.empty()) batch.weights = gdpo::view(weights);
  return gdpo::advantages(gdpo::seq, batch, e);
}

}  // namespace

TEST_CASE("leave-one-out std: x minus the others' mean, over the others' std", "[archetype]") {
  const Vector x{1, 2, 4, 7};
  Vector expected;
  for (std::size_t i = 0; i < 4; ++i) {
    double mean = 0, square = 0;
    for (std::size_t j = 0; j < 4; ++j) mean += j == i ? 0 : x[j] / 3;
    for (std::size_t j = 0; j < 4; ++j) square += j == i ? 0 : (x[j] - mean) * (x[j] - mean);
    expected.push_back((x[i] - mean) / std::sqrt(square / 2));
  }
  const auto sum = estimator<gdpo::baseline::LeaveOneOut, archetype::LeaveOneOutStd>();
  CHECK(deviation(run(x, 1, 4, sum), expected, tolerance::formula) == "");
  const auto each =
      estimator<gdpo::baseline::LeaveOneOut, archetype::LeaveOneOutStd, NormalizeThenSum>();
  Vector two, doubled;
  for (const double value : x) two.push_back(value), two.push_back(-value);
  CHECK(all_zero(run(two, 2, 4, each)));
  for (std::size_t i = 0; i < 8; i += 2) two[i + 1] = two[i];
  for (const double value : expected) doubled.push_back(2 * value);
  CHECK(deviation(run(two, 2, 4, each), doubled, 2 * tolerance::formula) == "");
}

TEST_CASE("where the others of a member are all equal their spread is exactly 0",
          "[archetype][zero]") {
  // Seven equal rewards and one that is larger by 1. NeMo-RL computes the std as
  // sqrt(E[x^2] - E[x]^2), which rounding keeps from being 0: there the odd one out got advantages
  // of thousands.
  for (const double common : {0.35, 0.95, 0.4, 0.3, 0.1, 1e5 + 0.1, -7.0}) {
    Vector x(7, common);
    x.push_back(common + 1);
    INFO("common " << common);
    const auto e = estimator<gdpo::baseline::LeaveOneOut, archetype::LeaveOneOutStd>();
    const Vector advantages = run(x, 1, 8, e);
    CHECK(advantages[7] == 0);  // the others have no spread: the multiplier is 0
    for (std::size_t i = 0; i < 7; ++i) {
      // The others of this member are six equal rewards and one that is larger by 1: their mean is
      // above it by 1/7 and their variance is 1/7.
      CHECK(std::abs(advantages[i] + std::sqrt(7.0) / 7) <=
            tolerance::offset(std::abs(common), 0.3));
    }
    auto floor = e;
    floor.scale.eps = 0.5;
    // The odd one is 1 above the others, whose spread is exactly 0: 1 / (0 + 0.5).
    CHECK(std::abs(run(x, 1, 8, floor)[7] - 2) <= 2 * tolerance::offset(std::abs(common), 0.3));
  }
}

// The median is 4; the deviations from it are 3, 2, 0, 4, 5, and their median is 3.
TEST_CASE("median and median absolute deviation", "[archetype]") {
  const Vector x{1, 2, 4, 8, 9}, expected{-1.0, -2.0 / 3, 0, 4.0 / 3, 5.0 / 3};
  CHECK(deviation(run(x, 1, 5, estimator<archetype::Median, archetype::MedianAbsoluteDeviation>()),
                  expected, tolerance::formula) == "");
  const auto each =
      estimator<archetype::Median, archetype::MedianAbsoluteDeviation, NormalizeThenSum>();
  Vector two;
  for (const double value : x) two.push_back(value), two.push_back(10 * value);
  Vector twice;
  for (const double value : expected) twice.push_back(2 * value);
  CHECK(deviation(run(two, 2, 5, each), twice, 2 * tolerance::formula) == "");
  CHECK(all_zero(run(Vector(6, 0.1), 2, 3, each)));
}

TEST_CASE("a baseline weighted by length reads the tokens of the used members", "[archetype]") {
  const Vector x{1, 0, 0.5, 1}, tokens{10, 30, 20, 40};
  const double base = (10 + 10 + 40) / 100.0;
  const auto e = estimator<archetype::LengthWeighted, gdpo::scale::None>();
  CHECK(deviation(run(x, 1, 4, e, tokens), Vector{1 - base, -base, 0.5 - base, 1 - base},
                  tolerance::formula) == "");
  const double without_third = 50 / 80.0;
  CHECK(deviation(run(x, 1, 4, e, tokens, {1, 1, 0, 1}),
                  Vector{1 - without_third, -without_third, 0.5 - without_third, 1 - without_third},
                  tolerance::formula) == "");
}

TEST_CASE("an external baseline need not give 0 to an equal group", "[archetype]") {
  const auto e = estimator<archetype::External, gdpo::scale::None>();
  CHECK(difference(run({1, 1, 2, 0}, 1, 2, e, {}, {}, {0.5, 0.25, 1, 1}),
                   Vector{0.5, 0.75, 1, -1}) == "");
  // A later row of a group reads its own entry of the baseline where the first row is missing or
  // unused.
  CHECK(difference(run({std::nan(""), 1, 3}, 1, 3, e, {}, {}, {9, 0.5, 1}), Vector{0, 0.5, 2}) ==
        "");
  CHECK(difference(run({8, 1, 3}, 1, 3, e, {}, {0, 1, 1}, {9, 0.5, 1}), Vector{6, 0.5, 2}) == "");
}

TEST_CASE("the caller's row weights reach a policy", "[archetype]") {
  const auto e = estimator<archetype::RowWeighted, gdpo::scale::None>();
  CHECK(difference(run({1, 2, 4, 8}, 1, 4, e, {}, {}, {}, {1, 1, 0, 2}),
                   Vector{1 - 4.75, 2 - 4.75, 4 - 4.75, 8 - 4.75}) == "");
}

TEST_CASE("a scale that declares nothing about the batch sees it", "[archetype]") {
  const auto e = estimator<gdpo::baseline::Mean, archetype::NonzeroShare>();
  // All 6 rewards are used and 2 of them are not 0: the multiplier is 6 / 2.
  CHECK(difference(run({1, 0, 0, 0, 1, 0}, 1, 2, e), Vector{1.5, -1.5, 0, 0, 1.5, -1.5}) == "");
}

TEST_CASE("a policy that declares nothing is called for every member, unused ones with own = -1",
          "[archetype]") {
  std::vector<archetype::Recorder::Call> calls;
  auto e = estimator<archetype::Recorder, gdpo::scale::None, NormalizeThenSum>(
      archetype::Recorder{&calls});
  const double no = std::nan("");
  const Vector rewards{1, 10, 2, no, 3, 30, 4, 40};
  const Vector advantages = run(rewards, 2, 4, e, {}, {1, 1, 0, 1});
  // A member may be asked for more than once, because the batch is read first. What counts is which
  // values and which `own` a call sees.
  for (const auto& call : calls) {
    const bool second = call.value >= 10;
    CHECK(call.n == (second ? 2 : 3));
    if (call.value == 3 || call.value == 30) CHECK(call.own == -1);
    if (call.value == 1 || call.value == 10) CHECK(call.own == 0);
    if (call.value == 2) CHECK(call.own == 1);
    if (call.value == 4) CHECK(call.own == 2);
    if (call.value == 40) CHECK(call.own == 1);
  }
  CHECK(calls.size() >= 7);
  const double mean = 7.0 / 3;
  CHECK(deviation(advantages, Vector{1 - mean - 15, 2 - mean, 3 - mean + 5, 4 - mean + 15},
                  8 * tolerance::formula) == "");
}

TEST_CASE("a policy on double that declares per_group is called once a group and reward",
          "[archetype]") {
  int calls = 0;
  auto e = estimator<archetype::MidRange, gdpo::scale::None, NormalizeThenSum>(
      archetype::MidRange{&calls});
  CHECK(difference(run({1, 0, 2, 4, 5, 8, 0, 3}, 2, 2, e), Vector{-2.5, 2.5, 5, -5}) == "");
  CHECK(calls == 4);
  calls = 0;
  auto sum = estimator<archetype::MidRange, gdpo::scale::StdDev>(archetype::MidRange{&calls});
  CHECK(deviation(run({1, 2, 9, 0, 0, 1}, 1, 3, sum),
                  Vector{-4 / std::sqrt(19.0), -3 / std::sqrt(19.0), 4 / std::sqrt(19.0),
                         -0.5 * std::sqrt(3.0), -0.5 * std::sqrt(3.0), 0.5 * std::sqrt(3.0)},
                  tolerance::formula) == "");
  CHECK(calls == 2);
}

TEST_CASE("a multiplier for each member: the renormalization subtracts the mean",
          "[archetype][renorm]") {
  // With the others' std as the scale, the scaled values of a group do not sum to 0, so the batch
  // step must center them.
  const gdpo::GroupAdvantage<gdpo::baseline::LeaveOneOut, archetype::LeaveOneOutStd> e;
  const Vector advantages = run({1, 2, 4, 9, 0, 0.5, 3, 3.5}, 1, 4, e);
  double sum = 0, square = 0;
  for (const double a : advantages) sum += a, square += a * a;
  CHECK(std::abs(sum) <= 8 * tolerance::formula);
  CHECK(std::abs(square - 7) <= 8 * tolerance::formula);
}

TEST_CASE("seq takes one group after the other, every other tag and the short forms take lanes",
          "[archetype][tags]") {
  int groups = 0, lanes = 0;
  const auto expect = [&](int in_groups, bool in_lanes) {
    CHECK(groups == in_groups);
    CHECK((lanes > 0) == in_lanes);
    groups = lanes = 0;
  };
  // 2 groups of 2 rows with 2 rewards, none of them missing, unused or constant.
  const Vector rewards{1, 0, 2, 4, 5, 8, 0, 3};
  const gdpo::RewardBatch batch{gdpo::view(rewards.data(), 4, 2), gdpo::groups_of(2)};
  gdpo::GroupAdvantage<archetype::LaneCounter> e;
  e.baseline = {&groups, &lanes};
  const Vector one_by_one = gdpo::advantages(gdpo::seq, batch, e);
  expect(4, false);
  CHECK(difference(gdpo::advantages(gdpo::simd, batch, e), one_by_one) == "");
  expect(0, true);
  CHECK(difference(gdpo::advantages(batch.rewards, batch.groups, e), one_by_one) == "");
  expect(0, true);
  const Eigen::Map<const Eigen::Array<double, Eigen::Dynamic, 2, Eigen::RowMajor>> table(
      rewards.data(), 4, 2);
  const Eigen::ArrayXd of_eigen = gdpo::advantages(table, batch.groups, e);
  CHECK(difference(Vector(of_eigen.begin(), of_eigen.end()), one_by_one) == "");
  expect(0, true);
}

namespace {

/// The advantages of a random batch with ragged groups, missing rewards, unused rows, gates and
/// weights.
template <class Estimator>
Vector of_random_batch(std::uint64_t seed, Estimator e) {
  Random random(seed);
  const int reward_count = 1 + random.below(9);
  naive::Data d = random_batch(random, 1 + random.below(12), 9, reward_count, seed % 3 ? 0.2 : 0.0);
  add_columns(random, d);
  if (random.chance(0.5)) e.gates = {gdpo::Gate{0, reward_count - 1, 0.5}};
  if (random.chance(0.5)) {
    Vector weights;
    for (int c = 0; c < reward_count; ++c) weights.push_back(random.pick({0.0, 1.0, -0.5, 2.0}));
    e.weights = weights;
  }
  e.missing.entry = random.pick(
      {gdpo::MissingEntry::Skip, gdpo::MissingEntry::Zero, gdpo::MissingEntry::Propagate});
  e.singleton = random.pick({gdpo::Singleton::Zero, gdpo::Singleton::Raw, gdpo::Singleton::Nan});
  gdpo::RewardBatch batch{gdpo::view(d.rewards.data(), d.rows, reward_count), gdpo::by_id(d.ids)};
  if (random.chance(0.6)) batch.valid = gdpo::view(d.valid);
  return gdpo::advantages(gdpo::simd, batch, e);
}

/// A baseline of 0 that checks its arguments and records how many values it was given.
struct Sizes {
  static constexpr bool per_group_values = true;
  std::vector<gdpo::index_t>* seen;
  bool reads_batch() const { return false; }
  double operator()(const gdpo::GroupArgs& a) const {
    CHECK(a.scratch.extent[0] == a.values.extent[0]);
    CHECK(a.tokens.extent[0] == a.values.extent[0]);
    CHECK(a.group.n == a.values.extent[0]);
    CHECK(!a.weights);
    for (gdpo::index_t j = 0; j < a.values.extent[0]; ++j) {
      CHECK(a.tokens(j) == 10 * a.values(j));
      a.scratch(j) = 0;
      CHECK(a.values(j) != 0);
    }
    seen->push_back(a.values.extent[0]);
    return 0;
  }
};

}  // namespace

TEST_CASE("per_group_values: the bits of the same formula member by member",
          "[archetype][group_values]") {
  using namespace archetype;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    const auto check = [seed](const auto& once, const auto& by_member) {
      CHECK(difference(of_random_batch(seed, once), of_random_batch(seed, by_member)) == "");
    };
    check(gdpo::GroupAdvantage<MedianOfGroup, MedianAbsoluteDeviationOfGroup>{},
          gdpo::GroupAdvantage<Median, MedianAbsoluteDeviation>{});
    check(estimator<MedianOfGroup, MedianAbsoluteDeviationOfGroup>(),
          estimator<Median, MedianAbsoluteDeviation>());
    check(estimator<MedianOfGroup, LeaveOneOutStd, NormalizeThenSum>(),
          estimator<Median, LeaveOneOutStd, NormalizeThenSum>());
    check(estimator<MidRange, MedianAbsoluteDeviationOfGroup, NormalizeThenSum>(),
          estimator<MidRange, MedianAbsoluteDeviation, NormalizeThenSum>());
  }
}

TEST_CASE("per_group_values: one call a group and reward, whatever the other policy does",
          "[archetype][group_values]") {
  using namespace archetype;
  const Vector rewards{1, 0, 2, 4, 5, 8, 0, 3, 3, 1, 7, 0};  // 2 groups of 3 rows with 2 rewards
  int of_baseline = 0, of_scale = 0;
  const auto expect = [&](int baseline, int scale) {
    CHECK(of_baseline == baseline);
    CHECK(of_scale == scale);
    of_baseline = of_scale = 0;
  };
  const MedianOfGroup median{&of_baseline};
  const MedianAbsoluteDeviationOfGroup deviation{&of_scale};
  run(rewards, 2, 3,
      estimator<MedianOfGroup, MedianAbsoluteDeviationOfGroup, NormalizeThenSum>(median,
                                                                                 deviation));
  expect(4, 4);
  run(rewards, 2, 3, estimator<MedianOfGroup, MedianAbsoluteDeviationOfGroup>(median, deviation));
  expect(2, 2);
  run(rewards, 2, 3,
      estimator<gdpo::baseline::LeaveOneOut, MedianAbsoluteDeviationOfGroup>({}, deviation));
  expect(0, 2);
  auto centered = estimator<MedianOfGroup, gdpo::scale::StdDev, NormalizeThenSum>(median);
  run(rewards, 2, 3, centered);
  expect(4, 0);
  // The std of the centered batch needs the centered values of all groups before the scale.
  centered.scale.of = gdpo::scale::Of::BatchCentered;
  run(rewards, 2, 3, centered);
  expect(8, 0);
}

TEST_CASE("per_group_values: used values and as much scratch, nothing allocated",
          "[archetype][group_values]") {
  std::vector<gdpo::index_t> seen;
  const double no = std::nan("");
  const Vector rewards{1, 2, no, 4, 5, 6, 7, 8}, tokens{10, 20, 30, 40, 50, 60, 70, 80},
      valid{1, 1, 1, 1, 0, 1, 1, 1};
  run(rewards, 1, 4, estimator<Sizes, gdpo::scale::None>(Sizes{&seen}), tokens, valid);
  CHECK(seen == std::vector<gdpo::index_t>{3, 3});
}

}  // namespace archetypes_test
