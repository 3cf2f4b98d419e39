#pragma once
// What packing and sharding share: lengths read from any integers, rows sorted by size, the search
// for a place, and lists of the rows of each part.
#include <algorithm>
#include <array>
#include <cstdint>
#include <gdpo/core/errors.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The largest number of tokens that a call takes, 2^53: integers up to it are exact as double.
constexpr index_t most_tokens = index_t{1} << 53;

/// The length of each row in tokens, and their sum.
struct TokenLengths {
  std::vector<index_t> row_lengths;
  index_t total = 0;

  /// Copies the lengths. Throws invalid_input, in the name of `function`, for an absent array, a
  /// length below 0, and a sum above most_tokens; the last two messages name the row.
  template <class T>
  TokenLengths(const char* function, const View<T, 1>& lengths)
      : row_lengths(static_cast<std::size_t>(contract::check_array(function, "lengths", lengths))) {
    static_assert(std::is_integral_v<T>, "lengths are integers");
    for (std::size_t i = 0; i < row_lengths.size(); ++i) {
      const std::remove_const_t<T> length = lengths(static_cast<index_t>(i));
      if constexpr (std::is_signed_v<T>) {
        if (length < 0) {
          contract::fail(function, "lengths",
                         "the length " + std::to_string(length) + " for row " + std::to_string(i),
                         "lengths of at least 0");
        }
      }
      if (static_cast<std::uint64_t>(length) > static_cast<std::uint64_t>(most_tokens - total)) {
        contract::fail(function, "lengths",
                       "the length " + std::to_string(length) + " for row " + std::to_string(i) +
                           " after " + std::to_string(total) + " tokens",
                       "at most 2^53 tokens in all");
      }
      row_lengths[i] = static_cast<index_t>(length);
      total += row_lengths[i];
    }
  }
};

/// A row or group, and the number that it is sorted by.
struct SortEntry {
  std::uint64_t key;
  index_t index;
};

/// Sorts by the key, the largest first; entries with equal keys stay in their order.
///
/// A radix sort from the lowest digit up, in time O(entries) for each of the digits of 11 bits in
/// which keys differ. Its result does not depend on the standard library.
inline void sort_largest_first(std::vector<SortEntry>& entries) {
  constexpr int digit_bits = 11, digits = (64 + digit_bits - 1) / digit_bits;
  constexpr std::size_t values = std::size_t{1} << digit_bits;
  if (entries.empty()) return;
  std::uint64_t differing = 0;  // the bits in which keys differ
  for (const SortEntry& entry : entries) differing |= entry.key ^ entries[0].key;
  std::vector<SortEntry> sorted(differing == 0 ? 0 : entries.size());
  std::array<std::size_t, values> place;
  for (int d = 0; d < digits; ++d) {
    const auto digit = [&](std::uint64_t key) {
      return static_cast<std::size_t>(key >> (d * digit_bits)) & (values - 1);
    };
    if (digit(differing) == 0) continue;
    place.fill(0);
    for (const SortEntry& entry : entries) ++place[digit(entry.key)];
    std::size_t offset = 0;
    for (std::size_t value = values; value-- > 0;) offset += std::exchange(place[value], offset);
    for (const SortEntry& entry : entries) sorted[place[digit(entry.key)]++] = entry;
    entries.swap(sorted);
  }
}

/// Numbered places with a number each, which finds the first place whose number is large enough.
///
/// It is a tree of maxima in which a node has eight children, so a search and a change take
/// O(log places).
template <class Value>
class FirstFit {
 public:
  /// numbers: one for each place. `closed` is smaller than any number looked for.
  FirstFit(const std::vector<Value>& numbers, Value closed) {
    std::size_t below = numbers.size();
    do {  // all levels are filled up to whole nodes, and the last one is a single node
      Level level((std::max)((below + width - 1) / width, std::size_t{1}));
      for (std::size_t i = 0; i < width * level.size(); ++i) {
        level[i / width].child[i % width] = i >= below        ? closed
                                            : levels_.empty() ? numbers[i]
                                                              : levels_.back()[i].largest();
      }
      below = level.size();
      levels_.push_back(std::move(level));
    } while (below > 1);
  }
  /// The largest number of all places.
  Value largest() const { return levels_.back()[0].largest(); }
  /// The number of a place.
  Value at(index_t place) const {
    const auto i = static_cast<std::size_t>(place);
    return levels_[0][i / width].child[i % width];
  }
  /// The first place with a number of at least `value`, which must not exceed largest().
  index_t first_with(Value value) const {
    std::size_t i = 0;
    for (std::size_t l = levels_.size(); l-- > 0;) i = width * i + levels_[l][i].smaller(value);
    return static_cast<index_t>(i);
  }
  /// Gives a place another number.
  void set(index_t place, Value value) {
    auto i = static_cast<std::size_t>(place);
    for (Level& level : levels_) {
      Node& node = level[i / width];
      Value& child = node.child[i % width];
      if (!(child < value || value < child)) return;
      child = value;
      value = node.largest();
      i /= width;
    }
  }

 private:
  static constexpr std::size_t width = 8;
  struct alignas(64) Node {
    Value child[width];

    Value largest() const {
      Value most = child[0];
      for (std::size_t c = 1; c < width; ++c) most = (std::max)(most, child[c]);
      return most;
    }
    /// How many children come before the first that is not smaller. Branchless, because the
    /// comparisons are unpredictable.
    std::size_t smaller(Value value) const {
      std::size_t all = 1, count = 0;
      for (std::size_t c = 0; c < width; ++c) count += all &= child[c] < value ? 1 : 0;
      return count;
    }
  };
  using Level = std::vector<Node>;
  std::vector<Level> levels_;  // the places; the largest of each node of them; and so on
};

/// Rows divided into numbered parts: the rows of each part in ascending order.
struct RowParts {
  std::vector<index_t> rows;     // (rows) those of part 0, then those of part 1, and so on
  std::vector<index_t> offsets;  // (parts + 1) where each part begins in `rows`

  /// part_of: (rows) the part of each row, from 0 to parts - 1. Calls visit(row, k) for each row
  /// when it becomes rows[k].
  template <class F>
  RowParts(const std::vector<index_t>& part_of, index_t parts, const F& visit)
      : rows(part_of.size()), offsets(static_cast<std::size_t>(parts) + 1) {
    for (const index_t part : part_of) ++offsets[static_cast<std::size_t>(part) + 1];
    for (std::size_t p = 1; p < offsets.size(); ++p) offsets[p] += offsets[p - 1];
    std::vector<index_t> place(offsets.begin(), offsets.end() - 1);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto part = static_cast<std::size_t>(part_of[i]);
      const index_t k = place[part]++;
      rows[static_cast<std::size_t>(k)] = static_cast<index_t>(i);
      visit(i, k);
    }
  }
  /// Number of parts; 0 once moved from.
  index_t count() const { return offsets.empty() ? 0 : static_cast<index_t>(offsets.size()) - 1; }
  /// The rows of a part, which must be one of count().
  View<const index_t, 1> of(index_t part) const {
    const auto p = static_cast<std::size_t>(part);
    return {rows.data() + offsets[p], {offsets[p + 1] - offsets[p]}, {1}};
  }
};

/// Throws invalid_input unless `index` is one of the `count` things that `argument` numbers.
inline void check_part(const char* function, const char* argument, index_t index, index_t count) {
  if (index >= 0 && index < count) return;
  contract::fail(function, argument, contract::text(index),
                 "at least 0 and below " + contract::text(count));
}

}  // namespace detail
GDPO_END_NAMESPACE
