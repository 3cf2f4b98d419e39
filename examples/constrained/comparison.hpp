#pragma once

#include <array>
#include <string>
#include <vector>

#include "controllers.hpp"
#include "training.hpp"

namespace constrained {

/// How well a run kept its constraints. [0] is alignment and [1] quality; errors are in standard
/// deviations of the baseline's reward. All numbers come from exact expectations: the noise of
/// sampling reaches the controllers but not their scores.
struct Score {
  std::array<double, 2> violation;      ///< max(0, mean error of the last quarter)
  std::array<double, 2> positive_part;  ///< mean of max(0, error) over the last quarter
  /// Furthest distance beyond the limit, on the satisfied side; NaN where it never was reached.
  std::array<double, 2> undershoot;
  std::array<double, 2> oscillation;  ///< std of the error over the second half
  /// Changes of side in the second half, from beyond 0.02 to beyond -0.02 or back.
  std::array<double, 2> crossings;
  std::array<double, 2> lambda_std;  ///< std of the multiplier over the second half
  std::array<double, 2> lambda;      ///< mean of the multiplier over the last quarter
  double total_violation;            ///< sum of max(0, error) over all steps and both constraints
  double feedback;                   ///< mean of the feedback over the last quarter
};

/// Scores a run of at least 4 steps.
Score score(const std::vector<Step>& run);

/// One number of a score, and how reports show it.
struct Measure {
  std::string name;            ///< key in JSON
  std::string header;          ///< column header in tables; '\n' separates its lines
  int digits;                  ///< digits after the decimal point
  double (*of)(const Score&);  ///< the number
};
/// All measures, in the order of the tables.
const std::vector<Measure>& measures();

/// What one controller did on all seeds.
struct Result {
  Controller controller;
  std::vector<Score> runs;      ///< one score per seed
  std::vector<Step> first_run;  ///< the steps of the first seed, for the curves
};

/// Mean and std (divisor n - 1) over the runs in which the number is not NaN. The mean is NaN where
/// there is no such run, the std where there is at most one.
struct Spread {
  double mean, std;
};
Spread over_runs(const Result& result, double (*of)(const Score&));

/// All controllers on the same tasks.
struct Comparison {
  Settings settings;
  int seeds;
  std::vector<Result> results;

  /// The result of the controller with this name, which must exist.
  const Result& of(const std::string& name) const;
};

/// Trains with every controller on the same `seeds` tasks, whose seeds are settings.seed,
/// settings.seed + 1, and so on.
Comparison compare(const Settings& settings, int seeds);

/// A sentence: whether the library's default meets both constraints. It does where the violation of
/// each, averaged over the seeds, is at most 0.01 standard deviations.
std::string verdict(const Comparison& comparison);

}  // namespace constrained
