#pragma once
// Who belongs together. A grouping has `Order` (how its statistics are summed), `check(function, rows)` (throws when it
// does not fit that many rows), `count(rows)` groups, and for group g its `length(g)` members, member k being row
// `row(g, k)`.
#include <gdpo/core/errors.hpp>
#include <gdpo/stats/reduce.hpp>

GDPO_BEGIN_NAMESPACE

namespace detail {

/// A grouping on the host or on a device; and one that the host can walk over, as said above.
template <class Groups, class = void>
constexpr bool is_grouping_v = false;
template <class Groups>
constexpr bool is_grouping_v<
    Groups,
    std::void_t<typename Groups::Order, decltype(std::declval<const Groups&>().count(index_t{}))>> =
    true;
template <class Groups, class = void>
constexpr bool is_host_grouping_v = false;
template <class Groups>
constexpr bool is_host_grouping_v<
    Groups, std::void_t<decltype(std::declval<const Groups&>().check("", index_t{})),
                        decltype(std::declval<const Groups&>().length(index_t{})),
                        decltype(std::declval<const Groups&>().row(index_t{}, index_t{}))>> =
    is_grouping_v<Groups>;

}  // namespace detail

/// `size` consecutive rows form one group: rows 0..size-1, size..2 size-1, ...
struct GroupsOf {
  using Order = InRowOrder;
  index_t size = 1;

  void check(const char* function, index_t rows) const {
    if (rows % size != 0) {
      contract::fail(function, "groups",
                     contract::text(rows) + " rows, which leaves a last group (number " +
                         contract::text(rows / size) + ") of " + contract::text(rows % size),
                     "a multiple of " + contract::text(size) + " rows, as groups_of(" +
                         contract::text(size) + ") says");
    }
  }
  index_t count(index_t rows) const { return rows / size; }
  GDPO_INLINE index_t length(index_t) const { return size; }
  GDPO_INLINE index_t row(index_t g, index_t k) const { return g * size + k; }
};

/// Groups of K consecutive rows: K completions of one prompt, prompt after prompt. K < 1: invalid_input.
inline GroupsOf groups_of(index_t K) {
  if (K < 1)
    contract::fail("gdpo::groups_of", "K", contract::text(K), "a group size of at least 1");
  return {K};
}

namespace detail {

/// Groups whose members stand `groups` rows apart: the column-major (prompts, rollouts, rewards) tensor.
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
