#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <vector>

namespace resolution {

/// Values that differ by rounding noise only count as one: in sorted order, a step above this begins a new cluster.
constexpr double cluster_gap = 1e-9;

/// Sorting all values and cutting at the gaps: independent of where a rounding grid happens to lie.
struct Clusters {
  std::size_t count = 0;
  double smallest_gap = std::numeric_limits<
      double>::quiet_NaN();  ///< smallest step between clusters; NaN: one cluster
  double largest_noise = 0;  ///< largest step inside a cluster
};

/// Clusters of finite values.
Clusters find_clusters(std::vector<double> values);

/// Numbers clusters while values arrive. Right where the noise is far below the gap, as it is for advantages of small
/// groups of binary rewards (1e-15 against differences above 1e-4).
class ClusterIndex {
 public:
  /// The number (from 0) of the cluster of a value.
  int number_of(double value);

 private:
  std::map<double, int> first_values_;
};

}  // namespace resolution
