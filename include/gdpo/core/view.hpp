#pragma once
#include <cstddef>
#include <gdpo/core/config.hpp>
#include <type_traits>
#include <vector>

namespace gdpo {  // plain data: no ABI namespace

using index_t = std::ptrdiff_t;

/// Non-owning strided array of rank 1, 2 or 3: what every kernel sees. Trivially copyable, so it can be a kernel
/// argument. `stride` counts elements, not bytes, and may be anything, 0 and negative included.
template <class T, int Rank>
struct View {
  using value_type = T;
  T* data = nullptr;
  index_t extent[Rank] = {};
  index_t stride[Rank] = {};

  GDPO_DATA_INLINE constexpr T& operator()(index_t i) const {
    static_assert(Rank == 1, "this view has not rank 1");
    return data[i * stride[0]];
  }
  GDPO_DATA_INLINE constexpr T& operator()(index_t i, index_t j) const {
    static_assert(Rank == 2, "this view has not rank 2");
    return data[i * stride[0] + j * stride[1]];
  }
  GDPO_DATA_INLINE constexpr T& operator()(index_t i, index_t j, index_t k) const {
    static_assert(Rank == 3, "this view has not rank 3");
    return data[i * stride[0] + j * stride[1] + k * stride[2]];
  }
  /// An absent optional view holds a null pointer.
  GDPO_DATA_INLINE constexpr explicit operator bool() const { return data != nullptr; }

  template <class U, class = std::enable_if_t<std::is_same_v<U, const T> && !std::is_const_v<T>>>
  GDPO_DATA_INLINE constexpr operator View<U, Rank>() const {
    View<U, Rank> v;
    v.data = data;
    for (int r = 0; r < Rank; ++r) v.extent[r] = extent[r], v.stride[r] = stride[r];
    return v;
  }
};
static_assert(std::is_trivially_copyable_v<View<float, 2>>, "views are kernel arguments");

/// Dense views of raw memory, last index fastest: (n), (rows, columns), (a, b, c).
template <class T>
GDPO_DATA_INLINE constexpr View<T, 1> view(T* data, index_t n) {
  return {data, {n}, {1}};
}
template <class T>
GDPO_DATA_INLINE constexpr View<T, 2> view(T* data, index_t rows, index_t columns) {
  return {data, {rows, columns}, {columns, 1}};
}
template <class T>
GDPO_DATA_INLINE constexpr View<T, 3> view(T* data, index_t a, index_t b, index_t c) {
  return {data, {a, b, c}, {b * c, c, 1}};
}

/// A std::vector that outlives the view. std::vector<bool> has no elements to point to: use unsigned char.
template <class T, class Allocator>
GDPO_DATA_HOST_INLINE View<T, 1> view(std::vector<T, Allocator>& v) {
  static_assert(!std::is_same_v<T, bool>,
                "std::vector<bool> cannot be viewed: use std::vector<unsigned char>");
  return {v.data(), {static_cast<index_t>(v.size())}, {1}};
}
template <class T, class Allocator>
GDPO_DATA_HOST_INLINE View<const T, 1> view(const std::vector<T, Allocator>& v) {
  static_assert(!std::is_same_v<T, bool>,
                "std::vector<bool> cannot be viewed: use std::vector<unsigned char>");
  return {v.data(), {static_cast<index_t>(v.size())}, {1}};
}
template <class T, class Allocator>
void view(const std::vector<T, Allocator>&&) = delete;  // no view of a temporary

}  // namespace gdpo
