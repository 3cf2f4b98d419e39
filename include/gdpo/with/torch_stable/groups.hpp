#pragma once
// The groups of rows that an operator is given: their size, their ids, or where each begins.
#include <gdpo/group/by_id.hpp>
#include <gdpo/group/by_offsets.hpp>
#include <gdpo/group/groups_of.hpp>
#include <gdpo/with/torch_stable/tensor.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

// What an operator declares of them, and its parameters.
#define GDPO_TORCH_GROUPS_SCHEMA \
  "int group_size=0, Tensor? group_ids=None, Tensor? group_offsets=None"
#define GDPO_TORCH_GROUPS_PARAMETERS \
  std::int64_t group_size, const Array &group_ids, const Array &group_offsets
#define GDPO_TORCH_GROUPS_NAMES group_size, group_ids, group_offsets

/// Throws unless one of the three is given.
inline void check_groups(const Call& call, GDPO_TORCH_GROUPS_PARAMETERS) {
  const int given = (group_size != 0) + group_ids.has_value() + group_offsets.has_value();
  if (given != 1) {
    call.fail("group_size, group_ids, group_offsets",
              given == 0 ? "none of them" : "several of them", "one of them");
  }
}

/// Groups of consecutive rows, of one size or between offsets: one type, so that what takes groups
/// is compiled once for both.
struct Consecutive {
  using Order = InRowOrder;
  index_t size = 0;                  ///< Rows of each group; 0: `offsets` says where they begin.
  View<const index_t, 1> offsets{};  ///< (G + 1), as in by_offsets.

  void check(const char* function, index_t rows) const {
    if (size > 0) return GroupsOf{size}.check(function, rows);
    ByOffsets<index_t>{offsets}.check(function, rows);
  }
  index_t count(index_t rows) const { return size > 0 ? rows / size : offsets.extent[0] - 1; }
  GDPO_INLINE index_t length(index_t g) const {
    return size > 0 ? size : offsets(g + 1) - offsets(g);
  }
  GDPO_INLINE index_t row(index_t g, index_t k) const {
    return (size > 0 ? g * size : offsets(g)) + k;
  }
};

/// Returns f(groups) of the group size, or without one of the offsets.
template <class F>
auto with_consecutive(const Call& call, std::int64_t group_size, const Array& group_offsets,
                      const F& f) {
  if (!group_offsets) return f(Consecutive{groups_of(static_cast<index_t>(group_size)).size});
  const std::vector<index_t> offsets = indices(call, "group_offsets", *group_offsets);
  return f(Consecutive{0, view(offsets)});
}
/// Returns f(groups) of the one that is given, which check_groups has checked: Consecutive or ById.
template <class F>
auto with_groups(const Call& call, GDPO_TORCH_GROUPS_PARAMETERS, const F& f) {
  if (group_ids) return f(by_id(indices(call, "group_ids", *group_ids)));
  return with_consecutive(call, group_size, group_offsets, f);
}

}  // namespace detail

}  // namespace torch_stable
GDPO_END_NAMESPACE
