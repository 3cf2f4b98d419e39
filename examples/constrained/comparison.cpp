#include "comparison.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../resolution/statistics.hpp"
#include "../resolution/words.hpp"

namespace constrained {
namespace {

/// The values f(step) over the last `n` steps of a run.
template <class F>
std::vector<double> last(const std::vector<Step>& run, std::size_t n, const F& f) {
  std::vector<double> values;
  for (std::size_t t = run.size() - n; t < run.size(); ++t) values.push_back(f(run[t]));
  return values;
}

/// How often the error changes sides, where a side is beyond 0.02 or beyond -0.02. Errors in
/// between belong to the side that was left last, so that noise around 0 is not counted.
double crossings_of(const std::vector<double>& errors) {
  constexpr double beyond = 0.02;
  double count = 0;
  int side = 0;
  for (const double e : errors) {
    const int now = e > beyond ? 1 : e < -beyond ? -1 : side;
    if (side != 0 && now != side) ++count;
    side = now;
  }
  return count;
}

/// The largest -error of the run, or NaN if the limit was never reached.
double undershoot_of(const std::vector<Step>& run, std::size_t c) {
  double furthest = std::numeric_limits<double>::quiet_NaN();
  for (const Step& step : run) {
    const double beyond = -step.error[c];
    if (beyond >= 0 && !(furthest >= beyond)) furthest = beyond;
  }
  return furthest;
}

}  // namespace

Score score(const std::vector<Step>& run) {
  using resolution::mean;
  using resolution::standard_deviation;
  const std::size_t quarter = run.size() / 4, half = run.size() / 2;
  Score s{};
  for (std::size_t c = 0; c < 2; ++c) {
    const auto error = [c](const Step& step) { return step.error[c]; };
    const auto lambda = [c](const Step& step) { return step.lambda[c]; };
    const auto violation = [c](const Step& step) { return std::max(0.0, step.error[c]); };
    s.violation[c] = std::max(0.0, mean(last(run, quarter, error)));
    s.positive_part[c] = mean(last(run, quarter, violation));
    s.undershoot[c] = undershoot_of(run, c);
    s.oscillation[c] = standard_deviation(last(run, half, error), 0);
    s.crossings[c] = crossings_of(last(run, half, error));
    s.lambda_std[c] = standard_deviation(last(run, half, lambda), 0);
    s.lambda[c] = mean(last(run, quarter, lambda));
    for (const double v : last(run, run.size(), violation)) s.total_violation += v;
  }
  s.feedback = mean(last(run, quarter, [](const Step& step) { return step.feedback; }));
  return s;
}

const std::vector<Measure>& measures() {
  static const std::vector<Measure> all = {
      {"violation_alignment", "violation,\nalignment", 3,
       [](const Score& s) { return s.violation[0]; }},
      {"violation_quality", "violation,\nquality", 3,
       [](const Score& s) { return s.violation[1]; }},
      {"undershoot_alignment", "undershoot,\nalignment", 3,
       [](const Score& s) { return s.undershoot[0]; }},
      {"undershoot_quality", "undershoot,\nquality", 3,
       [](const Score& s) { return s.undershoot[1]; }},
      {"oscillation_alignment", "oscillation,\nalignment", 3,
       [](const Score& s) { return s.oscillation[0]; }},
      {"oscillation_quality", "oscillation,\nquality", 3,
       [](const Score& s) { return s.oscillation[1]; }},
      {"feedback", "feedback", 3, [](const Score& s) { return s.feedback; }},
      {"lambda_alignment", "lambda,\nalignment", 2, [](const Score& s) { return s.lambda[0]; }},
      {"lambda_quality", "lambda,\nquality", 2, [](const Score& s) { return s.lambda[1]; }},
      {"total_violation", "violation,\nall steps", 0,
       [](const Score& s) { return s.total_violation; }},
      {"positive_part_alignment", "positive part,\nalignment", 3,
       [](const Score& s) { return s.positive_part[0]; }},
      {"positive_part_quality", "positive part,\nquality", 3,
       [](const Score& s) { return s.positive_part[1]; }},
      {"crossings_alignment", "crossings,\nalignment", 1,
       [](const Score& s) { return s.crossings[0]; }},
      {"crossings_quality", "crossings,\nquality", 1,
       [](const Score& s) { return s.crossings[1]; }},
      {"lambda_std_alignment", "std of lambda,\nalignment", 3,
       [](const Score& s) { return s.lambda_std[0]; }},
      {"lambda_std_quality", "std of lambda,\nquality", 3,
       [](const Score& s) { return s.lambda_std[1]; }}};
  return all;
}

Spread over_runs(const Result& result, double (*of)(const Score&)) {
  std::vector<double> values;
  for (const Score& run : result.runs) {
    if (const double value = of(run); !std::isnan(value)) values.push_back(value);
  }
  return {resolution::mean(values), resolution::standard_deviation(values, 1)};
}

const Result& Comparison::of(const std::string& name) const {
  return *std::find_if(results.begin(), results.end(),
                       [&](const Result& r) { return r.controller.name == name; });
}

Comparison compare(const Settings& settings, int seeds) {
  Comparison comparison{settings, seeds, {}};
  for (const Controller& controller : controllers(settings.gains)) {
    Result result{controller, {}, {}};
    for (int i = 0; i < seeds; ++i) {
      Settings own = settings;
      own.seed += static_cast<std::uint64_t>(i);
      own.gains = controller.gains;
      Training training(own);
      std::vector<Step> run;
      while (training.steps_done() < own.steps) run.push_back(training.step());
      result.runs.push_back(score(run));
      if (i == 0) result.first_run = std::move(run);
    }
    comparison.results.push_back(std::move(result));
  }
  return comparison;
}

std::string verdict(const Comparison& comparison) {
  constexpr double allowed = 0.01;
  const Result& ours = comparison.of("default");
  const double first = over_runs(ours, [](const Score& s) { return s.violation[0]; }).mean;
  const double second = over_runs(ours, [](const Score& s) { return s.violation[1]; }).mean;
  const bool met = first <= allowed && second <= allowed;
  return std::string("gdpo's default ") + (met ? "meets both constraints" : "misses a constraint") +
         ": mean violation " + resolution::fixed(first, 4) + " and " +
         resolution::fixed(second, 4) + " std over " +
         resolution::counted(static_cast<std::size_t>(comparison.seeds), "seed") + ", allowed " +
         resolution::fixed(allowed, 2);
}

}  // namespace constrained
