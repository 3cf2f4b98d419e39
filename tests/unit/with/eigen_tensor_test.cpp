// labels: sanitizers
// Tensor and TensorMap of rank 1 to 3 in either layout give what the dense row-major view gives.
#include <gdpo/loss.hpp>
#include <gdpo/with/eigen_tensor.hpp>

#include "support/archetypes.hpp"
#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/tolerance.hpp"

namespace eigen_tensor_test {

namespace {

constexpr int prompts = 4, rollouts = 6, rewards = 3;

std::vector<double> values() {
  Random random(51);
  std::vector<double> x;
  for (int i = 0; i < prompts * rollouts * rewards; ++i) x.push_back(0.25 * random.below(9));
  x[7] = std::nan("");
  return x;
}

template <int Layout>
Eigen::Tensor<double, 2, Layout> table(const std::vector<double>& x) {
  Eigen::Tensor<double, 2, Layout> t(prompts * rollouts, rewards);
  for (int i = 0; i < prompts * rollouts; ++i) {
    for (int c = 0; c < rewards; ++c) t(i, c) = x[static_cast<std::size_t>(i * rewards + c)];
  }
  return t;
}
template <int Layout>
Eigen::Tensor<double, 3, Layout> cube(const std::vector<double>& x) {
  Eigen::Tensor<double, 3, Layout> t(prompts, rollouts, rewards);
  for (int i = 0; i < prompts * rollouts * rewards; ++i) {
    t(i / rewards / rollouts, i / rewards % rollouts, i % rewards) = x[static_cast<std::size_t>(i)];
  }
  return t;
}

}  // namespace

TEMPLATE_TEST_CASE_SIG("tensors", "[tensor]", ((int Layout), Layout), Eigen::RowMajor,
                       Eigen::ColMajor) {
  const std::vector<double> x = values();
  const auto groups = gdpo::groups_of(rollouts);
  const std::vector<double> expected =
      gdpo::advantages(gdpo::view(x.data(), prompts * rollouts, rewards), groups);

  const Eigen::Tensor<double, 2, Layout> two = table<Layout>(x);
  const auto flat = gdpo::advantages(two, groups);
  static_assert(
      std::is_same_v<std::remove_const_t<decltype(flat)>, Eigen::Tensor<double, 1, Layout>>);
  CHECK(difference(flat, expected) == "");
  const Eigen::TensorMap<const Eigen::Tensor<double, 2, Layout>> map(two.data(), prompts * rollouts,
                                                                     rewards);
  CHECK(difference(gdpo::advantages(map, groups), expected) == "");
  CHECK(difference(gdpo::advantages(two, groups, gdpo::Gdpo{}), expected) == "");

  const Eigen::Tensor<double, 3, Layout> three = cube<Layout>(x);
  gdpo::GroupReport report;
  const auto by_prompt = gdpo::advantages(three, gdpo::Gdpo{}, &report);
  static_assert(
      std::is_same_v<std::remove_const_t<decltype(by_prompt)>, Eigen::Tensor<double, 2, Layout>>);
  CHECK(report.groups == prompts);
  CHECK(report.largest_group == rollouts);
  CHECK(by_prompt.dimension(0) == prompts);
  CHECK(by_prompt.dimension(1) == rollouts);
  std::vector<double> rows, sums;
  for (int p = 0; p < prompts; ++p) {
    for (int k = 0; k < rollouts; ++k) rows.push_back(by_prompt(p, k));
  }
  // In column-major order the batch step adds the rows in another order, rollout after rollout, so
  // the results differ by rounding. Before that step they have the same bits.
  if (Layout == Eigen::RowMajor) CHECK(difference(rows, expected) == "");
  CHECK(deviation(rows, expected, tolerance::formula) == "");
  const auto before = gdpo::advantages(three, gdpo::before_renorm(gdpo::Gdpo{}));
  for (int p = 0; p < prompts; ++p) {
    for (int k = 0; k < rollouts; ++k) sums.push_back(before(p, k));
  }
  CHECK(difference(sums, gdpo::advantages(gdpo::view(x.data(), prompts * rollouts, rewards), groups,
                                          gdpo::before_renorm(gdpo::Gdpo{}))) == "");

  Eigen::Tensor<float, 1, Layout> one(8);
  for (int i = 0; i < 8; ++i) one(i) = static_cast<float>(x[static_cast<std::size_t>(3 * i)]);
  const std::vector<float> single(one.data(), one.data() + 8);
  const Eigen::Tensor<float, 1, Layout> narrow =
      gdpo::advantages(one, gdpo::groups_of(4), gdpo::Grpo{});
  CHECK(difference(narrow,
                   gdpo::advantages(gdpo::view(single), gdpo::groups_of(4), gdpo::Grpo{})) == "");

  const Eigen::Tensor<double, 3, Layout> none(0, rollouts, rewards), empty(prompts, 0, rewards);
  CHECK(gdpo::advantages(none).size() == 0);
  CHECK(gdpo::advantages(empty).size() == 0);
  const gdpo::View<const double, 3> view = gdpo::view(three);
  CHECK(view(1, 2, 0) == three(1, 2, 0));
}

TEST_CASE("tensors run in lanes", "[tensor][tags]") {
  const std::vector<double> x(static_cast<std::size_t>(prompts * rollouts * rewards), 0.5);
  int groups = 0, lanes = 0;
  gdpo::GroupAdvantage<archetype::LaneCounter> e;
  e.baseline = {&groups, &lanes};
  gdpo::advantages(table<Eigen::RowMajor>(x), gdpo::groups_of(rollouts), e);
  CHECK(lanes > 0);
  for (const bool row_major : {true, false}) {
    lanes = 0;
    row_major ? static_cast<void>(gdpo::advantages(cube<Eigen::RowMajor>(x), e))
              : static_cast<void>(gdpo::advantages(cube<Eigen::ColMajor>(x), e));
    CHECK(lanes > 0);
  }
  CHECK(groups == 0);
}

TEMPLATE_TEST_CASE_SIG("slices and chips of tensors and maps are viewed without a copy", "[tensor]",
                       ((int Layout), Layout), Eigen::RowMajor, Eigen::ColMajor) {
  using Starts3 = Eigen::array<Eigen::Index, 3>;
  using Starts2 = Eigen::array<Eigen::Index, 2>;
  Eigen::Tensor<float, 4, Layout> four(2, 3, 4, 5);  // (layers, prompts, completions, tokens)
  for (int i = 0; i < four.size(); ++i) four.data()[i] = static_cast<float>(i);
  const Eigen::Tensor<float, 4, Layout>& read_only = four;

  const auto chip = gdpo::view(four.chip(1, 0));
  static_assert(std::is_same_v<std::decay_t<decltype(chip)>, gdpo::View<float, 3>>);
  const auto of_const = gdpo::view(read_only.template chip<3>(2));
  static_assert(std::is_same_v<std::decay_t<decltype(of_const)>, gdpo::View<const float, 3>>);
  const auto part =
      gdpo::view(read_only.template chip<1>(2).slice(Starts3{0, 1, 2}, Starts3{2, 3, 2}));
  const Eigen::TensorMap<const Eigen::Tensor<float, 3, Layout>> map(four.data(), 6, 4, 5);
  const auto of_map = gdpo::view(map.slice(Starts3{2, 0, 1}, Starts3{3, 4, 3}).chip(1, 1));
  static_assert(std::is_same_v<std::decay_t<decltype(of_map)>, gdpo::View<const float, 2>>);
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 4; ++j) {
      for (int k = 0; k < 5; ++k) {
        CHECK(chip(i, j, k) == four(1, i, j, k));
        if (k < 2) CHECK(of_const(k, i, j) == four(k, i, j, 2));
      }
    }
  }
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 2; ++k) CHECK(part(i, j, k) == four(i, 2, j + 1, k + 2));
    }
  }
  for (int i = 0; i < 3; ++i) {
    for (int k = 0; k < 3; ++k) CHECK(of_map(i, k) == map(i + 2, 1, k + 1));
  }
  CHECK(&chip(0, 0, 0) == &four(1, 0, 0, 0));

  // A loss reads such parts and writes its gradient into one.
  Eigen::Tensor<float, 3, Layout> logp(2, 3, 6), dlogp(2, 3, 6);
  for (int i = 0; i < logp.size(); ++i) logp.data()[i] = -1.0f - 0.01f * static_cast<float>(i);
  dlogp.setConstant(7);
  Eigen::Tensor<float, 2, Layout> advantages(2, 3), wide(2, 5);
  wide.setConstant(99);
  for (int i = 0; i < 2; ++i) {
    for (int k = 0; k < 3; ++k)
      advantages(i, k) = wide(i, k + 1) = static_cast<float>(i - k) + 0.5f;
  }
  const Starts3 from{0, 0, 1}, size{2, 3, 5};  // without the first token
  gdpo::TokenBatch<float> batch;
  batch.logp = gdpo::view(logp.slice(from, size));
  batch.advantages = gdpo::view(advantages);
  const gdpo::Normalizer n = gdpo::count(batch);
  CHECK(n.tokens == 30);
  const gdpo::LossResult r = gdpo::dapo_loss(batch, n, gdpo::view(dlogp.slice(from, size)));
  for (int i = 0; i < 2; ++i) {
    for (int k = 0; k < 3; ++k) {
      CHECK(dlogp(i, k, 0) == 7);
      for (int t = 1; t < 6; ++t) CHECK(dlogp(i, k, t) == Approx(-advantages(i, k) / 30));
    }
  }
  batch.advantages = gdpo::view(wide.slice(Starts2{0, 1}, Starts2{2, 3}));
  CHECK(gdpo::dapo_loss(batch, n).loss == r.loss);
}

}  // namespace eigen_tensor_test
