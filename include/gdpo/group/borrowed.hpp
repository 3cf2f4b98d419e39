#pragma once
// A grouping by reference, so that one that owns memory is not copied.
#include <gdpo/core/view.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// A reference to a grouping that owns memory, itself a grouping.
template <class Groups>
struct GroupsByReference {
  using Order = typename Groups::Order;
  const Groups& groups;
  void check(const char* function, index_t rows) const { groups.check(function, rows); }
  index_t count(index_t rows) const { return groups.count(rows); }
  index_t length(index_t g) const { return groups.length(g); }
  GDPO_HOST_INLINE index_t row(index_t g, index_t k) const { return groups.row(g, k); }
};

/// A grouping to be held for the length of a call, made as `BorrowedGroups<Groups>{groups}`.
/// A grouping of a few numbers is copied, so that the compiler may keep the numbers in registers
/// whatever the loop stores; one that owns memory is referred to.
template <class Groups>
using BorrowedGroups =
    std::conditional_t<std::is_trivially_copyable_v<Groups>, Groups, GroupsByReference<Groups>>;

}  // namespace detail
GDPO_END_NAMESPACE
