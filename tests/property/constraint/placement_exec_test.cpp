// labels: long
// Constrained estimators in every grouping, storage type and execution target, and what they
// allocate.
#include <gdpo/constraint.hpp>
#include <gdpo/with/eigen.hpp>
#include <gdpo/with/eigen_tensor.hpp>
#include <reference/naive_constraint.hpp>

#include "support/allocations.hpp"
#include "support/archetypes.hpp"
#include "support/catch.hpp"
#include "support/executors.hpp"
#include "support/generators.hpp"
#include "support/tally.hpp"
#include "support/tolerance.hpp"

namespace placement_exec_test {

namespace {

using gdpo::index_t;

/// Calls visit(placement, the oracle's name for it, its default norm) for every placement.
template <class Visit>
void for_each_placement(const Visit& visit) {
  visit(gdpo::placement::Composite{0}, naive::Placement::Composite, naive::LambdaNorm::None);
  visit(gdpo::placement::NormalizeThenCombine{}, naive::Placement::NormalizeThenCombine,
        naive::LambdaNorm::None);
  visit(gdpo::placement::FixedScale{}, naive::Placement::FixedScale, naive::LambdaNorm::Sum);
  visit(gdpo::placement::AdvantageMix{}, naive::Placement::AdvantageMix, naive::LambdaNorm::Sum);
}

/// There are two primary rewards, 0 and 1, and two constrained ones, 2 and 3.
const std::vector<naive::Constraint> constraints = {
    {2, 0.7, 0.4, 0.3, naive::Bound::AtLeast, naive::Signal::Hinge},
    {3, 1.5, 0.5, 0.2, naive::Bound::AtMost, naive::Signal::Linear}};

/// GDPO under these constraints.
template <class Placement>
gdpo::Constrained<gdpo::Gdpo, Placement> constrained(const Placement& placement) {
  gdpo::Constrained<gdpo::Gdpo, Placement> c{{}, placement, {}};
  std::vector<gdpo::Constraint> list;
  for (const naive::Constraint& k : constraints) {
    list.push_back({k.reward, k.lambda, k.limit, k.scale, static_cast<gdpo::Bound>(k.bound),
                    static_cast<gdpo::Signal>(k.signal)});
  }
  c.constraints = list;
  return c;
}

/// Rows in the order of their groups, which have `size` members each, or 1 to 6 where `size` is 0.
/// `missing` is the share of entries that are NaN.
struct Input {
  naive::Data data;
  std::vector<index_t> offsets{0};

  Input(Random& random, int groups, int size, double missing) {
    data.reward_count = 4;
    for (int g = 0; g < groups; ++g) {
      const int members = size > 0 ? size : 1 + random.below(6), constant = random.below(16);
      for (int k = 0; k < members; ++k) {
        data.ids.push_back(g);
        for (int c = 0; c < 4; ++c) {
          data.rewards.push_back(random.chance(missing) ? std::nan("")
                                 : constant >> c & 1    ? 0.3
                                                        : random.uniform());
        }
      }
      data.rows += members;
      offsets.push_back(data.rows);
      if (size == 0 && random.chance(0.3)) offsets.push_back(data.rows);  // an empty group
    }
  }
  template <class Groups>
  gdpo::RewardBatch<double, Groups> batch(const Groups& groups) const {
    gdpo::RewardBatch<double, Groups> b{gdpo::view(data.rewards.data(), data.rows, 4), groups};
    if (!data.valid.empty()) b.valid = gdpo::view(data.valid);
    return b;
  }
};

}  // namespace

TEST_CASE("constrained advantages by offsets, with empty groups, and in groups of K",
          "[placement]") {
  Tally tally;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const int size = seed % 2 ? 0 : random.pick({1, 2, 5, 8});
    Input input(random, random.pick({1, 3, 8}), size, random.pick({0.0, 0.1}));
    for (int i = 0; seed % 3 == 0 && i < input.data.rows; ++i)
      input.data.valid.push_back(random.chance(0.8));
    for_each_placement([&](const auto& placement, naive::Placement kind, naive::LambdaNorm norm) {
      const naive::Result expected =
          naive::advantages({{}, kind, norm, 0, constraints}, input.data);
      const double tolerance = tolerance::chain * static_cast<double>(expected.sensitivity);
      // Rounding decides between 0 and 1 / 0.
      if (tally.leaves_out(!(tolerance < 1e-6))) return;
      const auto c = constrained(placement);
      const std::vector<double> got =
          seed % 2 ? gdpo::advantages(gdpo::seq, input.batch(gdpo::by_offsets(input.offsets)), c)
                   : gdpo::advantages(gdpo::seq, input.batch(gdpo::groups_of(size)), c);
      CHECK(deviation(got, expected.advantages, tolerance) == "");
    });
  }
  CHECK(tally.share_left_out() < 0.02);
}

TEST_CASE("constrained advantages have the same bits on every target", "[placement][exec]") {
  // With about three rows per group, one reward is work for three threads, and four rewards are
  // work for the whole pool.
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Input input(random, static_cast<int>(gdpo::detail::worth_a_thread), 0, seed == 1 ? 0 : 0.02);
    for (int i = 0; seed == 3 && i < input.data.rows; ++i)
      input.data.valid.push_back(random.chance(0.9));
    const auto batch = input.batch(gdpo::by_offsets(input.offsets));
    for_each_placement([&](const auto& placement, naive::Placement, naive::LambdaNorm) {
      const auto c = constrained(placement);
      const std::vector<double> expected = gdpo::advantages(gdpo::seq, batch, c);
      executors::for_each_target([&](const auto& exec, const std::string& name) {
        INFO(name);
        CHECK(difference(gdpo::advantages(exec, batch, c), expected) == "");
      });
    });
  }
}

TEST_CASE("constrained advantages of narrow rewards are those in double, rounded once",
          "[placement][storage]") {
  Random random(1);
  const Input input(random, 20, 0, 0.05);
  const auto groups = gdpo::by_offsets(input.offsets);
  for_each_placement([&](const auto& placement, naive::Placement, naive::LambdaNorm) {
    const auto c = constrained(placement);
    const auto check = [&](auto narrow) {
      using T = decltype(narrow);
      std::vector<T> stored;
      std::vector<double> wide;
      for (const double x : input.data.rewards) {
        stored.push_back(static_cast<T>(static_cast<float>(x)));
        wide.push_back(static_cast<double>(static_cast<float>(stored.back())));
      }
      const std::vector<float> got =
          gdpo::advantages(gdpo::view(stored.data(), input.data.rows, 4), groups, c);
      std::vector<float> rounded;
      for (const double a :
           gdpo::advantages(gdpo::view(wide.data(), input.data.rows, 4), groups, c)) {
        rounded.push_back(static_cast<float>(a));
      }
      CHECK(difference(got, rounded) == "");
    };
    check(float{});
    check(Eigen::half{});
  });
}

TEST_CASE("constrained advantages of Eigen's arrays and tensors, of strided and raw memory",
          "[placement][storage]") {
  Random random(2);
  const Input input(random, 6, 5, 0.05);
  const auto c = constrained(gdpo::placement::FixedScale{});
  const auto groups = gdpo::groups_of(5);
  const std::vector<double> expected =
      gdpo::advantages(gdpo::view(input.data.rewards.data(), input.data.rows, 4), groups, c);
  using Rows = Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Eigen::ArrayXXd array =
      Eigen::Map<const Rows>(input.data.rewards.data(), input.data.rows, 4);
  const Eigen::ArrayXd of_array = gdpo::advantages(array, groups, c);
  CHECK(difference(of_array, expected) == "");
  const Eigen::MatrixXd matrix = array.matrix();
  const Eigen::VectorXd of_matrix = gdpo::advantages(matrix, groups, c);
  CHECK(difference(of_matrix, expected) == "");
  Eigen::Tensor<double, 2> tensor(input.data.rows, 4);
  for (index_t i = 0; i < input.data.rows; ++i) {
    for (index_t k = 0; k < 4; ++k) tensor(i, k) = array(i, k);
  }
  const Eigen::Tensor<double, 1> of_tensor = gdpo::advantages(tensor, groups, c);
  CHECK(difference(of_tensor, expected) == "");
  // The second of two interleaved arrays is read, and every third place is written.
  std::vector<double> wide, out(3 * expected.size(), 42.0);
  for (const double x : input.data.rewards) wide.insert(wide.end(), {std::nan(""), x});
  const gdpo::View<const double, 2> strided{wide.data() + 1, {input.data.rows, 4}, {8, 2}};
  gdpo::Workspace workspace;
  gdpo::advantages_into(gdpo::seq, gdpo::RewardBatch<double, gdpo::GroupsOf>{strided, groups}, c,
                        gdpo::View<double, 1>{out.data(), {input.data.rows}, {3}}, workspace);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(same_bits(out[3 * i], expected[i]));
    CHECK(out[3 * i + 1] == 42);
  }
}

TEST_CASE("constrained advantages with policies of the caller's own", "[placement]") {
  Random random(4);
  const int rows = 40;
  std::vector<double> rewards, joined, costs, external, zeros(rows, 0.0);
  for (int i = 0; i < rows; ++i) {
    const double r = random.uniform(), x = random.uniform();
    rewards.insert(rewards.end(), {r, x});
    joined.insert(joined.end(), {r, 0.5 - x});
    costs.push_back(0.5 - x);
    external.push_back(random.uniform());
  }
  const auto groups = gdpo::groups_of(8);
  const gdpo::Constraint constraint{1, 0.5, 0.5};
  const auto batch_of = [&](const std::vector<double>& values, index_t reward_count,
                            const std::vector<double>& baseline) {
    gdpo::RewardBatch<double, gdpo::GroupsOf> batch{gdpo::view(values.data(), rows, reward_count),
                                                    groups};
    batch.baseline = gdpo::view(baseline);
    return batch;
  };

  // With a scale per member, the combined values of a group do not sum to 0, and nothing may center
  // them.
  gdpo::GroupAdvantage<gdpo::baseline::Mean, archetype::LeaveOneOutStd> per_member;
  const gdpo::Constrained combined{
      per_member, gdpo::placement::NormalizeThenCombine{}, {constraint}};
  per_member.weights = {1, -0.5};
  CHECK(deviation(
            gdpo::advantages(gdpo::view(std::as_const(rewards).data(), rows, 2), groups, combined),
            gdpo::advantages(gdpo::view(std::as_const(joined).data(), rows, 2), groups, per_member),
            tolerance::formula) == "");

  // The caller's baseline belongs to the reward; violations see a baseline of 0.
  const gdpo::GroupAdvantage<archetype::External> by_caller;
  gdpo::GroupAdvantage<archetype::External> of_reward;
  of_reward.weights = {1, 0};
  const std::vector<double> a =
      gdpo::advantages(gdpo::seq, batch_of(rewards, 2, external), of_reward);
  const std::vector<double> c = gdpo::advantages(gdpo::seq, batch_of(costs, 1, zeros), by_caller);
  const std::vector<double> lambda{0.5};
  std::vector<double> mixed(rows);
  gdpo::mix_into(gdpo::view(a), gdpo::view(c.data(), 1, rows), gdpo::view(lambda),
                 gdpo::LambdaNorm::Sum, gdpo::view(mixed));
  const gdpo::Constrained mix{by_caller, gdpo::placement::AdvantageMix{}, {constraint}};
  CHECK(difference(gdpo::advantages(gdpo::seq, batch_of(rewards, 2, external), mix), mixed) == "");
}

TEST_CASE("LambdaNorm::Diff leaves the reward no weight, and its rows in the statistics",
          "[placement]") {
  // The violation of the third row is missing, so the row gets 0, whether the reward has weight or
  // not.
  const std::vector<double> rewards{0, 3, 1, 4, 5, std::nan(""), 2, 5};
  const auto run = [&](double lambda, const auto& placement) {
    const gdpo::Constraint c{1, lambda, 0, 1, gdpo::Bound::AtMost};
    return gdpo::advantages(gdpo::view(rewards.data(), 4, 2), gdpo::groups_of(4),
                            gdpo::Constrained{gdpo::Gdpo{}, placement, {c}});
  };
  const gdpo::placement::NormalizeThenCombine combined{gdpo::LambdaNorm::Diff};
  const double third = std::sqrt(1.5);
  CHECK(deviation(run(1, combined), std::vector<double>{third, 0, 0, -third}, tolerance::formula) ==
        "");
  CHECK(deviation(run(3, combined), run(1, combined), tolerance::formula) == "");
  CHECK(deviation(run(1 - 1e-9, combined), run(1, combined), 1e-8) == "");
  const gdpo::placement::FixedScale fixed{gdpo::LambdaNorm::Diff};
  CHECK(run(1, fixed) == std::vector<double>{1, 0, 0, -1});
  CHECK(run(3, fixed) == std::vector<double>{3, 0, 0, -3});
}

TEST_CASE("constrained advantages of no rows, and of groups of one", "[placement]") {
  for_each_placement([&](const auto& placement, naive::Placement, naive::LambdaNorm) {
    const auto c = constrained(placement);
    const std::vector<double> row{1, 2, 3, 4};
    CHECK(gdpo::advantages(gdpo::view(row.data(), 0, 4), gdpo::groups_of(4), c).empty());
    CHECK(all_zero(gdpo::advantages(gdpo::view(row.data(), 1, 4), gdpo::groups_of(1), c)));
  });
}

TEST_CASE("constrained advantages allocate nothing after the first call",
          "[placement][workspace]") {
  Random random(3);
  Input input(random, 30, 0, 0.05), other(random, 3, 0, 0);
  input.data.valid.assign(static_cast<std::size_t>(input.data.rows), 1);
  const auto batch = input.batch(gdpo::by_offsets(input.offsets));
  for_each_placement([&](const auto& placement, naive::Placement, naive::LambdaNorm) {
    auto c = constrained(placement);
    std::vector<gdpo::Constraint> sixteen(16, c.constraints[0]);  // the largest number allowed
    sixteen[7] = c.constraints[1];
    c.constraints = sixteen;
    std::vector<double> out(static_cast<std::size_t>(input.data.rows));
    gdpo::Workspace workspace;
    gdpo::GroupReport report;
    const auto run = [&] {
      gdpo::advantages_into(gdpo::seq, batch, c, gdpo::view(out), workspace, &report);
    };
    run();
    const std::vector<double> first = out;
    const long before = counted::allocations;
    for (int k = 0; k < 5; ++k) run();
    gdpo::advantages_into(gdpo::simd, batch, c, gdpo::view(out), workspace);
    const long after = counted::allocations;
    CHECK(after == before);
    CHECK(difference(out, first) == "");
    // What the workspace was used for before does not matter: other rows, other constraints.
    auto large = constrained(placement);
    large.constraints[0].lambda = 1e18;
    gdpo::advantages_into(gdpo::seq, batch, large, gdpo::view(out), workspace);
    gdpo::advantages_into(gdpo::seq, other.batch(gdpo::by_offsets(other.offsets)),
                          constrained(placement), gdpo::view(out.data(), other.data.rows),
                          workspace);
    run();
    CHECK(difference(out, first) == "");
  });
}

}  // namespace placement_exec_test
