// labels: sanitizers
// Robust baselines and scales, and those of OPO, pass@k, GPG, ReMax and NeMo-RL: numbers worked out
// by hand, edges, and errors. Rewards and advantages are of order 1 where nothing else is said, so
// that the tolerance is tolerance::formula; most numbers are exact.
#include <gdpo/advantages.hpp>
#include <gdpo/cuda/advantage/device_advantages.hpp>
#include <limits>

#include "support/catch.hpp"
#include "support/device.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "support/tolerance.hpp"

namespace robust_test {

namespace {

using gdpo::AtZero;
using gdpo::EpsAt;
using gdpo::GroupAdvantage;
using gdpo::index_t;
using gdpo::combine::NormalizeThenSum;
using gdpo::combine::SumThenNormalize;
namespace baseline = gdpo::baseline;
namespace renorm = gdpo::renorm;
namespace scale = gdpo::scale;
using Vector = std::vector<double>;

const double no = std::nan("");

template <class Baseline, class Scale = scale::None, class Combine = SumThenNormalize>
GroupAdvantage<Baseline, Scale, Combine> estimator(Baseline of = {}, Scale by = {}) {
  GroupAdvantage<Baseline, Scale, Combine> e;
  e.renorm = renorm::none();
  e.baseline = of;
  e.scale = by;
  return e;
}

/// Columns beside the rewards; an empty one is absent.
struct Columns {
  Vector tokens, valid, external;
};
template <class Estimator>
Vector run(const Vector& rewards, const Estimator& e, index_t group, const Columns& of = {}) {
  gdpo::RewardBatch<double, gdpo::GroupsOf> rows{
      gdpo::view(rewards.data(), static_cast<index_t>(rewards.size()), 1), gdpo::groups_of(group)};
  if (!of.tokens.empty()) rows.tokens = gdpo::view(of.tokens);
  if (!of.valid.empty()) rows.valid = gdpo::view(of.valid);
  if (!of.external.empty()) rows.baseline = gdpo::view(of.external);
  return gdpo::advantages(gdpo::seq, rows, e);
}
/// The same for one group.
template <class Estimator>
Vector of_group(const Vector& rewards, const Estimator& e, const Columns& of = {}) {
  return run(rewards, e, static_cast<index_t>(rewards.size()), of);
}
Vector minus(Vector x, double base, double factor = 1) {
  for (double& value : x) value = (value - base) * factor;
  return x;
}

constexpr double normal = 1.482602218505602;  // 1 / Phi^-1(3/4)

}  // namespace

TEST_CASE("sorting: every length, order and tie, and numbers that are not finite", "[robust]") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const int n = seed < 70 ? static_cast<int>(seed) : random.below(500);
    Vector x;
    for (int i = 0; i < n; ++i)
      x.push_back(random.chance(0.5) ? random.below(4) : random.uniform() * 8 - 4);
    if (seed % 5 == 1) std::sort(x.begin(), x.end());
    if (seed % 5 == 2) std::sort(x.rbegin(), x.rend());
    if (seed % 7 == 1 && n > 0) x[0] = std::numeric_limits<double>::infinity();
    Vector sorted = x;
    std::sort(sorted.begin(), sorted.end());
    gdpo::detail::sort_ascending(gdpo::view(x));
    CHECK(difference(x, sorted) == "");
    // With NaN there is no order, but every number is still there and nothing is read outside.
    Vector with_nan = sorted;
    with_nan.insert(with_nan.begin() + n / 2, no);
    gdpo::detail::sort_ascending(gdpo::view(with_nan));
    CHECK(std::count_if(with_nan.begin(), with_nan.end(), [](double v) { return std::isnan(v); }) ==
          1);
  }
}

TEST_CASE("sorting in lanes: what sorts all zeros and ones sorts all numbers", "[robust]") {
  constexpr int lanes = 8;
  const auto of = [](const std::vector<Vector>& columns, int j) -> const Vector& {
    return columns[static_cast<std::size_t>(j)];
  };
  const auto check = [&](const std::vector<Vector>& columns) {
    const index_t n = static_cast<index_t>(columns[0].size()), stride = lanes + 3;
    Vector x(static_cast<std::size_t>(n * stride), 7);
    for (index_t k = 0; k < n; ++k) {
      for (int j = 0; j < lanes; ++j)
        x[static_cast<std::size_t>(k * stride + j)] = of(columns, j)[static_cast<std::size_t>(k)];
    }
    gdpo::detail::sort_ascending(gdpo::LaneValues<lanes>{x.data(), {n}, stride});
    int wrong = 0;
    for (int j = 0; j < stride; ++j) {
      Vector sorted = j < lanes ? of(columns, j) : Vector(static_cast<std::size_t>(n), 7);
      std::sort(sorted.begin(), sorted.end());
      for (index_t k = 0; k < n; ++k)
        wrong += x[static_cast<std::size_t>(k * stride + j)] != sorted[static_cast<std::size_t>(k)];
    }
    return wrong;
  };
  // A network that sorts every sequence of 0 and 1 sorts every sequence (Knuth, volume 3, 5.3.4).
  for (int n = 0; n <= 13; ++n) {
    for (int first = 0; first < 1 << n; first += lanes) {
      std::vector<Vector> columns(lanes);
      for (int j = 0; j < lanes; ++j) {
        for (int k = 0; k < n; ++k)
          columns[static_cast<std::size_t>(j)].push_back((first + j) >> k & 1);
      }
      if (check(columns) != 0) FAIL("n " << n << ", from sequence " << first);
    }
  }
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const int n = random.below(500);
    std::vector<Vector> columns(lanes);
    for (Vector& x : columns) {
      for (int i = 0; i < n; ++i)
        x.push_back(random.chance(0.5) ? random.below(4) : random.uniform() * 8 - 4);
    }
    CHECK(check(columns) == 0);
  }
  // 0 and -0 are equal, and both stay.
  Vector zeros;
  for (int i = 0; i < 3 * lanes; ++i) zeros.push_back(i / lanes == 1 ? -0.0 : 0.0);
  gdpo::detail::sort_ascending(gdpo::LaneValues<lanes>{zeros.data(), {3}, lanes});
  CHECK(std::count_if(zeros.begin(), zeros.end(), [](double v) { return std::signbit(v); }) ==
        lanes);
}

TEST_CASE("median: of odd and even numbers, of two, with ties", "[robust]") {
  const auto e = estimator<baseline::Median>();
  CHECK(difference(of_group({9, 1, 4, 2, 8}, e), Vector{5, -3, 0, -2, 4}) == "");
  CHECK(difference(of_group({9, 1, 4, 2}, e), Vector{6, -2, 1, -1}) == "");
  CHECK(difference(of_group({3, 8}, e), Vector{-2.5, 2.5}) == "");
  // The majority of binary rewards gets 0.
  CHECK(difference(of_group({0, 1, 0, 0, 1}, e), Vector{0, 1, 0, 0, 1}) == "");
  CHECK(difference(of_group({1, 1, 0, 0}, e), Vector{0.5, 0.5, -0.5, -0.5}) == "");
  // The mean of neighbors is no double; the median is exact all the same.
  const double one = 1 + 0x1p-52;
  CHECK(difference(of_group({1, one}, e), Vector{-0x1p-53, 0x1p-53}) == "");
  // Missing and unused values are not among them; an unused row is compared with the others.
  CHECK(difference(of_group({9, no, 1, 4}, e), Vector{5, 0, -3, 0}) == "");
  CHECK(difference(of_group({9, 100, 1, 4}, e, {{}, {1, 0, 1, 1}, {}}), Vector{5, 96, -3, 0}) ==
        "");
}

TEST_CASE("trimmed and winsorized mean", "[robust]") {
  const Vector x{100, 1, 4, 2, 3, 6, -50, 5};
  // A quarter of 8 are 2 at each end: 2, 3, 4, 5 are left, or 2, 2, 2, 3, 4, 5, 5, 5.
  CHECK(difference(of_group(x, estimator<baseline::TrimmedMean>()), minus(x, 3.5)) == "");
  CHECK(difference(of_group(x, estimator(baseline::TrimmedMean{0.13})), minus(x, 3.5)) == "");
  CHECK(difference(of_group(x, estimator<baseline::WinsorizedMean>()), minus(x, 3.5)) == "");
  const Vector skew{0, 0, 1, 2, 10};
  // floor(0.39 5) = 1: 0, 1, 2 are left, or 0, 0, 1, 2, 2.
  CHECK(deviation(of_group(skew, estimator(baseline::TrimmedMean{0.39})), minus(skew, 1),
                  tolerance::formula) == "");
  CHECK(deviation(of_group(skew, estimator(baseline::WinsorizedMean{0.39})), minus(skew, 1),
                  tolerance::formula) == "");
  const Vector far_out{0, 1, 2, 3, 10, 20};
  // floor(0.2 6) = 1: 1, 2, 3, 10 with the mean 4, or 1, 1, 2, 3, 10, 10 with the mean 4.5.
  CHECK(difference(of_group(far_out, estimator(baseline::TrimmedMean{0.2})), minus(far_out, 4)) ==
        "");
  CHECK(difference(of_group(far_out, estimator(baseline::WinsorizedMean{0.2})),
                   minus(far_out, 4.5)) == "");
  // Nothing is cut from few values, and nearly all but the median from many.
  const Vector three{0, 1, 5};
  CHECK(difference(of_group(three, estimator<baseline::TrimmedMean>()), minus(three, 2)) == "");
  CHECK(difference(of_group(three, estimator(baseline::WinsorizedMean{0.3})), minus(three, 2)) ==
        "");
  CHECK(difference(of_group(three, estimator(baseline::TrimmedMean{0.34})), minus(three, 1)) == "");
  const double most = std::nextafter(0.5, 0);
  for (const index_t n : {2, 3, 4, 6, 10, 64}) {
    Vector ramp;
    for (index_t i = 0; i < n; ++i) ramp.push_back(static_cast<double>(i * i));
    CHECK(difference(of_group(ramp, estimator(baseline::TrimmedMean{most})),
                     of_group(ramp, estimator<baseline::Median>())) == "");
  }
}

TEST_CASE("second best: only who leads the others is told apart", "[robust]") {
  const auto e = estimator<baseline::SecondBest>();
  CHECK(difference(of_group({1, 4, 2, 3.5}, e), Vector{0, 0.5, 0, 0}) == "");
  CHECK(difference(of_group({1, 4, 4, 2}, e), Vector{0, 0, 0, 0}) == "");
  CHECK(difference(of_group({0, 0, 1, 0}, e), Vector{0, 0, 1, 0}) == "");
  CHECK(difference(of_group({-3, -1}, e), Vector{0, 2}) == "");
  CHECK(all_zero(of_group({7, 7, 7}, e)));
  // An unused row: its lead over the best used one, or nothing.
  const Columns last_unused{{}, {1, 1, 0}, {}};
  CHECK(difference(of_group({1, 4, 6}, e, last_unused), Vector{0, 3, 2}) == "");
  CHECK(difference(of_group({1, 4, 4}, e, last_unused), Vector{0, 3, 0}) == "");
  CHECK(difference(of_group({1, 4, 2}, e, last_unused), Vector{0, 3, 0}) == "");
  CHECK(difference(of_group({4, 4, 6}, e, last_unused), Vector{0, 0, 0}) == "");
  // With the std: verl divides the lead by it. Rewards 0, 0, 2: mean 2/3, variance 4/3.
  CHECK(deviation(of_group({0, 2, 0}, estimator<baseline::SecondBest, scale::StdDev>()),
                  Vector{0, 2 / std::sqrt(4.0 / 3), 0}, tolerance::formula) == "");
  // Sums that tie at the top up to rounding are a tie: 0.1 + 0.2 and 0.3 differ in the last bit.
  const Vector sums{0.1, 0.2, 0.3, 0, 0, 0};
  auto tied = estimator<baseline::SecondBest>();
  tied.renorm = renorm::per_group();
  CHECK(all_zero(gdpo::advantages(gdpo::view(sums.data(), 3, 2), gdpo::groups_of(3), tied)));
}

TEST_CASE("the mean weighted by length", "[robust]") {
  const auto e = estimator<baseline::LengthWeighted>();
  const Vector x{1, 0, 0.5, 1}, tokens{10, 30, 20, 40};
  CHECK(deviation(of_group(x, e, {tokens, {}, {}}), minus(x, 0.6), tolerance::formula) == "");
  CHECK(deviation(of_group(x, e, {tokens, {1, 1, 0, 1}, {}}), minus(x, 50 / 80.0),
                  tolerance::formula) == "");
  // The value of a row without tokens does not count; without any tokens it is the plain mean.
  CHECK(difference(of_group({8, 1, 3}, e, {{0, 1, 3}, {}, {}}), Vector{5.5, -1.5, 0.5}) == "");
  CHECK(difference(of_group({8, 1, 3}, e, {{0, 0, 0}, {}, {}}), Vector{4, -3, -1}) == "");
  CHECK(difference(of_group({8, 1, 3}, e, {{5, 5, 5}, {}, {}}), Vector{4, -3, -1}) == "");
  CHECK(difference(of_group({8, no, 3}, e, {{1, 7, 4}, {}, {}}), Vector{4, 0, -1}) == "");
}

TEST_CASE("the caller's baseline is that of the row, used or not, alone or not", "[robust]") {
  const auto e = estimator<baseline::External>();
  CHECK(difference(run({1, 1, 2, 0}, e, 2, {{}, {}, {0.5, 0.25, 1, 1}}),
                   Vector{0.5, 0.75, 1, -1}) == "");
  // The second group has no used row, and so no advantages.
  CHECK(difference(run({1, 1, 2, 0}, e, 2, {{}, {0, 1, 0, 0}, {0.5, 0.25, 1, 1}}),
                   Vector{0.5, 0.75, 0, 0}) == "");
  CHECK(difference(of_group({no, 1, 3}, e, {{}, {}, {9, 0.5, 1}}), Vector{0, 0.5, 2}) == "");
  // One completion a prompt, as in ReMax: Singleton says nothing here.
  for (const auto of_one : {gdpo::Singleton::Zero, gdpo::Singleton::Raw, gdpo::Singleton::Nan,
                            gdpo::Singleton::Error}) {
    auto alone = e;
    alone.singleton = of_one;
    CHECK(difference(run({1, 0.25}, alone, 1, {{}, {}, {0.5, 1}}), Vector{0.5, -0.75}) == "");
  }
  // What is not finite stays in its row.
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(difference(of_group({infinity, 1}, e, {{}, {}, {1, 0.5}}), Vector{infinity, 0.5}) == "");
  const Vector out = of_group({1, 1}, e, {{}, {}, {no, 0.5}});
  CHECK(std::isnan(out[0]));
  CHECK(out[1] == 0.5);
  // Equal rewards are no special case either, but a scale without a spread is.
  const Columns two{{}, {}, {0.5, 0.25}};
  CHECK(difference(of_group({1, 1}, e, two), Vector{0.5, 0.75}) == "");
  CHECK(all_zero(of_group({1, 1}, estimator<baseline::External, scale::StdDev>(), two)));
  CHECK(all_zero(of_group({1, 1}, estimator<baseline::External, scale::Mad>(), two)));
  auto or_one = estimator<baseline::External, scale::StdDev>();
  or_one.scale.eps_at = EpsAt::StdOrOne;
  CHECK(difference(of_group({1, 1}, or_one, two), Vector{0.5, 0.75}) == "");
}

TEST_CASE("MAD and IQR by hand", "[robust]") {
  // The median is 4, the distances 3, 2, 0, 4, 5 have the median 3.
  const Vector x{1, 2, 4, 8, 9};
  const auto mad = estimator<baseline::Median, scale::Mad>();
  CHECK(deviation(of_group(x, mad), minus(x, 4, 1 / (3 * normal)), tolerance::formula) == "");
  // The quartiles are at places 1 and 3: 2 and 8.
  const auto iqr = estimator<baseline::Median, scale::Iqr>();
  CHECK(deviation(of_group(x, iqr), minus(x, 4, 2 / (6 * normal)), tolerance::formula) == "");
  // Places 0.75 and 2.25 of 1, 2, 4, 8: 1.75 and 5. The median is 3, the distances 2, 1, 1, 5 have
  // the median 1.5.
  const Vector four{8, 1, 4, 2};
  CHECK(deviation(of_group(four, iqr), minus(four, 3, 2 / (3.25 * normal)), tolerance::formula) ==
        "");
  CHECK(deviation(of_group(four, mad), minus(four, 3, 1 / (1.5 * normal)), tolerance::formula) ==
        "");
  // Two: the distances are 1.5 each; places 0.25 and 0.75 are 1.5 apart.
  const Vector two{2, 5};
  for (const double value : of_group(two, mad)) CHECK(std::abs(value) * normal <= 1 + 0x1p-50);
  CHECK(deviation(of_group(two, mad), Vector{-1 / normal, 1 / normal}, tolerance::formula) == "");
  CHECK(deviation(of_group(two, iqr), Vector{-2 / normal, 2 / normal}, tolerance::formula) == "");
  // Where eps stands, in the unit of the std.
  const double std = 3 * normal, places[] = {1 / (std + 0.5), 1 / std, 0.1, 1.0};
  int k = 0;
  for (const auto& [at, eps] : {std::pair(EpsAt::Std, 0.5), std::pair(EpsAt::ClampStd, 0.5),
                                std::pair(EpsAt::ClampVar, 100.0), std::pair(EpsAt::None, 0.5)}) {
    auto with = mad;
    with.scale.eps = eps, with.scale.eps_at = at;
    CHECK(deviation(of_group(x, with), minus(x, 4, places[k++]), tolerance::formula) == "");
  }
}

TEST_CASE("where more than half of the values are equal, the std stands in, or nothing does",
          "[robust]") {
  const Vector x{0, 0, 0, 1};  // variance 1/4
  auto mad = estimator<baseline::Mean, scale::Mad>();
  CHECK(difference(of_group(x, mad), minus(x, 0.25, 2)) == "");
  mad.scale.eps = 0.5;
  CHECK(difference(of_group(x, mad), minus(x, 0.25, 1)) == "");
  mad.scale.at_zero = AtZero::Zero;
  CHECK(all_zero(of_group(x, mad)));
  mad.scale.eps_at = EpsAt::None;
  CHECK(difference(of_group(x, mad), minus(x, 0.25)) == "");
  // The IQR is 0 only where the middle half is equal: Q3 of x is 1/4, that of y is 0.
  auto iqr = estimator<baseline::Mean, scale::Iqr>();
  CHECK(deviation(of_group(x, iqr), minus(x, 0.25, 8 / normal), 4 * tolerance::formula) == "");
  const Vector y{0, 0, 0, 0, 2};  // mean 0.4, variance 0.8
  CHECK(deviation(of_group(y, iqr), minus(y, 0.4, 1 / std::sqrt(0.8)), tolerance::formula) == "");
  iqr.scale.at_zero = AtZero::Zero;
  CHECK(all_zero(of_group(y, iqr)));
  // Sums that differ by rounding alone are equal: 0.1 + 0.2 and 0.3 are one value, 9 is another.
  const Vector sums{0.1, 0.2, 0.3, 0, 0, 0.3, 0.2, 0.1, 9, 0};
  const auto of = [&](auto e) {
    return gdpo::advantages(gdpo::view(sums.data(), 5, 2), gdpo::groups_of(5), e);
  };
  const Vector total{0.3, 0.3, 0.3, 0.3, 9};
  const double mean = 2.04, std = 8.7 / std::sqrt(5.0);
  CHECK(deviation(of(estimator<baseline::Mean, scale::Mad>()), minus(total, mean, 1 / std),
                  tolerance::formula) == "");
  CHECK(deviation(of(estimator<baseline::Mean, scale::Iqr>()), minus(total, mean, 1 / std),
                  tolerance::formula) == "");
  // A group of equal values has no spread, which the place of eps turns into a factor.
  auto none = estimator<baseline::None, scale::Mad>();
  CHECK(all_zero(of_group({3, 3}, none)));
  none.scale.eps = 0.5;
  CHECK(difference(of_group({3, 3}, none), Vector{6, 6}) == "");
  none.scale.eps_at = EpsAt::StdOrOne;
  CHECK(difference(of_group({3, 3}, none), Vector{3, 3}) == "");
  CHECK(difference(of_group({no, 3}, none), Vector{0, 2}) == "");  // a group of one: std 1
  none.missing.entry = gdpo::MissingEntry::Propagate;
  for (const double value : of_group({no, 3, 4}, none)) CHECK(std::isnan(value));
}

TEST_CASE("a group of one under Singleton::Raw has the std 1", "[robust]") {
  const auto check = [](auto e) {
    e.singleton = gdpo::Singleton::Raw;
    e.scale.eps = 1;
    CHECK(difference(run({6, -2}, e, 1), Vector{3, -1}) == "");
    e.singleton = gdpo::Singleton::Zero;
    CHECK(all_zero(run({6, -2}, e, 1)));
  };
  check(estimator<baseline::Median, scale::Mad>());
  check(estimator<baseline::TrimmedMean, scale::Iqr>());
  check(estimator<baseline::SecondBest, scale::LeaveOneOutStd>());
}

TEST_CASE("the std of the others, with NeMo-RL's rule for others without one", "[robust]") {
  auto e = estimator<baseline::LeaveOneOut, scale::LeaveOneOutStd>();
  const Vector x{1, 2, 4, 7};
  Vector expected;
  for (std::size_t i = 0; i < 4; ++i) {
    double mean = 0, square = 0;
    for (std::size_t j = 0; j < 4; ++j) mean += j == i ? 0 : x[j] / 3;
    for (std::size_t j = 0; j < 4; ++j) square += j == i ? 0 : (x[j] - mean) * (x[j] - mean);
    expected.push_back((x[i] - mean) / std::sqrt(square / 2));
  }
  CHECK(deviation(of_group(x, e), expected, tolerance::formula) == "");
  // 0, 0, 0, 1: the others of the last one are equal, those of each other one have the mean 1/3 and
  // the variance 1/3.
  const double of_zero = -std::sqrt(3.0) / 3;
  const Vector binary{0, 0, 0, 1};
  CHECK(deviation(of_group(binary, e), Vector{of_zero, of_zero, of_zero, 0}, tolerance::formula) ==
        "");
  e.scale.eps_at = EpsAt::StdOrOne;
  CHECK(deviation(of_group(binary, e), Vector{of_zero, of_zero, of_zero, 1}, tolerance::formula) ==
        "");
  e.scale.eps = 1e-6;
  const Vector with_eps = of_group(binary, e);
  CHECK(with_eps[3] == 1);
  CHECK(with_eps[0] > of_zero);
  // Two: one other is no spread.
  CHECK(difference(of_group({3, 8}, e), Vector{-5, 5}) == "");
  e.scale.eps_at = EpsAt::Std;
  CHECK(all_zero(of_group({3, 8}, e)));
  // An unused row sees all used members: mean 2, variance 1.
  auto unused = estimator<baseline::LeaveOneOut, scale::LeaveOneOutStd>();
  CHECK(deviation(of_group({1, 2, 3, 5}, unused, {{}, {1, 1, 1, 0}, {}}),
                  Vector{-1.5 / std::sqrt(0.5), 0, 1.5 / std::sqrt(0.5), 3},
                  tolerance::formula) == "");
  // Beside an outlier the rounding of its square is larger than the squares of the others, 0, 0, 1
  // with the sum 2/3 about their mean. Their range keeps it between 1/2 and 3/4: 1e9 is divided by
  // a std from 1/2 to sqrt(3/8).
  const double lead = of_group({0, 0, 1, 1e9}, unused)[3];
  CHECK(lead >= 0.999e9 / std::sqrt(0.375));
  CHECK(lead <= 1.001e9 / 0.5);
  // Sums of the others that differ by rounding alone have no spread.
  const Vector sums{0.1, 0.2, 0.3, 0, 0, 0.3, 1, 0};
  auto or_one = estimator<baseline::LeaveOneOut, scale::LeaveOneOutStd>();
  or_one.scale.eps_at = EpsAt::StdOrOne;
  CHECK(std::abs(gdpo::advantages(gdpo::view(sums.data(), 4, 2), gdpo::groups_of(4), or_one)[3] -
                 0.7) <= tolerance::formula);
}

TEST_CASE("the share of rewards that are not 0", "[robust]") {
  const auto e = estimator<baseline::Mean, scale::NonzeroShare>();
  CHECK(difference(run({1, 0, 0, 0, 1, 0}, e, 2), Vector{1.5, -1.5, 0, 0, 1.5, -1.5}) == "");
  CHECK(all_zero(run({0, 0, 0, 0}, e, 2)));
  // Missing and unused rewards are no rewards: 3 used, 2 of them not 0.
  CHECK(difference(run({1, 0, no, 2}, e, 2), Vector{0.75, -0.75, 0, 0}) == "");
  const Vector third = run({1, 0, -0.0, 1}, e, 4, {{}, {1, 1, 1, 0}, {}});
  CHECK(deviation(third, Vector{2, -1, -1, 2}, tolerance::formula) == "");
  // Each reward has its own share: 2 of 4, and 4 of 4.
  const Vector two{1, 1, 0, 3, 1, 1, 0, 3};
  const auto each = estimator<baseline::Mean, scale::NonzeroShare, NormalizeThenSum>();
  CHECK(difference(gdpo::advantages(gdpo::view(two.data(), 4, 2), gdpo::groups_of(4), each),
                   Vector{0, 0, 0, 0}) == "");
}

TEST_CASE("settings out of their range are refused by name", "[robust][errors]") {
  using Catch::Matchers::ContainsSubstring;
  const Vector x{1, 2, 3};
  const auto said = [&](const auto& e) { return message_of([&] { of_group(x, e); }); };
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double fraction : {-0.01, 0.5, 1.0, no, infinity, -infinity}) {
    INFO(fraction);
    const std::string needed = "; needed: 0 to below 0.5";
    CHECK_THAT(said(estimator(baseline::TrimmedMean{fraction})),
               ContainsSubstring("gdpo::advantages: baseline.fraction: given ") &&
                   ContainsSubstring(needed));
    CHECK_THAT(said(estimator(baseline::WinsorizedMean{fraction})),
               ContainsSubstring("baseline.fraction: given ") && ContainsSubstring(needed));
  }
  for (const double fraction : {0.0, 0.25, 0.4999}) {
    CHECK(said(estimator(baseline::TrimmedMean{fraction})) == "no error");
  }
  for (const double eps : {-1e-9, no, infinity}) {
    scale::Mad mad;
    scale::Iqr iqr;
    scale::LeaveOneOutStd others;
    mad.eps = iqr.eps = others.eps = eps;
    const auto refused = ContainsSubstring("scale.eps: given ");
    CHECK_THAT(said(estimator(baseline::Mean{}, mad)), refused);
    CHECK_THAT(said(estimator(baseline::Mean{}, iqr)), refused);
    CHECK_THAT(said(estimator(baseline::Mean{}, others)), refused);
  }
  scale::LeaveOneOutStd others;
  others.ddof = -1;
  CHECK_THAT(said(estimator(baseline::Mean{}, others)), ContainsSubstring("scale.ddof: given -1"));
}

namespace {

/// A scale that divides by the caller's numbers, as a user may write it.
struct ByExternal {
  static constexpr bool own_value = true, reads_external = true;
  bool reads_batch() const { return false; }
  double operator()(const gdpo::ScaleArgs& a) const { return 1 / a.own_external; }
};

}  // namespace

TEST_CASE("a policy without its column is refused before anything is written, on host and device",
          "[robust][errors]") {
  const Vector rewards{1, 2, 3, 4};
  const auto check = [&](const auto& e, const char* expected) {
    const gdpo::RewardBatch batch{gdpo::view(rewards.data(), 4, 1), gdpo::groups_of(2)};
    Vector out(4, -7);
    gdpo::Workspace workspace;
    const std::string said = std::string("gdpo::advantages: ") + expected;
    CHECK(message_of([&] {
            gdpo::advantages_into(gdpo::simd, batch, e, gdpo::view(out), workspace);
          }) == said);
    Vector memory(1000);
    const gdpo::cuda::Scratch scratch{memory.data(), memory.size() * sizeof(double)};
    CHECK(message_of([&] {
            gdpo::advantages_into(test_device(), batch, e, gdpo::view(out), scratch);
          }) == said);
    CHECK(out == Vector(4, -7));
    // Without rows the column may be absent.
    const gdpo::RewardBatch none{gdpo::view<const double>(nullptr, 0, 1), gdpo::groups_of(2)};
    Vector empty;
    gdpo::advantages_into(gdpo::simd, none, e, gdpo::view(empty), workspace);
  };
  const char* const external =
      "batch.baseline: given no column; needed: the caller's baseline of each row, because a "
      "policy reads it";
  check(estimator<baseline::LengthWeighted, scale::Mad>(),
        "batch.tokens: given no column; needed: token counts, because a policy reads them");
  check(estimator<baseline::External>(), external);
  check(estimator<baseline::Mean, ByExternal>(), external);
  CHECK(difference(of_group({1, 3}, estimator<baseline::Mean, ByExternal>(), {{}, {}, {2, 4}}),
                   Vector{-0.5, 0.25}) == "");
}

}  // namespace robust_test
