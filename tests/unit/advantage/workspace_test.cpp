// labels: sanitizers
// advantages_into allocates nothing after the first call, and gives the same bits whatever its
// Workspace did before.
#include <deque>
#include <gdpo/advantages.hpp>
#include <gdpo/value.hpp>

#include "support/allocations.hpp"
#include "support/archetypes.hpp"
#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/renormed.hpp"
#include "support/tolerance.hpp"

namespace workspace_test {

namespace {

using counted::allocations;
using Gdpo = gdpo::Gdpo;
const auto per_member =
    renormed(gdpo::GroupAdvantage<gdpo::baseline::LeaveOneOut>{}, gdpo::renorm::per_group());

/// A batch together with the data that it views.
struct Input {
  naive::Data data;
  gdpo::RewardBatch<double, gdpo::ById> batch;
  std::vector<double> out;

  Input(const Input&) = delete;
  Input(std::uint64_t seed, int groups, int largest, int reward_count)
      : data(random_input(seed, groups, largest, reward_count)),
        batch{gdpo::view(static_cast<const double*>(data.rewards.data()), data.rows,
                         data.reward_count),
              gdpo::by_id(data.ids)},
        out(static_cast<std::size_t>(data.rows)) {
    batch.tokens = gdpo::view(data.tokens);
    batch.penalty = gdpo::view(data.penalty);
    if (!data.valid.empty()) batch.valid = gdpo::view(data.valid);
  }
  template <class Estimator>
  void run(const Estimator& e, gdpo::Workspace& workspace, gdpo::GroupReport* report = nullptr) {
    gdpo::advantages_into(gdpo::seq, batch, e, gdpo::view(out), workspace, report);
  }

 private:
  static naive::Data random_input(std::uint64_t seed, int groups, int largest, int reward_count) {
    Random random(seed);
    naive::Data d = random_batch(random, groups, largest, reward_count, seed % 2 ? 0.1 : 0.0);
    add_columns(random, d);
    if (seed % 3) d.valid.clear();
    return d;
  }
};

}  // namespace

TEST_CASE("nothing is allocated after the first call with a shape", "[workspace]") {
  Input input(1, 20, 9, 5);
  const auto check = [&](auto e) {
    e.weights = {1, 0.5, -1, 0, 2};
    e.gates = {gdpo::Gate{0, 1, 0.5}};
    gdpo::Workspace workspace;
    gdpo::GroupReport report;
    input.run(e, workspace, &report);
    const std::vector<double> first = input.out;
    const long before = allocations;
    for (int k = 0; k < 5; ++k) input.run(e, workspace, &report);
    for (int k = 0; k < 5; ++k) input.run(e, workspace);
    const long after = allocations;
    CHECK(after == before);
    CHECK(difference(input.out, first) == "");
  };
  const long start = allocations;
  check(Gdpo{});
  CHECK(allocations > start);  // the counter works
  check(per_member);
  gdpo::GroupAdvantage<gdpo::baseline::LeaveOneOut, gdpo::scale::StdDev,
                       gdpo::combine::SumThenNormalize>
      batch;
  batch.renorm = gdpo::renorm::token_weighted_batch();
  batch.scale.of = gdpo::scale::Of::BatchCentered;
  check(batch);
  check(
      gdpo::GroupAdvantage<archetype::MedianOfGroup, archetype::MedianAbsoluteDeviationOfGroup>{});
}

TEST_CASE("the same input gives the same bits, whatever the workspace served before",
          "[workspace]") {
  std::deque<Input> inputs;
  for (int k = 1; k <= 6; ++k)
    inputs.emplace_back(static_cast<std::uint64_t>(k), 1 + 5 * (k % 3), 2 + k, 1 + 2 * k % 10);
  std::vector<std::vector<double>> whole, members;
  for (Input& input : inputs) {
    gdpo::Workspace fresh, other;
    input.run(Gdpo{}, fresh);
    whole.push_back(input.out);
    input.run(per_member, other);
    members.push_back(input.out);
  }
  Random random(9);
  gdpo::Workspace shared;
  for (int k = 0; k < 300; ++k) {
    const auto i = static_cast<std::size_t>(random.below(6));
    const bool by_member = random.chance(0.5);
    std::fill(inputs[i].out.begin(), inputs[i].out.end(), 7.0);
    by_member ? inputs[i].run(per_member, shared) : inputs[i].run(Gdpo{}, shared);
    CHECK(difference(inputs[i].out, by_member ? members[i] : whole[i]) == "");
  }
}

TEST_CASE("the sums before the renormalization can be had, two ways", "[workspace]") {
  Input input(4, 7, 6, 4);
  gdpo::Workspace workspace;
  input.run(Gdpo{}, workspace);
  const gdpo::View<const double, 1> sums = workspace.sums();
  REQUIRE(sums.extent[0] == input.data.rows);
  const std::vector<double> kept(sums.data, sums.data + sums.extent[0]);
  input.run(gdpo::before_renorm(Gdpo{}), workspace);
  CHECK(difference(kept, input.out) == "");
}

TEST_CASE("out may have any stride, and float is the double result rounded once", "[workspace]") {
  Input input(2, 7, 6, 4);
  gdpo::Workspace workspace;
  input.run(Gdpo{}, workspace);
  const auto n = static_cast<std::size_t>(input.data.rows);
  const std::vector<double> plain = input.out;
  std::vector<double> wide(3 * n, 5.0);
  std::vector<float> narrow(n);
  gdpo::advantages_into(gdpo::seq, input.batch, Gdpo{},
                        gdpo::View<double, 1>{wide.data() + 3 * n - 3, {input.data.rows}, {-3}},
                        workspace);
  gdpo::advantages_into(gdpo::seq, input.batch, Gdpo{}, gdpo::view(narrow), workspace);
  for (std::size_t i = 0; i < n; ++i) {
    CHECK(same_bits(wide[3 * (n - 1 - i)], plain[i]));
    CHECK(wide[3 * i + 1] == 5);
    CHECK(narrow[i] == static_cast<float>(plain[i]));
  }
}

TEST_CASE("masked reductions and token advantages allocate nothing", "[workspace]") {
  const std::vector<float> tokens(10000, -0.5f), advantages(100, 1.f);
  const std::vector<unsigned char> flags(10000, 1);
  std::vector<float> written(10000);
  const auto x = gdpo::view(tokens.data(), 100, 100);
  const auto mask = gdpo::view(flags.data(), 100, 100);
  const auto target = gdpo::view(written.data(), 100, 100);
  double sum = 0;
  const long before = allocations;
  gdpo::token_advantages_into(gdpo::view(advantages), mask, x, x, gdpo::penalty::Token<>{0.04},
                              target);
  gdpo::whiten_into(target, mask, gdpo::renorm::token_weighted_batch(), target);
  sum += gdpo::masked_mean(x, mask) + gdpo::masked_mean_over(x, mask, 3) +
         gdpo::masked_moments(x, mask).m2;
  sum += gdpo::masked_variance(x, mask);
  CHECK(allocations == before);
  CHECK(sum < 0);
}

}  // namespace workspace_test
