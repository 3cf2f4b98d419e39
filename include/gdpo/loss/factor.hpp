#pragma once
#include <gdpo/core/declares.hpp>
#include <gdpo/loss/term.hpp>

GDPO_BEGIN_NAMESPACE

namespace detail {
// The flags that a surrogate, map or factor may declare; see Factors. `ratio_only` is for
// surrogates: their d_logp is 0.
GDPO_DECLARED(reads_ref);
GDPO_DECLARED(reads_rollout);
GDPO_DECLARED(reads_teacher);
GDPO_DECLARED(reads_tag);
GDPO_DECLARED(reads_row_advantage);
GDPO_DECLARED(ratio_only);
}  // namespace detail

/// A list of factors of the surrogate; `Factors<>` is none.
///
/// A factor is a number computed from one token. It is detached: no gradient flows through it. The
/// product of all factors and of `TokenBatch::weights` multiplies the surrogate's value and
/// gradient. Where it is 0 or not finite, the token's surrogate is dropped with its gradient, and
/// one that is not finite is counted in `NonFiniteInputs::weights`. What needs a whole row or the
/// batch is a pre-pass instead (gdpo/prepass.hpp), which fills TokenBatch::weights.
///
/// Contract of a factor:
///
///     template <class V> V operator()(const Token<V>&) const;
///
/// A factor, and likewise a surrogate or map, declares which optional members of Token it reads:
/// `reads_ref`, `reads_rollout`, `reads_teacher`, `reads_tag` and `reads_row_advantage`, each as
/// `static constexpr bool ... = true`. The loss then reads the array, or computes the mean, and
/// throws invalid_input where the array is absent. Without the flag the member may be 0. Settings
/// are checked by `void check(const char* function) const`, where a factor has it.
///
/// The factors are `first`, `rest.first`, `rest.rest.first`, ...
template <class... F>
struct Factors;
/// No factor.
template <>
struct Factors<> {};
/// At least one factor.
template <class First, class... Rest>
struct Factors<First, Rest...> {
  static_assert(is_factor_v<First>,
                "a Factor needs: template <class V> V operator()(const gdpo::Token<V>&) const");
  /// Whether one of the factors reads ref_logp.
  static constexpr bool reads_ref =
      (detail::reads_ref_v<First> || ... || detail::reads_ref_v<Rest>);
  /// Whether one of the factors reads rollout_logp.
  static constexpr bool reads_rollout =
      (detail::reads_rollout_v<First> || ... || detail::reads_rollout_v<Rest>);
  /// Whether one of the factors reads teacher_logp.
  static constexpr bool reads_teacher =
      (detail::reads_teacher_v<First> || ... || detail::reads_teacher_v<Rest>);
  /// Whether one of the factors reads the tag.
  static constexpr bool reads_tag =
      (detail::reads_tag_v<First> || ... || detail::reads_tag_v<Rest>);
  /// Whether one of the factors reads row_advantage.
  static constexpr bool reads_row_advantage =
      (detail::reads_row_advantage_v<First> || ... || detail::reads_row_advantage_v<Rest>);
  First first{};            ///< The first factor.
  Factors<Rest...> rest{};  ///< The others.
};

namespace detail {

template <class P>
constexpr bool is_factors_v = false;
template <class... F>
constexpr bool is_factors_v<Factors<F...>> = true;

/// Calls f with each factor.
template <class F>
void for_each_factor(const Factors<>&, const F&) {}
template <class First, class... Rest, class F>
void for_each_factor(const Factors<First, Rest...>& factors, const F& f) {
  f(factors.first);
  for_each_factor(factors.rest, f);
}

/// The product of all factors at a token; 1 if there are none.
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
