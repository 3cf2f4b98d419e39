#pragma once
// The pooled spread inside the groups of a batch.
#include <gdpo/advantage/stat.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What a group adds to GroupSpreads::squares. A single value adds nothing, not even if it is
/// infinite and its m2 NaN.
GDPO_INLINE double squares_of(const GroupStat& stat) { return stat.n < 2 ? 0.0 : stat.m2; }
/// What a group of n values with this sum of squares adds to GroupSpreads::shares. total: the sum
/// of squares of all groups.
GDPO_INLINE double share_of(double squares, index_t n, double total) {
  if (n < 2) return 0.0;
  const double share = squares / total;
  return math::mul(share, share) / static_cast<double>(n + 1);
}
/// Whether shares of this total are defined.
GDPO_INLINE bool has_shares(double total) {
  return !math::not_finite(total) && !math::is_zero(total);
}
/// Adds a group of n values to the counts.
GDPO_INLINE void count_group(GroupSpreads& spreads, double squares, index_t n) {
  if (n < 2) return;
  spreads.all.add(n);
  if (!math::is_zero(squares)) spreads.unequal.add(n);
}

/// The spreads inside the groups of a column. squares and sizes: (groups) squares_of each group,
/// and how many values it has. The sums are those of sum_rows in
/// `order` (stats/reduce.hpp), over groups in place of rows. `squares` is overwritten.
template <class Order>
GroupSpreads spreads_of(Order order, double* squares, const index_t* sizes, index_t groups) {
  GroupSpreads spreads;
  const auto sum = [&] {
    return sum_rows<1>(order, squares, nullptr, groups,
                       [](const auto& value, const auto&) { return std::array{value}; })[0];
  };
  for (index_t g = 0; g < groups; ++g) count_group(spreads, squares[g], sizes[g]);
  spreads.squares = sum();
  if (!has_shares(spreads.squares)) return spreads;
  for (index_t g = 0; g < groups; ++g) squares[g] = share_of(squares[g], sizes[g], spreads.squares);
  spreads.shares = sum();
  return spreads;
}

}  // namespace detail
GDPO_END_NAMESPACE
