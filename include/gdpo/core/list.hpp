#pragma once
#include <gdpo/core/errors.hpp>
#include <initializer_list>

GDPO_BEGIN_NAMESPACE

/// A short list held by value, so that estimators with weights stay trivially copyable, constexpr and free of
/// allocation. More than `Capacity` entries: invalid_input.
template <class T, int Capacity = 64>
class List {
 public:
  static constexpr index_t capacity = Capacity;
  constexpr List() = default;
  constexpr List(std::initializer_list<T> items)
      : List(items.begin(), static_cast<index_t>(items.size())) {}
  constexpr List(const T* items, index_t n) : size_(n) {
    if (n < 0 || n > Capacity) {
      contract::fail("gdpo::List", "items", contract::text(n) + " entries",
                     "at most " + contract::text(index_t{Capacity}));
    }
    for (index_t i = 0; i < n; ++i) items_[i] = items[i];
  }
  template <class Allocator>
  List(const std::vector<T, Allocator>& items)
      : List(items.data(), static_cast<index_t>(items.size())) {}

  GDPO_INLINE constexpr index_t size() const { return size_; }
  GDPO_INLINE constexpr bool empty() const { return size_ == 0; }
  GDPO_INLINE constexpr const T& operator[](index_t i) const { return items_[i]; }
  GDPO_INLINE constexpr T& operator[](index_t i) { return items_[i]; }
  constexpr const T* begin() const { return items_; }
  constexpr const T* end() const { return items_ + size_; }

 private:
  T items_[Capacity] = {};
  index_t size_ = 0;
};

GDPO_END_NAMESPACE
