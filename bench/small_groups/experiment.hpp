#pragma once

#include <map>
#include <string>
#include <vector>

#include "laws.hpp"
#include "measures.hpp"

namespace small_groups {

/// What is run. Neither the number of threads nor what else is run changes a number.
struct Settings {
  std::vector<std::size_t> ks{2, 3, 4, 8, 16};  ///< completions a prompt
  std::size_t seeds = 20;                       ///< sets of prompts
  std::size_t batches = 100;                    ///< of each set of prompts
  std::size_t prompts = 64;                     ///< of a batch
  std::uint64_t seed = 1;                       ///< of all random numbers
};

/// A mean over seeds with its 95 % interval: mean -+ half_width, by Student's t over the seeds.
/// Both are NaN where a seed has no number; half_width is NaN for one seed.
struct Interval {
  double mean = 0;
  double half_width = 0;
};
Interval interval_of(const std::vector<double>& values);

/// One law and one K.
struct Cell {
  double flat = 0;                            ///< as in Measured, the mean over seeds
  std::vector<std::vector<Numbers>> by_seed;  ///< (seeds, estimators)

  /// The numbers of an estimator by seed.
  std::vector<double> values(std::size_t estimator, Measure measure) const;
  /// Those of estimator a less those of b, seed by seed: both saw the same batches.
  std::vector<double> differences(std::size_t a, std::size_t b, Measure measure) const;
  Interval interval(std::size_t estimator, Measure measure) const {
    return interval_of(values(estimator, measure));
  }
  /// The estimator with the largest mean; of several, the first. None that has no number.
  std::size_t best(Measure measure) const;
  /// Whether an estimator cannot be told from the best: it is the best, or the interval of their
  /// difference holds 0, or they differ by rounding alone.
  bool among_best(std::size_t estimator, Measure measure) const;
};

/// All that was measured.
struct Results {
  Settings settings;
  std::vector<Law> laws;
  std::vector<Estimator> estimators;
  bool complete = true;                  ///< no law and no estimator was left out
  std::vector<std::vector<Cell>> cells;  ///< (laws, K)
};

/// Runs everything on that many threads; 0: one for each of the machine.
Results run(const Settings& settings, const std::vector<Law>& laws,
            const std::vector<Estimator>& estimators, const Logs& logs, int threads);

}  // namespace small_groups
