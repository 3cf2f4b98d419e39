// labels: sanitizers
// Moments and GroupStat against numbers worked out by hand.
#include <gdpo/advantage/multiplier.hpp>
#include <gdpo/advantage/stat.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/tolerance.hpp"

namespace moments_test {

namespace {

template <class Order = gdpo::InRowOrder>
gdpo::Moments of(const std::vector<double>& x, const std::vector<double>& w = {}) {
  return gdpo::moments_of(Order{}, x.data(), w.empty() ? nullptr : w.data(),
                          static_cast<gdpo::index_t>(x.size()));
}

}  // namespace

TEST_CASE("moments of a few numbers", "[moments]") {
  const gdpo::Moments m = of({1, 2, 4, 9});
  CHECK(m.n == 4);
  CHECK(m.weight == 4);
  CHECK(m.mean == 4);
  CHECK(m.m2 == 38);
  CHECK(m.min == 1);
  CHECK(m.max == 9);
  CHECK(gdpo::variance(m) == 38.0 / 3);
  CHECK(gdpo::variance(m, 0) == 9.5);
  CHECK(gdpo::variance(m, 4) == 0);  // no degrees of freedom
  CHECK(gdpo::variance(m, 5) == 0);
  CHECK(!gdpo::degenerate(m));
}

TEST_CASE("weights count; a member of weight 0 is no member", "[moments]") {
  const double nan = std::nan("");
  for (const gdpo::Moments& m : {of({1, nan, 3, 1e300, 7}, {2, 0, 1, 0, 1}),
                                 of<gdpo::AnyOrder>({1, nan, 3, 1e300, 7}, {2, 0, 1, 0, 1})}) {
    CHECK(m.n == 3);
    CHECK(m.weight == 4);
    CHECK(m.mean == 3);  // (2 + 3 + 7) / 4
    CHECK(m.m2 == 24);   // 2*4 + 0 + 16
    CHECK(m.min == 1);
    CHECK(m.max == 7);
  }
  CHECK(of({1, 2}, {0, 0}).n == 0);
  CHECK(of({1, 2}, {0, 0}).mean == 0);
  CHECK(gdpo::degenerate(of({5, 2}, {3, 0})));
}

TEST_CASE("nothing, one, equal, NaN", "[moments]") {
  CHECK(of({}).n == 0);
  CHECK(!gdpo::degenerate(of({})));
  CHECK(gdpo::degenerate(of({0.1})));
  for (const std::size_t n : {2u, 7u, 8u, 9u, 16u, 17u, 100u, 5000u}) {
    for (const double value : {0.1, 3.3, 1e5 + 0.1, 1e308, -0.0}) {
      const gdpo::Moments m = of(std::vector<double>(n, value));
      CHECK(gdpo::degenerate(m));
      CHECK(m.mean == value);
      CHECK(m.mean_low == 0);
      CHECK(m.m2 == 0);
    }
    for (std::size_t place = 0; place < n; place += 1 + n / 5) {
      std::vector<double> x(n, 2.0);
      x[place] = std::nan("");
      const gdpo::Moments m = of(x);
      INFO("n " << n << ", NaN at " << place);
      CHECK(m.n == static_cast<gdpo::index_t>(n));
      CHECK(std::isnan(m.mean));
      CHECK(std::isnan(m.m2));
      CHECK(std::isnan(m.min));
      CHECK(std::isnan(m.max));
      CHECK(!gdpo::degenerate(m));
    }
  }
}

TEST_CASE("mean and spread keep their digits at an offset of 1e5 and 1e8", "[moments]") {
  for (const double offset : {1e5, 1e8}) {
    std::vector<double> x, y;
    for (int i = 0; i < 1000; ++i)
      x.push_back(0.125 * ((i * 37) % 101)), y.push_back(x.back() + offset);
    const gdpo::Moments a = of(x), b = of(y);
    CHECK(std::abs(b.m2 - a.m2) <= 1000 * tolerance::unit * a.m2);  // one rounding per row
    CHECK(std::abs((b.mean - offset - a.mean) + b.mean_low) <= 4 * tolerance::unit * a.mean);
  }
}

TEST_CASE("the others of a member", "[moments]") {
  const auto stat = [](std::vector<double> x) {
    gdpo::GroupStat s;
    static_cast<gdpo::Moments&>(s) = of(x);
    s.degenerate = gdpo::degenerate(of(x));
    std::sort(x.begin(), x.end());
    s.second_min = x[1];
    s.second_max = x[x.size() - 2];
    return s;
  };
  const gdpo::GroupStat s = stat({1, 2, 4, 9});
  const gdpo::Moments without_nine = s.without(9), without_two = s.without(2);
  CHECK(without_nine.n == 3);
  CHECK(std::abs(without_nine.mean - 7.0 / 3) <= 4 * tolerance::formula);
  // The difference of numbers of order 38.
  CHECK(std::abs(without_nine.m2 - 14.0 / 3) <= 64 * tolerance::formula);
  CHECK(std::abs(without_two.mean - 14.0 / 3) <= 4 * tolerance::formula);

  // In {0.1, 0.1, 0.1, 5} the others of the 5 are exactly equal; the others of a 0.1 are not.
  const gdpo::GroupStat odd = stat({0.1, 0.1, 0.1, 5});
  CHECK(odd.without(5).m2 == 0);
  CHECK(odd.without(5).mean == 0.1);
  CHECK(odd.without(0.1).m2 > 1);
  const gdpo::GroupStat low = stat({-5, 0.1, 0.1});
  CHECK(low.without(-5).m2 == 0);
  CHECK(low.without(-5).mean == 0.1);
  const gdpo::GroupStat equal = stat({0.1, 0.1, 0.1});
  CHECK(equal.without(0.1).m2 == 0);
  CHECK(equal.without(0.1).mean == 0.1);
  const gdpo::GroupStat two = stat({3, 8});
  CHECK(two.without(3).mean == 8);
  CHECK(two.without(8).mean == 3);
  CHECK(two.without(8).m2 == 0);
}

TEST_CASE("where eps stands", "[multiplier]") {
  using gdpo::EpsAt;
  const auto k = [](EpsAt at, double eps, double v, gdpo::index_t dof = 3) {
    return gdpo::multiplier(eps, at, v, dof);
  };
  CHECK(k(EpsAt::Std, 0.5, 4) == 1 / 2.5);
  CHECK(k(EpsAt::Var, 5, 4) == 1.0 / 3);
  CHECK(k(EpsAt::ClampStd, 0.5, 4) == 0.5);
  CHECK(k(EpsAt::ClampStd, 5, 4) == 0.2);
  CHECK(k(EpsAt::ClampVar, 0.5, 4) == 0.5);
  CHECK(k(EpsAt::ClampVar, 16, 4) == 0.25);
  CHECK(k(EpsAt::None, 0.5, 4) == 1);
  CHECK(k(EpsAt::None, 0.5, 4, 0) == 1);
  CHECK(k(EpsAt::StdOrOne, 0.5, 4) == 1 / 2.5);
  CHECK(k(EpsAt::StdOrOne, 0.5, 0) == 1);  // eps does not hide that there is no spread
  CHECK(k(EpsAt::StdOrOne, 0, 0) == 1);
  CHECK(k(EpsAt::StdOrOne, 0.5, 4, 0) == 1);
  CHECK(k(EpsAt::StdOrOne, 0.5, 4, -1) == 1);
  CHECK(k(EpsAt::StdOrOne, 0, 0x1p-1074) > 1e150);  // the smallest spread is one
  CHECK(std::isnan(k(EpsAt::StdOrOne, 0, std::nan(""))));
  for (const EpsAt at : {EpsAt::Std, EpsAt::Var, EpsAt::ClampStd, EpsAt::ClampVar}) {
    CHECK(k(at, 0, 0) == 0);        // no spread and no eps: 0, not 1 / 0
    CHECK(k(at, 1e-4, 4, 0) == 0);  // no degrees of freedom: the spread is unknown
    CHECK(k(at, 1e-4, 4, -1) == 0);
    CHECK(k(at, 0.25, 0) > 1);
    CHECK(std::isnan(k(at, 1e-4, std::nan(""))));
  }
}

}  // namespace moments_test
