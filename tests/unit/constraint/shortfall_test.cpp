// labels: sanitizers
// The violation of a sample with its slope, and what measure() gives for a batch and for its parts.
#include <gdpo/constraint/shortfall.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/tolerance.hpp"

namespace shortfall_test {

namespace {

const double no = std::nan(""), inf = std::numeric_limits<double>::infinity();

std::vector<double> fields(const gdpo::ConstraintMetrics& m) {
  return {m.count, m.sum, m.violation_sum, m.violated, m.largest, m.missing};
}

}  // namespace

TEST_CASE("the hinge and its slope", "[shortfall]") {
  const gdpo::Shortfall at_least{0.5}, at_most{0.5, gdpo::Bound::AtMost};
  CHECK(at_least(0.125).value == 0.375);
  CHECK(at_least(0.125).slope == -1);
  CHECK(at_least(0.75).value == 0);
  CHECK(at_most(0.75).value == 0.25);
  CHECK(at_most(0.75).slope == 1);
  CHECK(at_most(0.125).value == 0);
  for (const gdpo::Shortfall& s : {at_least, at_most}) {
    CHECK(s(0.5).value == 0);  // at the kink: satisfied, with slope 0
    CHECK(s(0.5).slope == 0);
    CHECK(!s.violated(0.5));
    CHECK(std::isnan(s(no).value));
    CHECK(s(no).slope == 0);
    CHECK(!s.violated(no));
  }
  CHECK(at_least(-inf).value == inf);
  CHECK(at_least(inf).value == 0);
  CHECK(at_most(inf).value == inf);
  CHECK(at_most(-inf).value == 0);
}

TEST_CASE("the violation of a sample, in units of its constraint", "[shortfall]") {
  gdpo::Constraint c{0, 1, 0.5, 0.25};
  const auto all = [&](double x) {
    std::vector<double> v;
    for (const gdpo::Signal signal :
         {gdpo::Signal::Linear, gdpo::Signal::Hinge, gdpo::Signal::Indicator}) {
      c.signal = signal;
      v.push_back(gdpo::violation_of(c, x));
    }
    return v;
  };
  CHECK(all(0.125) == std::vector<double>{1.5, 1.5, 1});
  CHECK(all(0.5) == std::vector<double>{0, 0, 0});
  CHECK(all(1) == std::vector<double>{-2, 0, 0});
  for (const double v : all(no)) CHECK(std::isnan(v));
  c.bound = gdpo::Bound::AtMost;
  CHECK(all(0.125) == std::vector<double>{-1.5, 0, 0});
  CHECK(all(0.5) == std::vector<double>{0, 0, 0});
  CHECK(all(1) == std::vector<double>{2, 2, 1});
  CHECK(gdpo::Constraint{}.signal == gdpo::Signal::Linear);
}

TEST_CASE("the slope is the difference quotient away from the limit", "[shortfall]") {
  Random random(1);
  const double h = 0x1p-20;
  for (int k = 0; k < 1000; ++k) {
    // Multiples of 2^-18: sums and differences are exact, and an x other than the limit is at least
    // 4 h away from it.
    const double limit = 0x1p-18 * random.below(1 << 18), x = 0x1p-18 * random.below(1 << 18);
    if (x == limit) continue;
    const gdpo::Shortfall s{limit, random.chance(0.5) ? gdpo::Bound::AtLeast : gdpo::Bound::AtMost};
    CHECK((s(x + h).value - s(x - h).value) / (2 * h) == s(x).slope);
    CHECK((s(x).value > 0) == s.violated(x));
  }
}

TEST_CASE("measure by hand", "[shortfall]") {
  const std::vector<float> values{0.25F, 1.5F, 0.5F, -1.0F, static_cast<float>(no), 0.75F};
  const std::vector<unsigned char> valid{1, 1, 1, 1, 1, 0};
  const gdpo::ConstraintMetrics m =
      gdpo::measure(gdpo::view(values), {0.5, 2.0, gdpo::Bound::AtLeast}, gdpo::view(valid));
  CHECK(fields(m) == std::vector<double>{4, 1.25, 1.75, 2, 1.5, 2});
  CHECK(m.value().sum == 1.25);
  CHECK(m.value().count == 4);
  CHECK(m.mean_violation() == 0.4375);
  CHECK(m.violation_rate() == 0.5);
  const gdpo::ConstraintMetrics cost =
      gdpo::measure(gdpo::view(values), {0.5, 1, gdpo::Bound::AtMost});
  CHECK(fields(cost) == std::vector<double>{5, 2, 1.25, 2, 1, 1});
  const gdpo::ConstraintMetrics nothing = gdpo::measure(gdpo::view(values.data() + 4, 1), {0.5});
  CHECK(fields(nothing) == std::vector<double>{0, 0, 0, 0, 0, 1});
  CHECK(nothing.mean_violation() == 0);
  CHECK(nothing.violation_rate() == 0);
  CHECK(fields(gdpo::measure(gdpo::View<const float, 1>{}, {})) == std::vector<double>(6, 0.0));
  const std::vector<double> infinite{1, inf};
  CHECK(gdpo::measure(gdpo::view(infinite), {}).value().sum == inf);
}

TEST_CASE("the signed error of a mean, and the mean hinge that cannot take its place",
          "[shortfall]") {
  const std::vector<double> values{0, 2};  // the mean is at the limit, one sample is below it
  const gdpo::SetPoint point{1, 0.5, gdpo::Bound::AtLeast};
  const gdpo::ConstraintMetrics m = gdpo::measure(gdpo::view(values), point);
  CHECK(gdpo::error_of(point, m.value().sum / m.value().count) == 0);
  CHECK(m.mean_violation() == 0.5);
  CHECK(gdpo::error_of(point, 0.0) == 2);
  CHECK(gdpo::error_of({1, 0.5, gdpo::Bound::AtMost}, 0.0) == -2);
  CHECK(gdpo::error_of({}, 0.25) == -0.25);  // by default a reward that must reach its limit
}

TEST_CASE("parts merge into the whole, and what is not measured changes no bit", "[shortfall]") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const int n = 1 + random.below(300);
    const bool exact = random.chance(0.5);  // multiples of 2^-10: no sum is rounded
    std::vector<double> values, valid, poisoned;
    for (int i = 0; i < n; ++i) {
      values.push_back(exact ? 0x1p-10 * random.below(1 << 12) : 4 * random.uniform() - 2);
      valid.push_back(random.chance(0.8));
      if (random.chance(0.05)) values.back() = no;
      poisoned.push_back(valid.back() != 0 ? values.back() : random.pick({no, inf, -inf, 1e38}));
    }
    const gdpo::SetPoint point{random.pick({0.5, 1.25}), 0.3,
                               random.chance(0.5) ? gdpo::Bound::AtLeast : gdpo::Bound::AtMost};
    const auto part = [&](const std::vector<double>& x, int begin, int end) {
      return gdpo::measure(gdpo::view(x.data() + begin, end - begin), point,
                           gdpo::view(valid.data() + begin, end - begin));
    };
    const std::vector<double> whole = fields(part(values, 0, n));
    CHECK(difference(fields(part(poisoned, 0, n)), whole) == "");
    gdpo::ConstraintMetrics merged;
    for (int begin = 0; begin < n;) {
      const int end = std::min(n, begin + 1 + random.below(100));
      merged = gdpo::merge(merged, part(values, begin, end));
      begin = end;
    }
    // Counts and the largest violation are exact. A sum of 300 numbers below 4 is off by less than
    // 300 roundings of 1200.
    std::vector<double> got = fields(merged);
    for (const std::size_t k : {0u, 3u, 4u, 5u}) CHECK(got[k] == whole[k]);
    for (const std::size_t k : {1u, 2u})
      CHECK(std::abs(got[k] - whole[k]) <= (exact ? 0 : 300 * 1200 * tolerance::unit));
  }
}

}  // namespace shortfall_test
