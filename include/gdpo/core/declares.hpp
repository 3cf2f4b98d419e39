#pragma once
// GDPO_DECLARED: compile-time flags that a policy may declare about itself.
#include <gdpo/core/config.hpp>
#include <type_traits>

/// A policy may declare a property of itself by a member `static constexpr bool flag = true`.
/// GDPO_DECLARED(flag) defines the template `flag_v<P>`: the value of P's member `flag`, or false
/// if P has no such member.
#define GDPO_DECLARED(flag)        \
  template <class P, class = void> \
  constexpr bool flag##_v = false; \
  template <class P>               \
  constexpr bool flag##_v<P, std::void_t<decltype(P::flag)>> = P::flag

GDPO_BEGIN_NAMESPACE
namespace detail {
// Declared by baselines and scales (advantage/) and by rules that shape rewards (update/).
GDPO_DECLARED(reads_tokens);
}  // namespace detail
GDPO_END_NAMESPACE
