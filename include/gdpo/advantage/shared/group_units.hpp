#pragma once
// The units of work that groups are cut into, so that workers can share them.
#include <algorithm>
#include <gdpo/advantage/reward_batch.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The most groups that a worker takes side by side in lanes.
constexpr int most_side_by_side = 8;

/// Groups cut into units of work, by the shape alone: about 1024 rows in a unit, and a multiple
/// of the number of groups that go side by side.
struct GroupUnits {
  index_t groups, size;

  template <class T, class Groups>
  explicit GroupUnits(const RewardBatch<T, Groups>& batch)
      : groups(batch.groups.count(batch.rewards.extent[0])),
        size((1024 * groups / (std::max<index_t>)(batch.rewards.extent[0], 1) / most_side_by_side +
              1) *
             most_side_by_side) {}
  index_t count() const { return (groups + size - 1) / size; }
  index_t begin(index_t unit) const { return unit * size; }
  index_t end(index_t unit) const { return (std::min)(groups, (unit + 1) * size); }
  /// The rows of the largest group.
  template <class Groups>
  index_t longest(const Groups& all) const {
    index_t rows = 0;
    for (index_t g = 0; g < groups; ++g) rows = (std::max)(rows, all.length(g));
    return rows;
  }
};

}  // namespace detail
GDPO_END_NAMESPACE
