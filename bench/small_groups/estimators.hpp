#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bandits.hpp"

namespace small_groups {

/// An estimator of advantages, computed by the library.
struct Estimator {
  std::string name;     ///< as given on the command line
  std::string formula;  ///< what is done to a group, in the library's names
  /// The estimator of which this one is the stabilized form; empty: it is none.
  std::string plain;
  /// Whether each reward is standardized by itself, before the sum.
  bool each_reward = false;
  /// Makes a function that writes the advantages of a batch. Each thread needs one of its own,
  /// because it keeps the library's memory.
  using Run =
      std::function<void(const Bandits&, const Sample&, std::size_t k, std::vector<double>& out)>;
  std::function<Run()> make;
};

/// All estimators, in the order of the report.
const std::vector<Estimator>& all_estimators();

}  // namespace small_groups
