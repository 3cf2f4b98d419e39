#pragma once
// TokenAdvantage: an estimator of the advantages and returns of tokens.
#include <gdpo/advantage/renorm.hpp>
#include <gdpo/loss/any_kl.hpp>
#include <gdpo/value/returns.hpp>
#include <gdpo/value/token_penalty.hpp>

GDPO_BEGIN_NAMESPACE

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
///     gdpo::TokenAdvantage<> ppo{{1, 0.95}, {0.05}, {-5, 5},   // and penalty, clip, whitening
///                                gdpo::renorm::token_weighted_batch()};
///
/// The returns are those before the renormalization, because a critic learns them in the unit of
/// the rewards.
template <class Returns = returns::Gae, class KlTerm = Kl<kl::K1>, class Renorm = gdpo::Renorm>
struct TokenAdvantage {
  static_assert(is_returns_v<Returns>,
                "Returns is returns::Gae, returns::RewardToGo, or needs: steps, reads_values, "
                "scans_twice(), decay(index_t), template <class V> V operator()(const "
                "gdpo::ReturnArgs<V>&) const");
  static_assert(detail::gives_term_v<KlTerm, double>,
                "the penalty needs one KL term: template <class V> Term<V> operator()(const "
                "gdpo::Token<V>&) const");
  static_assert(is_renorm_v<Renorm>,
                "a Renorm needs: RenormOver over; gdpo::Affine operator()(const "
                "gdpo::RenormArgs&) const");

  Returns returns{};                 ///< From rewards to advantages and returns.
  penalty::Token<KlTerm> penalty{};  ///< KL inside the reward of each step. Off by default.
  Bounds reward_clip{};              ///< Bounds of the row's reward. Off by default.
  Renorm renorm{};  ///< Of the advantages: none, or over the valid tokens (RenormOver::Tokens).

  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("returns", s.returns, "from rewards to advantages and returns");
    field("penalty", s.penalty, "KL inside the reward of each step");
    field("reward_clip", s.reward_clip, "bounds of the row's reward");
    field("renorm", s.renorm, "whitening of the advantages over the valid tokens");
  }
};

/// On-policy distillation: the advantage of a token is how much more probable a teacher holds it
/// than the policy that sampled it, the reverse KL divergence of the sampled token as a reward.
///
///     A_t = rewards_t + coef (teacher_t - sampled_t)        coef is penalty.coef, here 1
///
/// Bind the teacher's log-probs as ReturnBatch::ref_logp and the sampler's as ReturnBatch::logp.
/// `rewards` are advantages that come from elsewhere, such as those of the rows, at each of their
/// tokens: gdpo::repeated(view). Without `rewards` the teacher is the only signal. returns.gamma
/// above 0 gives a token also what the teacher thinks of the tokens that follow it, discounted.
///
/// Thinking Machines, "On-Policy Distillation" (2025); Trinity-RFT OnPolicyDistillAdvantage, whose
/// kl_coef is coef; ms-swift expand_advantage_to_per_token, teacher_kl_coef; TRL IWOPDTrainer, with
/// prepass::TeacherPrefix. For a loss, any of a policy: surrogate::Reinforce, or the clipped ratio.
/// distillation_loss (loss/named.hpp) does the same inside the loss.
inline constexpr TokenAdvantage<returns::RewardToGo, AnyKl> distillation_advantage{
    {0}, {1, {0, Against::Ref, {}, {}, KlEstimator::K1}}};

/// Whether P is an estimator of token advantages: a type with the members of TokenAdvantage.
template <class P, class = void>
constexpr bool is_token_advantage_v = false;
template <class P>
constexpr bool is_token_advantage_v<P, std::void_t<decltype(P::returns), decltype(P::penalty),
                                                   decltype(P::reward_clip), decltype(P::renorm)>> =
    is_returns_v<std::decay_t<decltype(P::returns)>>;

GDPO_END_NAMESPACE
