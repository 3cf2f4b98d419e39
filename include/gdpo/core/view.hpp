#pragma once
// View: a strided array of rank 1, 2 or 3 that does not own its elements.
#include <cstddef>
#include <cstdint>
#include <gdpo/core/config.hpp>
#include <type_traits>
#include <vector>

// This is plain data, so it stands outside the inline namespace (core/config.hpp).
namespace gdpo {

/// The type of every index, extent and count: 64 bits, where pointers have 32 (WebAssembly) too.
using index_t = std::int64_t;

/// A strided array of rank 1, 2 or 3 that does not own its elements.
///
/// It is trivially copyable, so it can be the argument of a CUDA kernel. What it refers to must
/// outlive it. Indices are not checked.
///
/// An array that a call only reads may repeat elements, by a stride of 0 or by rows that overlap.
/// In one that a call writes, each index needs an element of its own, as in every slice of a dense
/// array; another throws invalid_input before anything is written.
template <class T, int Rank>
struct View {
  using value_type = T;       ///< Type of an element.
  T* data = nullptr;          ///< The element with all indices 0; null: the array is absent.
  index_t extent[Rank] = {};  ///< Number of elements along each axis.
  index_t stride[Rank] = {};  ///< Distance in elements along each axis; may be 0 or negative.

  /// Element i of a view of rank 1.
  GDPO_DATA_INLINE constexpr T& operator()(index_t i) const {
    static_assert(Rank == 1, "this view has not rank 1");
    return data[i * stride[0]];
  }
  /// Element (i, j) of a view of rank 2.
  GDPO_DATA_INLINE constexpr T& operator()(index_t i, index_t j) const {
    static_assert(Rank == 2, "this view has not rank 2");
    return data[i * stride[0] + j * stride[1]];
  }
  /// Element (i, j, k) of a view of rank 3.
  GDPO_DATA_INLINE constexpr T& operator()(index_t i, index_t j, index_t k) const {
    static_assert(Rank == 3, "this view has not rank 3");
    return data[i * stride[0] + j * stride[1] + k * stride[2]];
  }
  /// Whether the array is there: `data` is not null.
  GDPO_DATA_INLINE constexpr explicit operator bool() const { return data != nullptr; }

  /// The same view for reading only.
  template <class U, class = std::enable_if_t<std::is_same_v<U, const T> && !std::is_const_v<T>>>
  GDPO_DATA_INLINE constexpr operator View<U, Rank>() const {
    View<U, Rank> v;
    v.data = data;
    for (int r = 0; r < Rank; ++r) v.extent[r] = extent[r], v.stride[r] = stride[r];
    return v;
  }
};
static_assert(std::is_trivially_copyable_v<View<float, 2>>, "views are kernel arguments");

/// A view of `n` elements that stand one after the other.
template <class T>
GDPO_DATA_INLINE constexpr View<T, 1> view(T* data, index_t n) {
  return {data, {n}, {1}};
}
/// A view of (rows, columns) elements in dense memory, row by row. The two are of any type of
/// number, which keeps a call with braces apart from this one.
template <
    class T, class Rows, class Columns,
    std::enable_if_t<
        std::is_convertible_v<Rows, index_t> && std::is_convertible_v<Columns, index_t>, int> = 0>
GDPO_DATA_INLINE constexpr View<T, 2> view(T* data, Rows rows, Columns columns) {
  return {data,
          {static_cast<index_t>(rows), static_cast<index_t>(columns)},
          {static_cast<index_t>(columns), 1}};
}
/// A view of (a, b, c) elements in dense memory, the last index fastest.
template <class T>
GDPO_DATA_INLINE constexpr View<T, 3> view(T* data, index_t a, index_t b, index_t c) {
  return {data, {a, b, c}, {b * c, c, 1}};
}

/// A view of 1, 2 or 3 axes with any distances between elements, in elements: stride 0 repeats an
/// element, a negative one goes backwards.
///
///     gdpo::view(logits + 1, {rows, width}, {2 * width, 1})  // every second row, from column 1
///
/// Extents and strides are of the type gdpo::index_t: braces refuse unsigned variables (clang) or
/// warn of them (g++).
template <class T, std::size_t Rank>
GDPO_DATA_INLINE constexpr View<T, static_cast<int>(Rank)> view(T* data,
                                                                const index_t (&extent)[Rank],
                                                                const index_t (&stride)[Rank]) {
  static_assert(Rank >= 1 && Rank <= 3, "a view has rank 1, 2 or 3");
  View<T, static_cast<int>(Rank)> v;
  v.data = data;
  for (std::size_t r = 0; r < Rank; ++r) v.extent[r] = extent[r], v.stride[r] = stride[r];
  return v;
}

/// A view of a std::vector, which must outlive the view.
///
/// A `std::vector<bool>` has no elements to point to; use `std::vector<unsigned char>`.
template <class T, class Allocator>
GDPO_DATA_HOST_INLINE View<T, 1> view(std::vector<T, Allocator>& v) {
  static_assert(!std::is_same_v<T, bool>,
                "std::vector<bool> cannot be viewed: use std::vector<unsigned char>");
  return {v.data(), {static_cast<index_t>(v.size())}, {1}};
}
/// A read-only view of a std::vector, which must outlive the view.
template <class T, class Allocator>
GDPO_DATA_HOST_INLINE View<const T, 1> view(const std::vector<T, Allocator>& v) {
  static_assert(!std::is_same_v<T, bool>,
                "std::vector<bool> cannot be viewed: use std::vector<unsigned char>");
  return {v.data(), {static_cast<index_t>(v.size())}, {1}};
}
/// Deleted, because a view of a temporary would point to freed memory.
template <class T, class Allocator>
void view(const std::vector<T, Allocator>&&) = delete;

}  // namespace gdpo
