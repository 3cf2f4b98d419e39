#pragma once
// Costs dealt out to ranks: the algorithm behind shard().
#include <cstdint>
#include <gdpo/math/scalar.hpp>
#include <gdpo/update/engine/parts.hpp>
#include <limits>
#include <vector>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The sum, one addition after the other.
inline double sum_in_order(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum = math::opaque(sum + value);
  return sum;
}

/// Costs dealt out to ranks.
struct Assignment {
  std::vector<index_t> rank_of;  // (costs), or (rows) where costs are of groups of rows
  std::vector<double> load;      // (ranks) the sum of the costs of a rank
};

/// Gives the largest cost to the rank with the least load, then the next one, and so on. costs: at
/// least 0, with a sum below 2^1023. Equal costs are dealt in their order, and of ranks with the
/// same load the first one is taken. `equal` gives all ranks equally many, up to 1.
inline Assignment deal(const std::vector<double>& costs, index_t ranks, bool equal) {
  std::vector<SortEntry> largest_first(costs.size());
  for (std::size_t i = 0; i < costs.size(); ++i) {
    // Numbers of at least 0 sort as their bits do. A sum is -0 only under -fno-signed-zeros.
    const std::uint64_t bits = math::bits_of(costs[i]) & 0x7fffffffffffffffu;
    largest_first[i] = {bits, static_cast<index_t>(i)};
  }
  sort_largest_first(largest_first);
  constexpr double closed = -(std::numeric_limits<double>::max)();
  Assignment assignment{std::vector<index_t>(costs.size()),
                        std::vector<double>(static_cast<std::size_t>(ranks))};
  FirstFit<double> spare(assignment.load, closed);  // the loads with a minus sign
  std::vector<index_t> counts(assignment.load.size());
  // With `equal`, `larger` ranks get one more than `share`: the first that come to need it.
  const index_t share = static_cast<index_t>(costs.size()) / ranks;
  index_t larger = static_cast<index_t>(costs.size()) % ranks;
  for (const SortEntry& next : largest_first) {
    const index_t rank = spare.first_with(spare.largest());
    const auto r = static_cast<std::size_t>(rank);
    assignment.rank_of[static_cast<std::size_t>(next.index)] = rank;
    assignment.load[r] += math::from_bits(next.key);
    spare.set(rank, -assignment.load[r]);
    if (!equal) continue;
    ++counts[r];
    if (counts[r] > share && --larger == 0) {
      for (std::size_t other = 0; other < counts.size(); ++other)
        if (counts[other] >= share) spare.set(static_cast<index_t>(other), closed);
    } else if (counts[r] > share || (counts[r] == share && larger == 0)) {
      spare.set(rank, closed);
    }
  }
  return assignment;
}

}  // namespace detail
GDPO_END_NAMESPACE
