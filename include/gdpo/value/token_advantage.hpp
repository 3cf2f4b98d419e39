#pragma once
#include <gdpo/advantage/renorm.hpp>
#include <gdpo/advantage/tokens.hpp>
#include <gdpo/value/returns.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Whether a renormalisation is one that advantages of tokens have: none, or whitening.
template <class Renorm>
constexpr bool whitens_tokens_v =
    std::is_same_v<Renorm, renorm::None> || std::is_same_v<Renorm, renorm::TokenWeightedBatch>;

}  // namespace detail

/// An estimator of the advantages and returns of tokens: the critic's side of PPO.
///
/// The type is the algorithm and the members are its settings; advantages_and_returns_into() runs
/// it. For row i and its steps t, in this order:
///
///     r_t = rewards_t - coef kl_t              penalty; kl is a KL term of the loss
///     r_T = r_T + clamp(row_reward_i)          at the row's last step; reward_clip
///     A, G = the scan of `returns` over r      from the last step to the first
///     A = (A - mean) multiplier(v)             renorm: over the valid tokens of the batch
///
///     gdpo::TokenAdvantage<> gae{{0.99, 0.95}};                        // GAE
///     gdpo::TokenAdvantage<gdpo::returns::RewardToGo> reinforce{{1}};  // reward to go
///     gdpo::TokenAdvantage<gdpo::returns::Gae, gdpo::Kl<gdpo::kl::K1>,
///                          gdpo::renorm::TokenWeightedBatch>
///         ppo{{1, 0.95}, {0.05}, {-5, 5}};                 // and penalty, clip, whitening
///
/// The returns are those before the renormalisation, because a critic learns them in the unit of
/// the rewards.
template <class Returns = returns::Gae, class KlTerm = Kl<kl::K1>, class Renorm = renorm::None>
struct TokenAdvantage {
  static_assert(is_returns_v<Returns>,
                "Returns is returns::Gae, returns::RewardToGo, or needs: steps, reads_values, "
                "scans_twice(), decay(index_t), template <class V> V operator()(const "
                "gdpo::ReturnArgs<V>&) const");
  static_assert(detail::gives_term_v<KlTerm, double>,
                "the penalty needs one KL term: template <class V> Term<V> operator()(const "
                "gdpo::Token<V>&) const");
  static_assert(detail::whitens_tokens_v<Renorm>,
                "advantages of tokens are renormalised by renorm::TokenWeightedBatch, or not at "
                "all: renorm::None");

  Returns returns{};                 ///< From rewards to advantages and returns.
  penalty::Token<KlTerm> penalty{};  ///< KL inside the reward of each step. Off by default.
  Bounds reward_clip{};              ///< Bounds of the row's reward. Off by default.
  Renorm renorm{};                   ///< None, or whitening of the advantages over valid tokens.

  void check(const char* function) const {
    detail::Checks<Returns>::run(returns, function);
    penalty.check(function);
    detail::check_bounds(function, "reward_clip", reward_clip);
    detail::Checks<Renorm>::run(renorm, function);
  }
};

/// The same estimator with another renormalisation; every other setting is kept.
template <class NewRenorm, class Returns, class KlTerm, class Renorm>
constexpr TokenAdvantage<Returns, KlTerm, NewRenorm> with_renorm(
    const TokenAdvantage<Returns, KlTerm, Renorm>& e, NewRenorm renorm = {}) {
  return {e.returns, e.penalty, e.reward_clip, renorm};
}

/// Whether P is an estimator of token advantages: a type with the members of TokenAdvantage.
template <class P, class = void>
constexpr bool is_token_advantage_v = false;
template <class P>
constexpr bool is_token_advantage_v<P, std::void_t<decltype(P::returns), decltype(P::penalty),
                                                   decltype(P::reward_clip), decltype(P::renorm)>> =
    is_returns_v<std::decay_t<decltype(P::returns)>>;

GDPO_END_NAMESPACE
