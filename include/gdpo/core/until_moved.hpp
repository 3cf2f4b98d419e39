#pragma once
// What an object that owns vectors knows about them must go with them when it is moved.
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
  UntilMoved(const T& of) : value(of) {}
  UntilMoved(const UntilMoved&) = default;
  UntilMoved(UntilMoved&& from) noexcept : value(std::exchange(from.value, T{})) {}
  UntilMoved& operator=(const UntilMoved&) = default;
  UntilMoved& operator=(UntilMoved&& from) noexcept {
    value = std::exchange(from.value, T{});
    return *this;
  }
  ~UntilMoved() = default;

  operator const T&() const { return value; }
};

}  // namespace detail
GDPO_END_NAMESPACE
