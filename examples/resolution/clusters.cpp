#include "clusters.hpp"

#include <algorithm>
#include <cmath>

namespace resolution {

Clusters find_clusters(std::vector<double> values) {
  Clusters clusters;
  if (values.empty()) return clusters;
  std::sort(values.begin(), values.end());
  clusters.count = 1;
  for (std::size_t i = 1; i < values.size(); ++i) {
    const double step = values[i] - values[i - 1];
    if (step > cluster_gap) {
      ++clusters.count;
      // fmin ignores the initial NaN.
      clusters.smallest_gap = std::fmin(clusters.smallest_gap, step);
    } else {
      clusters.largest_noise = std::max(clusters.largest_noise, step);
    }
  }
  return clusters;
}

int ClusterIndex::number_of(double value) {
  const auto near = first_values_.lower_bound(value - cluster_gap);
  if (near != first_values_.end() && near->first <= value + cluster_gap) return near->second;
  const int number = static_cast<int>(first_values_.size());
  first_values_.emplace_hint(near, value, number);
  return number;
}

}  // namespace resolution
