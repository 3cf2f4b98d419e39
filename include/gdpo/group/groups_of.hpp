#pragma once
// Which rows form a group. A grouping is a type with
//
//   Order                  how its statistics are summed (stats/reduce.hpp)
//   check(function, rows)  throws invalid_input if the grouping does not fit that many rows
//   count(rows)            the number of groups
//   length(g)              the number of members of group g
//   row(g, k)              the row of member k of group g
//
// This header has groups_of; by_offsets and by_id have headers of their own.
#include <gdpo/core/errors.hpp>
#include <gdpo/stats/reduce.hpp>

GDPO_BEGIN_NAMESPACE

namespace detail {

/// Whether the type is a grouping, on the host or on a device.
template <class Groups, class = void>
constexpr bool is_grouping_v = false;
template <class Groups>
constexpr bool is_grouping_v<
    Groups,
    std::void_t<typename Groups::Order, decltype(std::declval<const Groups&>().count(index_t{}))>> =
    true;
/// Whether it is a grouping that the host can walk over: one with all members of the list above.
template <class Groups, class = void>
constexpr bool is_host_grouping_v = false;
template <class Groups>
constexpr bool is_host_grouping_v<
    Groups, std::void_t<decltype(std::declval<const Groups&>().check("", index_t{})),
                        decltype(std::declval<const Groups&>().length(index_t{})),
                        decltype(std::declval<const Groups&>().row(index_t{}, index_t{}))>> =
    is_grouping_v<Groups>;

}  // namespace detail

/// Groups of `size` consecutive rows; made by `groups_of`. Group 0 has the rows 0 .. size - 1.
struct GroupsOf {
  using Order = InRowOrder;  ///< Statistics are summed in row order.
  index_t size = 1;          ///< Rows in a group, at least 1.

  /// Throws invalid_input, in the name of `function`, if the rows leave an incomplete group.
  void check(const char* function, index_t rows) const {
    if (size < 1) contract::fail(function, "groups.size", contract::text(size), "at least 1");
    if (rows % size != 0) {
      contract::fail(function, "groups",
                     contract::text(rows) + " rows, which leaves a last group (number " +
                         contract::text(rows / size) + ") of " + contract::text(rows % size),
                     "a multiple of " + contract::text(size) + " rows, as groups_of(" +
                         contract::text(size) + ") says");
    }
  }
  /// Number of groups in that many rows.
  index_t count(index_t rows) const { return rows / size; }
  /// Number of rows in a group.
  GDPO_INLINE index_t length(index_t) const { return size; }
  /// The row of member k of group g.
  GDPO_INLINE index_t row(index_t g, index_t k) const { return g * size + k; }
};

/// Groups of K consecutive rows: K completions of one prompt, prompt after prompt.
/// K < 1 throws invalid_input. The call that uses the groups throws if N is no multiple of K.
inline GroupsOf groups_of(index_t K) {
  if (K < 1)
    contract::fail("gdpo::groups_of", "K", contract::text(K), "a group size of at least 1");
  return {K};
}

namespace detail {

/// Checks `expected_size` of by_offsets and by_id.
inline void check_expected_size(const char* function, index_t size) {
  if (size < 0) {
    contract::fail(function, "expected_size", contract::text(size),
                   "the number of rows of every group, or 0: any");
  }
}

/// Groups whose members are `groups` rows apart: those of a column-major (prompts, rollouts,
/// rewards) tensor, whose first two dimensions make the rows.
struct Interleaved {
  using Order = InRowOrder;
  index_t groups = 0, size = 0;

  void check(const char*, index_t) const {}
  index_t count(index_t) const { return groups; }
  GDPO_INLINE index_t length(index_t) const { return size; }
  GDPO_INLINE index_t row(index_t g, index_t k) const { return g + k * groups; }
};

}  // namespace detail
GDPO_END_NAMESPACE
