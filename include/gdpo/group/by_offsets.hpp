#pragma once
#include <gdpo/group/groups_of.hpp>

GDPO_BEGIN_NAMESPACE

/// Ragged groups of consecutive rows: group g is rows offsets[g] .. offsets[g+1]-1, as in CSR and cu_seqlens.
template <class Index>
struct ByOffsets {
  static_assert(std::is_integral_v<Index>, "offsets are integers (int32 or int64)");
  using Order = InRowOrder;
  View<const Index, 1> offsets;
  index_t expected_size = 0;  ///< 0: any

  /// Without a look at the offsets, which may be on a device.
  void check_shape(const char* function, index_t rows) const {
    if (offsets.extent[0] == 0) {
      contract::fail(function, "offsets", "no entries",
                     "entries from 0 to " + contract::text(rows) + ", the number of rows");
    }
  }
  void check(const char* function, index_t rows) const {
    using contract::text;
    check_shape(function, rows);
    const index_t entries = offsets.extent[0];
    if (at(0) != 0 || at(entries - 1) != rows) {
      contract::fail(
          function, "offsets",
          text(entries) + " entries from " + text(at(0)) + " to " + text(at(entries - 1)),
          "entries from 0 to " + text(rows) + ", the number of rows");
    }
    for (index_t g = 0; g + 1 < entries; ++g) {
      if (length(g) < 0) {
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
  index_t count(index_t) const { return offsets.extent[0] - 1; }
  GDPO_INLINE index_t length(index_t g) const { return at(g + 1) - at(g); }
  GDPO_INLINE index_t row(index_t g, index_t k) const { return at(g) + k; }

 private:
  GDPO_INLINE index_t at(index_t g) const { return static_cast<index_t>(offsets(g)); }
};

/// offsets: G+1 integers from 0 to the number of rows, never decreasing; an empty group is legal. They must outlive the
/// result. With `expected_size` a group of another size is invalid_input, which names it.
template <class Index>
ByOffsets<std::remove_const_t<Index>> by_offsets(View<Index, 1> offsets,
                                                 index_t expected_size = 0) {
  return {offsets, expected_size};
}
template <class Index>
ByOffsets<Index> by_offsets(const std::vector<Index>& offsets, index_t expected_size = 0) {
  return {gdpo::view(offsets), expected_size};
}
template <class Index>
void by_offsets(const std::vector<Index>&&,
                index_t = 0) = delete;  // the result would outlive the offsets

GDPO_END_NAMESPACE
