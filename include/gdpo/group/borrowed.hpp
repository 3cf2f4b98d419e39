#pragma once
#include <gdpo/core/view.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// A grouping that holds memory, by reference.
template <class Groups>
struct GroupsByReference {
  using Order = typename Groups::Order;
  const Groups& groups;
  void check(const char* function, index_t rows) const { groups.check(function, rows); }
  index_t count(index_t rows) const { return groups.count(rows); }
  index_t length(index_t g) const { return groups.length(g); }
  GDPO_HOST_INLINE index_t row(index_t g, index_t k) const { return groups.row(g, k); }
};

/// A grouping as BorrowedGroups<Groups>{groups}: a copy where that is a few numbers, which the compiler may then keep in
/// registers, whatever is stored meanwhile; else a reference. It holds no memory of its own.
template <class Groups>
using BorrowedGroups =
    std::conditional_t<std::is_trivially_copyable_v<Groups>, Groups, GroupsByReference<Groups>>;

}  // namespace detail
GDPO_END_NAMESPACE
