// labels: lanes, sanitizers
// Numbers of every storage type, columns, lists and views read as the values that were stored.
#include <Eigen/Core>
#include <gdpo/core/list.hpp>
#include <gdpo/storage/column.hpp>
#include <gdpo/storage/storage.hpp>

#include "support/catch.hpp"
#include "support/tolerance.hpp"

namespace storage_test {

TEST_CASE("every bit pattern of the raw 16-bit types reads as Eigen's conversion", "[storage]") {
  int wrong = 0;
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const auto raw = static_cast<std::uint16_t>(bits);
    const double half =
        static_cast<double>(static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(raw)));
    const double bfloat =
        static_cast<double>(static_cast<float>(Eigen::numext::bit_cast<Eigen::bfloat16>(raw)));
    const auto differs = [](double a, double b) {
      return std::isnan(a) ? !std::isnan(b) : !same_bits(a, b);
    };
    wrong += differs(half, gdpo::load(gdpo::Float16{raw})) ||
             differs(bfloat, gdpo::load(gdpo::BFloat16{raw}));
    wrong += differs(half, gdpo::load(Eigen::numext::bit_cast<Eigen::half>(raw)));
    wrong += differs(bfloat, gdpo::load(Eigen::numext::bit_cast<Eigen::bfloat16>(raw)));
  }
  CHECK(wrong == 0);
}

TEST_CASE("results are float for float and narrower, double for double and integers", "[storage]") {
  const auto is_float = [](auto x) { return std::is_same_v<gdpo::result_t<decltype(x)>, float>; };
  const auto is_double = [](auto x) { return std::is_same_v<gdpo::result_t<decltype(x)>, double>; };
  CHECK(is_float(0.f));
  CHECK(is_float(Eigen::half{}));
  CHECK(is_float(Eigen::bfloat16{}));
  CHECK(is_float(gdpo::Float16{}));
  CHECK(is_float(gdpo::BFloat16{}));
  CHECK(is_double(0.));
  CHECK(is_double(true));
  CHECK(is_double(std::int8_t{}));
  CHECK(is_double(std::uint8_t{}));
  CHECK(is_double(std::int32_t{}));
  CHECK(is_double(std::int64_t{}));
  CHECK(is_double(std::uint64_t{}));
  static_assert(std::is_same_v<gdpo::result_t<const float>, float>);
}

namespace {

template <class T>
void check_column(std::vector<T> values, const std::vector<double>& expected) {
  const gdpo::Column column = gdpo::view(values);
  const gdpo::Column constant = gdpo::view(static_cast<const std::vector<T>&>(values));
  REQUIRE(column.size() == static_cast<gdpo::index_t>(expected.size()));
  CHECK(static_cast<bool>(column));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(column(static_cast<gdpo::index_t>(i)) == expected[i]);
    CHECK(constant(static_cast<gdpo::index_t>(i)) == expected[i]);
  }
  const gdpo::index_t last = column.size() - 1;
  const gdpo::Column backwards = gdpo::View<T, 1>{values.data() + last, {last + 1}, {-1}};
  CHECK(backwards(0) == expected[static_cast<std::size_t>(last)]);
  CHECK(backwards(last) == expected[0]);
}

}  // namespace

TEST_CASE("a column of any type reads as double", "[storage]") {
  check_column<double>({0.1, -2, 1e300}, {0.1, -2, 1e300});
  check_column<float>({0.5f, -2, 1e30f}, {0.5, -2, 1e30f});
  check_column<std::uint8_t>({0, 1, 255}, {0, 1, 255});
  check_column<std::int8_t>({0, -1, -128}, {0, -1, -128});
  check_column<std::int32_t>({0, -7, 2000000000}, {0, -7, 2e9});
  check_column<std::int64_t>({0, -7, std::int64_t{1} << 40}, {0, -7, 0x1p40});
  check_column<std::uint64_t>({0, 7, std::uint64_t{1} << 63}, {0, 7, 0x1p63});
  check_column<Eigen::half>({Eigen::half(0.5f), Eigen::half(-3.f)}, {0.5, -3});
  check_column<Eigen::bfloat16>({Eigen::bfloat16(0.5f), Eigen::bfloat16(-3.f)}, {0.5, -3});
  check_column<gdpo::BFloat16>({{0x3f80}, {0xc000}}, {1, -2});
  check_column<gdpo::Float16>({{0x3c00}, {0xc000}}, {1, -2});
  CHECK(!gdpo::Column{});
  CHECK(gdpo::Column{}.size() == 0);
  const std::vector<double> none;
  // A null pointer means absent, as for any optional view.
  CHECK_FALSE(gdpo::Column(gdpo::view(none)));
}

TEST_CASE("a list holds up to its capacity and says so beyond", "[list]") {
  const gdpo::List<double, 4> list{1, 2, 3};
  CHECK(list.size() == 3);
  CHECK(list[2] == 3);
  CHECK(list.end() - list.begin() == 3);
  CHECK(gdpo::List<double>{}.empty());
  const std::vector<double> many(65, 1.0);
  CHECK(gdpo::List<double>(many.data(), 64).size() == 64);
  using Catch::Matchers::ContainsSubstring;
  CHECK_THROWS_AS(gdpo::List<double>(many.data(), 65), gdpo::invalid_input);
  CHECK_THROWS_WITH(gdpo::List<double>(many.data(), 65),
                    ContainsSubstring("65 entries") && ContainsSubstring("at most 64"));
  CHECK_THROWS_AS((gdpo::List<double, 2>{1, 2, 3}), gdpo::invalid_input);
  CHECK_THROWS_AS(gdpo::List<double>(many.data(), -1), gdpo::invalid_input);
}

TEST_CASE("views: strides of any sign, const from mutable", "[view]") {
  std::vector<double> x{0, 1, 2, 3, 4, 5};
  const gdpo::View<double, 2> dense = gdpo::view(x.data(), 2, 3);
  CHECK(dense(1, 2) == 5);
  const gdpo::View<const double, 2> constant = dense;
  CHECK(constant(1, 0) == 3);
  const gdpo::View<double, 1> backwards{x.data() + 5, {3}, {-2}};
  CHECK(backwards(2) == 1);
  const gdpo::View<double, 3> cube = gdpo::view(x.data(), 1, 2, 3);
  CHECK(cube(0, 1, 1) == 4);
  dense(0, 0) = 9;
  CHECK(x[0] == 9);
  CHECK(!gdpo::View<double, 1>{});
  CHECK(static_cast<bool>(dense));
  static_assert(!std::is_convertible_v<gdpo::View<const double, 1>, gdpo::View<double, 1>>,
                "const stays const");
  static_assert(!std::is_convertible_v<gdpo::View<double, 1>, gdpo::View<const float, 1>>,
                "no conversion of elements");
}

}  // namespace storage_test
