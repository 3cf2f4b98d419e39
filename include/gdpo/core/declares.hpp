#pragma once
#include <gdpo/core/config.hpp>
#include <type_traits>

/// A policy may say something about itself by a member `static constexpr bool flag = true`.
/// GDPO_DECLARED(flag) defines the template flag_v<P>: what policy P declares, and false where it
/// declares nothing.
#define GDPO_DECLARED(flag)        \
  template <class P, class = void> \
  constexpr bool flag##_v = false; \
  template <class P>               \
  constexpr bool flag##_v<P, std::void_t<decltype(P::flag)>> = P::flag
