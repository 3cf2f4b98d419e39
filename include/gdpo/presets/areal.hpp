#pragma once
// Presets of AReaL.
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/loss/named.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/presets/correction.hpp>
#include <gdpo/presets/preset.hpp>
#include <gdpo/value/outcome_advantage.hpp>
#include <gdpo/value/value_loss.hpp>

GDPO_BEGIN_NAMESPACE
/// The losses of AReaL, areal/utils/functional/functional.py, and its pre-passes,
/// areal/trainer/ppo/actor.py.
///
/// rollout_logp is what AReaL calls the behavior policy's log-probs, old_logp the proximal
/// policy's. For prox_logp_method="loglinear" old_logp is that of gdpo::proximal_logp.
namespace areal {
inline constexpr const char* version = "areal 1.0.4";

// Normalization, areal/utils/data.py, of reward_norm and adv_norm, over rows. eps 1e-5 is added to
// the std, and std_unbiased=False is scale.ddof = 0. Missing rewards are not handled: NaN
// propagates. Values of tokens are normalized by the same estimators over a batch in which each
// token is a row, of the group of its row: RewardBatch::valid is the mask. The rows after the last
// whole group, which AReaL divides by eps, are in no group here.

namespace detail {
template <class Baseline, class Scale = scale::None>
constexpr auto normalization(const Baseline& baseline, const Scale& scale = {},
                             Singleton singleton = Singleton::Zero) {
  GroupAdvantage<Baseline, Scale, combine::SumThenNormalize> e{};
  e.baseline = baseline;
  e.scale = scale;
  e.missing = {MissingEntry::Propagate, MissingRow::Keep};
  e.singleton = singleton;
  return e;
}
constexpr scale::StdDev std_of(scale::Of of) { return {of, 1, 1e-5}; }
}  // namespace detail
/// mean_level="batch" and std_level="batch": minus the mean of the batch, divided by
/// the std of the batch + 1e-5.
inline constexpr auto batch_norm =
    detail::normalization(baseline::BatchMean{}, detail::std_of(scale::Of::BatchCentered));
/// mean_level=None and std_level="batch": divided by the root mean square of the batch + 1e-5.
inline constexpr auto batch_std_norm =
    detail::normalization(baseline::None{}, detail::std_of(scale::Of::BatchRms));
/// mean_level="group" and std_level="group": minus the mean of the group, divided by its std +
/// 1e-5.
inline constexpr Grpo group_norm =
    detail::normalization(baseline::Mean{}, detail::std_of(scale::Of::Group));
/// mean_level="group" and std_level="batch": divided by the std of the centered batch + 1e-5.
inline constexpr Grpo group_mean_batch_std_norm =
    detail::normalization(baseline::Mean{}, detail::std_of(scale::Of::BatchCentered));
/// mean_level="group" and std_level=None: minus the mean of the group.
inline constexpr DrGrpo group_mean_norm = detail::normalization(baseline::Mean{});
/// mean_level="group", mean_leave1out and std_level="group": minus the mean of the others, divided
/// by the std about those means + 1e-5, which is n / (n - 1) times that of the group. A group of
/// one keeps its reward, divided by 1 + 1e-5.
inline constexpr auto leave_one_out_norm = detail::normalization(
    baseline::LeaveOneOut{}, detail::std_of(scale::Of::GroupOthers), Singleton::Raw);
/// mean_level="group", mean_leave1out and std_level=None: minus the mean of the others. A group of
/// one keeps its reward.
inline constexpr Rloo leave_one_out_mean_norm =
    detail::normalization(baseline::LeaveOneOut{}, scale::None{}, Singleton::Raw);

// PPOActor._compute_advantages: the reward of a row, (R + reward_bias) reward_scaling within
// +-reward_clip (update::shaping::Affine, then rows.reward_clip), is normalized by reward_norm in
// its group, stands on the last step, and each step pays tokens.penalty.coef = kl_ctl times its KL.
// discount and gae_lambda are tokens.returns.gamma and lambda. AReaL's mask is rolled: a position
// has the mask of the next token. For adv_norm set tokens.renorm = areal::adv_norm.

/// adv_norm with mean and std of the batch, for `tokens.renorm`: over the valid tokens, minus their
/// mean, divided by their std + 1e-5.
inline constexpr Renorm adv_norm = renorm::token_weighted_batch(1, 1e-5, EpsAt::Std);
namespace detail {
template <class Returns, class Rows>
constexpr auto outcome(const Rows& rows, const Renorm& renorm = {}) {
  using Tokens = TokenAdvantage<Returns, AnyKl>;
  return OutcomeAdvantage<Rows, Tokens>{
      rows, Tokens{{}, {0, {0, Against::Ref, {}, {}, KlEstimator::K1}}, {}, renorm}};
}
}  // namespace detail
/// reward_norm with mean and std of the group, and no critic: `group_norm` at the last step.
inline constexpr auto grpo_outcome = detail::outcome<returns::RewardToGo>(group_norm);
/// reward_norm with the mean of the group alone, no critic, and adv_norm: `group_mean_norm` at the
/// last step, and the tokens have `adv_norm`.
inline constexpr auto dr_grpo_outcome =
    detail::outcome<returns::RewardToGo>(group_mean_norm, adv_norm);
/// Neither reward_norm nor a critic: the reward itself.
inline constexpr auto reinforce_outcome =
    detail::outcome<returns::RewardToGo>(detail::normalization(baseline::None{}));
/// No reward_norm, with a critic: GAE over the valid tokens. AReaL takes a row that fills the width
/// of the batch as cut off: its `bootstrap` is the value of its last position, the others have 0.
inline constexpr auto gae_outcome =
    detail::outcome<returns::Gae>(detail::normalization(baseline::None{}));

/// ppo_actor_loss_fn: clip 0.2 (eps_clip, eps_clip_higher), no dual clip (c_clip is
/// surrogate.dual), mean over the tokens that are valid before rejection_sampling. KL penalties are
/// in AReaL's rewards, so beta is 0. For importance_sampling_level="sequence" use
/// with_level<level::Sequence<>>(loss); AReaL then replaces advantages of tokens by their means
/// over the row, which gdpo::masked_row_means gives.
inline constexpr PolicyLoss<> ppo_loss{{}, {}, {0.0}, aggregate::token_mean()};
/// sapo_loss_fn: SAPO's gate in place of the clip, with tau_pos 1 and tau_neg 1.05; no clamp of the
/// log ratio.
inline constexpr PolicyLoss<level::Token<>, surrogate::Soft> sapo_loss{
    {}, {1, 1.05}, {0.0}, aggregate::token_mean()};
/// ppo_critic_loss_fn: half the larger squared error with clip 0.2 (value_eps_clip), mean over
/// tokens. With loss_fn_type="huber" set delta = 10.
inline constexpr ValueLoss<> value_loss{0.2};

/// m2_threshold (_apply_m2po_masking): the tokens on which behavior and proximal policy differ most
/// leave the batch, until the second moment of the rest is below 0.04, the threshold of M2PO
/// (arXiv 2510.01161). AReaL has no default: it is off there unless set.
inline constexpr prepass::SecondMoment m2po{};

/// masked_normalization over the valid tokens of a batch, for gdpo::whiten_into: minus their mean,
/// divided by their population std + 1e-5. AReaL takes the variance as E[x^2] - E[x]^2, which
/// cancels where the mean is large, and normalizes padding too.
inline constexpr Renorm masked_normalization = renorm::token_weighted_batch(0, 1e-5, EpsAt::Std);

// rejection_sampling of ppo_actor_loss_fn, with `upper` 5 and no `lower`, its defaults, for ratios.
// The weight is old / behavior. Action "mask": what is outside has weight 0; it still counts. For a
// KL metric AReaL's bound is one of the divergence: set `max`. `agg` is the statistic: "mean" here,
// "sum" and "max" are SequenceSum and SequenceMax (by name "gate.statistic=sequence_sum"). AReaL's
// k1 is old - behavior, the negative of ours, so its "max" is no statistic of k1 here: take the
// gate Estimator::Ratio, SequenceMax with max = e^upper.

namespace detail {
constexpr prepass::MaskedImportance rejected(prepass::Statistic weight,
                                             prepass::Statistic statistic,
                                             prepass::Estimator metric, double min, double max) {
  return presets::masked(presets::weight(weight), presets::gate(metric, statistic, min, max));
}
constexpr prepass::MaskedImportance by_token(prepass::Estimator metric, double min, double max) {
  return rejected(prepass::Statistic::Token, prepass::Statistic::Token, metric, min, max);
}
constexpr prepass::MaskedImportance by_row(prepass::Estimator metric, double min, double max) {
  return rejected(metric == prepass::Estimator::Ratio ? prepass::Statistic::SequenceMean
                                                      : prepass::Statistic::Token,
                  prepass::Statistic::SequenceMean, metric, min, max);
}
}  // namespace detail
/// level="token", action="clamp": the ratio of each token, at most 5, whatever the metric.
inline constexpr prepass::Importance token_clamp =
    presets::weight(prepass::Statistic::Token, {-math::infinity, 5});
/// level="sequence", action="clamp", metric="ratio": the geometric mean of the ratios of the row,
/// at most 5.
inline constexpr prepass::Importance sequence_clamp =
    presets::weight(prepass::Statistic::SequenceMean, {-math::infinity, 5});
/// level="token", action="mask", metric="ratio": the ratio of each token, and 0 where it is above
/// 5.
inline constexpr prepass::MaskedImportance token_mask_ratio =
    detail::by_token(prepass::Estimator::Ratio, -math::infinity, 5);
/// metric="kl_k1" of a token: old - behavior, so that `min` here is minus AReaL's upper bound.
inline constexpr prepass::MaskedImportance token_mask_kl_k1 =
    detail::by_token(prepass::Estimator::K1, -0.1, math::infinity);
/// metric="kl_k2" of a token.
inline constexpr prepass::MaskedImportance token_mask_kl_k2 =
    detail::by_token(prepass::Estimator::K2, -math::infinity, 0.1);
/// metric="kl_k3" of a token: k3 of behavior - old.
inline constexpr prepass::MaskedImportance token_mask_kl_k3 =
    detail::by_token(prepass::Estimator::ReverseK3, -math::infinity, 0.1);
/// level="sequence", action="mask", metric="ratio": the geometric mean of the ratios of the row,
/// and 0 where it is above 5.
inline constexpr prepass::MaskedImportance sequence_mask_ratio =
    detail::by_row(prepass::Estimator::Ratio, -math::infinity, 5);
/// metric="kl_k1" of a row: the ratio of each token, and 0 in rows outside; `min` as of a token.
inline constexpr prepass::MaskedImportance sequence_mask_kl_k1 =
    detail::by_row(prepass::Estimator::K1, -0.1, math::infinity);
/// metric="kl_k2" of a row: the ratio of each token, and 0 in rows outside.
inline constexpr prepass::MaskedImportance sequence_mask_kl_k2 =
    detail::by_row(prepass::Estimator::K2, -math::infinity, 0.1);
/// metric="kl_k3" of a row, k3 of behavior - old: the ratio of each token, and 0 in rows outside.
inline constexpr prepass::MaskedImportance sequence_mask_kl_k3 =
    detail::by_row(prepass::Estimator::ReverseK3, -math::infinity, 0.1);

/// The estimators by name.
inline constexpr auto estimators = [](const auto& f) {
  return f(
      Preset{"areal::batch_norm", batch_norm, "mean_level=batch std_level=batch", version},
      Preset{"areal::batch_std_norm", batch_std_norm, "mean_level=None std_level=batch", version},
      Preset{"areal::group_norm", group_norm, "mean_level=group std_level=group", version},
      Preset{"areal::group_mean_batch_std_norm", group_mean_batch_std_norm,
             "mean_level=group std_level=batch", version},
      Preset{"areal::group_mean_norm", group_mean_norm, "mean_level=group std_level=None", version},
      Preset{"areal::leave_one_out_norm", leave_one_out_norm,
             "mean_level=group mean_leave1out=True std_level=group", version},
      Preset{"areal::leave_one_out_mean_norm", leave_one_out_mean_norm,
             "mean_level=group mean_leave1out=True std_level=None", version});
};
/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"areal::ppo", ppo_loss, "ppo_actor_loss_fn", version},
           Preset{"areal::sapo", sapo_loss, "sapo_loss_fn", version});
};
/// The estimators from rows to tokens by name.
inline constexpr auto outcome_advantages = [](const auto& f) {
  return f(Preset{"areal::grpo", grpo_outcome, "reward_norm=group", version},
           Preset{"areal::dr_grpo", dr_grpo_outcome,
                  "reward_norm=group std_level=None adv_norm=batch", version},
           Preset{"areal::reinforce", reinforce_outcome, "reward_norm=None", version},
           Preset{"areal::gae", gae_outcome, "reward_norm=None critic", version});
};
/// The whitenings by name.
inline constexpr auto whitenings = [](const auto& f) {
  return f(
      Preset{"areal::masked_normalization", masked_normalization, "masked_normalization", version},
      Preset{"areal::adv_norm", adv_norm, "adv_norm=batch", version});
};
/// The value losses by name.
inline constexpr auto value_losses = [](const auto& f) {
  return f(Preset{"areal::value_loss", value_loss, "ppo_critic_loss_fn", version});
};
/// The pre-passes by name.
inline constexpr auto prepasses = [](const auto& f) {
  return f(Preset{"areal::m2po", m2po, "m2_threshold=0.04", version},
           Preset{"areal::token_clamp", token_clamp, "level=token action=clamp", version},
           Preset{"areal::sequence_clamp", sequence_clamp,
                  "level=sequence action=clamp metric=ratio", version},
           Preset{"areal::token_mask_ratio", token_mask_ratio,
                  "level=token action=mask metric=ratio", version},
           Preset{"areal::token_mask_kl_k1", token_mask_kl_k1,
                  "level=token action=mask metric=kl_k1", version},
           Preset{"areal::token_mask_kl_k2", token_mask_kl_k2,
                  "level=token action=mask metric=kl_k2", version},
           Preset{"areal::token_mask_kl_k3", token_mask_kl_k3,
                  "level=token action=mask metric=kl_k3", version},
           Preset{"areal::sequence_mask_ratio", sequence_mask_ratio,
                  "level=sequence action=mask metric=ratio", version},
           Preset{"areal::sequence_mask_kl_k1", sequence_mask_kl_k1,
                  "level=sequence action=mask metric=kl_k1", version},
           Preset{"areal::sequence_mask_kl_k2", sequence_mask_kl_k2,
                  "level=sequence action=mask metric=kl_k2", version},
           Preset{"areal::sequence_mask_kl_k3", sequence_mask_kl_k3,
                  "level=sequence action=mask metric=kl_k3", version});
};
}  // namespace areal
GDPO_END_NAMESPACE
