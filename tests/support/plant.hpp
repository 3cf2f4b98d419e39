// A policy reduced to what a controller sees of it: a mean violation J that drifts upwards by
// itself and is pushed down by the multiplier of the previous step,
//     J += drift - b lambda.
#pragma once
#include <algorithm>
#include <gdpo/constraint/pid.hpp>
#include <numeric>
#include <vector>

namespace plant {

/// The violation and the multiplier of each step of a closed loop.
struct Run {
  std::vector<double> violation, lambda;
  int steps() const { return static_cast<int>(violation.size()); }
  /// The largest violation of the steps first .. last - 1.
  double peak(int first, int last) const {
    return *std::max_element(violation.begin() + first, violation.begin() + last);
  }
  double first_peak() const { return peak(0, 500); }
  double last_peak() const { return peak(steps() - 500, steps()); }
  double undershoot() const { return *std::min_element(violation.begin(), violation.end()); }
  /// The sum of the violations where they are positive.
  double cumulative() const {
    return std::accumulate(violation.begin(), violation.end(), 0.0,
                           [](double sum, double j) { return sum + (std::max)(j, 0.0); });
  }
};

/// Runs a closed loop. rule(violation) gives the multiplier; drift(step) is what the violation
/// grows by in a step when the multiplier is 0.
template <class Rule, class Drift>
Run run(Rule&& rule, const Drift& drift, double b, int steps) {
  Run r;
  double j = 0, lambda = 0;
  for (int t = 0; t < steps; ++t) {
    j += drift(t) - gdpo::math::mul(b, lambda);
    lambda = rule(j);
    r.violation.push_back(j);
    r.lambda.push_back(lambda);
  }
  return r;
}

/// The loop of most tests: drift 0.5 and b 0.1, which a multiplier of 5 holds, for 2000 steps.
template <class Rule>
Run run(Rule&& rule) {
  return run(
      rule, [](int) { return 0.5; }, 0.1, 2000);
}
inline Run run_pid(const gdpo::PidGains& gains) {
  gdpo::PidLagrangian pid(gains);
  return run([&](double j) { return pid.update({j})[0].lambda; });
}

}  // namespace plant
