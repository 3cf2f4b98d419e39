#include "separated.hpp"

#include <algorithm>
#include <cmath>

namespace resolution {

std::vector<SeparatedGroup> separated_groups(const Comparison& comparison) {
  const EstimatorResult* sum = comparison.sum_first();
  const EstimatorResult* normalized = comparison.normalize_first();
  if (sum == nullptr || normalized == nullptr) return {};
  const std::vector<double>& s = sum->advantages;
  const std::vector<double>& n = normalized->advantages;
  std::vector<SeparatedGroup> groups;
  std::vector<std::size_t> order;
  for (std::size_t g = 0; g < comparison.rollouts.groups(); ++g) {
    order.clear();
    for (const std::size_t row : comparison.counted_rows(g)) {
      if (std::isfinite(s[row]) && std::isfinite(n[row])) order.push_back(row);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return s[a] < s[b]; });
    SeparatedGroup best{g, 0, 0, advantage_tolerance};
    std::size_t first = 0;  // of the tie, and its rows with the least and the largest advantage
    std::size_t low = 0;
    std::size_t high = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const std::size_t row = order[i];
      if (i == 0 || s[row] - s[order[first]] > advantage_tolerance) {
        first = i;
        low = high = row;
      }
      if (n[row] < n[low]) low = row;
      if (n[row] > n[high]) high = row;
      if (n[high] - n[low] > best.apart) best = {g, low, high, n[high] - n[low]};
    }
    if (best.low != best.high) groups.push_back(best);
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto& a, const auto& b) { return a.apart > b.apart; });
  return groups;
}

}  // namespace resolution
