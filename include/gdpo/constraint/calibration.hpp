#pragma once
// calibrate: the limit of a constraint from the rewards of a baseline run.
#include <gdpo/constraint/shortfall.hpp>

GDPO_BEGIN_NAMESPACE

/// Count, mean and spread of a reward over a baseline run, computed in double. values: (N); NaN is
/// a missing reward and left out. Allocates a copy of the values. The moments of several parts or
/// ranks `merge()` into those of the whole.
template <class T>
Moments baseline_moments(View<T, 1> values) {
  std::vector<double> present;
  present.reserve(
      static_cast<std::size_t>(contract::check_array("gdpo::baseline_moments", "values", values)));
  for (index_t i = 0; i < values.extent[0]; ++i) {
    const double x = load(values(i));
    if (!math::is_nan(x)) present.push_back(x);
  }
  return moments_of(InRowOrder{}, present.data(), nullptr, static_cast<index_t>(present.size()));
}

/// A set-point from the rewards of the baseline policy: limit = mean + k std, scale = std (ddof 1).
/// Source: Recommendation-as-Generation (arXiv 2606.25496), tau_c = mu_c + k_c sigma_c with k_c
/// from 0.3 to 1.1.
///
/// For a reward (AtLeast), k > 0 asks for more than the baseline earns, so at first the policy
/// violates: if the rewards are normally distributed, the mean hinge is 0.57, 0.92 and 1.17 std at
/// k = 0.3, 0.8 and 1.1. For a cost (AtMost), a negative k asks for less than the baseline costs.
///
/// Errors: `invalid_input` for a k or a limit that is not finite. Also for fewer than 2 samples, a
/// spread of 0, or moments that are not finite: violations would then have no unit.
inline SetPoint calibrate(const Moments& baseline, double k, Bound bound = Bound::AtLeast) {
  constexpr const char* function = "gdpo::calibrate";
  if (math::not_finite(k)) contract::fail(function, "k", contract::text(k), "a finite number");
  if (baseline.n < 2) {
    contract::fail(function, "baseline", contract::text(baseline.n) + " samples",
                   "two or more, to have a spread");
  }
  const double sigma = stddev(baseline);
  if (!(sigma > 0) || math::not_finite(sigma) || math::not_finite(baseline.mean)) {
    contract::fail(function, "baseline",
                   "mean " + contract::text(baseline.mean) + " and standard deviation " +
                       contract::text(sigma),
                   "a finite mean and a finite spread above 0");
  }
  const double limit = baseline.mean + math::mul(k, sigma);
  if (math::not_finite(limit))
    contract::fail(function, "k", contract::text(k), "one that gives a finite limit");
  return {limit, sigma, bound, k, baseline};
}

/// One candidate k, tried on the samples of the baseline run.
struct CalibrationRow {
  double k,               ///< The candidate.
      limit;              ///< mean + k std, in units of the reward.
  double violation_rate;  ///< Share of the baseline samples beyond that limit, from 0 to 1.
  double mean_violation;  ///< Mean hinge of the baseline samples, in standard deviations.
};

/// What each candidate k would ask of the baseline policy: a table to choose k from. values: (N),
/// rewards of the baseline run; NaN is a missing reward. One row for each entry of `ks`, in their
/// order. Errors: those of `calibrate()`.
template <class T>
std::vector<CalibrationRow> calibration_report(View<T, 1> values, const std::vector<double>& ks,
                                               Bound bound = Bound::AtLeast) {
  const Moments baseline = baseline_moments(values);
  std::vector<CalibrationRow> rows;
  for (const double k : ks) {
    const SetPoint point = calibrate(baseline, k, bound);
    const ConstraintMetrics m = measure(values, point);
    rows.push_back({k, point.limit, m.violation_rate(), m.mean_violation() / point.scale});
  }
  return rows;
}

GDPO_END_NAMESPACE
