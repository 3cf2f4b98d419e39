#pragma once
// by_id: rows with the same id form a group, wherever they are.
#include <algorithm>
#include <cstdint>
#include <gdpo/group/groups_of.hpp>
#include <string>
#include <utility>
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
    static_assert(std::is_integral_v<Id> && sizeof(Id) <= 8, "group ids are integers");
    clear();
    order_.resize(index(contract::check_array("gdpo::by_id", "ids", ids)));
    sort_rows(ids);
    for (index_t g = 0; expected_size_ != 0 && g < count(0); ++g) {
      const index_t size = length(g);
      if (size == expected_size_) continue;
      const std::string id = std::to_string(static_cast<Id>(ids_[index(g)]));
      clear();
      contract::fail("gdpo::by_id", "ids", contract::text(size) + " rows of id " + id,
                     contract::text(expected_size_) + " rows of every id (expected_size)");
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
  /// A row with its id, counted from the lowest.
  struct Keyed {
    std::uint64_t key;
    index_t row;
  };
  static GDPO_HOST_INLINE std::size_t index(index_t i) { return static_cast<std::size_t>(i); }
  void clear() { order_.clear(), begin_.clear(), ids_.clear(); }

  /// Fills in the order, the groups and their ids. Rows are sorted by `id - lowest`, which has no
  /// sign and is small where ids are numbers of prompts: within about as many numbers as there are
  /// rows they are counted, and beyond that sorted digit by digit. Both keep rows of one id in
  /// order.
  template <class Id>
  void sort_rows(View<const Id, 1> ids) {
    const index_t rows = ids.extent[0];
    Id low = rows > 0 ? ids(0) : Id{}, high = low;
    bool sorted = true;
    for (index_t i = 1; i < rows && sorted; ++i) sorted = !(ids(i) < ids(i - 1));
    if (sorted) {
      for (index_t i = 0; i < rows; ++i) order_[index(i)] = i;
      return find_groups(0, [&](index_t i) { return static_cast<std::uint64_t>(ids(i)); });
    }
    for (index_t i = 0; i < rows; ++i)
      low = (std::min)(low, ids(i)), high = (std::max)(high, ids(i));
    const auto lowest = static_cast<std::uint64_t>(low);
    const auto key = [&](index_t i) { return static_cast<std::uint64_t>(ids(i)) - lowest; };
    const std::uint64_t most = static_cast<std::uint64_t>(high) - lowest;
    if (most <= 2 * static_cast<std::uint64_t>(rows)) return count_rows(lowest, most, key);
    keyed_.resize(2 * order_.size());
    for (index_t i = 0; i < rows; ++i) keyed_[index(i)] = {key(i), i};
    const Keyed* const result = sort_digits(most);
    for (index_t i = 0; i < rows; ++i) order_[index(i)] = result[i].row;
    find_groups(lowest, [&](index_t i) { return result[i].key; });
    keyed_.clear();  // the memory stays, but copies of the object have none
  }
  /// Finds where the keys of the sorted rows change.
  template <class Key>
  void find_groups(std::uint64_t lowest, const Key& key) {
    const auto rows = static_cast<index_t>(order_.size());
    for (index_t i = 0; i < rows; ++i) {
      if (i > 0 && key(i) == key(i - 1)) continue;
      begin_.push_back(i);
      ids_.push_back(static_cast<std::int64_t>(key(i) + lowest));
    }
    begin_.push_back(rows);
  }
  /// Counts the rows of each key, 0 to `most`, and puts them where their key begins.
  template <class Key>
  void count_rows(std::uint64_t lowest, std::uint64_t most, const Key& key) {
    const auto rows = static_cast<index_t>(order_.size());
    const std::size_t keys = static_cast<std::size_t>(most) + 1;
    begin_.assign(keys + 2, 0);
    index_t* const next = begin_.data() + 1;  // of key k: its rows so far are before next[k]
    for (index_t i = 0; i < rows; ++i) ++next[key(i) + 1];
    for (std::size_t k = 1; k < keys; ++k) next[k] += next[k - 1];
    for (index_t i = 0; i < rows; ++i) order_[index(next[key(i)]++)] = i;
    std::size_t groups = 0;
    for (std::size_t k = 0; k < keys; ++k) {
      if (begin_[k] == begin_[k + 1]) continue;
      begin_[groups++] = begin_[k];
      ids_.push_back(static_cast<std::int64_t>(k + lowest));
    }
    begin_[groups] = rows;
    begin_.resize(groups + 1);
  }
  /// Sorts the first half of `keyed_`, from the last digit of its keys to the first, and returns
  /// the half that holds the result. A digit that all keys share is left out. Few rows are compared
  /// instead, since counting digits would cost more.
  const Keyed* sort_digits(std::uint64_t most) {
    constexpr int widest = 11;
    const std::size_t rows = order_.size();
    const int bits = rows < 4096 ? 8 : widest;
    Keyed *from = keyed_.data(), *to = from + rows;
    if (rows < 256) {
      std::sort(from, to, [](const Keyed& a, const Keyed& b) {
        return a.key != b.key ? a.key < b.key : a.row < b.row;
      });
      return from;
    }
    for (int shift = 0; shift < 64 && most >> shift != 0; shift += bits) {
      const auto digit = [&](std::size_t i) {
        return static_cast<std::size_t>(from[i].key >> shift) & ((std::size_t{1} << bits) - 1);
      };
      std::size_t next[1 << widest];
      std::fill_n(next, std::size_t{1} << bits, std::size_t{0});
      for (std::size_t i = 0; i < rows; ++i) ++next[digit(i)];
      if (next[digit(0)] == rows) continue;
      for (std::size_t d = 0, rows_before = 0; d < std::size_t{1} << bits; ++d)
        rows_before += std::exchange(next[d], rows_before);
      for (std::size_t i = 0; i < rows; ++i) to[next[digit(i)]++] = from[i];
      std::swap(from, to);
    }
    return from;
  }

  index_t expected_size_;
  std::vector<index_t> order_, begin_;  // (N) rows sorted by id; (G+1) where each group begins
  std::vector<std::int64_t> ids_;       // (G) the id of each group
  std::vector<Keyed> keyed_;            // (2, N) memory of sort_digits
};

/// Groups of rows with the same id.
/// ids: (N), one integer for each row, of any integer type, with any values in any order. The
/// result holds a permutation of the rows and does not refer to `ids`. Building it takes time O(N):
/// build it once for a batch. With `expected_size` other than 0, an id with another number of rows
/// throws invalid_input, which names the id.
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
