// labels: lanes, sanitizers
// Sums are taken in the documented orders, bit for bit, and NaN and infinities are recognized by
// their bits.
#include <gdpo/advantages.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/tolerance.hpp"

namespace reduce_test {

namespace {

std::vector<double> numbers(Random& random, int n) {
  std::vector<double> x;
  for (int i = 0; i < n; ++i)
    x.push_back((random.uniform() - 0.4) * std::pow(10.0, random.below(12) - 6));
  return x;
}

/// Blocks of 4096 rows, added in order. Within a block row i goes to lane i mod 16, and the lanes
/// are added as a tree of halves.
double grid_sum(const std::vector<double>& x) {
  double total = 0;
  for (std::size_t begin = 0; begin < x.size(); begin += 4096) {
    double lane[16] = {};
    for (std::size_t i = begin; i < std::min(begin + 4096, x.size()); ++i) lane[i % 16] += x[i];
    for (int half = 8; half > 0; half /= 2) {
      for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
    }
    total += lane[0];
  }
  return total;
}

const auto plain = [](const auto& x, const auto&) { return std::array{x}; };

template <class Order>
double sum(Order order, const std::vector<double>& x) {
  return gdpo::sum_rows<1>(order, x.data(), nullptr, static_cast<gdpo::index_t>(x.size()),
                           plain)[0];
}

}  // namespace

TEST_CASE("batch sums of consecutive groups: 4096 rows, 16 lanes, a tree, blocks in order",
          "[reduce]") {
  Random random(31);
  for (const int n : {0, 1, 5, 15, 16, 17, 31, 100, 4095, 4096, 4097, 4100, 8192, 12345}) {
    const std::vector<double> x = numbers(random, n);
    INFO("rows " << n);
    CHECK(same_bits(sum(gdpo::InRowOrder{}, x), grid_sum(x)));
    std::vector<double> w, wx;
    for (int i = 0; i < n; ++i)
      w.push_back(random.below(3)), wx.push_back(w.back() * x[static_cast<std::size_t>(i)]);
    const auto weighted = [](const auto& value, const auto& weight) {
      return std::array{mul(weight, value)};
    };
    CHECK(gdpo::sum_rows<1>(gdpo::InRowOrder{}, x.data(), w.data(), n, weighted)[0] ==
          grid_sum(wx));
  }
}

TEST_CASE("statistics of a group of consecutive rows are summed in row order", "[reduce]") {
  Random random(32);
  for (int round = 0; round < 200; ++round) {
    // Powers of two, so that the quotient by n is exact.
    const std::vector<double> x = numbers(random, random.pick({2, 4, 8, 16, 32}));
    const double n = static_cast<double>(x.size());
    double total = 0, rest = 0;
    for (const double value : x) total += value;
    const double center = total / n;
    for (const double value : x) rest += value - center;
    const double mean = center + rest / n, low = rest / n - (mean - center);
    std::vector<double> expected;
    for (const double value : x) expected.push_back((value - mean) - low);
    INFO("round " << round);
    const auto rows = static_cast<gdpo::index_t>(x.size());
    CHECK(difference(gdpo::advantages(gdpo::view(x.data(), rows, 1), gdpo::groups_of(rows),
                                      gdpo::DrGrpo{}),
                     expected) == "");
  }
}

TEST_CASE("compensated sums do not depend on the order", "[reduce]") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    std::vector<double> x = numbers(random, 1 + random.below(300));
    if (seed % 3 == 0) {  // terms that cancel: a plain sum loses every digit
      const std::size_t n = x.size();
      for (std::size_t i = 0; i < n; ++i) x.push_back(-x[i] * (1 + 0x1p-30));
      x.push_back(1e9);
      x.push_back(-1e9);
    }
    const double first = sum(gdpo::AnyOrder{}, x);
    long double exact = 0;
    double magnitude = 0;
    for (const double value : x) exact += value, magnitude += std::abs(value);
    CHECK(std::abs(static_cast<double>(first - exact)) <=
          tolerance::unit * std::abs(first) + 1e-17 * magnitude);
    for (int k = 0; k < 5; ++k) {
      random.shuffle(x);
      CHECK(same_bits(sum(gdpo::AnyOrder{}, x), first));
    }
  }
  CHECK(sum(gdpo::AnyOrder{}, {1, 1e100, 1, -1e100}) == 2);
  CHECK(sum(gdpo::AnyOrder{}, {1e100, 1, -1e100, 1}) == 2);
}

TEST_CASE("NaN and infinity are seen by their bits", "[scalar]") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const double payload = [] {
    const std::uint64_t bits = 0xfff0000000000001u;  // negative, signaling
    double x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }();
  CHECK(gdpo::math::is_nan(nan));
  CHECK(gdpo::math::is_nan(-nan));
  CHECK(gdpo::math::is_nan(payload));
  CHECK(gdpo::math::is_inf(inf));
  CHECK(gdpo::math::is_inf(-inf));
  for (const double x : {0.0, -0.0, 1.0, 1e308, 5e-324, inf, -inf}) CHECK(!gdpo::math::is_nan(x));
  for (const double x : {0.0, 1.0, 1e308, nan, payload}) CHECK(!gdpo::math::is_inf(x));

  double lanes[8] = {1, nan, inf, -inf, payload, 0, -nan, 1e308};
  double found[8];
  using Pack = gdpo::math::Pack<8>;
  const Pack pack = Pack::load(lanes);
  select(is_nan(pack), Pack::all(1.0), Pack::all(0.0)).store(found);
  CHECK(difference(std::vector<double>(found, found + 8),
                   std::vector<double>{0, 1, 0, 0, 1, 0, 1, 0}) == "");
}

TEST_CASE("packs of every width compute lane by lane, as one double does", "[lanes]") {
  Random random(33);
  const auto check = [&](auto width) {
    constexpr int L = decltype(width)::value;
    using Pack = gdpo::math::Pack<L>;
    for (int round = 0; round < 50; ++round) {
      double a[L], b[L], r[L];
      for (int j = 0; j < L; ++j)
        a[j] = random.uniform() - 0.5, b[j] = random.chance(0.2) ? a[j] : random.uniform() - 0.5;
      const Pack x = Pack::load(a), y = Pack::load(b);
      const auto same = [&](const Pack& result, auto expected) {
        result.store(r);
        for (int j = 0; j < L; ++j) {
          if (!same_bits(r[j], expected(a[j], b[j]))) return false;
        }
        return true;
      };
      CHECK(same(x + y, [](double p, double q) { return p + q; }));
      CHECK(same(x - y, [](double p, double q) { return p - q; }));
      CHECK(same(mul(x, y), [](double p, double q) { return p * q; }));
      CHECK(same(x / y, [](double p, double q) { return p / q; }));
      CHECK(same(min(x, y), [](double p, double q) { return q < p ? q : p; }));
      CHECK(same(max(x, y), [](double p, double q) { return p < q ? q : p; }));
      CHECK(same(abs(x), [](double p, double) { return std::abs(p); }));
      CHECK(same(sqrt(abs(x)), [](double p, double) { return std::sqrt(std::abs(p)); }));
      CHECK(same(select(x == y, Pack::all(1.0), x),
                 [](double p, double q) { return p == q ? 1.0 : p; }));
      CHECK(same(select(x < y, y, Pack::all(2.0)),
                 [](double p, double q) { return p < q ? q : 2.0; }));
      for (int half = L / 2; half > 0; half /= 2) {
        for (int j = 0; j < half; ++j) a[j] += a[j + half];
      }
      CHECK(same_bits(tree_sum(x), a[0]));
      double least = b[0];
      for (const double value : b) least = std::min(least, value);
      CHECK(tree_min(y) == least);
    }
  };
  check(std::integral_constant<int, 1>{});
  check(std::integral_constant<int, 2>{});
  check(std::integral_constant<int, 4>{});
  check(std::integral_constant<int, 8>{});
  check(std::integral_constant<int, 16>{});
}

}  // namespace reduce_test
