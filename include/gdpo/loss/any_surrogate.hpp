#pragma once
// Surrogates and detached factors chosen at run time, so that all of them share one loss type.
#include <gdpo/loss/factor.hpp>
#include <gdpo/loss/surrogate.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Several policies with their settings. A std::variant would do, but devices cannot visit it.
template <class... P>
struct Policies;
template <class P>
struct Policies<P> {
  P first{};
  GDPO_CALLS_ANY
  template <class Self, class F>
  GDPO_DEVICE static constexpr decltype(auto) visit(Self& policies, int, const F& f) {
    return f(policies.first);
  }
};
template <class P, class Next, class... Rest>
struct Policies<P, Next, Rest...> {
  P first{};
  Policies<Next, Rest...> rest{};
  /// Calls f with policy number `at`, which f may change unless `policies` is constant.
  GDPO_CALLS_ANY
  template <class Self, class F>
  GDPO_DEVICE static constexpr decltype(auto) visit(Self& policies, int at, const F& f) {
    if (at == 0) return f(policies.first);
    return Policies<Next, Rest...>::visit(policies.rest, at - 1, f);
  }
};

/// The number of T in a list of types that has it.
template <class T, class... P>
constexpr int number_of() {
  constexpr bool same[] = {std::is_same_v<T, P>...};
  int number = 0;
  while (!same[number]) ++number;
  return number;
}

/// One policy of several, chosen at run time: its number, and the settings of each. Made from the
/// policy itself.
template <class... P>
struct OneOf {
  /// A loss asks the chosen one which arrays it reads (check_loss.hpp).
  static constexpr bool is_chosen = true;
  /// The mean advantage of a row is computed if one of all reads it.
  static constexpr bool reads_row_advantage = (reads_row_advantage_v<P> || ...);
  Policies<P...> all{};
  int number = 0;

  constexpr OneOf() = default;
  /// The policy with its settings.
  template <class Policy, std::enable_if_t<(std::is_same_v<Policy, P> || ...), int> = 0>
  constexpr OneOf(const Policy& policy) : number(number_of<Policy, P...>()) {
    Policies<P...>::visit(all, number, [&policy](auto& chosen) {
      if constexpr (std::is_same_v<std::decay_t<decltype(chosen)>, Policy>) chosen = policy;
    });
  }
  /// Calls f(policy) with the chosen one.
  GDPO_CALLS_ANY
  template <class F>
  GDPO_DEVICE constexpr decltype(auto) visit(const F& f) const {
    return Policies<P...>::visit(all, number, f);
  }
  /// The settings of the chosen one (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    Policies<P...>::visit(s.all, s.number, [&field](auto& policy) { field("", policy); });
  }
};

}  // namespace detail

/// A surrogate that is chosen at run time among S..., made from it. Its settings, and the arrays
/// that a batch needs, are those of the chosen one.
template <class... S>
struct AnySurrogate : detail::OneOf<S...> {
  static_assert((is_surrogate_v<S> && ...), "AnySurrogate takes surrogates");
  using detail::OneOf<S...>::OneOf;
  /// A loss compiles one loop over tokens, not one more for each shape of rows.
  static constexpr bool general_rows = true;
  // It is not inlined, because it contains all formulas, for every V.
  template <class V>
  GDPO_DEVICE GDPO_NOINLINE Term<V> operator()(const Token<V>& t) const {
    return this->visit([&t](const auto& surrogate) { return surrogate(t); });
  }
};

/// A list of detached factors that is chosen at run time among F..., each a gdpo::Factors; made
/// from it.
template <class... F>
struct AnyFactors : detail::OneOf<F...> {
  static_assert((detail::is_factors_v<F> && ...), "AnyFactors takes gdpo::Factors<...>");
  using detail::OneOf<F...>::OneOf;
};

namespace detail {
template <class... F>
constexpr bool is_factors_v<AnyFactors<F...>> = true;

template <class... F, class V>
GDPO_DEVICE GDPO_NOINLINE V product(const AnyFactors<F...>& any, const Token<V>& t) {
  return any.visit([&t](const auto& factors) { return product(factors, t); });
}
template <class... F, class V>
GDPO_DEVICE GDPO_NOINLINE void add_clips(const AnyFactors<F...>& any, const Token<V>& t,
                                         Term<V>& term) {
  any.visit([&](const auto& factors) { add_clips(factors, t, term); });
}
}  // namespace detail
GDPO_END_NAMESPACE
