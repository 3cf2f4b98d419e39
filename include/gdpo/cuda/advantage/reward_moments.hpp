#pragma once
// Moments of N numbers on a device, with the bits of moments_of and moments_about. Rows form
// windows of 4096; a window is added in 16 lanes, the lanes as a tree, and the windows in their
// order. For groups by id every one of these sums is compensated, which gives the bits of one
// TwoSum over all rows wherever the order of its terms does not matter (stats/reduce.hpp).
#include <algorithm>
#include <gdpo/cuda/device/device_column.hpp>
#include <gdpo/cuda/device/kernel.hpp>
#include <gdpo/stats/moments.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

using gdpo::detail::moments_of_sums;

constexpr index_t window_rows = gdpo::detail::grid_block;
constexpr int window_lanes = gdpo::detail::grid_lanes;

GDPO_INLINE index_t windows_of(index_t rows) { return (rows + window_rows - 1) / window_rows; }

/// Adds b to a. A compensated sum also adds the error of b.
GDPO_INLINE void merge_sums(RowOrder<double>& a, const RowOrder<double>& b) { a.add(b.sum); }
GDPO_INLINE void merge_sums(TwoSum<double>& a, const TwoSum<double>& b) {
  a.add(b.sum);
  a.error = a.error + b.error;
}

/// The sums of the first pass over a set of weighted numbers. Numbers of weight 0 are no members.
template <class Order>
struct FirstSums {
  typename Order::template Sum<double> weight{}, total{};
  double min = math::infinity, max = -math::infinity;
  index_t n = 0, nonzero = 0, nans = 0;  // members, members that are not 0, members that are NaN

  GDPO_INLINE void add(double x, double w, double) {
    if (w == 0) return;
    weight.add(w);
    total.add(math::mul(w, x));
    min = (math::min)(min, x);
    max = (math::max)(max, x);
    ++n;
    nonzero += x != 0;
    nans += math::is_nan(x);
  }
  GDPO_INLINE void add(const FirstSums& o) {
    merge_sums(weight, o.weight);
    merge_sums(total, o.total);
    min = (math::min)(min, o.min);
    max = (math::max)(max, o.max);
    n += o.n;
    nonzero += o.nonzero;
    nans += o.nans;
  }
  /// The mean, up to rounding.
  GDPO_INLINE double center() const { return n == 0 ? 0.0 : total.value() / weight.value(); }
};

/// The sums of the second pass, about the center that the first pass gives: w, w d and w d^2 with
/// d = x - center.
template <class Order>
struct SecondSums {
  typename Order::template Sum<double> weight{}, rest{}, square{};

  GDPO_INLINE void add(double x, double w, double center) {
    if (w == 0) return;
    const double d = x - center;
    weight.add(w);
    rest.add(math::mul(w, d));
    square.add(math::mul(w, math::mul(d, d)));
  }
  GDPO_INLINE void add(const SecondSums& o) {
    merge_sums(weight, o.weight);
    merge_sums(rest, o.rest);
    merge_sums(square, o.square);
  }
  GDPO_INLINE Moments moments(double center) const {
    return moments_of_sums(weight.value(), rest.value(), square.value(), center);
  }
};

/// The sum of numbers without weights.
template <class Order>
struct SumOfNumbers {
  typename Order::template Sum<double> sum{};

  GDPO_INLINE void add(double x, double, double) { sum.add(x); }
  GDPO_INLINE void add(const SumOfNumbers& o) { merge_sums(sum, o.sum); }
};

/// The moments, made from the sums of both passes as moments_of makes them.
template <class Order>
GDPO_DEVICE Moments moments_of_windows(const FirstSums<Order>& first,
                                       const SecondSums<Order>& second) {
  Moments m;
  m.n = first.n;
  if (m.n == 0) return m;
  m.min = first.min;
  m.max = first.max;
  m.weight = first.weight.value();
  if (first.nans > 0) {
    m.mean = m.mean_low = m.m2 = m.min = m.max = math::nan();
  } else if (degenerate(m)) {
    m.mean = m.min;
  } else {
    m = second.moments(first.center());
    m.n = first.n;
    m.min = first.min;
    m.max = first.max;
  }
  return m;
}

/// The sums of one window, known to all threads. x(i), w(i): value and weight of its number i. What
/// they read must have been written before the call, in an earlier `each`.
template <class Sums, class Block, class Value, class Weight>
GDPO_DEVICE Sums sums_of_window(Block& block, index_t numbers, double center, const Value& x,
                                const Weight& w) {
  const int n = static_cast<int>(numbers);
  return block.template reduce<Sums>([&](int thread) {
    Sums sums;
    if (thread < window_lanes) {
      for (int i = thread; i < n; i += window_lanes) sums.add(x(i), w(i), center);
    }
    return sums;
  });
}

/// The sums of all windows, added in their order and known to all threads. shared: memory of the
/// block, shared_for_windows(threads) bytes.
template <class Sums, class Block>
GDPO_DEVICE Sums sums_of_windows(Block& block, const Sums* window_sums, index_t windows,
                                 void* shared) {
  Sums* const chunk = static_cast<Sums*>(shared);
  Sums* const total = chunk + block.threads();
  const index_t threads = block.threads();
  for (index_t first = 0; first < windows || first == 0; first += threads) {
    block.each([&](int thread) {
      if (first + thread < windows) chunk[thread] = window_sums[first + thread];
      if (first == 0 && thread == 0) *total = Sums{};
    });
    block.each([&](int thread) {
      if (thread != 0) return;
      Sums sums = *total;
      const int n = static_cast<int>(windows - first < threads ? windows - first : threads);
      for (int i = 0; i < n; ++i) sums.add(chunk[i]);
      *total = sums;
    });
  }
  const Sums sums = *total;
  block.each([](int) {});  // a barrier: the next call writes *total again
  return sums;
}
/// Bytes of shared memory that sums_of_windows needs.
template <class Order>
std::size_t shared_for_windows(int threads) {
  return (std::max)(sizeof(FirstSums<Order>), sizeof(SecondSums<Order>)) *
         static_cast<std::size_t>(threads + 1);
}

/// Several sets of `rows` numbers each, and the weight of every number.
struct WeightedNumbers {
  const double* x = nullptr;             // (sets, rows)
  const unsigned char* state = nullptr;  // (sets, rows) not 0: has weight 0; null: none of them
  DeviceColumn<double> weights;          // (rows); absent: every weight is 1
  index_t rows = 0;

  GDPO_INLINE double value(index_t set, index_t i) const { return x[set * rows + i]; }
  GDPO_INLINE double weight(index_t set, index_t i) const {
    if (state && state[set * rows + i] != 0) return 0.0;
    return weights ? weights(i) : 1.0;
  }
};

/// Whether any of n flags is set, known to all threads. flags may be null: then none is.
template <class Block>
GDPO_INLINE bool any_flag(Block& block, const unsigned char* flags, index_t n) {
  if (!flags) return false;
  const auto set = block.template reduce<Sum<int>>([&](int thread) {
    Sum<int> sum;
    for (index_t i = thread; i < n; i += block.threads()) sum.value = sum.value | flags[i];
    return sum;
  });
  return set.value != 0;
}

/// The sums of one window a block: block i takes window i % windows of set i / windows. Sums is
/// FirstSums, or SecondSums about a center: the mean that the sums `first` give, or 0 without them.
/// `raw` are flags of groups (raw singletons); where they are given and none is set, the center
/// is 0 as well.
template <class Sums, class Order>
struct SumWindows {
  WeightedNumbers numbers;
  const FirstSums<Order>* first;  // (sets, windows)
  const unsigned char* raw;       // (groups)
  index_t groups;
  Sums* sums;  // (sets, windows)
  static constexpr int threads = 256;

  static std::size_t shared_bytes() {
    return 2 * sizeof(double) * window_rows + shared_for_windows<Order>(threads);
  }

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    double* const x = block.template shared<double>();
    double* const w = x + window_rows;
    const index_t windows = windows_of(numbers.rows), set = block.index() / windows,
                  window = block.index() % windows;
    const index_t begin = window * window_rows,
                  n = numbers.rows - begin < window_rows ? numbers.rows - begin : window_rows;
    double center = 0;
    if (first && (!raw || any_flag(block, raw, groups))) {
      center = sums_of_windows(block, first + set * windows, windows, w + window_rows).center();
    }
    block.each([&](int thread) {
      for (index_t i = thread; i < n; i += threads) {
        x[i] = numbers.value(set, begin + i);
        w[i] = numbers.weight(set, begin + i);
      }
    });
    const Sums total = sums_of_window<Sums>(
        block, n, center, [&](int i) { return x[i]; }, [&](int i) { return w[i]; });
    block.each([&](int thread) {
      if (thread == 0) sums[block.index()] = total;
    });
  }
};

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
