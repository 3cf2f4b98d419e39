// labels: lanes, sanitizers
// Results stored in 16 bits are rounded to the nearest number, ties to even, and lanes store the
// same bits as single numbers.
#include <Eigen/Core>
#include <gdpo/lanes/load_store.hpp>
#include <gdpo/tokens/token_view.hpp>
#include <gdpo/with/eigen.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/tolerance.hpp"

namespace storage_test {

namespace {

float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
template <class T>
std::uint16_t stored(float x) {
  T to;
  gdpo::store(to, x);
  std::uint16_t bits;
  std::memcpy(&bits, static_cast<const void*>(&to), sizeof bits);
  return bits;
}
bool is_nan_16(std::uint16_t bits, int mantissa) {
  return (bits & 0x7fff) > ((0x7fff >> mantissa) << mantissa);
}

/// Floats at and near every 16-bit number and every midpoint of two neighbors, and random ones.
std::vector<float> hard_floats() {
  std::vector<float> all;
  Random random(7);
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half =
        static_cast<float>(gdpo::load(gdpo::Float16{static_cast<std::uint16_t>(bits)}));
    for (const float x : {half, float_of(bits << 16)}) {
      std::uint32_t at;
      std::memcpy(&at, &x, sizeof at);
      for (const std::uint32_t step : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u})
        all.push_back(float_of(at + step));
    }
    all.push_back(float_of(static_cast<std::uint32_t>(random.bits())));
    all.push_back(static_cast<float>(random.uniform() * 0x1p-14));  // subnormal halves
  }
  while (all.size() % gdpo::math::logical_lanes != 0) all.push_back(0);
  return all;
}

}  // namespace

TEST_CASE("what was read is stored as it was") {
  int wrong = 0;
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const auto raw = static_cast<std::uint16_t>(bits);
    const auto check = [&](auto type, int mantissa) {
      using T = decltype(type);
      const std::uint16_t back = stored<T>(static_cast<float>(gdpo::load(T{raw})));
      wrong += is_nan_16(raw, mantissa) ? !is_nan_16(back, mantissa) : back != raw;
    };
    check(gdpo::Float16{}, 10);
    check(gdpo::BFloat16{}, 7);
  }
  CHECK(wrong == 0);
}

TEST_CASE("stored is the nearest number, ties to even: Eigen's conversion") {
  int wrong = 0;
  for (const float x : hard_floats()) {
    const auto half = Eigen::numext::bit_cast<std::uint16_t>(static_cast<Eigen::half>(x));
    const auto bfloat = Eigen::numext::bit_cast<std::uint16_t>(static_cast<Eigen::bfloat16>(x));
    const auto differs = [](std::uint16_t got, std::uint16_t expected, int mantissa) {
      return is_nan_16(expected, mantissa) ? !is_nan_16(got, mantissa) : got != expected;
    };
    wrong += differs(stored<gdpo::Float16>(x), half, 10) ||
             differs(stored<gdpo::BFloat16>(x), bfloat, 7);
    wrong += stored<Eigen::half>(x) != stored<gdpo::Float16>(x) ||
             stored<Eigen::bfloat16>(x) != stored<gdpo::BFloat16>(x);
  }
  CHECK(wrong == 0);
}

TEST_CASE("arrays of 16-bit floats are read in lanes as one by one, from any place on") {
  const auto check = [](auto type) {
    using T = decltype(type);
    constexpr gdpo::index_t all = 0x10000;
    std::vector<T> x(all);
    for (std::size_t i = 0; i < x.size(); ++i) x[i].bits = static_cast<std::uint16_t>(i);
    std::vector<float> out(x.size());
    int wrong = 0;
    for (const gdpo::index_t first : {0, 1, 5, 0x7bfd}) {
      const gdpo::TokenView<float> tokens(gdpo::view(std::as_const(x).data(), all));
      const float* row = tokens.row(0, first, all - first, out.data());
      for (gdpo::index_t t = first; t < all; ++t) {
        const double expected = gdpo::load(x[static_cast<std::size_t>(t)]),
                     got = static_cast<double>(row[t - first]);
        wrong += std::isnan(expected) ? !std::isnan(got) : !same_bits(expected, got);
      }
    }
    CHECK(wrong == 0);
  };
  check(gdpo::Float16{});
  check(gdpo::BFloat16{});
}

TEST_CASE("lanes read and write the bits of one by one") {
  using V = gdpo::math::Native<float>;
  constexpr std::size_t width = gdpo::math::Lanes<V>::width;
  const auto check = [](auto type) {
    using T = decltype(type);
    const std::vector<float> x = hard_floats();
    std::vector<T> one(x.size()), lanes(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) gdpo::store(one[i], x[i]);
    for (std::size_t i = 0; i < x.size(); i += width) {
      gdpo::math::store_lanes(&lanes[i], gdpo::math::load_lanes<V>(&x[i]));
    }
    CHECK(std::memcmp(static_cast<const void*>(one.data()), lanes.data(), one.size() * sizeof(T)) ==
          0);
    int wrong = 0;
    for (std::size_t i = 0; i < x.size(); i += width) {
      float back[width];
      gdpo::math::store_lanes(back, gdpo::math::load_lanes<V>(&one[i]));
      for (std::size_t j = 0; j < width; ++j) {
        const double expected = gdpo::load(one[i + j]), got = static_cast<double>(back[j]);
        wrong += std::isnan(expected) ? !std::isnan(got) : !same_bits(expected, got);
      }
    }
    CHECK(wrong == 0);
  };
  check(gdpo::Float16{});
  check(gdpo::BFloat16{});
  check(Eigen::half{});
  check(Eigen::bfloat16{});
}

namespace {
/// A class of another library, of which only its conversions are known.
struct Foreign {
  float x = 0;
  Foreign() = default;
  explicit Foreign(float value) : x(value) {}
  explicit operator float() const { return x; }
};
}  // namespace

TEST_CASE("any class that converts to float and back is stored by its own conversion") {
  Foreign f;
  gdpo::store(f, 1.25);
  CHECK(gdpo::load(f) == 1.25);
  double d;
  gdpo::store(d, 0.1);
  CHECK(d == 0.1);
  float s;
  gdpo::store(s, 0.1);
  CHECK(s == 0.1f);
}

}  // namespace storage_test
