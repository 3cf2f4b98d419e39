#pragma once
// clang-format off
// The orders of summation. Every sum of the library takes one of these, so that its bits can be stated:
//
//   RowOrder  one addition after the other, in row order           statistics of groups of consecutive rows
//   TwoSum    compensated: the rounding errors are summed as well  statistics of groups by id, where the order must not matter
//   sum_rows  over the rows of a batch: blocks of 4096 rows, 16 logical lanes in a block (row i in lane i mod 16), lanes added
//             as a tree, blocks added in order: the same bits for any lane width and any number of threads; TwoSum by id
//
// On the independence of TwoSum from the order: the error of the compensated sum is of the order of n 2^-106 sum|x|, so two
// orders give different doubles only if the exact sum lies that close to the middle of two doubles and is not representable.
// clang-format on
#include <array>
#include <gdpo/lanes/pack.hpp>

GDPO_BEGIN_NAMESPACE

/// Sum in the order of the calls. V is double or a pack of lanes.
template <class V>
struct RowOrder {
  V sum{};
  GDPO_INLINE void add(const V& x) { sum = sum + x; }
  GDPO_INLINE V value() const { return sum; }
};

/// Sum with the rounding error of every addition kept (Knuth's TwoSum, second-order error).
template <class V>
struct TwoSum {
  V sum{}, error{};
  GDPO_INLINE void add(const V& x) {
    using math::opaque;  // -ffast-math would simplify the error away
    const V total = opaque(sum + x), virtual_x = opaque(total - sum);
    error = error + (opaque(sum - opaque(total - virtual_x)) + opaque(x - virtual_x));
    sum = total;
  }
  GDPO_INLINE V value() const { return sum + error; }
};

/// Which of the two a grouping uses: named here, chosen by the grouping (`Groups::Order`).
struct InRowOrder {
  template <class V>
  using Sum = RowOrder<V>;
};
struct AnyOrder {
  template <class V>
  using Sum = TwoSum<V>;
};

namespace detail {

constexpr index_t grid_block = 4096;
constexpr int grid_lanes = 16;
}  // namespace detail

/// N sums over n rows in one pass: sum_i term(x_i, w_i), `term` giving std::array<V, N> on V = double lanes; w null:
/// every weight is 1. A row of weight 0 adds exactly 0, whatever stands there.
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
      if (end - i <
          detail::grid_lanes) {  // the tail of the last block: missing lanes have weight 0
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
