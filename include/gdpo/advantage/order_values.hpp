#pragma once
// Sorting and order statistics of the values of a group, for policies with per_group_values.
// Kernels call this as well, so it uses no algorithm of the standard library and no recursion.
#include <gdpo/advantage/stat.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Moves x(node) down in the heap x(0) .. x(n - 1), whose other numbers are in their places: x(j)
/// is at least x(2 j + 1) and x(2 j + 2).
GDPO_DEVICE inline void sift_down(const View<double, 1>& x, index_t node, index_t n) {
  const double value = x(node);
  for (index_t child = 2 * node + 1; child < n; child = 2 * node + 1) {
    if (child + 1 < n && x(child) < x(child + 1)) ++child;
    if (!(value < x(child))) break;
    x(node) = x(child);
    node = child;
  }
  x(node) = value;
}

/// Sorts x in ascending order, in place: up to 32 numbers by insertion, more by a heap, which takes
/// n log n steps whatever the order is. NaN ends up anywhere.
GDPO_DEVICE inline void sort_ascending(const View<double, 1>& x) {
  const index_t n = x.extent[0];
  if (n <= 32) {
    for (index_t i = 1; i < n; ++i) {
      const double value = x(i);
      index_t j = i;
      for (; j > 0 && value < x(j - 1); --j) x(j) = x(j - 1);
      x(j) = value;
    }
    return;
  }
  for (index_t node = n / 2; node > 0; --node) sift_down(x, node - 1, n);
  for (index_t last = n - 1; last > 0; --last) {
    const double largest = x(0);
    x(0) = x(last);
    x(last) = largest;
    sift_down(x, 0, last);
  }
}

/// The values of the group in ascending order, in its scratch memory.
GDPO_DEVICE inline View<double, 1> sorted_values(const GroupArgs& a) {
  for (index_t j = 0; j < a.values.extent[0]; ++j) a.scratch(j) = a.values(j);
  sort_ascending(a.scratch);
  return a.scratch;
}

/// The median of one or more sorted numbers: the middle one or, of an even number, the mean of the
/// two in the middle. It is exact in its two doubles (the halves and their sum by TwoSum are),
/// unless a half is subnormal.
GDPO_DEVICE inline Split<double> median_of_sorted(const View<double, 1>& x) {
  const index_t n = x.extent[0];
  if (n % 2 == 1) return {x(n / 2), 0.0};
  TwoSum<double> mean;
  mean.add(math::mul(0.5, x(n / 2 - 1)));
  mean.add(math::mul(0.5, x(n / 2)));
  return {mean.sum, mean.error};
}

/// The quantile q, 0 to 1, of one or more sorted numbers, by linear interpolation between the
/// neighbors of place q (n - 1): definition 7 of Hyndman and Fan (1996), NumPy's default.
GDPO_DEVICE inline double quantile_of_sorted(const View<double, 1>& x, double q) {
  const index_t n = x.extent[0];
  const double place = math::mul(q, static_cast<double>(n - 1));
  const auto below = static_cast<index_t>(place);
  if (below + 1 >= n) return x(n - 1);
  return x(below) + math::mul(place - static_cast<double>(below), x(below + 1) - x(below));
}

}  // namespace detail
GDPO_END_NAMESPACE
