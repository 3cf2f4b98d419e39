#pragma once
// by_id: rows with the same id form a group, wherever they are.
#include <algorithm>
#include <cstdint>
#include <gdpo/group/groups_of.hpp>
#include <string>
#include <vector>

GDPO_BEGIN_NAMESPACE

/// Rows with the same id form a group, wherever they stand; made by `by_id`.
/// Groups are numbered by ascending id; the members of a group are in row order. Sums are
/// compensated (stats/reduce.hpp): shuffling the rows or relabeling the ids gives the same bits.
/// An object that has been moved from has no groups.
class ById {
 public:
  using Order = AnyOrder;  ///< Statistics are summed by TwoSum.

  /// Sorts the rows by their ids, (N). `expected_size` is that of `by_id`.
  template <class Id>
  ById(View<const Id, 1> ids, index_t expected_size) : expected_size_(expected_size) {
    contract::check_array("gdpo::by_id", "ids", ids);
    detail::check_expected_size("gdpo::by_id", expected_size);
    assign(ids);
  }

  /// Groups other rows, by their ids (N), in the memory of those before: it allocates only what is
  /// missing. `expected_size` stays. After an error there are no groups.
  template <class Id>
  void assign(View<const Id, 1> ids) {
    static_assert(std::is_integral_v<Id>, "group ids are integers");
    clear();
    order_.resize(index(contract::check_array("gdpo::by_id", "ids", ids)));
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<index_t>(i);
    const auto less = [&](index_t a, index_t b) {
      return ids(a) < ids(b) || (ids(a) == ids(b) && a < b);
    };
    if (!std::is_sorted(order_.begin(), order_.end(), less))
      std::sort(order_.begin(), order_.end(), less);
    begin_.push_back(0);
    if (!order_.empty()) ids_.push_back(static_cast<std::int64_t>(ids(order_[0])));
    for (std::size_t i = 1; i <= order_.size(); ++i) {
      if (i < order_.size() && ids(order_[i]) == ids(order_[i - 1])) continue;
      const index_t size = static_cast<index_t>(i) - begin_.back();
      if (expected_size_ != 0 && size != expected_size_) {
        const std::string id = std::to_string(ids(order_[i - 1]));
        clear();
        contract::fail("gdpo::by_id", "ids", contract::text(size) + " rows of id " + id,
                       contract::text(expected_size_) + " rows of every id (expected_size)");
      }
      begin_.push_back(static_cast<index_t>(i));
      if (i < order_.size()) ids_.push_back(static_cast<std::int64_t>(ids(order_[i])));
    }
  }

  /// Throws invalid_input, in the name of `function`, unless there is one id for each row.
  void check(const char* function, index_t rows) const {
    if (static_cast<index_t>(order_.size()) != rows) {
      contract::fail(function, "groups",
                     contract::text(static_cast<index_t>(order_.size())) + " ids",
                     "one id for each of the " + contract::text(rows) + " rows");
    }
  }
  /// Number of groups: the number of different ids.
  index_t count(index_t) const {
    return begin_.empty() ? 0 : static_cast<index_t>(begin_.size()) - 1;
  }
  /// Number of rows in group g.
  GDPO_HOST_INLINE index_t length(index_t g) const {
    return begin_[index(g) + 1] - begin_[index(g)];
  }
  /// The row of member k of group g.
  GDPO_HOST_INLINE index_t row(index_t g, index_t k) const {
    return order_[index(begin_[index(g)] + k)];
  }

  /// The rows, group after group, (N). cuda::SortedGroups takes this and `offsets` for a device.
  View<const index_t, 1> order() const { return gdpo::view(order_); }
  /// Where each group begins in `order`, (G+1); the last entry is N.
  View<const index_t, 1> offsets() const { return gdpo::view(begin_); }
  /// The id of each group, (G), as a signed integer of 64 bits. They ascend, unless there are
  /// unsigned ids of 2^63 or more, which become negative.
  View<const std::int64_t, 1> ids() const { return gdpo::view(ids_); }
  /// The number of rows that every group has to have; 0: any.
  index_t expected_size() const { return expected_size_; }

 private:
  static GDPO_HOST_INLINE std::size_t index(index_t i) { return static_cast<std::size_t>(i); }
  void clear() { order_.clear(), begin_.clear(), ids_.clear(); }
  index_t expected_size_;
  std::vector<index_t> order_, begin_;  // (N) rows sorted by id; (G+1) where each group begins
  std::vector<std::int64_t> ids_;       // (G) the id of each group
};

/// Groups of rows with the same id.
/// ids: (N), one integer for each row, of any integer type, with any values in any order. The
/// result holds a permutation of the rows and does not refer to `ids`. Building it takes time
/// O(N log N): build it once for a batch. With `expected_size` other than 0, an id with another
/// number of rows throws invalid_input, which names the id.
template <class Id>
ById by_id(View<Id, 1> ids, index_t expected_size = 0) {
  return ById(View<const std::remove_const_t<Id>, 1>(ids), expected_size);
}
/// The same for ids in a std::vector, which may be a temporary.
template <class Id>
ById by_id(const std::vector<Id>& ids, index_t expected_size = 0) {
  return ById(gdpo::view(ids), expected_size);
}

GDPO_END_NAMESPACE
