// labels: sanitizers
// ExactSum: no order and no partition changes a bit, and the value is the exact sum rounded once.
// Exact sums are those of integers of 128 bits, in units that all numbers are multiples of.
#include <cstring>
#include <gdpo/stats/exact_sum.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"

namespace exact_sum_test {

namespace {

using gdpo::ExactSum;

__extension__ using Wide = __int128;
__extension__ using Unsigned = unsigned __int128;

/// The double nearest to a whole number of units; of two, the even one.
double nearest(Wide units, int unit) {
  const bool negative = units < 0;
  auto size = static_cast<Unsigned>(negative ? -units : units);
  int shift = 0;
  bool half = false, more = false;
  while (size >> 53 != 0) {
    more = more || half;
    half = (size & 1) != 0;
    size >>= 1, ++shift;
  }
  auto digits = static_cast<std::uint64_t>(size);
  digits += half && (more || (digits & 1) != 0);
  const double x = std::ldexp(static_cast<double>(digits), shift + unit);
  return negative ? -x : x;
}

ExactSum sum_of(const std::vector<double>& x) {
  ExactSum sum;
  for (const double value : x) sum.add(value);
  return sum;
}
bool same(const ExactSum& a, const ExactSum& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

/// Numbers of any size and sign, some of which cancel.
std::vector<double> random_numbers(Random& random, bool wild) {
  std::vector<double> x;
  for (int n = random.below(30); n > 0; --n) {
    const int size = wild ? random.below(2040) - 1070 : random.below(60) - 30;
    x.push_back(std::ldexp(random.uniform() - 0.5, size));
    if (random.chance(0.3)) x.push_back(-x.back());
    if (random.chance(0.1)) x.push_back(random.pick({0.0, -0.0, 5e-324, -5e-324}));
  }
  return x;
}

}  // namespace

TEST_CASE("an exact sum is plain data, and small", "[stats]") {
  STATIC_REQUIRE(std::is_trivially_copyable_v<ExactSum>);
  STATIC_REQUIRE(sizeof(ExactSum) == 280);
  CHECK(gdpo::math::bits_of(ExactSum{}.value()) == 0);
}

TEST_CASE("any order and any partition give the same bytes", "[stats]") {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    std::vector<double> x = random_numbers(random, seed % 2 == 0);
    const ExactSum whole = sum_of(x);
    random.shuffle(x);
    std::vector<ExactSum> parts(static_cast<std::size_t>(1 + random.below(6)));
    for (const double value : x)
      parts[static_cast<std::size_t>(random.below(static_cast<int>(parts.size())))].add(value);
    random.shuffle(parts);
    ExactSum merged;
    for (const ExactSum& part : parts)
      merged = random.chance(0.5) ? gdpo::merge(merged, part) : gdpo::merge(part, merged);
    CHECK(same(merged, whole));
  }
}

TEST_CASE("the value is the sum, rounded once", "[stats]") {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    // Units of 2^-60 to 2^60 of that: sums of up to 60 such numbers fit into 128 bits.
    const int unit = random.pick({-60, 0, -1074, 800});
    ExactSum sum;
    Wide units = 0;
    for (int n = random.below(60); n > 0; --n) {
      const auto digits = static_cast<std::int64_t>(random.bits() >> (11 + random.below(50)));
      const int shift = random.below(60);
      const std::int64_t signed_digits = random.chance(0.5) ? digits : -digits;
      units += static_cast<Wide>(signed_digits) * (static_cast<Wide>(1) << shift);
      sum.add(std::ldexp(static_cast<double>(signed_digits), shift + unit));
    }
    CHECK(sum.value() == nearest(units, unit));
  }
}

TEST_CASE("halves round to even, and the last digit may be far away", "[stats]") {
  const double half = std::ldexp(1.0, -53), tiny = 5e-324;
  CHECK(sum_of({1, half}).value() == 1);
  CHECK(sum_of({1, half, tiny}).value() == 1 + 2 * half);
  CHECK(sum_of({1, half, -tiny}).value() == 1);
  CHECK(sum_of({1 + 2 * half, half}).value() == 1 + 4 * half);
  CHECK(sum_of({-1, -half, -tiny}).value() == -1 - 2 * half);
  CHECK(sum_of({1e308, tiny, -1e308}).value() == tiny);
}

TEST_CASE("subnormal numbers and the ends of the range", "[stats]") {
  const double most = std::numeric_limits<double>::max(), least = 2.2250738585072014e-308;
  CHECK(sum_of({least, -5e-324}).value() == least - 5e-324);
  CHECK(sum_of({most, most}).value() == std::numeric_limits<double>::infinity());
  CHECK(sum_of({most, most, -most}).value() == most);
  CHECK(sum_of({-most, -most, -most, most, most}).value() == -most);
  // Half a unit above the largest double rounds to infinity.
  CHECK(sum_of({most, std::ldexp(1.0, 970)}).value() == std::numeric_limits<double>::infinity());
  CHECK(sum_of({most, std::ldexp(1.0, 969)}).value() == most);
}

TEST_CASE("NaN and infinities are flags, which merges keep", "[stats]") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  CHECK(sum_of({1, inf, -5}).value() == inf);
  CHECK(sum_of({1, -inf, -5}).value() == -inf);
  CHECK(gdpo::math::is_nan(sum_of({inf, -inf}).value()));
  CHECK(gdpo::math::is_nan(sum_of({nan, 1}).value()));
  CHECK(gdpo::math::is_nan(gdpo::merge(sum_of({inf}), sum_of({-inf})).value()));
  CHECK(same(sum_of({1, inf}), sum_of({inf, 1})));
}

}  // namespace exact_sum_test
