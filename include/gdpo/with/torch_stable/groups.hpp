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

/// Returns f(groups) of the one that is given; check_groups has checked that there is one.
template <class F>
auto with_groups(const Call& call, GDPO_TORCH_GROUPS_PARAMETERS, const F& f) {
  if (group_ids) return f(by_id(indices(call, "group_ids", *group_ids)));
  if (group_offsets) {
    const std::vector<index_t> offsets = indices(call, "group_offsets", *group_offsets);
    return f(by_offsets(offsets));
  }
  return f(groups_of(static_cast<index_t>(group_size)));
}

}  // namespace detail

}  // namespace torch_stable
GDPO_END_NAMESPACE
