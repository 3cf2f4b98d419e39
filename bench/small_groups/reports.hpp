#pragma once

#include <string>

#include "experiment.hpp"

namespace small_groups {

/// Which tables are printed.
struct Shown {
  bool summary = true;       ///< over all laws; only where all laws and estimators were run
  bool laws = true;          ///< of each law: the cosines by K
  bool details = true;       ///< of each law: all measures of one K
  std::size_t detail_k = 4;  ///< that K; one of Settings::ks
};

/// The tables in Markdown, each between the comments <!-- table: NAME --> and <!-- end -->, which
/// tests/pages/pages.py reads.
std::string to_markdown(const Results& results, const Shown& shown);

/// All measures with their intervals, and the differences between stabilized and plain estimators.
std::string to_json(const Results& results);

/// A stabilized estimator and the plain one, by their numbers in Results::estimators.
struct Pair {
  std::size_t stabilized, plain;
};
std::vector<Pair> stabilized_pairs(const Results& results);

/// By how much an estimator misses the best one in a law: mean and largest over the laws.
struct Shortfall {
  double mean = 0;
  double largest = 0;
  std::size_t law = 0;  ///< where it is largest
};
Shortfall shortfall(const Results& results, std::size_t k_number, std::size_t estimator,
                    Measure measure);

}  // namespace small_groups
