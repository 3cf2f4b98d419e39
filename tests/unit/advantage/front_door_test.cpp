// labels: sanitizers
// Every overload of gdpo::advantages with its optional arguments given and left out.
#include <gdpo/gdpo.hpp>
#include <gdpo/presets/verl.hpp>
#include <gdpo/with/eigen_tensor.hpp>

#include "support/catch.hpp"

namespace front_door_test {

TEST_CASE("a report without an estimator") {
  const std::vector<float> rewards = {1, 0, 0, 1, 1, 1, 0, 0};
  const auto groups = gdpo::groups_of(2);
  gdpo::GroupReport view_report, batch_report, tensor_report, cube_report;
  const gdpo::RewardBatch batch{gdpo::view(rewards.data(), 4, 2), groups};
  Eigen::Tensor<float, 2, Eigen::RowMajor> table(4, 2);
  Eigen::Tensor<float, 3, Eigen::RowMajor> cube(2, 2, 2);
  std::copy(rewards.begin(), rewards.end(), table.data());
  std::copy(rewards.begin(), rewards.end(), cube.data());
  const std::vector<float> expected = gdpo::advantages(batch.rewards, groups, &view_report);
  CHECK(gdpo::advantages(gdpo::seq, batch, &batch_report) == expected);
  CHECK(std::equal(expected.begin(), expected.end(),
                   gdpo::advantages(table, groups, &tensor_report).data()));
  CHECK(std::equal(expected.begin(), expected.end(), gdpo::advantages(cube, &cube_report).data()));
  for (const auto* report : {&view_report, &batch_report, &tensor_report, &cube_report})
    CHECK(report->groups == 2);
}

TEST_CASE("a temporary map or block can be written to") {
  const std::vector<float> rewards = {1, 0, 0, 1, 1, 1, 0, 0};
  const gdpo::RewardBatch batch{gdpo::view(rewards.data(), 4, 2), gdpo::groups_of(4)};
  const std::vector<float> expected = gdpo::advantages(gdpo::seq, batch);
  gdpo::Workspace workspace;
  Eigen::ArrayXXf columns = Eigen::ArrayXXf::Zero(4, 2);
  gdpo::advantages_into(gdpo::seq, batch, gdpo::Gdpo{}, gdpo::view(columns.col(1)), workspace);
  CHECK(std::equal(expected.begin(), expected.end(), columns.col(1).data()));
  std::vector<float> out(4);
  gdpo::advantages_into(gdpo::seq, batch, gdpo::Gdpo{},
                        gdpo::view(Eigen::Map<Eigen::ArrayXf>(out.data(), 4)), workspace);
  CHECK(out == expected);
}

TEST_CASE("an indexed view is evaluated") {
  Eigen::ArrayXXf rewards(8, 2);
  rewards << 1, 0, 9, 9, 0, 1, 9, 9, 1, 1, 9, 9, 0, 0, 9, 9;
  const Eigen::ArrayXf a =
      gdpo::advantages(rewards(Eigen::seqN(0, 4, Eigen::fix<2>), Eigen::all), gdpo::groups_of(4));
  const Eigen::ArrayXXf every_other = rewards(Eigen::seqN(0, 4, 2), Eigen::all);
  CHECK((a == gdpo::advantages(every_other, gdpo::groups_of(4))).all());
}

TEST_CASE("a batch of one reward is made from a vector") {
  std::vector<float> rewards{1, 0, 0, 1, 1, 1, 0, 0.5f};
  const std::vector<float>& read_only = rewards;
  const gdpo::RewardBatch of_columns{gdpo::view(rewards.data(), 8, 1), gdpo::groups_of(4)};
  const std::vector<float> expected = gdpo::advantages(gdpo::seq, of_columns);
  const gdpo::RewardBatch of_vector{gdpo::view(rewards), gdpo::groups_of(4)};
  static_assert(std::is_same_v<decltype(of_vector), decltype(of_columns)>);
  static_assert(std::is_aggregate_v<decltype(of_vector)> &&
                std::is_trivially_copyable_v<decltype(of_vector)>);
  CHECK(of_vector.rewards.extent[0] == 8);
  CHECK(of_vector.rewards.extent[1] == 1);
  CHECK(gdpo::advantages(gdpo::seq, of_vector) == expected);
  CHECK(gdpo::advantages(gdpo::simd,
                         gdpo::RewardBatch{gdpo::view(read_only), gdpo::groups_of(4)}) == expected);
  CHECK(gdpo::advantages(gdpo::view(rewards), gdpo::groups_of(4)) == expected);

  // Every second number; a column after it; another batch of the same rewards.
  const std::vector<float> apart{1, 9, 0, 9, 0, 9, 1, 9, 1, 9, 1, 9, 0, 9, 0.5f, 9};
  gdpo::RewardBatch batch{gdpo::view(apart.data(), {8}, {2}), gdpo::groups_of(4),
                          gdpo::view(rewards)};
  CHECK(gdpo::advantages(gdpo::seq, batch) == expected);
  CHECK(gdpo::advantages(gdpo::seq, gdpo::RewardBatch{batch.rewards, batch.groups}) == expected);
  batch.rewards = gdpo::view(rewards);
  CHECK(gdpo::advantages(gdpo::seq, batch) == expected);
  const Eigen::ArrayXf array = Eigen::Map<const Eigen::ArrayXf>(rewards.data(), 8);
  CHECK(gdpo::advantages(gdpo::seq, gdpo::RewardBatch{gdpo::view(array), gdpo::groups_of(4)}) ==
        expected);
}

TEST_CASE("weights from a vector") {
  const std::vector<double> weights = {2, -1};
  gdpo::Gdpo e;
  e.weights = weights;
  CHECK(e.weights.size() == 2);
  CHECK(e.weights[1] == -1);
}

TEST_CASE("a null column is absent") {
  CHECK_FALSE(gdpo::Column(gdpo::View<const int, 1>{}));
  const std::vector<float> none;
  const gdpo::RewardBatch batch{gdpo::view(none.data(), 0, 2), gdpo::groups_of(4)};
  CHECK(gdpo::advantages(gdpo::seq, batch, gdpo::verl::gdpo).empty());
}

}  // namespace front_door_test
