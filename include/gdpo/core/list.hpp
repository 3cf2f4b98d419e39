#pragma once
// List: a short list held by value, which keeps settings trivially copyable.
#include <gdpo/core/errors.hpp>
#include <initializer_list>

GDPO_BEGIN_NAMESPACE

/// A short list with room for `Capacity` entries, held by value.
///
/// It keeps an estimator with weights trivially copyable, usable in constant expressions and free
/// of allocations. Making one of more than `Capacity` entries throws invalid_input.
template <class T, int Capacity = 64>
class List {
 public:
  static constexpr index_t capacity = Capacity;  ///< The largest number of entries.
  constexpr List() = default;
  /// A copy of the entries between braces.
  constexpr List(std::initializer_list<T> items)
      : List(items.begin(), static_cast<index_t>(items.size())) {}
  /// A copy of items[0] to items[n - 1].
  constexpr List(const T* items, index_t n) : size_(n) {
    if (n < 0 || n > Capacity) {
      contract::fail("gdpo::List", "items", contract::text(n) + " entries",
                     "at most " + contract::text(index_t{Capacity}));
    }
    for (index_t i = 0; i < n; ++i) items_[i] = items[i];
  }
  /// A copy of a vector's entries.
  template <class Allocator>
  List(const std::vector<T, Allocator>& items)
      : List(items.data(), static_cast<index_t>(items.size())) {}

  /// The number of entries.
  GDPO_INLINE constexpr index_t size() const { return size_; }
  /// Whether there are no entries.
  GDPO_INLINE constexpr bool empty() const { return size_ == 0; }
  /// Entry i, which is not checked against size().
  GDPO_INLINE constexpr const T& operator[](index_t i) const { return items_[i]; }
  /// Entry i for writing, which is not checked against size().
  GDPO_INLINE constexpr T& operator[](index_t i) { return items_[i]; }
  /// The first entry.
  constexpr const T* begin() const { return items_; }
  /// One past the last entry.
  constexpr const T* end() const { return items_ + size_; }

 private:
  T items_[Capacity] = {};
  index_t size_ = 0;
};

GDPO_END_NAMESPACE
