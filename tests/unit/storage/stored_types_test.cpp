// labels: lanes, sanitizers
// Rewards of every storage type. They share one file, so that the estimator of each type is
// compiled once.
#include <gdpo/with/eigen.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/tolerance.hpp"

namespace stored_types_test {

namespace {

using Rows = Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class T>
void check_type(const char* type, std::initializer_list<double> values) {
  INFO("type " << type);
  for (const double value : values) {
    for (const int size : group_sizes()) {
      for (const int reward_count : {1, 3}) {
        const auto n = static_cast<std::size_t>(size * reward_count);
        std::vector<T> rewards(n, static_cast<T>(value));
        const gdpo::View<const T, 2> view = gdpo::view(rewards.data(), size, reward_count);
        INFO("value " << value << ", group of " << size << ", rewards " << reward_count);
        if (!all_zero(gdpo::advantages(view, gdpo::groups_of(size))))
          CHECK("advantages" == std::string("0"));
      }
    }
  }
  SUCCEED();
}

}  // namespace

// The storage type only decides how a number is read, so one estimator stands for all here. The raw
// 16-bit types read as Eigen's do (unit/storage/storage_test.cpp).
TEST_CASE("constant groups of every stored type are exactly 0", "[zero]") {
  check_type<float>("float", {0.1, 3.3, 1e5 + 0.1, -7, 1e30});
  check_type<double>("double", {0.1, 3.3, 1e5 + 0.1, -7, 1e30, 1e308});
  check_type<Eigen::half>("half", {0.1, 3.3, 6e4, -7, 6e-8});
  check_type<Eigen::bfloat16>("bfloat16", {0.1, 3.3, 1e5 + 0.1, -7, 1e30});
  check_type<std::int8_t>("int8", {-7, 127});
  check_type<std::uint8_t>("uint8 (flags)", {0, 1, 255});
  check_type<std::int32_t>("int32", {-7, 2147483647});
  check_type<std::uint32_t>("uint32", {7, 4294967295.0});
  check_type<std::int64_t>("int64", {-7, 9e15});
}

TEST_CASE("every scalar gives what its values give in double", "[storage]") {
  Random random(42);
  Rows r(24, 5);
  for (Eigen::Index i = 0; i < r.size(); ++i) r.data()[i] = 0.25 * random.below(9);
  const auto check = [&](auto scalar) {
    using Scalar = decltype(scalar);
    Eigen::Array<Scalar, Eigen::Dynamic, Eigen::Dynamic> x(24, 5);
    Rows values(24, 5);
    for (int i = 0; i < 24; ++i) {
      for (int c = 0; c < 5; ++c)
        x(i, c) = static_cast<Scalar>(static_cast<float>(4 * r(i, c))),
             values(i, c) = gdpo::load(x(i, c));
    }
    using Result = gdpo::result_t<Scalar>;
    const auto got = gdpo::advantages(x, gdpo::groups_of(6));
    static_assert(std::is_same_v<std::remove_const_t<decltype(got)>,
                                 Eigen::Array<Result, Eigen::Dynamic, 1>>);
    const std::vector<double> expected =
        gdpo::advantages(gdpo::view(values.data(), 24, 5), gdpo::groups_of(6));
    static_assert(std::is_same_v<decltype(gdpo::advantages(x.matrix(), gdpo::groups_of(6))),
                                 Eigen::Matrix<Result, Eigen::Dynamic, 1>>);
    const std::vector<Result> rounded(expected.begin(), expected.end());
    CHECK(difference(got, rounded) == "");
  };
  check(float{});
  check(Eigen::half{});
  check(Eigen::bfloat16{});
  check(int{});
  check(std::int64_t{});
  check(std::uint8_t{});
  check(std::int8_t{});
}

}  // namespace stored_types_test
