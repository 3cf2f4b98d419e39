#pragma once
// Presets of OpenRLHF.
#include <gdpo/loss/any_kl.hpp>
#include <gdpo/loss/named.hpp>
#include <gdpo/presets/correction.hpp>
#include <gdpo/presets/preset.hpp>
#include <gdpo/presets/verl.hpp>
#include <gdpo/value/outcome_advantage.hpp>
#include <gdpo/value/value_loss.hpp>

GDPO_BEGIN_NAMESPACE
/// The estimators over tokens of OpenRLHF, RemoteExperienceMaker.compute_advantages_and_returns,
/// its losses, and the corrections between sampler and trainer of PolicyLoss.
///
/// The reward of a row is clamped (reward_clip_range is `reward_clip`) and added at its last token;
/// each token pays penalty.coef = init_kl_coef times its KL to the reference. For no_std_norm set
/// renorm.eps_at = EpsAt::None.
namespace openrlhf {
inline constexpr const char* version = "OpenRLHF/OpenRLHF@3c3be623";
/// The release that its corrections were last tested against.
inline constexpr const char* release = "openrlhf 0.11.2";

/// Normalization over the valid tokens of the batch: the population variance, at least 1e-8.
inline constexpr Renorm batch_norm = renorm::token_weighted_batch(0, 1e-8, EpsAt::ClampVar);
/// advantage_estimator="gae": GAE with lambd 1, then `batch_norm`. Masked positions are steps
/// without reward, over which discounts pass, and whose values OpenRLHF sets to 0: bind them so.
inline constexpr TokenAdvantage<returns::Gae, AnyKl> gae{
    {1, 1, same_lambda, 0, Steps::RowRewardOnValid},
    {0, {0, Against::Ref, {}, {}, KlEstimator::K1}},
    {},
    batch_norm};
/// advantage_estimator="reinforce": discounted rewards to go in which masked positions are steps
/// without reward, then `batch_norm`. For estimators that compare the rewards of rows first see
/// `rloo_outcome` and what follows it.
inline constexpr TokenAdvantage<returns::RewardToGo, AnyKl> reinforce{
    {1, Steps::RowRewardOnValid}, {0, {0, Against::Ref, {}, {}, KlEstimator::K1}}, {}, batch_norm};

namespace detail {
// The estimator `rows`, whose advantages stand on the last tokens and are summed up from the right.
template <class Rows, class Tokens>
constexpr auto outcome(Rows rows, const Tokens& tokens) {
  rows.missing = {MissingEntry::Propagate, MissingRow::Keep};
  return OutcomeAdvantage<Rows, Tokens>{rows, tokens};
}
// The same without a normalization over tokens.
template <class Rows>
constexpr auto outcome(const Rows& rows) {
  auto tokens = reinforce;
  tokens.renorm = {};
  return outcome(rows, tokens);
}
constexpr Rloo rloo_rows() {
  Rloo e{};
  e.singleton = Singleton::Nan;
  return e;
}
constexpr Grpo group_norm_rows() {
  Grpo e{};
  e.scale.eps = 1e-9;
  e.singleton = Singleton::Nan;
  return e;
}
}  // namespace detail

// From rewards of rows: the baseline of their group, then reward_clip_range (tokens.reward_clip),
// then the last token. init_kl_coef is tokens.penalty.coef: it is not divided by a std. The
// overlong penalty is update::shaping::SoftOverlong, applied to the rewards first.

/// advantage_estimator="rloo": the reward minus the mean of the others of its group. A group of one
/// gets NaN, as OpenRLHF gives it.
inline constexpr auto rloo_outcome = detail::outcome(detail::rloo_rows());
/// advantage_estimator="reinforce_baseline": the reward minus the mean of its group; the tokens
/// have `batch_norm`.
inline constexpr auto reinforce_baseline_outcome = detail::outcome(DrGrpo{}, reinforce);
/// advantage_estimator="group_norm": centered in the group, divided by its std + 1e-9. A group of
/// one gets NaN, as OpenRLHF gives it.
inline constexpr auto group_norm_outcome = detail::outcome(detail::group_norm_rows());
/// advantage_estimator="dr_grpo": the reward minus the mean of its group.
inline constexpr auto dr_grpo_outcome = detail::outcome(DrGrpo{});
/// advantage_estimator="flash_reinforce": the reward minus the mean of the whole batch.
inline constexpr auto flash_reinforce_outcome =
    detail::outcome(GroupAdvantage<baseline::BatchMean, scale::None, combine::SumThenNormalize>{});
/// advantage_estimator="reinforce": the reward itself, with the tokens of `reinforce`.
inline constexpr auto reinforce_outcome = detail::outcome(RawReward{}, reinforce);
/// advantage_estimator="gae": the reward itself, with the tokens of `gae`.
inline constexpr auto gae_outcome = detail::outcome(RawReward{}, gae);

/// PolicyLoss with policy_loss_type="ppo" and token_level_loss: the log ratio clamped to +-20, clip
/// 0.2 (clip_eps_low, clip_eps_high), no dual clip (dual_clip is surrogate.dual), mean over tokens.
/// Without token_level_loss the aggregate is that of `gspo_loss`. use_kl_loss is computed apart, so
/// beta is 0.
inline constexpr PolicyLoss<level::Token<map::Clamp>> ppo_loss{
    {{-20, 20}}, {}, {0.0}, aggregate::token_mean()};
/// policy_loss_type="gspo": one ratio per row, clip 0.2, mean over the rows with tokens of their
/// token means, whose number of tokens has 1e-8 added.
inline constexpr PolicyLoss<level::Sequence<>> gspo_loss{{}, {}, {0.0}, verl::seq_mean_token_mean};

/// ValueLoss with token_level_loss: half the larger squared error, a mean over tokens. Set clip =
/// clip_eps; none by default.
inline constexpr ValueLoss<> value_loss{};

// The corrections of is_correction_level, _mode and _gating, with is_correction_threshold [0.5, 5].
// Mode "mask", the default: the weight is the ratio of the token, and 0 where the gating's
// statistic is outside the threshold; tokens that it drops still count. Mode "clip": the bounded
// ratio, whatever the gating. Level "seq" takes the geometric mean of a ratio and the mean of a
// divergence over the row. Releases up to 0.11.1 called "token" and "clip" tis, "token" and "mask"
// icepop, "seq" and "mask" seq-mask-tis. With policy_loss_type="gspo" a correction only takes the
// ratio of the loss against the sampler: bind rollout_logp as old_logp.

namespace detail {
constexpr prepass::MaskedImportance masked(prepass::Estimator gating, prepass::Statistic statistic,
                                           double min, double max) {
  return presets::masked(presets::weight(prepass::Statistic::Token),
                         presets::gate(gating, statistic, min, max));
}
}  // namespace detail
/// is_correction_level="token" and mode "clip": the ratio of each token, between 0.5 and 5.
inline constexpr prepass::Importance token_clip =
    presets::weight(prepass::Statistic::Token, {0.5, 5});
/// is_correction_level="seq" and mode "clip": the geometric mean of the ratios of the row, between
/// 0.5 and 5.
inline constexpr prepass::Importance seq_clip =
    presets::weight(prepass::Statistic::SequenceMean, {0.5, 5});
/// is_correction_level="token" and gating "ratio": the ratio of each token, and 0 outside [0.5, 5].
inline constexpr prepass::MaskedImportance token_mask_ratio =
    detail::masked(prepass::Estimator::Ratio, prepass::Statistic::Token, 0.5, 5);
/// is_correction_level="seq" and gating "ratio": the ratio of each token, and 0 in rows whose
/// geometric mean of the ratios is outside [0.5, 5].
inline constexpr prepass::MaskedImportance seq_mask_ratio =
    detail::masked(prepass::Estimator::Ratio, prepass::Statistic::SequenceMean, 0.5, 5);
/// is_correction_level="token" and gating "binary_kl": the ratio of each token, and 0 where its
/// binary KL is above 0.05. The threshold is a divergence here: set `max`.
inline constexpr prepass::MaskedImportance token_mask_binary_kl =
    detail::masked(prepass::Estimator::BinaryKl, prepass::Statistic::Token, -math::infinity, 0.05);
/// is_correction_level="seq" and gating "binary_kl": the same by the mean over the row.
inline constexpr prepass::MaskedImportance seq_mask_binary_kl = detail::masked(
    prepass::Estimator::BinaryKl, prepass::Statistic::SequenceMean, -math::infinity, 0.05);
/// is_correction_level="token" and gating "tv": the ratio of each token, and 0 where |p - q| is
/// above 0.1. The threshold is a difference of probabilities here: set `max`.
inline constexpr prepass::MaskedImportance token_mask_tv = detail::masked(
    prepass::Estimator::BinaryTotalVariation, prepass::Statistic::Token, -math::infinity, 0.1);
/// is_correction_level="seq" and gating "tv": the same by the mean over the row.
inline constexpr prepass::MaskedImportance seq_mask_tv =
    detail::masked(prepass::Estimator::BinaryTotalVariation, prepass::Statistic::SequenceMean,
                   -math::infinity, 0.1);

/// The estimators over tokens by name.
inline constexpr auto token_advantages = [](const auto& f) {
  return f(Preset{"openrlhf::gae", gae, "advantage_estimator=gae", version},
           Preset{"openrlhf::reinforce", reinforce, "advantage_estimator=reinforce", version});
};
/// The estimators from rows to tokens by name.
inline constexpr auto outcome_advantages = [](const auto& f) {
  return f(
      Preset{"openrlhf::rloo", rloo_outcome, "advantage_estimator=rloo", release},
      Preset{"openrlhf::reinforce_baseline", reinforce_baseline_outcome,
             "advantage_estimator=reinforce_baseline", release},
      Preset{"openrlhf::flash_reinforce", flash_reinforce_outcome,
             "advantage_estimator=flash_reinforce", release},
      Preset{"openrlhf::reinforce", reinforce_outcome, "advantage_estimator=reinforce", release},
      Preset{"openrlhf::gae", gae_outcome, "advantage_estimator=gae", release},
      Preset{"openrlhf::group_norm", group_norm_outcome, "advantage_estimator=group_norm", release},
      Preset{"openrlhf::dr_grpo", dr_grpo_outcome, "advantage_estimator=dr_grpo", release});
};
/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"openrlhf::ppo", ppo_loss, "policy_loss_type=ppo", release},
           Preset{"openrlhf::gspo", gspo_loss, "policy_loss_type=gspo", release});
};
/// The whitenings by name.
inline constexpr auto whitenings = [](const auto& f) {
  return f(Preset{"openrlhf::batch_norm", batch_norm, "compute_advantages_and_returns", version});
};
/// The value losses by name.
inline constexpr auto value_losses = [](const auto& f) {
  return f(Preset{"openrlhf::value_loss", value_loss, "ValueLoss", version});
};
/// The pre-passes by name.
inline constexpr auto prepasses = [](const auto& f) {
  return f(Preset{"openrlhf::token_clip", token_clip,
                  "is_correction_level=token is_correction_mode=clip", release},
           Preset{"openrlhf::seq_clip", seq_clip, "is_correction_level=seq is_correction_mode=clip",
                  release},
           Preset{"openrlhf::token_mask_ratio", token_mask_ratio,
                  "is_correction_level=token is_correction_gating=ratio", release},
           Preset{"openrlhf::seq_mask_ratio", seq_mask_ratio,
                  "is_correction_level=seq is_correction_gating=ratio", release},
           Preset{"openrlhf::token_mask_binary_kl", token_mask_binary_kl,
                  "is_correction_level=token is_correction_gating=binary_kl", release},
           Preset{"openrlhf::seq_mask_binary_kl", seq_mask_binary_kl,
                  "is_correction_level=seq is_correction_gating=binary_kl", release},
           Preset{"openrlhf::token_mask_tv", token_mask_tv,
                  "is_correction_level=token is_correction_gating=tv", release},
           Preset{"openrlhf::seq_mask_tv", seq_mask_tv,
                  "is_correction_level=seq is_correction_gating=tv", release});
};
}  // namespace openrlhf
GDPO_END_NAMESPACE
