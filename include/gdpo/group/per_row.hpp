#pragma once
// per_row: gives each row the value of its group.
#include <gdpo/group/groups_of.hpp>
#include <string>
#include <vector>

GDPO_BEGIN_NAMESPACE

namespace detail {

/// Whether the type is an array with one value for each group: a view of rank 1 or a std::vector.
template <class X>
constexpr bool is_one_a_group_v = false;
template <class T>
constexpr bool is_one_a_group_v<View<T, 1>> = true;
template <class T, class Allocator>
constexpr bool is_one_a_group_v<std::vector<T, Allocator>> = true;

}  // namespace detail

/// Gives every row the value of its group.
/// Entry i of the result, (rows), is values(group of row i). This spreads over the rows what a
/// GroupReport holds for each group:
///
///     gdpo::per_row(groups, rows, report.degenerate)  // flags for prepass::DegenerateGroups
///     gdpo::per_row(groups, rows, report.group_std)   // ms-swift's std for dynamic sampling
///     // reward c of reward_degenerate, which is (G, C):
///     const unsigned char* flags = report.reward_degenerate.data();
///     gdpo::per_row(groups, rows, gdpo::View<const unsigned char, 1>{flags + c, {G}, {C}})
///
/// groups: groups_of, by_offsets or by_id. values: (G), one for each group, empty groups
/// included. Another size, or groups that do not fit the rows, throw invalid_input.
template <class Groups, class T>
std::vector<std::remove_const_t<T>> per_row(const Groups& groups, index_t rows, View<T, 1> values) {
  constexpr const char* function = "gdpo::per_row";
  static_assert(detail::is_host_grouping_v<Groups>,
                "the first argument of per_row is groups_of, by_offsets or by_id");
  if (rows < 0) contract::fail(function, "rows", contract::text(rows), "a count of at least 0");
  contract::check_extents(function, "rows", 1, &rows);
  groups.check(function, rows);
  const index_t count = groups.count(rows);
  if (values.extent[0] != count) {
    contract::fail(function, "values", contract::text(values.extent[0]) + " entries",
                   "one for each of the " + contract::text(count) + " groups");
  }
  contract::check_array(function, "values", values);
  std::vector<std::remove_const_t<T>> out(static_cast<std::size_t>(rows));
  for (index_t g = 0; g < count; ++g) {
    for (index_t k = 0; k < groups.length(g); ++k)
      out[static_cast<std::size_t>(groups.row(g, k))] = values(g);
  }
  return out;
}
/// The same for values in a std::vector.
template <class Groups, class T, class Allocator>
std::vector<T> per_row(const Groups& groups, index_t rows,
                       const std::vector<T, Allocator>& values) {
  return per_row(groups, rows, gdpo::view(values));
}

/// Chosen for calls with other arguments: it only reports what is wrong, by static_assert.
template <
    class Groups, class Rows, class Values,
    std::enable_if_t<!detail::is_host_grouping_v<Groups> || !std::is_convertible_v<Rows, index_t> ||
                         !detail::is_one_a_group_v<Values>,
                     int> = 0>
void per_row(const Groups&, const Rows&, const Values&) {
  static_assert(detail::is_host_grouping_v<Groups>,
                "the first argument of per_row is groups_of, by_offsets or by_id");
  static_assert(std::is_convertible_v<Rows, index_t>,
                "the second argument of per_row is the number of rows");
  static_assert(
      detail::is_one_a_group_v<Values>,
      "the third argument of per_row has one value a group: a view of rank 1 or a std::vector");
}

GDPO_END_NAMESPACE
