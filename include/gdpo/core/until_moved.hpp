#pragma once
// UntilMoved: a number or struct about vectors, reset when the object that owns both is moved.
#include <gdpo/core/config.hpp>
#include <utility>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// A value that is T{} in an object that has been moved from, where a std::vector is empty. Without
/// it, such an object would have counts of elements that are no longer there.
template <class T>
struct UntilMoved {
  T value{};

  UntilMoved() = default;
  UntilMoved(const T& initial) : value(initial) {}
  UntilMoved(const UntilMoved&) = default;
  UntilMoved(UntilMoved&& other) noexcept : value(std::exchange(other.value, T{})) {}
  UntilMoved& operator=(const UntilMoved&) = default;
  UntilMoved& operator=(UntilMoved&& other) noexcept {
    value = std::exchange(other.value, T{});
    return *this;
  }
  ~UntilMoved() = default;

  operator const T&() const { return value; }
};

}  // namespace detail
GDPO_END_NAMESPACE
