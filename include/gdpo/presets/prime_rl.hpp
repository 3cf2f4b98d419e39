#pragma once
// Presets of prime-rl: its losses and their masks, its estimators, baseline and length penalty.
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/loss/named.hpp>
#include <gdpo/presets/correction.hpp>
#include <gdpo/presets/preset.hpp>
#include <gdpo/update/ema_baseline.hpp>
#include <gdpo/update/shape_groups.hpp>

GDPO_BEGIN_NAMESPACE
/// The losses of prime-rl, compute_loss: the ratio to the sampler without a clip, with a mask of
/// tokens, and a squared log ratio that keeps the policy near the sampler's.
///
/// Bind rollout_logp as old_logp too. Divided by Normalizer::given = rl_scale. adv_tau, the weight
/// of the surrogate, is 1: for another one set aggregate.scale = adv_tau and kl.beta = 2 kl_tau /
/// adv_tau. rl_weights are TokenBatch::weights and kl_weights.
namespace prime_rl {
inline constexpr const char* version = "prime_rl 559b447";

namespace detail {
// prime-rl does not handle missing rewards: NaN propagates. A group of one gets 0.
template <class Estimator>
constexpr Estimator conventions() {
  Estimator e{};
  e.missing = {MissingEntry::Propagate, MissingRow::Keep};
  return e;
}
}  // namespace detail
/// GRPOAlgorithm.score_group: the reward minus the mean of the group. With its option
/// length_penalty, shape the rewards by `length_penalty` first.
inline constexpr DrGrpo grpo = detail::conventions<DrGrpo>();
/// MaxRLAlgorithm.score_group: the same divided by that mean, and 0 where the mean is not above 0.
inline constexpr MaxRl maxrl = detail::conventions<MaxRl>();

/// The loss of both: -A r on the tokens that its mask keeps plus kl_tau (log r)^2 on all, with
/// kl_tau 1e-3. kl.beta is 2 kl_tau, because K2 is half the square.
inline constexpr PolicyLoss<level::Token<>, surrogate::Ratio, Kl<kl::K2>> policy_loss{
    {}, {1, math::infinity}, {2e-3, Against::Rollout}, aggregate::token_mean(Over::Given)};
/// ce_weights: -w log p of the tokens where they are not 0, divided by ce_scale. It is a part of
/// compute_loss with another mask, prompts included: call it with that mask, with ce_weights
/// as TokenBatch::weights and Normalizer::given = ce_scale, and add up losses and gradients. It
/// needs no advantages.
inline constexpr PolicyLoss<level::Token<>, surrogate::Likelihood> cross_entropy_loss{
    {}, {}, {0.0}, aggregate::token_mean(Over::Given)};
/// ref_kl_weights: a part like policy_loss, which brings the policy to the reference. Its
/// token_advantages are ref_logp - logp, taken as numbers. The mask is where
/// ref_kl_weights are not 0, they are TokenBatch::weights and kl_weights, Normalizer::given is
/// ref_kl_scale, and the pre-pass `ref_kl_mask` drops tokens.
inline constexpr auto ref_kl_loss = policy_loss;
/// default_loss_fn (DPPO, arXiv 2602.04879): drops the tokens whose probability has moved away from
/// the sampler's by more than 0.2 (dppo_mask_low, dppo_mask_high) in the direction of their
/// advantage.
inline constexpr prepass::Gate dppo_mask =
    presets::outward(prepass::Estimator::ProbabilityGain, prepass::Pair::Drift, 0.2, 0.2);
/// ipo_loss_fn: drops the tokens whose probability has moved away from the sampler's by more than
/// 0.1 (ipo_threshold), whatever their advantage.
inline constexpr prepass::Gate ipo_mask = [] {
  prepass::Gate pass = presets::gate(prepass::Estimator::BinaryTotalVariation,
                                     prepass::Statistic::Token, -math::infinity, 0.1);
  pass.pair = prepass::Pair::Drift;
  return pass;
}();
/// ref_kl_weights: drops the tokens whose probability is more than 0.2 below the sampler's,
/// whatever their advantage.
inline constexpr prepass::Gate ref_kl_mask = [] {
  prepass::Gate pass = presets::gate(prepass::Estimator::ProbabilityGain, prepass::Statistic::Token,
                                     -0.2, math::infinity);
  pass.pair = prepass::Pair::Drift;
  return pass;
}();

/// length_penalty: the rewards minus the mean of the group times 0.25 of the tokens
/// (num_output_tokens_weight), 0.1 of the tokens read (num_input_tokens_weight; they are
/// num_total_tokens - num_output_tokens) and 0.1 of the turns (num_turns_weight), each divided by
/// the largest of the group.
inline constexpr update::shaping::RelativeCost length_penalty{0.25, 0.1, 0.1};
/// RAEAlgorithm (arXiv 2506.24119): the moving average of each agent, from 0 on. The decay is that
/// of a run.
inline constexpr update::EmaBaseline rae{0.95, 0};
/// RAEAlgorithm: R minus RewardBatch::baseline, which is what `rae` writes. It reads no group:
/// groups_of(1) does.
inline constexpr GroupAdvantage<baseline::External, scale::None, combine::SumThenNormalize>
    rae_advantage{};

/// The estimators by name.
inline constexpr auto estimators = [](const auto& f) {
  return f(Preset{"prime_rl::grpo", grpo, "GRPOAlgorithm", version},
           Preset{"prime_rl::maxrl", maxrl, "MaxRLAlgorithm", version});
};
/// The rules that shape rewards, by name.
inline constexpr auto shapings = [](const auto& f) {
  return f(Preset{"prime_rl::length_penalty", length_penalty,
                  "num_output_tokens_weight=0.25 num_input_tokens_weight=0.1 num_turns_weight=0.1",
                  version});
};
/// What keeps a state over the steps of a run, by name.
inline constexpr auto running = [](const auto& f) {
  return f(Preset{"prime_rl::rae", rae, "RAEAlgorithm", version});
};
/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"prime_rl::default", policy_loss, "default_loss_fn", version},
           Preset{"prime_rl::ipo", policy_loss, "ipo_loss_fn", version},
           Preset{"prime_rl::cross_entropy", cross_entropy_loss, "ce_weights", version},
           Preset{"prime_rl::ref_kl", ref_kl_loss, "ref_kl_weights", version});
};
/// The pre-passes by name.
inline constexpr auto prepasses = [](const auto& f) {
  return f(
      Preset{"prime_rl::dppo_mask", dppo_mask, "dppo_mask_low=0.2 dppo_mask_high=0.2", version},
      Preset{"prime_rl::ipo_mask", ipo_mask, "ipo_threshold=0.1", version},
      Preset{"prime_rl::ref_kl_mask", ref_kl_mask, "ref_kl_weights", version});
};
}  // namespace prime_rl
GDPO_END_NAMESPACE
