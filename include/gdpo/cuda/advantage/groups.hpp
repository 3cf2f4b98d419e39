#pragma once
// Groups as kernels walk over them, and groups by id on a device.
#include <gdpo/cuda/device/kernel.hpp>
#include <gdpo/group/by_offsets.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {

/// Groups by id on a device: the rows sorted by group. by_id sorts them on the host:
///
///     const gdpo::ById ids = gdpo::by_id(host_ids);
///     // copy ids.order() (N) and ids.offsets() (G + 1) to the device, as one integer type, then
///     gdpo::RewardBatch batch{rewards, gdpo::cuda::sorted_groups(gdpo::view(order, N),
///                                                                gdpo::view(offsets, G + 1))};
///
/// Any other source of the permutation serves as well: the rows of group g are order[offsets[g]] to
/// order[offsets[g+1] - 1]. Sums are compensated, as those of by_id are. Calls on the host take
/// by_id itself.
template <class Index>
struct SortedGroups {
  static_assert(std::is_integral_v<Index>, "rows and offsets are integers (int32 or int64)");
  using Order = AnyOrder;        ///< sums are compensated (stats/reduce.hpp)
  View<const Index, 1> order;    ///< (N) rows, group after group
  View<const Index, 1> offsets;  ///< (G + 1) where each group begins in `order`, then N

  /// Throws invalid_input unless `order` has one entry for each of `rows` rows and `offsets` has
  /// one.
  void check_shape(const char* function, index_t rows) const {
    contract::check_extents(function, "groups.order", 1, order.extent);
    contract::check_entries(function, "groups.order", order.extent[0], rows);
    if (contract::check_extents(function, "groups.offsets", 1, offsets.extent) == 0) {
      contract::fail(function, "groups.offsets", "no entries",
                     "entries from 0 to " + contract::text(rows) + ", the number of rows");
    }
  }
  /// Throws invalid_input if one of the arrays is a null pointer.
  void check_arrays(const char* function) const {
    contract::check_array(function, "groups.order", order);
    contract::check_array(function, "groups.offsets", offsets);
  }
  /// Number of groups. The number of rows, its argument, is not needed.
  index_t count(index_t) const { return offsets.extent[0] - 1; }
};
/// SortedGroups of two device arrays of one integer type: order (N) and offsets (G + 1).
template <class Index, class Offset>
SortedGroups<std::remove_const_t<Index>> sorted_groups(View<Index, 1> order,
                                                       View<Offset, 1> offsets) {
  static_assert(std::is_same_v<std::remove_const_t<Index>, std::remove_const_t<Offset>>,
                "order and offsets are of one type");
  return {order, offsets};
}

namespace detail {

/// i, but not below `low` and not above `high`.
GDPO_INLINE index_t within(index_t i, index_t low, index_t high) {
  return i < low ? low : i < high ? i : high;
}

/// A grouping as kernels read it. The members of group g have the places begin(g) .. end(g) - 1;
/// place p is row(p) of the batch. Places and rows lie inside the batch, whatever stands in the
/// arrays on the device. `consecutive`: a place is its own row.
template <class Groups>
struct DeviceGroups {
  static_assert(sizeof(Groups) == 0,
                "a device walks over groups_of, by_offsets and cuda::sorted_groups: by_id holds "
                "its groups on the host, "
                "cuda/advantage/groups.hpp says how they come to a device");
};

template <>
struct DeviceGroups<GroupsOf> {
  static constexpr bool consecutive = true;
  index_t size;
  DeviceGroups(const GroupsOf& groups, index_t) : size(groups.size) {}
  static void check(const GroupsOf& groups, const char* function, index_t rows) {
    groups.check(function, rows);
  }
  GDPO_INLINE index_t begin(index_t g) const { return g * size; }
  GDPO_INLINE index_t end(index_t g) const { return (g + 1) * size; }
  GDPO_INLINE index_t row(index_t place) const { return place; }
  /// The group of a row, known to all threads of the block.
  template <class Block>
  GDPO_INLINE index_t group_of(Block&, index_t row, index_t) const {
    return row / size;
  }
};

/// Throws where an array of the groups is a null pointer. Groups of one size have none.
template <class Groups>
void check_group_arrays(const char*, const Groups&) {}
template <class Index>
void check_group_arrays(const char* function, const ByOffsets<Index>& groups) {
  groups.check_arrays(function);
}
template <class Index>
void check_group_arrays(const char* function, const SortedGroups<Index>& groups) {
  groups.check_arrays(function);
}

template <class Index>
struct DeviceGroups<ByOffsets<Index>> {
  static constexpr bool consecutive = true;
  View<const Index, 1> offsets;
  index_t rows;
  DeviceGroups(const ByOffsets<Index>& groups, index_t n) : offsets(groups.offsets), rows(n) {}
  static void check(const ByOffsets<Index>& groups, const char* function, index_t n) {
    groups.check_shape(function, n);
  }
  GDPO_INLINE index_t begin(index_t g) const {
    return within(static_cast<index_t>(offsets(g)), 0, rows);
  }
  GDPO_INLINE index_t end(index_t g) const {
    return within(static_cast<index_t>(offsets(g + 1)), begin(g), rows);
  }
  GDPO_INLINE index_t row(index_t place) const { return place; }
  /// The first of `count` groups that ends after the row, known to all threads of the block. In
  /// each step the threads test groups at equal distances; the search goes on between two of them.
  template <class Block>
  GDPO_DEVICE index_t group_of(Block& block, index_t row, index_t count) const {
    index_t low = 0, high = count;
    const index_t threads = block.threads();
    while (low < high) {
      const index_t step = (high - low + threads - 1) / threads;
      const auto n_before = block.template reduce<Sum<index_t>>([&](int thread) {
        const index_t g = low + thread * step;
        return Sum<index_t>{g < high && end(g) <= row ? index_t{1} : index_t{0}};
      });
      if (n_before.value == 0) return low;
      // The last group that was seen to end before the row.
      const index_t last = low + (n_before.value - 1) * step;
      high = within(last + step, 0, high);
      low = last + 1;
    }
    return low;
  }
};

template <class Index>
struct DeviceGroups<SortedGroups<Index>> {
  static constexpr bool consecutive = false;
  View<const Index, 1> order, offsets;
  index_t rows;
  DeviceGroups(const SortedGroups<Index>& groups, index_t n)
      : order(groups.order), offsets(groups.offsets), rows(n) {}
  static void check(const SortedGroups<Index>& groups, const char* function, index_t n) {
    groups.check_shape(function, n);
  }
  GDPO_INLINE index_t begin(index_t g) const {
    return within(static_cast<index_t>(offsets(g)), 0, rows);
  }
  GDPO_INLINE index_t end(index_t g) const {
    return within(static_cast<index_t>(offsets(g + 1)), begin(g), rows);
  }
  GDPO_INLINE index_t row(index_t place) const {
    return within(static_cast<index_t>(order(place)), 0, rows - 1);
  }
};

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
