#pragma once
// shard: distributes rows of different lengths evenly over ranks.
#include <algorithm>
#include <gdpo/group/groups_of.hpp>
#include <gdpo/math/check_fields.hpp>
#include <gdpo/update/engine/deal.hpp>
#include <type_traits>
#include <utility>
#include <vector>

GDPO_BEGIN_NAMESPACE
namespace update {

/// What a row costs, as a function of its length in tokens, for shard().
///
/// A cost is any callable with `double operator()(index_t length) const`. Only the proportions of
/// costs matter.
namespace cost {

/// A row costs its tokens.
struct Tokens {
  /// The cost of a row of `length` tokens.
  double operator()(index_t length) const { return static_cast<double>(length); }
};

/// A row costs linear L + quadratic L^2 for L tokens: matrix products, and attention over the row.
///
/// The defaults are verl's (calculate_workload). It estimates the work as 12 H^2 L + 2 H L^2 at
/// hidden size H, so `linear` is 6 H where `quadratic` is 1; 24576 is for H = 4096. With integers
/// below 2^53 at every step the cost is exact.
struct Attention {
  double linear = 24576;  ///< Cost of a token, at least 0.
  double quadratic = 1;   ///< Cost of a pair of tokens of one row, at least 0.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("linear", s.linear, at_least(0), "the cost of a token");
    field("quadratic", s.quadratic, at_least(0), "the cost of a pair of tokens of one row");
  }

  /// The cost of a row of `length` tokens.
  double operator()(index_t length) const {
    const auto tokens = static_cast<double>(length);
    return math::fma(math::mul(quadratic, tokens), tokens, math::mul(linear, tokens));
  }
};

}  // namespace cost

/// How many rows, or groups where groups stay together, a rank gets.
enum class ShardSizes {
  /// As many as balance the costs best; none is possible too.
  Free,
  /// The same number on every rank, or numbers that differ by 1 where they do not divide; for
  /// engines that need batches of one size. verl's equal_size refuses numbers that do not divide.
  /// The balance may suffer.
  Equal
};
/// The enumerators of ShardSizes with their words.
GDPO_DATA_INLINE constexpr auto enumerators(ShardSizes) {
  using E = Enumerator<ShardSizes>;
  return std::array{E{"free", ShardSizes::Free}, E{"equal", ShardSizes::Equal}};
}

/// The rows of each rank; shard() makes it.
///
/// The views refer to memory of the Sharding, which must outlive them. A rank or row that is not
/// there throws invalid_input. One that has been moved from has no ranks.
class Sharding {
 public:
  /// What shard() has found.
  explicit Sharding(detail::Assignment assignment)
      : parts_(assignment.rank_of, static_cast<index_t>(assignment.load.size()),
               [](std::size_t, index_t) {}),
        assignment_(std::move(assignment)) {}

  /// Number of ranks.
  index_t ranks() const { return parts_.count(); }
  /// The rows of a rank, in ascending order.
  View<const index_t, 1> rows(index_t rank) const& {
    detail::check_part("gdpo::update::Sharding::rows", "rank", rank, ranks());
    return parts_.of(rank);
  }
  View<const index_t, 1> rows(index_t rank) const&& = delete;  ///< Deleted: refers to freed memory.
  /// The rank of a row.
  index_t rank_of(index_t row) const {
    detail::check_part("gdpo::update::Sharding::rank_of", "row", row,
                       static_cast<index_t>(assignment_.rank_of.size()));
    return assignment_.rank_of[static_cast<std::size_t>(row)];
  }
  /// The sum of the costs of a rank's rows. It is added up in the order in which shard() gave the
  /// rows to the rank, and is exact where costs are integers with a sum up to 2^53.
  double cost(index_t rank) const {
    detail::check_part("gdpo::update::Sharding::cost", "rank", rank, ranks());
    return assignment_.load[static_cast<std::size_t>(rank)];
  }
  /// The largest cost of a rank over the mean of all ranks, the factor by which a step takes longer
  /// than with perfect balance. From 1 to the number of ranks, but for roundings; 1 if all costs
  /// are 0.
  double imbalance() const {
    if (ranks() == 0) return 1.0;
    const double sum = detail::sum_in_order(assignment_.load),
                 mean = math::opaque(sum / static_cast<double>(ranks()));
    const double largest = *std::max_element(assignment_.load.begin(), assignment_.load.end());
    return mean > 0 ? largest / mean : 1.0;
  }

 private:
  detail::RowParts parts_;
  detail::Assignment assignment_;  // of rows
};

}  // namespace update

namespace detail {

/// Deals groups of rows out to ranks; update::shard() says how, and what it refuses.
template <class T, class Groups, class Cost>
update::Sharding shard_groups(View<T, 1> lengths, const Groups& groups, index_t ranks,
                              const Cost& cost_of, update::ShardSizes counts) {
  constexpr const char* function = "gdpo::update::shard";
  static_assert(std::is_invocable_r_v<double, const Cost&, index_t>,
                "a cost is a function from a length in tokens, gdpo::index_t, to double");
  if (ranks < 1 || ranks > index_t{1} << 20) {
    contract::fail(function, "ranks", contract::text(ranks), "from 1 to 2^20 ranks");
  }
  check_fields(function, "counts", counts);
  if constexpr (has_fields_v<Cost>) check_fields(function, "cost_of", cost_of);
  const TokenLengths rows(function, lengths);
  const auto row_count = static_cast<index_t>(rows.row_lengths.size());
  groups.check(function, row_count);
  std::vector<double> costs(static_cast<std::size_t>(groups.count(row_count)));
  for (std::size_t g = 0; g < costs.size(); ++g) {
    const auto group = static_cast<index_t>(g);
    for (index_t k = 0; k < groups.length(group); ++k) {
      const index_t row = groups.row(group, k);
      const auto row_cost =
          static_cast<double>(cost_of(rows.row_lengths[static_cast<std::size_t>(row)]));
      if (math::not_finite(row_cost) || row_cost < 0) {
        contract::fail(function, "cost_of",
                       "the cost " + contract::text(row_cost) + " for row " + contract::text(row),
                       "finite costs of at least 0");
      }
      costs[g] = math::opaque(costs[g] + row_cost);
    }
  }
  const double total = sum_in_order(costs);
  if (math::not_finite(total) || total >= 0x1p1023) {
    contract::fail(function, "cost_of", "costs with the sum " + contract::text(total),
                   "a sum below 2^1023");
  }
  Assignment assignment = deal(costs, ranks, counts == update::ShardSizes::Equal);
  std::vector<index_t> rank_of(rows.row_lengths.size());
  for (std::size_t g = 0; g < costs.size(); ++g) {
    const auto group = static_cast<index_t>(g);
    for (index_t k = 0; k < groups.length(group); ++k)
      rank_of[static_cast<std::size_t>(groups.row(group, k))] = assignment.rank_of[g];
  }
  assignment.rank_of = std::move(rank_of);
  return update::Sharding(std::move(assignment));
}

}  // namespace detail

namespace update {

/// Deals rows out to ranks so that every rank has about the same cost.
///
/// The step waits for the rank with the largest cost. Each rank calls this with the lengths of all
/// rows, and trains on its own. Ranks that pass different lengths would train on other rows without
/// an error; dist::agree_on(comm, lengths) makes sure.
///
///     const auto sharding = gdpo::update::shard(lengths, world, gdpo::update::cost::Attention{});
///     const auto mine = sharding.rows(rank);
///
/// It is longest processing time first: the row with the largest cost goes to the rank with the
/// least cost so far, then the next row, and so on. Rows of equal cost are taken in row order, and
/// of ranks with equal costs the first; so all rows without cost, which come last, go to one rank.
/// With ShardSizes::Free the largest cost of a rank is at most
/// 4/3 - 1/(3 ranks) of the smallest possible (Graham, Bounds on multiprocessing timing anomalies,
/// 1969), and the smallest possible is at least the mean and the largest row. With
/// ShardSizes::Equal a rank takes no more rows when it has its number. verl
/// (get_seqlen_balanced_partitions) and OpenRLHF balance by Karmarkar and Karp's differencing
/// instead.
///
/// lengths: (rows) the tokens of each row, of any integer type, at least 0. ranks: from 1 to 2^20;
/// those beyond the number of rows get none. cost_of: cost::Tokens, cost::Attention or any function
/// from a length to a number. The result depends on the arguments alone: equal arguments on all
/// ranks give equal shardings. Costs are added as double, so integers with a sum up to 2^53 give
/// the same result wherever they are computed.
///
/// Takes time O(rows log ranks) and memory O(rows + ranks).
///
/// Errors: `invalid_input` for a number of ranks out of its range, a length below 0, more than 2^53
/// tokens, a setting of cost_of out of its range, a cost that is negative or not finite, costs with
/// a sum of 2^1023 or more, and a number that is no ShardSizes.
template <class T, class Cost = cost::Tokens>
Sharding shard(View<T, 1> lengths, index_t ranks, const Cost& cost_of = {},
               ShardSizes counts = ShardSizes::Free) {
  return detail::shard_groups(lengths, GroupsOf{1}, ranks, cost_of, counts);
}
/// The same for lengths in a std::vector.
template <class T, class Allocator, class Cost = cost::Tokens>
Sharding shard(const std::vector<T, Allocator>& lengths, index_t ranks, const Cost& cost_of = {},
               ShardSizes counts = ShardSizes::Free) {
  return shard(gdpo::view(lengths), ranks, cost_of, counts);
}
/// Deals groups out to ranks: all rows of a group go to the same rank.
///
/// groups: groups_of, by_offsets or by_id, of all rows. The cost of a group is the sum of the costs
/// of its members, added in their order, and groups are dealt out as rows are. ShardSizes::Equal
/// gives every rank the same number of groups, up to 1, empty groups included. Groups that do not
/// fit the rows throw invalid_input.
template <class T, class Groups, class Cost = cost::Tokens,
          std::enable_if_t<detail::is_host_grouping_v<Groups>, int> = 0>
Sharding shard(View<T, 1> lengths, const Groups& groups, index_t ranks, const Cost& cost_of = {},
               ShardSizes counts = ShardSizes::Free) {
  return detail::shard_groups(lengths, groups, ranks, cost_of, counts);
}
/// The same for lengths in a std::vector.
template <class T, class Allocator, class Groups, class Cost = cost::Tokens,
          std::enable_if_t<detail::is_host_grouping_v<Groups>, int> = 0>
Sharding shard(const std::vector<T, Allocator>& lengths, const Groups& groups, index_t ranks,
               const Cost& cost_of = {}, ShardSizes counts = ShardSizes::Free) {
  return shard(gdpo::view(lengths), groups, ranks, cost_of, counts);
}

}  // namespace update
GDPO_END_NAMESPACE
