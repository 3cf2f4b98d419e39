// labels: none
// Moments of parts, merged in order, are those of the whole: mean and std within 2^-44 relative
// (tolerance::merge), and n, weight, min, max and degenerate exactly.
#include <gdpo/stats/moments.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/tolerance.hpp"

namespace moments_merge_test {

namespace {

using gdpo::Moments;

template <class Order>
Moments moments(Order order, const std::vector<double>& x, std::size_t begin, std::size_t end,
                const std::vector<double>* w = nullptr) {
  return gdpo::moments_of(order, x.data() + begin, w ? w->data() + begin : nullptr,
                          static_cast<gdpo::index_t>(end - begin));
}

/// Random cuts of n numbers into up to 8 parts, some of them empty and some very small.
std::vector<std::size_t> random_cuts(Random& random, std::size_t n) {
  std::vector<std::size_t> cuts{0, n};
  for (int k = random.below(8); k > 0; --k) {
    cuts.push_back(random.chance(0.3)
                       ? random.pick<std::size_t>({0, n, n / 2})
                       : static_cast<std::size_t>(random.below(static_cast<int>(n) + 1)));
  }
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

void check_same(const Moments& merged, const Moments& whole) {
  CHECK(merged.n == whole.n);
  CHECK(merged.weight == whole.weight);
  CHECK(merged.min == whole.min);
  CHECK(merged.max == whole.max);
  CHECK(gdpo::degenerate(merged) == gdpo::degenerate(whole));
  if (gdpo::degenerate(whole)) {
    CHECK(merged.mean == whole.mean);
    CHECK(merged.m2 == 0);
    return;
  }
  const double sigma = gdpo::stddev(whole, 0);
  const double error = (merged.mean - whole.mean) + (merged.mean_low - whole.mean_low);
  CHECK(std::abs(error) <= tolerance::merge * std::max(std::abs(whole.mean), sigma));
  CHECK(std::abs(merged.mean - whole.mean) <=
        tolerance::merge * std::max(std::abs(whole.mean), sigma));
  CHECK(std::abs(gdpo::stddev(merged, 0) - sigma) <= tolerance::merge * sigma);
}

}  // namespace

TEST_CASE("merged moments are the moments of the union, whatever the partition", "[moments]") {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const std::size_t n = 1 + static_cast<std::size_t>(random.below(random.pick({3, 40, 2000})));
    const double offset = random.pick({0.0, 0.0, 1e5, -1e8}),
                 spread = random.pick({1.0, 1e-3, 1e6});
    const bool constant = random.chance(0.2);
    std::vector<double> x, w;
    for (std::size_t i = 0; i < n; ++i) {
      x.push_back(constant ? offset + 0.1
                           : offset + spread * random_reward(random, 2 + random.below(2)));
      w.push_back(random.below(5));
    }
    const std::vector<std::size_t> cuts = random_cuts(random, n);
    const auto check = [&](auto order, const std::vector<double>* weights) {
      Moments merged;
      for (std::size_t k = 0; k + 1 < cuts.size(); ++k)
        merged = gdpo::merge(merged, moments(order, x, cuts[k], cuts[k + 1], weights));
      check_same(merged, moments(order, x, 0, n, weights));
    };
    check(gdpo::InRowOrder{}, nullptr);
    check(gdpo::AnyOrder{}, nullptr);
    check(gdpo::InRowOrder{}, &w);
  }
}

TEST_CASE("an offset costs the spread of merged moments nothing", "[moments]") {
  // The rewards k/8 + 2^27 are exact, so the std must be that of k/8, to tolerance::merge.
  Random random(3);
  std::vector<double> x, y;
  for (int i = 0; i < 500; ++i) {
    x.push_back(0.125 * random.below(64));
    y.push_back(x.back() + 0x1p27);
  }
  Moments merged;
  for (std::size_t k = 0; k < 500; k += 50)
    merged = gdpo::merge(merged, moments(gdpo::InRowOrder{}, y, k, k + 50));
  const Moments plain = moments(gdpo::InRowOrder{}, x, 0, 500);
  CHECK(std::abs(gdpo::stddev(merged) - gdpo::stddev(plain)) <=
        tolerance::merge * gdpo::stddev(plain));
  CHECK(std::abs((merged.mean - 0x1p27 - plain.mean) + merged.mean_low) <=
        tolerance::merge * plain.mean);
}

TEST_CASE("merging with nothing changes nothing, NaN on either side is NaN", "[moments]") {
  const std::vector<double> equal{1, 1}, differ{1, 3}, unknown{std::nan("")},
      mixed{2, std::nan("")};
  const auto of = [](const std::vector<double>& x) {
    return moments(gdpo::InRowOrder{}, x, 0, x.size());
  };
  for (const auto* x : {&equal, &differ}) {
    const Moments m = of(*x), left = gdpo::merge(Moments{}, m), right = gdpo::merge(m, Moments{});
    CHECK(std::memcmp(&left, &m, sizeof m) == 0);
    CHECK(std::memcmp(&right, &m, sizeof m) == 0);
    for (const auto* nan : {&unknown, &mixed}) {
      for (const Moments& r : {gdpo::merge(m, of(*nan)), gdpo::merge(of(*nan), m)}) {
        CHECK(r.n == m.n + of(*nan).n);
        CHECK(std::isnan(r.mean));
        CHECK(std::isnan(r.m2));
        CHECK(!gdpo::degenerate(r));
      }
    }
  }
  CHECK(!gdpo::degenerate(gdpo::merge(Moments{}, Moments{})));
  CHECK(gdpo::merge(Moments{}, Moments{}).n == 0);
}

}  // namespace moments_merge_test
