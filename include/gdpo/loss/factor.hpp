#pragma once
#include <gdpo/core/declares.hpp>
#include <gdpo/loss/term.hpp>

GDPO_BEGIN_NAMESPACE

namespace detail {
// What a surrogate, map or factor may declare, so that the host reads or computes it. A surrogate that is `ratio_only` has
// d_logp 0.
GDPO_DECLARED(reads_ref);
GDPO_DECLARED(reads_rollout);
GDPO_DECLARED(reads_teacher);
GDPO_DECLARED(reads_tag);
GDPO_DECLARED(reads_row_advantage);
GDPO_DECLARED(ratio_only);
}  // namespace detail

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
  static_assert(is_factor_v<First>,
                "a Factor needs: template <class V> V operator()(const gdpo::Token<V>&) const");
  // The list reads what one of its factors reads.
  static constexpr bool reads_ref =
      (detail::reads_ref_v<First> || ... || detail::reads_ref_v<Rest>);
  static constexpr bool reads_rollout =
      (detail::reads_rollout_v<First> || ... || detail::reads_rollout_v<Rest>);
  static constexpr bool reads_teacher =
      (detail::reads_teacher_v<First> || ... || detail::reads_teacher_v<Rest>);
  static constexpr bool reads_tag =
      (detail::reads_tag_v<First> || ... || detail::reads_tag_v<Rest>);
  static constexpr bool reads_row_advantage =
      (detail::reads_row_advantage_v<First> || ... || detail::reads_row_advantage_v<Rest>);
  First first{};
  Factors<Rest...> rest{};
};

namespace detail {

template <class P>
constexpr bool is_factors_v = false;
template <class... F>
constexpr bool is_factors_v<Factors<F...>> = true;

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
