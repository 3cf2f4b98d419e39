#pragma once
// The estimators and policy losses of SkyRL as presets, and its corrections between sampler and
// trainer.
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/loss/named.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/presets/correction.hpp>
#include <gdpo/presets/preset.hpp>
#include <gdpo/presets/verl.hpp>

GDPO_BEGIN_NAMESPACE
/// The losses of SkyRL, ppo_utils.py, chosen by policy_loss_type.
///
/// They are sums over tokens: SkyRL has divided the advantages by the counts of its loss_reduction
/// before. To divide here instead, set `aggregate` (token_mean is Over::Tokens; sequence_mean is
/// aggregate::seq_mean_token_mean(); prompt_mean is aggregate::group_mean(), whose groups are the
/// prompts). SkyRL computes its KL term apart from them, so beta is 0.
namespace skyrl {
inline constexpr const char* version = "skyrl 0.3.0";

namespace detail {
// SkyRL does not handle missing rewards: NaN propagates.
template <class Estimator>
constexpr Estimator conventions(Estimator e, Singleton singleton) {
  e.missing = {MissingEntry::Propagate, MissingRow::Keep};
  e.singleton = singleton;
  return e;
}
}  // namespace detail
/// advantage_estimator="grpo" (compute_grpo_outcome_advantage): centered, divided by the std of the
/// group + 1e-6; a group of one keeps its reward, divided by 1 + 1e-6.
inline constexpr Grpo grpo = [] {
  Grpo e = detail::conventions(Grpo{}, Singleton::Raw);
  e.scale.eps = 1e-6;
  return e;
}();
/// advantage_estimator="grpo" with grpo_norm_by_std=False: the reward minus the mean of the group;
/// a group of one keeps its reward.
inline constexpr DrGrpo grpo_no_std = detail::conventions(DrGrpo{}, Singleton::Raw);
/// advantage_estimator="rloo" (compute_rloo_outcome_advantage): a group of one gets 0.
inline constexpr Rloo rloo = detail::conventions(Rloo{}, Singleton::Zero);
/// advantage_estimator="maxrl" (compute_maxrl_advantage): the reward minus the mean of the group,
/// divided by that mean + 1e-6, whatever its sign; a group of one keeps its reward.
inline constexpr MaxRl maxrl = [] {
  MaxRl e = detail::conventions(MaxRl{}, Singleton::Raw);
  e.scale = {1e-6, scale::DivideBy::AnyMean};
  return e;
}();

/// policy_loss_type="regular" (ppo_policy_loss): the log ratio clamped to +-20, and clip 0.2.
/// "dual_clip" is surrogate.dual = clip_ratio_c, 3 by default.
inline constexpr PolicyLoss<level::Token<map::Clamp>> regular_loss{
    {{-20, 20}}, {}, {0.0}, aggregate::token_sum()};
/// policy_loss_type="gspo" (gspo_policy_loss): GSPO-token with the log ratio of the sequence at
/// most 10, and clip 0.2.
inline constexpr PolicyLoss<level::SequenceToken<>> gspo_loss{
    {{}, {}, {-math::infinity, 10}}, {}, {0.0}, aggregate::token_sum()};
/// policy_loss_type="cispo" (compute_policy_loss_cispo): the log ratio clamped to +-20, the
/// detached ratio between 1 - cispo_eps_clip_low and 1 + cispo_eps_clip_high, which are 0 and 5.
inline constexpr CispoLoss<level::Token<map::Clamp>> cispo_loss{
    {{-20, 20}}, {}, {0.0}, aggregate::token_sum(), {{1 - 0.0, 1 + 5.0}, {}}};

/// policy_loss_type="sapo" (sapo_policy_loss): the log ratio clamped to +-20, and SAPO's gate in
/// place of the clip; sapo.tau_pos and sapo.tau_neg are 1 and 1.05.
inline constexpr PolicyLoss<level::Token<map::Clamp>, surrogate::Soft> sapo_loss{
    {{-20, 20}}, {1, 1.05}, {0.0}, aggregate::token_sum()};
/// policy_loss_type="importance_sampling" (importance_sampling_loss): the ratio without a clip.
inline constexpr PolicyLoss<> importance_sampling_loss{
    {}, {math::infinity, math::infinity}, {0.0}, aggregate::token_sum()};

/// policy_loss_type="clip_cov" (compute_policy_loss_clip_cov): clip 0.2, without a clamp of the log
/// ratio. The pre-pass `clip_cov` takes its picks out of the loss.
inline constexpr PolicyLoss<> clip_cov_loss{{}, {}, {0.0}, aggregate::token_sum()};
/// policy_loss_type="kl_cov" (compute_policy_loss_kl_cov): the ratio without a clip, plus
/// ppo_kl_coef |logp - old_logp| on the picks of the pre-pass `kl_cov`, without which it is on all
/// tokens. ppo_kl_coef, kl.beta here, is 1.
inline constexpr PolicyLoss<level::Token<>, surrogate::Ratio, Kl<kl::Abs>> kl_cov_loss{
    {}, {math::infinity, math::infinity}, {1.0, Against::Old}, aggregate::token_sum()};

/// policy_loss_type="rollout_is" (rollout_is_policy_loss): REINFORCE times the detached ratio to
/// the sampler, with its log clamped to +-20. Bind rollout_logp as old_logp. The pre-pass
/// `rollout_is` drops tokens.
inline constexpr CispoLoss<level::Token<map::Clamp>> rollout_is_loss{
    {{-20, 20}}, {}, {0.0}, aggregate::token_sum(), {{0, math::infinity}, {}}};
/// policy_loss_type="dppo" (dppo_policy_loss): the ratio to the sampler without a clip, with its
/// log clamped to +-20. Bind rollout_logp as old_logp. The pre-pass `dppo_binary_tv` or
/// `dppo_binary_kl` drops tokens.
inline constexpr PolicyLoss<level::Token<map::Clamp>> dppo_loss{
    {{-20, 20}}, {1, math::infinity}, {0.0}, aggregate::token_sum()};
/// policy_loss_type="cross_entropy" (cross_entropy_loss): -log p. It needs no advantages.
inline constexpr PolicyLoss<level::Token<>, surrogate::Likelihood> cross_entropy_loss{
    {}, {}, {0.0}, aggregate::token_sum()};

/// The picks of policy_loss_type="clip_cov": 2e-4 of the tokens (clip_cov.clip_ratio), at random
/// among those with a covariance between 1 and 5 (clip_cov_lb, clip_cov_ub). Set `seed` anew in
/// each step.
inline constexpr prepass::Covariance clip_cov{};
/// The picks of policy_loss_type="kl_cov": the fifth of the tokens (kl_cov.kl_cov_frac) with the
/// largest covariance.
inline constexpr prepass::Covariance kl_cov = [] {
  prepass::Covariance pass{};
  pass.pick = prepass::CovariancePick::Top;
  pass.keep = prepass::CovarianceKeep::Picked;
  pass.share = 0.2;
  pass.reach = Reach::Kl;
  return pass;
}();

/// policy_loss_type="rollout_is": drops tokens whose ratio to the sampler is outside [0.8, 1.2]
/// (eps_clip_low, eps_clip_high).
inline constexpr prepass::Gate rollout_is = [] {
  prepass::Gate pass =
      presets::gate(prepass::Estimator::Ratio, prepass::Statistic::Token, 1 - 0.2, 1 + 0.2);
  pass.pair = prepass::Pair::Drift;
  return pass;
}();
/// policy_loss_type="dppo" with dppo_type="binary_tv": drops the tokens whose probability has moved
/// away from the sampler's by more than 0.2 (delta_low, delta_high) in the direction of their
/// advantage.
inline constexpr prepass::Gate dppo_binary_tv =
    presets::outward(prepass::Estimator::ProbabilityGain, prepass::Pair::Drift, 0.2, 0.2);
/// policy_loss_type="dppo" with dppo_type="binary_kl": the same by the binary KL of the token
/// against all others.
inline constexpr prepass::Gate dppo_binary_kl =
    presets::outward(prepass::Estimator::SignedBinaryKl, prepass::Pair::Drift, 0.2, 0.2, 1e-8);

// The parts of off_policy_correction, in the order in which SkyRL applies them. What its masks drop
// leaves the mask; SkyRL has scaled the advantages before, so the counts stay: give `aggregate` a
// count of before. Masks of tokens clamp log ratios to +-20. The thresholds of outliers are those
// that SkyRL suggests; they and the mask of tokens, which has none, are off there unless set.

/// outlier_token_is_threshold_high=100: rows in which the ratio of some token is larger.
inline constexpr prepass::Gate outlier_token_high =
    presets::gate(prepass::Estimator::Ratio, prepass::Statistic::SequenceMax, -math::infinity, 100,
                  Reach::Mask, {-20, 20});
/// outlier_token_is_threshold_low=1e-4: rows in which the ratio of some token is smaller. `max` is
/// minus its natural logarithm.
inline constexpr prepass::Gate outlier_token_low =
    presets::gate(prepass::Estimator::K1, prepass::Statistic::SequenceMax, -math::infinity,
                  9.2103403719761836, Reach::Mask, {-20, 20});
/// token_mask_is_threshold_low=0.5 and token_mask_is_threshold_high=2: tokens outside.
inline constexpr prepass::Gate token_mask = presets::gate(
    prepass::Estimator::Ratio, prepass::Statistic::Token, 0.5, 2, Reach::Mask, {-20, 20});
/// tis_ratio_type="token": the ratio of each token, at most token_tis_ratio_clip_high, 2.
inline constexpr prepass::Importance token_tis =
    presets::weight(prepass::Statistic::Token, {-math::infinity, 2}, {-20, 20});
/// tis_ratio_type="sequence": the product of the ratios of the row, at most
/// sequence_tis_ratio_clip_high, 5.
inline constexpr prepass::Importance sequence_tis =
    presets::weight(prepass::Statistic::SequenceSum, {-math::infinity, 5}, {-20, 20});
/// sequence_mask_metric="geometric": rows whose geometric mean of the ratios is outside [0.99,
/// 1.01] (geo_mask_low, geo_mask_high).
inline constexpr prepass::Gate geometric_mask = presets::gate(
    prepass::Estimator::Ratio, prepass::Statistic::SequenceMean, 0.99, 1.01, Reach::Mask);
/// sequence_mask_metric="product": rows whose product of the ratios is outside [0.5, 2]
/// (product_mask_low, product_mask_high).
inline constexpr prepass::Gate product_mask =
    presets::gate(prepass::Estimator::Ratio, prepass::Statistic::SequenceSum, 0.5, 2, Reach::Mask);

/// advantage_estimator="gae" (compute_gae_advantage_return): GAE with lambda 1 in which every
/// position is a step, masked ones too, with its reward and its value; then whitened over the valid
/// tokens.
inline constexpr auto gae = [] {
  auto e = verl::gae;
  e.returns.steps = Steps::Row, e.renorm.count_eps = 0;
  return e;
}();

/// The estimators over tokens by name.
inline constexpr auto token_advantages = [](const auto& f) {
  return f(Preset{"skyrl::gae", gae, "advantage_estimator=gae", version});
};
/// The estimators by name.
inline constexpr auto estimators = [](const auto& f) {
  return f(Preset{"skyrl::grpo", grpo, "advantage_estimator=grpo", version},
           Preset{"skyrl::grpo_no_std", grpo_no_std,
                  "advantage_estimator=grpo grpo_norm_by_std=False", version},
           Preset{"skyrl::rloo", rloo, "advantage_estimator=rloo", version},
           Preset{"skyrl::maxrl", maxrl, "advantage_estimator=maxrl", version});
};
/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"skyrl::regular", regular_loss, "policy_loss_type=regular", version},
           Preset{"skyrl::gspo", gspo_loss, "policy_loss_type=gspo", version},
           Preset{"skyrl::cispo", cispo_loss, "policy_loss_type=cispo", version},
           Preset{"skyrl::sapo", sapo_loss, "policy_loss_type=sapo", version},
           Preset{"skyrl::importance_sampling", importance_sampling_loss,
                  "policy_loss_type=importance_sampling", version},
           Preset{"skyrl::clip_cov", clip_cov_loss, "policy_loss_type=clip_cov", version},
           Preset{"skyrl::kl_cov", kl_cov_loss, "policy_loss_type=kl_cov", version},
           Preset{"skyrl::rollout_is", rollout_is_loss, "policy_loss_type=rollout_is", version},
           Preset{"skyrl::dppo", dppo_loss, "policy_loss_type=dppo", version},
           Preset{"skyrl::cross_entropy", cross_entropy_loss, "policy_loss_type=cross_entropy",
                  version});
};
/// The pre-passes by name.
inline constexpr auto prepasses = [](const auto& f) {
  return f(
      Preset{"skyrl::clip_cov", clip_cov, "policy_loss_type=clip_cov", version},
      Preset{"skyrl::kl_cov", kl_cov, "policy_loss_type=kl_cov", version},
      Preset{"skyrl::rollout_is", rollout_is, "policy_loss_type=rollout_is", version},
      Preset{"skyrl::dppo_binary_tv", dppo_binary_tv, "policy_loss_type=dppo dppo_type=binary_tv",
             version},
      Preset{"skyrl::dppo_binary_kl", dppo_binary_kl, "policy_loss_type=dppo dppo_type=binary_kl",
             version},
      Preset{"skyrl::outlier_token_high", outlier_token_high, "outlier_token_is_threshold_high=100",
             version},
      Preset{"skyrl::outlier_token_low", outlier_token_low, "outlier_token_is_threshold_low=1e-4",
             version},
      Preset{"skyrl::token_mask", token_mask,
             "token_mask_is_threshold_low=0.5 token_mask_is_threshold_high=2", version},
      Preset{"skyrl::token_tis", token_tis, "tis_ratio_type=token", version},
      Preset{"skyrl::sequence_tis", sequence_tis, "tis_ratio_type=sequence", version},
      Preset{"skyrl::geometric_mask", geometric_mask, "sequence_mask_metric=geometric", version},
      Preset{"skyrl::product_mask", product_mask, "sequence_mask_metric=product", version});
};
}  // namespace skyrl
GDPO_END_NAMESPACE
