#pragma once
// The pooled spread inside the groups of a batch.
#include <gdpo/advantage/stat.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What a group adds to GroupSpreads::squares. A single value adds nothing, not even if it is
/// infinite and its m2 NaN.
GDPO_INLINE double squares_of(const GroupStat& stat) { return stat.n < 2 ? 0.0 : stat.m2; }
/// What a group of n values with this sum of squares adds to GroupSpreads::shares. total: the sum
/// of squares of all groups. V: double, or lanes with one group each.
template <class V>
GDPO_INLINE V share_of(const V& squares, const V& n, double total) {
  const V share = squares / math::constant<V>(total);
  return math::select(n < math::constant<V>(2.0), math::constant<V>(0.0),
                      math::mul(share, share) / (n + math::constant<V>(1.0)));
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

/// Adds groups to the counts. squares and sizes: (groups) of each group.
GDPO_NOINLINE inline void count_groups(GroupSpreads& spreads, const double* squares,
                                       const double* sizes, index_t groups) {
  using math::mul, math::select;
  using Lanes = math::Pack<8>;
  const Lanes zero = Lanes::all(0.0), one = Lanes::all(1.0);
  Lanes sums[6];
  for (Lanes& sum : sums) sum = zero;
  index_t g = 0;
  for (; g + 8 <= groups; g += 8) {  // sums of integers: exact in any order
    const Lanes n = Lanes::load(sizes + g);
    const auto single = n <= one, equal = is_zero(Lanes::load(squares + g));
    const Lanes dof = select(single, zero, n - one), group = select(single, zero, one);
    const Lanes terms[3] = {group, dof, mul(dof, dof)};
    for (int j = 0; j < 3; ++j) {
      sums[j] = sums[j] + terms[j];
      sums[3 + j] = sums[3 + j] + select(equal, zero, terms[j]);
    }
  }
  const auto count = [&](int j) {
    return GroupSpreads::Count{static_cast<index_t>(tree_sum(sums[j])),
                               static_cast<index_t>(tree_sum(sums[j + 1])),
                               static_cast<index_t>(tree_sum(sums[j + 2]))};
  };
  spreads.all.add(count(0));
  spreads.unequal.add(count(3));
  for (; g < groups; ++g) count_group(spreads, squares[g], static_cast<index_t>(sizes[g]));
}

/// The spreads inside the groups of a column. squares and sizes: (groups) squares_of each group,
/// and how many values it has. The sums are those of sum_rows in `order` (stats/reduce.hpp), over
/// groups in place of rows.
template <class Order>
GroupSpreads spreads_of(Order order, const double* squares, const double* sizes, index_t groups) {
  GroupSpreads spreads;
  count_groups(spreads, squares, sizes, groups);
  spreads.squares =
      sum_rows<1>(order, squares, nullptr, groups,
                  [](const auto& value, const auto&) { return std::array{value}; })[0];
  if (!has_shares(spreads.squares)) return spreads;
  spreads.shares = sum_rows<1>(order, squares, sizes, groups,
                               [total = spreads.squares](const auto& value, const auto& n) {
                                 return std::array{share_of(value, n, total)};
                               })[0];
  return spreads;
}

}  // namespace detail
GDPO_END_NAMESPACE
