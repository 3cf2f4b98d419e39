#pragma once
// What the policies of a loss are given and what they return. V is float, double, or a vector
// register of either, so that one formula serves scalar code, vector code and GPU kernels.
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/math/check_fields.hpp>

GDPO_BEGIN_NAMESPACE

/// What the policies of a loss see of one token, or of one register of tokens.
///
/// Log-probs and log ratios are in nats. A member whose array is absent, or is not read by the
/// loss, is 0; only `old_logp` is `logp` where it is absent. At masked tokens the members may hold
/// anything: what a policy returns there is discarded.
template <class V>
struct Token {
  V logp;             ///< Log-prob under the policy being trained.
  V old_logp;         ///< Log-prob under the policy that the ratio is against.
  V ref_logp;         ///< Log-prob under the reference policy.
  V rollout_logp;     ///< Log-prob as the sampling engine reported it.
  V teacher_logp;     ///< Log-prob under a teacher.
  V advantage;        ///< Advantage of the token, or of its row.
  V row_advantage;    ///< Mean of the advantages over the row's valid tokens.
  V token_log_ratio;  ///< logp - old_logp of this token, before the level's map.
  V log_ratio;        ///< Log ratio that the level gives: of the token, or of its segment.
  V ratio;            ///< e^log_ratio. It saturates at e^80 in a float batch, e^700 in double.
  V tag;              ///< Number from TokenBatch::tags.
};

/// The value of a surrogate or KL term at one token, with both of its derivatives.
///
/// A term depends on the token's logp in two ways: through the level's log ratio, and directly.
/// The two derivatives are apart because the ratio may belong to a whole segment: the level then
/// spreads `d_log_ratio` over the segment's tokens, while `d_logp` stays with the token.
template <class V>
struct Term {
  V value;              ///< The term at this token.
  V d_log_ratio;        ///< Derivative by the level's log ratio.
  V d_logp;             ///< Derivative by the token's own logp, with the level's ratio held fixed.
  mask_t<V> low{};      ///< Clipped from below: the ratio is below the range and A < 0.
  mask_t<V> high{};     ///< Clipped from above: the ratio is above the range and A > 0.
  mask_t<V> outside{};  ///< The ratio is outside the range, whatever A. KL terms: a clamp holds.
  mask_t<V> dual{};     ///< The dual clip holds the value.
};

/// What a map makes of a token's log ratio.
template <class V>
struct Mapped {
  V log_ratio;  ///< The mapped log ratio, in nats.
  V pass;       ///< 1 where the gradient passes through the map, 0 where it stops.
};

/// What a statistic is computed from: the valid tokens of one segment.
struct RowSum {
  double sum;  ///< Sum of their mapped log ratios, in nats.
  double n;    ///< Their number.
};

namespace detail {

/// Flags a token whose ratio is below or above the range that a surrogate or factor clips it to.
template <class V>
GDPO_INLINE void flag_clip(Term<V>& term, V advantage, mask_t<V> below, mask_t<V> above) {
  const V zero = math::constant<V>(0.0);
  term.low = math::both(advantage < zero, below);
  term.high = math::both(advantage > zero, above);
  term.outside = math::either(below, above);
}

/// Whether a policy can be called as its contract says: on a Token it gives a Term, or a number.
template <class P, class V>
constexpr bool gives_term_v = std::is_invocable_r_v<Term<V>, const P&, const Token<V>&>;
template <class P, class V>
constexpr bool gives_value_v = std::is_invocable_r_v<V, const P&, const Token<V>&>;

}  // namespace detail

/// Whether P meets the contract of a surrogate (loss/surrogate.hpp).
template <class P>
constexpr bool is_surrogate_v = detail::gives_term_v<P, float>&& detail::gives_term_v<P, double>;
/// Whether P meets the contract of a factor (loss/factor.hpp).
template <class P>
constexpr bool is_factor_v = detail::gives_value_v<P, float>&& detail::gives_value_v<P, double>;
/// Whether P meets the contract of a map (loss/map.hpp).
template <class P>
constexpr bool is_map_v = std::is_invocable_r_v<Mapped<float>, const P&, const Token<float>&>&&
    std::is_invocable_r_v<Mapped<double>, const P&, const Token<double>&>;
/// Whether P meets the contract of a statistic (loss/level.hpp).
template <class P, class = void>
constexpr bool is_statistic_v = false;
template <class P>
constexpr bool is_statistic_v<P, std::void_t<decltype(std::declval<const P&>().share(1.0))>> =
    std::is_invocable_r_v<double, const P&, const RowSum&>;

GDPO_END_NAMESPACE
