// labels: sanitizers
// Eigen in, Eigen out: every kind of object, both storage orders and all scalars give the bits of
// the dense row-major view.
#include <gdpo/gdpo.hpp>
#include <gdpo/presets/nvlabs.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/tolerance.hpp"

namespace eigen_test {

namespace {

using Rows = Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Rows rewards() {
  Random random(41);
  Rows r(24, 5);
  for (Eigen::Index i = 0; i < r.size(); ++i) r.data()[i] = 0.25 * random.below(9);
  r(3, 2) = std::nan("");
  return r;
}

std::vector<double> plain(const Rows& r) {
  return gdpo::advantages(gdpo::view(r.data(), r.rows(), r.cols()), gdpo::groups_of(6));
}

}  // namespace

TEST_CASE("arrays, matrices, maps, refs, blocks and expressions", "[eigen]") {
  const Rows r = rewards();
  const std::vector<double> expected = plain(r);
  const auto groups = gdpo::groups_of(6);
  const auto same = [&](const auto& x) {
    return difference(gdpo::advantages(x, groups), expected);
  };

  const Eigen::ArrayXXd columns = r;
  const Eigen::MatrixXd matrix = r.matrix();
  const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> row_matrix =
      r.matrix();
  const Eigen::Array<double, 24, 5> fixed = r;
  CHECK(same(r) == "");
  CHECK(same(columns) == "");
  CHECK(same(matrix) == "");
  CHECK(same(row_matrix) == "");
  CHECK(same(fixed) == "");
  CHECK(same(Eigen::Map<const Rows>(r.data(), 24, 5)) == "");
  CHECK(same(Eigen::Map<const Eigen::MatrixXd>(matrix.data(), 24, 5)) == "");
  CHECK(same(Eigen::Ref<const Eigen::MatrixXd>(matrix)) == "");
  CHECK(same(Eigen::Ref<const Rows>(r)) == "");
  CHECK(same(matrix.array()) == "");
  CHECK(same(columns * 1.0) == "");          // an expression is evaluated
  CHECK(same((columns + 3.0) - 3.0) == "");  // exact for multiples of 1/4
  CHECK(same(matrix.transpose().transpose()) == "");

  Eigen::MatrixXd large = Eigen::MatrixXd::Constant(30, 9, std::nan(""));
  large.block(4, 2, 24, 5) = matrix;
  CHECK(same(large.block(4, 2, 24, 5)) == "");
  Rows wide = Rows::Constant(48, 15, std::nan(""));
  for (int i = 0; i < 24; ++i) {
    for (int c = 0; c < 5; ++c) wide(2 * i, 3 * c) = r(i, c);
  }
  using Strided = Eigen::Map<const Rows, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;
  CHECK(same(Strided(wide.data(), 24, 5, {30, 3})) == "");
  const Eigen::MatrixXd transposed = matrix.transpose();
  CHECK(same(transposed.transpose()) == "");
}

TEST_CASE("views with any strides, mutable or not, and raw pointers", "[view]") {
  const Rows r = rewards();
  const std::vector<double> expected = plain(r);
  const gdpo::View<const double, 2> backwards{r.data() + r.size() - 1, {24, 5}, {-5, -1}};
  std::vector<double> reversed(r.data(), r.data() + r.size());
  std::reverse(reversed.begin(), reversed.end());
  CHECK(difference(gdpo::advantages(backwards, gdpo::groups_of(6)),
                   gdpo::advantages(gdpo::view(reversed.data(), 24, 5), gdpo::groups_of(6))) == "");
  const Eigen::ArrayXXd columns = r;
  CHECK(difference(gdpo::advantages(gdpo::View<const double, 2>{columns.data(), {24, 5}, {1, 24}},
                                    gdpo::groups_of(6)),
                   expected) == "");
  CHECK(difference(gdpo::advantages(gdpo::seq, gdpo::RewardBatch{gdpo::view(r), gdpo::groups_of(6)},
                                    gdpo::Gdpo{}),
                   expected) == "");
  // A stride of 0 reads one value for all rows.
  const double one = 0.1;
  CHECK(all_zero(
      gdpo::advantages(gdpo::View<const double, 2>{&one, {24, 5}, {0, 0}}, gdpo::groups_of(6))));
}

TEST_CASE("rank 1 is one reward", "[eigen]") {
  const Rows r = rewards();
  const Rows single = r.col(0);
  const std::vector<double> expected =
      gdpo::advantages(gdpo::view(single.data(), 24, 1), gdpo::groups_of(6));
  const auto same = [&](const auto& x) {
    return difference(gdpo::advantages(x, gdpo::groups_of(6)), expected);
  };
  const Eigen::VectorXd vector = single.matrix();
  const Eigen::RowVectorXd row = vector.transpose();
  const Eigen::ArrayXd array = single;
  CHECK(same(vector) == "");
  CHECK(same(row) == "");
  CHECK(same(array) == "");
  CHECK(same(r.col(0)) == "");  // read in place, with a stride
  CHECK(same(vector.array() + 0.0) == "");
  CHECK(same(Eigen::Map<const Eigen::VectorXd>(vector.data(), 24)) == "");
  const std::vector<double> values(single.data(), single.data() + 24);
  CHECK(same(gdpo::view(values)) == "");
  CHECK(same(gdpo::View<const double, 1>{r.data(), {24}, {5}}) == "");
}

TEST_CASE("Array in, Array out; Matrix in, Matrix out", "[eigen]") {
  const auto groups = gdpo::groups_of(2);
  const Eigen::ArrayXXf array = Eigen::ArrayXXf::Random(4, 2);
  const Eigen::MatrixXd matrix = Eigen::MatrixXd::Random(4, 2);
  static_assert(std::is_same_v<decltype(gdpo::advantages(array, groups)), Eigen::ArrayXf>);
  static_assert(std::is_same_v<decltype(gdpo::advantages(matrix, groups)), Eigen::VectorXd>);
  static_assert(
      std::is_same_v<decltype(gdpo::advantages(matrix.array() * 2, groups)), Eigen::ArrayXd>);
  static_assert(std::is_same_v<decltype(gdpo::advantages(matrix.col(0), groups)), Eigen::VectorXd>);
  const std::vector<float> narrow(4);
  static_assert(
      std::is_same_v<decltype(gdpo::advantages(gdpo::view(narrow), groups)), std::vector<float>>);
  const Eigen::MatrixXd ones = Eigen::MatrixXd::Ones(4, 2);
  gdpo::GroupReport report;
  CHECK(gdpo::advantages(ones, groups, &report).isZero(0));
  CHECK(report.groups == 2);
  CHECK(gdpo::advantages(ones, groups, gdpo::Grpo{}, &report).isZero(0));
}

TEST_CASE("Eigen columns are the batch's columns", "[eigen]") {
  const Eigen::ArrayXXd r = Eigen::ArrayXXd::Random(6, 2);
  const Eigen::ArrayXi tokens = Eigen::ArrayXi::LinSpaced(6, 1, 6);
  const Eigen::Matrix<bool, Eigen::Dynamic, 1> valid = (tokens != 4).matrix();
  gdpo::RewardBatch batch{gdpo::view(r), gdpo::groups_of(3)};
  batch.tokens = gdpo::view(tokens);
  batch.valid = gdpo::view(valid);
  Eigen::ArrayXd out(6);
  gdpo::Workspace workspace;
  gdpo::advantages_into(gdpo::seq, batch, gdpo::nvlabs::verl_gdpo, gdpo::view(out), workspace);
  double weighted = 0;
  for (int i = 0; i < 6; ++i) weighted += i == 3 ? 0 : tokens(i) * out(i);
  CHECK(std::abs(weighted) < 21 * tolerance::formula);  // the token-weighted mean is 0
  const Eigen::ArrayXi ids = Eigen::ArrayXi::Constant(6, 3);
  CHECK(gdpo::by_id(gdpo::view(ids)).count(6) == 1);
}

}  // namespace eigen_test
