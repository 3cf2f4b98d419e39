#pragma once

#include <array>
#include <string>
#include <vector>

#include "controllers.hpp"
#include "training.hpp"

namespace constrained {

/// How well a run kept its constraints: [0] alignment, [1] quality, in std of the baseline. All from exact expectations, so
/// that the noise of sampling is in what the controllers see and not in what they are judged by.
struct Score {
  std::array<double, 2> violation;      ///< max(0, mean error of the last quarter)
  std::array<double, 2> positive_part;  ///< mean of max(0, error) over the last quarter
  std::array<double, 2>
      undershoot;  ///< furthest beyond the limit after reaching it; NaN where it never was reached
  std::array<double, 2> oscillation;  ///< std of the error over the second half
  std::array<double, 2>
      crossings;  ///< changes of side in the second half, from beyond 0.02 to beyond -0.02 or back
  std::array<double, 2> lambda_std;  ///< over the second half
  std::array<double, 2> lambda;      ///< mean of the last quarter
  double total_violation;            ///< sum of max(0, error) over all steps and both constraints
  double feedback;                   ///< mean of the last quarter
};

/// run: 4 steps or more.
Score score(const std::vector<Step>& run);

/// One number of a score, as reports show it.
struct Measure {
  std::string name;    ///< in JSON
  std::string header;  ///< in tables, '\n' between lines
  int digits;
  double (*of)(const Score&);
};
const std::vector<Measure>& measures();

struct Result {
  Controller controller;
  std::vector<Score> runs;      ///< one a seed
  std::vector<Step> first_run;  ///< of the first seed
};

struct Spread {
  double mean, std;  ///< over the runs that have the number; NaN where none, or only one, has it
};
Spread over_runs(const Result& result, double (*of)(const Score&));

struct Comparison {
  Settings settings;
  int seeds;
  std::vector<Result> results;

  const Result& of(const std::string& name) const;
};

/// Every controller on the same `seeds` tasks, from settings.seed on.
Comparison compare(const Settings& settings, int seeds);

/// "meets both constraints" or not, by the mean over the seeds of both violations: at most 1 % of a std.
std::string verdict(const Comparison& comparison);

}  // namespace constrained
