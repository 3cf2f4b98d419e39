// labels: sanitizers
// Set-points from a baseline run: what they ask for, what cannot be calibrated, and that the merged
// moments of parts of a run calibrate as the whole does.
#include <gdpo/constraint.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "support/tolerance.hpp"

namespace calibration_test {

namespace {

const double no = std::nan(""), inf = std::numeric_limits<double>::infinity();

/// Normal samples by the method of Box and Muller.
std::vector<double> normal_samples(Random& random, int n, double mean, double std) {
  std::vector<double> x;
  while (static_cast<int>(x.size()) < n) {
    const double radius = std::sqrt(-2 * std::log(1 - random.uniform())),
                 angle = 2 * std::acos(-1.0) * random.uniform();
    x.push_back(mean + std * radius * std::cos(angle));
    x.push_back(mean + std * radius * std::sin(angle));
  }
  return x;
}

}  // namespace

TEST_CASE("a set-point by hand", "[calibration]") {
  // Mean 3, sum of squared deviations 14, std sqrt(14 / 3).
  const std::vector<float> values{1, 2, static_cast<float>(no), 3, 6};
  const gdpo::Moments m = gdpo::baseline_moments(gdpo::view(values));
  CHECK(m.n == 4);
  CHECK(m.mean == 3);
  const double sigma = std::sqrt(14.0 / 3);
  const gdpo::SetPoint reward = gdpo::calibrate(m, 0.5);
  CHECK(std::abs(reward.limit - (3 + 0.5 * sigma)) <= tolerance::formula);
  CHECK(std::abs(reward.scale - sigma) <= tolerance::formula);
  CHECK(reward.bound == gdpo::Bound::AtLeast);
  CHECK(reward.k == 0.5);
  CHECK(reward.baseline.n == 4);
  CHECK(reward.baseline.m2 == m.m2);
  // The baseline violates its own set-point by k.
  CHECK(std::abs(gdpo::error_of(reward, m.mean) - 0.5) <= tolerance::formula);
  // For a cost (AtMost) a negative k asks for less than the baseline has, and a positive k allows
  // more.
  const gdpo::SetPoint cost = gdpo::calibrate(m, -0.5, gdpo::Bound::AtMost);
  CHECK(std::abs(cost.limit - (3 - 0.5 * sigma)) <= tolerance::formula);
  CHECK(cost.bound == gdpo::Bound::AtMost);
  CHECK(std::abs(gdpo::error_of(cost, m.mean) - 0.5) <= tolerance::formula);
  CHECK(gdpo::error_of(gdpo::calibrate(m, 0.5, gdpo::Bound::AtMost), m.mean) < 0);
}

TEST_CASE("what a threshold k asks of a normal baseline", "[calibration]") {
  // A normal sample is below mean + k std with probability Phi(k), and violates that limit by
  // E max(0, k - x) = phi(k) + k Phi(k) stds on average. The report takes both as means of n
  // samples with a standard deviation below 1, at a limit that it estimates with an error of the
  // same order: 5 / sqrt(n) is about five standard errors. The quoted numbers have two digits: half
  // of the last one is 0.005.
  const int n = 200000;
  const double tolerance = 5 / std::sqrt(n);
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const std::vector<double> x = normal_samples(random, n, 0.7, 0.2);
    const std::vector<double> ks{0, 0.3, 0.8, 1.1};
    const double quoted_rate[] = {0.50, 0.62, 0.79, 0.86},
                 quoted_violation[] = {0.40, 0.57, 0.92, 1.17};
    const auto rows = gdpo::calibration_report(gdpo::view(x), ks);
    REQUIRE(rows.size() == ks.size());
    for (std::size_t i = 0; i < ks.size(); ++i) {
      const double k = ks[i], below = 0.5 * std::erfc(-k / std::sqrt(2.0));
      const double density = std::exp(-k * k / 2) / std::sqrt(2 * std::acos(-1.0));
      CHECK(rows[i].k == k);
      CHECK(std::abs(rows[i].limit - (0.7 + 0.2 * k)) <= tolerance);
      CHECK(std::abs(rows[i].violation_rate - below) <= tolerance);
      CHECK(std::abs(rows[i].mean_violation - (density + k * below)) <= tolerance);
      CHECK(std::abs(below - quoted_rate[i]) <= 0.005);
      CHECK(std::abs(density + k * below - quoted_violation[i]) <= 0.005);
    }
    // The mirrored samples under AtMost give the same row with the sign of the limit turned.
    std::vector<double> mirrored;
    for (const double v : x) mirrored.push_back(-v);
    const auto cost = gdpo::calibration_report(gdpo::view(mirrored), {-0.8}, gdpo::Bound::AtMost);
    CHECK(std::abs(cost[0].limit + rows[2].limit) <= tolerance::formula);
    CHECK(cost[0].violation_rate == rows[2].violation_rate);
    CHECK(std::abs(cost[0].mean_violation - rows[2].mean_violation) <= n * tolerance::unit);
  }
}

TEST_CASE("moments of micro-batches and ranks calibrate as those of the whole", "[calibration]") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    std::vector<double> x =
        normal_samples(random, 20 + random.below(2000), random.pick({0.0, 0.7, 100.0}), 0.2);
    for (double& v : x) v = random.chance(0.05) ? no : v;
    const auto n = static_cast<gdpo::index_t>(x.size());
    const gdpo::SetPoint whole = gdpo::calibrate(gdpo::baseline_moments(gdpo::view(x)), 0.8);
    gdpo::Moments merged;
    for (gdpo::index_t begin = 0; begin < n;) {
      const gdpo::index_t end = std::min<gdpo::index_t>(n, begin + random.below(300));
      merged = gdpo::merge(
          merged, gdpo::baseline_moments(gdpo::view(std::as_const(x).data() + begin, end - begin)));
      begin = end;
    }
    const gdpo::SetPoint parts = gdpo::calibrate(merged, 0.8);
    CHECK(parts.baseline.n == whole.baseline.n);
    CHECK(std::abs(parts.scale - whole.scale) <= tolerance::merge * whole.scale);
    CHECK(std::abs(parts.limit - whole.limit) <= tolerance::merge * std::abs(whole.limit));
  }
}

TEST_CASE("what cannot be calibrated is refused by name", "[calibration][errors]") {
  const auto message = [](const std::vector<double>& values, double k = 0.8) {
    return message_of([&] { gdpo::calibrate(gdpo::baseline_moments(gdpo::view(values)), k); });
  };
  const std::string at = "gdpo::calibrate: ",
                    samples = " samples; needed: two or more, to have a spread";
  CHECK(message({}) == at + "baseline: given 0" + samples);
  CHECK(message({0.5, no}) == at + "baseline: given 1" + samples);
  CHECK(message({0.5, 0.5, 0.5}) ==
        at + "baseline: given mean 0.5 and standard deviation 0; needed: a finite mean and a "
             "finite spread above 0");
  CHECK(message({0.5, inf}).find(at + "baseline: given mean ") == 0);
  CHECK(message({0.5, 1}, inf) == at + "k: given inf; needed: a finite number");
  CHECK(message({0.5, 1}, no).find(at + "k: given ") == 0);
  CHECK(message({0.5, 1}) == "no error");
  CHECK(message({0, 1e10}, 1e300) ==
        at + "k: given 1.0000000000000001e+300; needed: one that gives a finite limit");
  gdpo::Moments unknown = gdpo::baseline_moments(gdpo::view(std::vector<double>{1, 2}.data(), 2));
  unknown.mean = no;
  CHECK(message_of([&] { gdpo::calibrate(unknown, 1); }).find("baseline: given mean ") !=
        std::string::npos);
  const std::vector<double> lone{1};
  CHECK(message_of([&] { gdpo::calibration_report(gdpo::view(lone), {0.3}); }) ==
        at + "baseline: given 1" + samples);
  CHECK(gdpo::calibration_report(gdpo::view(lone), {}).empty());
}

TEST_CASE("calibrated set-points reach the constraints of a controller", "[calibration]") {
  Random random(4);
  const std::vector<double> a = normal_samples(random, 100, 0.5, 0.2),
                            cost = normal_samples(random, 100, 3, 1);
  const gdpo::SetPoint points[] = {
      gdpo::calibrate(gdpo::baseline_moments(gdpo::view(a)), 0.8),
      gdpo::calibrate(gdpo::baseline_moments(gdpo::view(cost)), -0.3, gdpo::Bound::AtMost)};
  gdpo::PidLagrangian pid(gdpo::PidGains{}, {points[0], points[1]});
  pid.update({gdpo::measure(gdpo::view(a), points[0]).value(),
              gdpo::measure(gdpo::view(cost), points[1]).value()});
  const auto constraints = pid.constraints({2, 1}, gdpo::Signal::Hinge);
  REQUIRE(constraints.size() == 2);
  for (gdpo::index_t k = 0; k < 2; ++k) {
    CHECK(constraints[k].reward == 2 - k);
    CHECK(constraints[k].lambda == pid.lambda(k));
    CHECK(constraints[k].lambda > 0);  // the baselines violate by 0.8 and by 0.3
    CHECK(constraints[k].limit == points[k].limit);
    CHECK(constraints[k].scale == points[k].scale);
    CHECK(constraints[k].bound == points[k].bound);
    CHECK(constraints[k].signal == gdpo::Signal::Hinge);
  }
  CHECK(pid.constraints({2, 1})[0].signal == gdpo::Signal::Linear);
  CHECK(message_of([&] { pid.constraints({2}); }).find("rewards: given 1 rewards") !=
        std::string::npos);
}

}  // namespace calibration_test
