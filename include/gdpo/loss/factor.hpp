#pragma once
#include <gdpo/loss/term.hpp>

GDPO_BEGIN_NAMESPACE

/// Detached factors of the surrogate, from the token alone: their product multiplies value and gradient; a factor 0 drops
/// both, a factor that is not finite counts as 0. Contract of each:
///   template <class V> V operator()(const Token<V>&) const;
/// None: Factors<>. What needs a whole row or batch is a pre-pass (prepass/), which fills TokenBatch::weights.
template <class... F>
struct Factors;
template <>
struct Factors<> {};
template <class First, class... Rest>
struct Factors<First, Rest...> {
  static_assert(is_factor_v<First>, "a Factor needs: template <class V> V operator()(const gdpo::Token<V>&) const");
  First first{};
  Factors<Rest...> rest{};
};

namespace detail {

template <class P>
constexpr bool is_factors_v = false;
template <class... F>
constexpr bool is_factors_v<Factors<F...>> = true;

// What a surrogate, map or factor may declare, so that the host reads or computes it: static constexpr bool members. A
// surrogate that is `ratio_only` has d_logp 0.
#define GDPO_TOKEN_FLAG(flag)                                                                  \
  template <class P, class = void>                                                             \
  struct flag##_of : std::false_type {};                                                       \
  template <class P>                                                                           \
  struct flag##_of<P, std::void_t<decltype(P::flag)>> : std::bool_constant<P::flag> {};        \
  template <class... F>                                                                        \
  struct flag##_of<Factors<F...>, void> : std::bool_constant<(flag##_of<F>::value || ...)> {}; \
  template <class P>                                                                           \
  constexpr bool flag##_v = flag##_of<P>::value
GDPO_TOKEN_FLAG(reads_ref);
GDPO_TOKEN_FLAG(reads_rollout);
GDPO_TOKEN_FLAG(reads_teacher);
GDPO_TOKEN_FLAG(reads_tag);
GDPO_TOKEN_FLAG(reads_row_advantage);
GDPO_TOKEN_FLAG(ratio_only);
#undef GDPO_TOKEN_FLAG

template <class F>
void for_each_factor(const Factors<>&, const F&) {}
template <class First, class... Rest, class F>
void for_each_factor(const Factors<First, Rest...>& factors, const F& f) {
  f(factors.first);
  for_each_factor(factors.rest, f);
}

template <class V>
GDPO_INLINE V product(const Factors<>&, const Token<V>&) {
  return math::constant<V>(1.0);
}
template <class First, class... Rest, class V>
GDPO_INLINE V product(const Factors<First, Rest...>& factors, const Token<V>& t) {
  const V first = factors.first(t);
  if constexpr (sizeof...(Rest) == 0) {
    return first;
  } else {
    return math::mul(first, product(factors.rest, t));
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
