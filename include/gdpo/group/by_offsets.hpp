#pragma once
// by_offsets: groups of consecutive rows of any length.
#include <gdpo/group/groups_of.hpp>

GDPO_BEGIN_NAMESPACE

/// Groups of consecutive rows of any length; made by `by_offsets`.
/// Group g has the rows offsets[g] .. offsets[g+1] - 1, as in CSR matrices and cu_seqlens.
template <class Index>
struct ByOffsets {
  static_assert(std::is_integral_v<Index>, "offsets are integers (int32 or int64)");
  using Order = InRowOrder;      ///< Statistics are summed in row order.
  View<const Index, 1> offsets;  ///< (G+1) where each group begins; the last entry is N.
  index_t expected_size = 0;     ///< Rows that every group must have; 0: any number.

  /// Throws invalid_input if there are no offsets. They may be on a device: they are not read.
  void check_shape(const char* function, index_t rows) const {
    if (contract::check_extents(function, "offsets", 1, offsets.extent) == 0) {
      contract::fail(function, "offsets", "no entries",
                     "entries from 0 to " + contract::text(rows) + ", the number of rows");
    }
    detail::check_expected_size(function, expected_size);
  }
  /// Throws invalid_input if the offsets are a null pointer.
  void check_arrays(const char* function) const {
    contract::check_array(function, "offsets", offsets);
  }
  /// Throws invalid_input, in the name of `function`, unless the offsets go from 0 to `rows`,
  /// never decrease, and give every group the expected size.
  void check(const char* function, index_t rows) const {
    using contract::text;
    check_shape(function, rows);
    check_arrays(function);
    const index_t entries = offsets.extent[0];
    if (at(0) != 0 || at(entries - 1) != rows) {
      contract::fail(
          function, "offsets",
          text(entries) + " entries from " + text(at(0)) + " to " + text(at(entries - 1)),
          "entries from 0 to " + text(rows) + ", the number of rows");
    }
    for (index_t g = 0; g + 1 < entries; ++g) {
      if (at(g + 1) < at(g)) {  // their difference could be too large for an index_t
        contract::fail(function, "offsets",
                       "offsets[" + text(g + 1) + "] = " + text(at(g + 1)) + " after offsets[" +
                           text(g) + "] = " + text(at(g)) + " (group " + text(g) + ")",
                       "offsets that never decrease");
      }
      if (expected_size != 0 && length(g) != expected_size) {
        contract::fail(function, "offsets", text(length(g)) + " rows in group " + text(g),
                       text(expected_size) + " rows in every group (expected_size)");
      }
    }
  }
  /// Number of groups, empty ones included.
  index_t count(index_t) const { return offsets.extent[0] - 1; }
  /// Number of rows in group g.
  GDPO_INLINE index_t length(index_t g) const { return at(g + 1) - at(g); }
  /// The row of member k of group g.
  GDPO_INLINE index_t row(index_t g, index_t k) const { return at(g) + k; }

 private:
  GDPO_INLINE index_t at(index_t g) const { return static_cast<index_t>(offsets(g)); }
};

namespace detail {

template <class Groups>
constexpr bool is_by_offsets_v = false;
template <class Index>
constexpr bool is_by_offsets_v<ByOffsets<Index>> = true;

}  // namespace detail

/// Groups of consecutive rows between offsets.
/// offsets: (G+1), integers from 0 to the number of rows that never decrease; two equal ones make
/// an empty group, which is allowed. They are not copied and must outlive the result. With
/// `expected_size` other than 0, a group of another size is an error. The call that uses the
/// groups checks all this and throws invalid_input, which says where the offsets are wrong.
template <class Index>
ByOffsets<std::remove_const_t<Index>> by_offsets(View<Index, 1> offsets,
                                                 index_t expected_size = 0) {
  return {offsets, expected_size};
}
/// The same for offsets in a std::vector, which must outlive the result.
template <class Index>
ByOffsets<Index> by_offsets(const std::vector<Index>& offsets, index_t expected_size = 0) {
  return {gdpo::view(offsets), expected_size};
}
/// Not for a temporary std::vector: the result would outlive its offsets.
template <class Index>
void by_offsets(const std::vector<Index>&&, index_t = 0) = delete;

GDPO_END_NAMESPACE
