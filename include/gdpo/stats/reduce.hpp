#pragma once
// The orders of summation. Every statistic of the library is summed in one of these orders, so
// that the bits of its result can be stated.
//
//   RowOrder  One addition after the other, in row order. Groups of consecutive rows use it.
//   TwoSum    Compensated: the rounding error of every addition is summed as well. Groups by id use
//             it, because their result must not depend on the order of the rows.
//   sum_rows  Sums over the rows of a batch. Consecutive groups: blocks of 4096 rows; row i of a
//             block goes to logical lane i mod 16; the lanes are added as a tree, the blocks in
//             order. The bits are the same for every register width and number of threads. Groups
//             by id: TwoSum.
//
// Why the order does not matter to TwoSum: before its last rounding the compensated sum is off by
// at most about n^2 2^-106 sum|x| (Ogita, Rump, Oishi 2005, Sum2). Two orders therefore give
// different doubles only if the exact sum lies that close to the midpoint of two neighboring
// doubles.
#include <array>
#include <gdpo/lanes/pack.hpp>

GDPO_BEGIN_NAMESPACE

/// A sum in the order of the calls of `add`. V is double or a pack of lanes.
template <class V>
struct RowOrder {
  V sum{};  ///< The sum so far.
  /// Adds one number, rounded once.
  GDPO_INLINE void add(const V& x) { sum = sum + x; }
  /// The sum of all numbers added.
  GDPO_INLINE V value() const { return sum; }
};

/// A compensated sum: Knuth's TwoSum keeps the rounding error of every addition.
template <class V>
struct TwoSum {
  V sum{},      ///< The plain sum so far.
      error{};  ///< The sum of the rounding errors of its additions.
  /// Adds one number. The rounding error of sum + x is exact: what x lost, plus what the sum
  /// lost.
  GDPO_INLINE void add(const V& x) {
    using math::opaque;  // -ffast-math would simplify the error away
    const V total = opaque(sum + x), virtual_x = opaque(total - sum);
    error = error + (opaque(sum - opaque(total - virtual_x)) + opaque(x - virtual_x));
    sum = total;
  }
  /// The sum of all numbers added, errors included.
  GDPO_INLINE V value() const { return sum + error; }
};

/// The order of groups of consecutive rows. A grouping names its order as `Groups::Order`.
struct InRowOrder {
  /// How numbers are added in this order.
  template <class V>
  using Sum = RowOrder<V>;
};
/// The order of groups by id, whose sums do not depend on the order of the rows.
struct AnyOrder {
  /// How numbers are added in this order.
  template <class V>
  using Sum = TwoSum<V>;
};

namespace detail {

constexpr index_t grid_block = 4096;  // rows in a block of sum_rows
constexpr int grid_lanes = 16;        // logical lanes in a block, whatever the register width
}  // namespace detail

/// N sums over n rows in one pass, in blocks and lanes: sum_i term(x_i, w_i).
/// `term(value, weight)` takes lanes V and returns the N terms as `std::array<V, N>`. w: weights
/// (n); null: every weight is 1. A row of weight 0 adds exactly 0, whatever its value is (NaN
/// included).
template <int N, class Term>
std::array<double, N> sum_rows(InRowOrder, const double* x, const double* w, index_t n,
                               const Term& term) {
  using Lanes = math::Pack<detail::grid_lanes>;
  const Lanes zero = Lanes::all(0.0), one = Lanes::all(1.0);
  std::array<double, N> total{};
  for (index_t begin = 0; begin < n; begin += detail::grid_block) {
    const index_t end = n - begin < detail::grid_block ? n : begin + detail::grid_block;
    std::array<Lanes, N> sum{};
    for (index_t i = begin; i < end; i += detail::grid_lanes) {
      const double *values = x + i, *weights = w ? w + i : nullptr;
      double last_values[detail::grid_lanes], last_weights[detail::grid_lanes];
      // The tail of the last block is copied: the lanes beyond its end have weight 0.
      if (end - i < detail::grid_lanes) {
        for (int j = 0; j < detail::grid_lanes; ++j) {
          const bool there = i + j < end;
          last_values[j] = there ? values[j] : 0.0;
          last_weights[j] = !there ? 0.0 : weights ? weights[j] : 1.0;
        }
        values = last_values, weights = last_weights;
      }
      const Lanes weight = weights ? Lanes::load(weights) : one;
      const std::array<Lanes, N> terms = term(Lanes::load(values), weight);
      for (std::size_t s = 0; s < N; ++s) {
        sum[s] = sum[s] + (weights ? select(weight == zero, zero, terms[s]) : terms[s]);
      }
    }
    for (std::size_t s = 0; s < N; ++s) total[s] += tree_sum(sum[s]);
  }
  return total;
}

/// The same sums, compensated: one row after the other, by TwoSum.
template <int N, class Term>
std::array<double, N> sum_rows(AnyOrder, const double* x, const double* w, index_t n,
                               const Term& term) {
  using Lane = math::Pack<1>;
  std::array<TwoSum<double>, N> sum{};
  for (index_t i = 0; i < n; ++i) {
    const double weight = w ? w[i] : 1.0;
    if (weight == 0) continue;
    const std::array<Lane, N> terms = term(Lane{x[i]}, Lane{weight});
    for (std::size_t s = 0; s < N; ++s) sum[s].add(terms[s].v);
  }
  std::array<double, N> total{};
  for (std::size_t s = 0; s < N; ++s) total[s] = sum[s].value();
  return total;
}

GDPO_END_NAMESPACE
