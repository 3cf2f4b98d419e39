#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <vector>

namespace resolution {

/// Values that differ only by rounding noise count as one value: in sorted order, a step larger
/// than this begins a new cluster.
constexpr double cluster_gap = 1e-9;

/// The clusters of a sample, found by sorting it and cutting at the gaps. Unlike rounding to a
/// grid, this does not depend on where the grid happens to lie.
struct Clusters {
  std::size_t count = 0;
  /// Smallest step between two clusters; NaN where there are fewer than two.
  double smallest_gap = std::numeric_limits<double>::quiet_NaN();
  double largest_noise = 0;  ///< largest step inside a cluster
};

/// Clusters of finite values.
Clusters find_clusters(std::vector<double> values);

/// Numbers the clusters while values arrive. A value joins a cluster if it is within cluster_gap of
/// the first value of the cluster. That is right where the noise is far below the gap, as for
/// advantages of small groups of binary rewards: noise of 1e-15 against differences above 1e-4.
class ClusterIndex {
 public:
  /// The number (from 0) of the cluster of a value.
  int number_of(double value);

 private:
  std::map<double, int> first_values_;
};

}  // namespace resolution
