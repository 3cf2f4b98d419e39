#pragma once
// How many members an aggregate has: tests compare that with its list of fields.
#include <cstddef>
#include <utility>

namespace test {
namespace detail {
/// Stands for any member in braces. It has no definition, because nothing is evaluated.
struct AnyMember {
  template <class T>
  operator T() const;
};
template <class T, std::size_t... Number>
constexpr auto takes(std::index_sequence<Number...>)
    -> decltype(T{(void(Number), AnyMember{})...}, true) {
  return true;
}
template <class T>
constexpr bool takes(...) {
  return false;
}
}  // namespace detail

/// The number of members of an aggregate, at most N: the most that braces take.
template <class T, std::size_t N = 32>
constexpr std::size_t member_count() {
  if constexpr (N == 0 || detail::takes<T>(std::make_index_sequence<N>{})) {
    return N;
  } else {
    return member_count<T, N - 1>();
  }
}
}  // namespace test
