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

/// Writes number k of x.
GDPO_DEVICE inline void set(const View<double, 1>& x, index_t k, double value) { x(k) = value; }
template <int L>
GDPO_INLINE void set(const LaneValues<L>& x, index_t k, const math::Pack<L>& value) {
  value.store(x.data + k * x.stride);
}

/// Sorts n numbers in every lane of one register in ascending order: number k is at x + k stride.
/// Batcher's merge exchange (Knuth, volume 3, algorithm 5.2.2M) compares the same places whatever
/// the numbers are, about n (log2 n)^2 / 4 times. No number is lost: of equal ones, as 0 and -0,
/// each stays.
GDPO_NOINLINE inline void sort_register(double* x, index_t n, index_t stride) {
  using Lanes = math::Pack<math::native_width<double>>;
  index_t top = 1;
  while (top < n) top *= 2;
  for (index_t p = top / 2; p > 0; p /= 2) {
    for (index_t q = top / 2, r = 0, d = p;; d = q - p, q /= 2, r = p) {
      for (index_t i = 0; i < n - d; ++i) {
        if ((i & p) != r) continue;
        double *const below = x + i * stride, *const above = below + d * stride;
        const Lanes a = Lanes::load(below), b = Lanes::load(above);
        const auto swap = b < a;
        select(swap, b, a).store(below), select(swap, a, b).store(above);
      }
      if (q == p) break;
    }
  }
}
/// Sorts every column of x.
template <int L>
void sort_ascending(const LaneValues<L>& x) {
  if (x.extent[0] < 2) return;
  for (int i = 0; i < L; i += math::native_width<double>)
    sort_register(x.data + i, x.extent[0], x.stride);
}

/// The values of the group in ascending order, in its scratch memory.
GDPO_DEVICE inline View<double, 1> sorted_values(const GroupArgs& a) {
  for (index_t j = 0; j < a.values.extent[0]; ++j) a.scratch(j) = a.values(j);
  sort_ascending(a.scratch);
  return a.scratch;
}
template <int L>
GDPO_INLINE LaneValues<L> sorted_values(const GroupValueLanes<L>& a) {
  return a.values;
}
/// What a View or LaneValues holds: double, or lanes.
template <class Sorted>
using number_in_t = std::decay_t<decltype(std::declval<const Sorted&>()(0))>;

/// The median of one or more sorted numbers, in a View or LaneValues: the middle one or, of an even
/// number, the mean of the two in the middle. It is exact in its two doubles (the halves and their
/// sum by TwoSum are), unless a half is subnormal.
GDPO_CALLS_ANY
template <class Sorted>
GDPO_DEVICE Split<number_in_t<Sorted>> median_of_sorted(const Sorted& x) {
  using math::mul;
  using V = number_in_t<Sorted>;
  const index_t n = x.extent[0];
  if (n % 2 == 1) return {x(n / 2), math::constant<V>(0.0)};
  const V half = math::constant<V>(0.5);
  TwoSum<V> mean{math::constant<V>(0.0), math::constant<V>(0.0)};
  mean.add(mul(half, x(n / 2 - 1)));
  mean.add(mul(half, x(n / 2)));
  return {mean.sum, mean.error};
}

/// The median of |x - median| over the sorted numbers x with this median. scratch: room for as
/// many, which may be x.
GDPO_CALLS_ANY
template <class Sorted>
GDPO_DEVICE number_in_t<Sorted> median_deviation(const Sorted& x,
                                                 const Split<number_in_t<Sorted>>& median,
                                                 const Sorted& scratch) {
  using math::abs;
  for (index_t k = 0; k < x.extent[0]; ++k) set(scratch, k, abs(center(x(k), median)));
  sort_ascending(scratch);
  return median_of_sorted(scratch).high;
}

/// The quantile q, 0 to 1, of the differences of one or more sorted numbers from `middle`, by
/// linear interpolation between the neighbors of place q (n - 1): definition 7 of Hyndman and Fan
/// (1996), NumPy's default.
GDPO_CALLS_ANY
template <class Sorted>
GDPO_DEVICE number_in_t<Sorted> quantile_of_sorted(const Sorted& x,
                                                   const number_in_t<Sorted>& middle, double q) {
  using math::mul;
  using V = number_in_t<Sorted>;
  const index_t n = x.extent[0];
  const double place = math::mul(q, static_cast<double>(n - 1));
  const auto below = static_cast<index_t>(place);
  if (below + 1 >= n) return x(n - 1) - middle;
  const V low = x(below) - middle, high = x(below + 1) - middle;
  return low + mul(math::constant<V>(place - static_cast<double>(below)), high - low);
}

}  // namespace detail
GDPO_END_NAMESPACE
