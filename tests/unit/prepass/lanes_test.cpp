// labels: lanes
// Parts of pre-passes in lanes: what they are made of has the bits of the plain code.
#include <gdpo/prepass.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"

namespace prepass_lanes_test {

namespace {

using V = gdpo::math::Native<double>;
constexpr double inf = std::numeric_limits<double>::infinity();

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof a) == 0;
}
/// f of each number in lanes and one by one; the numbers for which they differ.
template <class F>
std::vector<double> differences(const std::vector<double>& numbers, const F& f) {
  constexpr std::size_t width = gdpo::math::Lanes<V>::width;
  std::vector<double> different;
  for (std::size_t k = 0; k + width <= numbers.size(); k += width) {
    double lanes[width];
    gdpo::math::Lanes<V>::store(lanes, V(f(V(gdpo::math::Lanes<V>::load(numbers.data() + k)))));
    for (std::size_t j = 0; j < width; ++j) {
      if (!same(lanes[j], f(numbers[k + j]))) different.push_back(numbers[k + j]);
    }
  }
  return different;
}

}  // namespace

TEST_CASE("log1p and ratios in lanes have the bits of the scalars", "[prepass]") {
  Random random(3);
  std::vector<double> numbers{0.0, -0.0, inf, std::nan(""), 0.4142135623730951, 1e-300, 1e300, 1.0};
  for (int k = 0; k < 8000; ++k)
    numbers.push_back(std::ldexp(random.uniform(), random.below(120) - 60));
  CHECK(differences(numbers, [](const auto& y) { return gdpo::detail::log1p_of(y); }).empty());
  for (const double x : {-inf, 700.0, -700.0, 701.0, -701.0, 800.0, -800.0, 0.0})
    numbers.push_back(x);
  for (int k = 0; k < 8000; ++k) numbers.push_back(1500 * (random.uniform() - 0.5));
  CHECK(differences(numbers, [](const auto& x) { return gdpo::detail::ratio_of(x); }).empty());
}

TEST_CASE("an exact sum of a row is that of its numbers", "[prepass]") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const int n = random.below(seed % 20 == 0 ? 9000 : 100),
              spread = random.pick({1, 20, 90, 1500});
    const double missing = random.pick({0.0, 0.2, 1.0});
    std::vector<double> numbers;
    double reach = 0;
    gdpo::ExactSum expected;
    for (int k = 0; k < n; ++k) {
      const double x =
          std::ldexp(random.uniform() - 0.5, random.below(spread) - (spread > 1000 ? 750 : 10));
      numbers.push_back(random.chance(missing) ? std::nan("") : x);
      if (std::isnan(numbers.back())) continue;
      reach = std::max(reach, std::fabs(x));
      expected.add(x);
    }
    gdpo::ExactSum sum;
    gdpo::detail::add_row_exactly<V>(sum, numbers.data(), n, reach,
                                     [](const auto& x) { return x; });
    CHECK(std::memcmp(&sum, &expected, sizeof sum) == 0);
  }
}

TEST_CASE("a number by its place in the order of a large batch", "[prepass]") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const int rows = 3, width = random.pick({100, 7001});
    std::vector<float> numbers;
    std::vector<unsigned char> mask;
    std::vector<float> sorted;
    const int kind = random.below(3);
    for (int k = 0; k < rows * width; ++k) {
      const double u = random.uniform();
      numbers.push_back(static_cast<float>(kind == 0 ? u
                                           : kind == 1
                                               ? random.below(5) - 2
                                               : std::ldexp(u - 0.5, random.below(80) - 40)));
      if (random.chance(0.05))
        numbers.back() = static_cast<float>(random.pick({-0.0, 0.0, inf, -inf, std::nan("")}));
      mask.push_back(random.chance(0.9));
      if (mask.back() && !std::isnan(numbers.back())) sorted.push_back(numbers.back());
    }
    std::sort(sorted.begin(), sorted.end());
    gdpo::TokenBatch<float> batch;
    batch.entropies = gdpo::view(numbers.data(), rows, width);
    batch.mask = gdpo::view(mask.data(), rows, width);
    gdpo::PrepassMemory<float> memory;
    const auto n = static_cast<double>(sorted.size());
    for (const double quantile : {0.0, 0.01, 0.5, 0.8, 0.9999, 1.0}) {
      gdpo::prepass::TopEntropy pass;
      pass.quantile = quantile;
      const double place = quantile * (n - 1), below = std::floor(place);
      const double low = sorted[static_cast<std::size_t>(below)];
      double expected = low;
      if (place > below)
        expected += gdpo::math::mul(  // no compiler makes one operation of this and the addition
            static_cast<double>(sorted[static_cast<std::size_t>(below) + 1]) - low, place - below);
      const auto prepared = gdpo::prepare(batch, memory, pass);
      const double got = prepared.entropy_threshold;
      CHECK((got == expected || (std::isnan(got) && std::isnan(expected))));
    }
  }
}

}  // namespace prepass_lanes_test
