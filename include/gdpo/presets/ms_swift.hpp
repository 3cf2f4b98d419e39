#pragma once
// Presets of ms-swift.
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/logits/distillation_loss.hpp>
#include <gdpo/loss/contrastive.hpp>
#include <gdpo/loss/named.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/presets/correction.hpp>
#include <gdpo/presets/preset.hpp>
#include <gdpo/value/token_advantage.hpp>

GDPO_BEGIN_NAMESPACE
/// The estimators of ms-swift, compute_advantages, and its losses and rollout corrections.
///
/// An estimator's name is the option advantage_estimator, followed by scale_rewards if that is not
/// the estimator's own default. A missing (NaN) reward is skipped, a row without any reward counts
/// as 0, and the advantage in a group of one row is 0. What is NaN because of an infinite reward
/// stays NaN, and counts as 0 in `gdpo`. For kl_in_reward=True set penalty.coef =
/// beta and give the KL of each row as RewardBatch::penalty.
namespace ms_swift {
inline constexpr const char* version = "modelscope/ms-swift@3602360a";
/// The release that these presets were last tested against.
inline constexpr const char* release = "ms-swift 4.6.0";

namespace detail {
using ScaledRloo = GroupAdvantage<baseline::LeaveOneOut, scale::StdDev, combine::SumThenNormalize>;

template <class Estimator>
constexpr Estimator conventions(Estimator e) {
  e.missing = {MissingEntry::Skip, MissingRow::Keep};
  return e;
}
template <class Estimator>
constexpr Estimator scaled(scale::Of rows, double eps = 1e-4) {
  Estimator e{};
  e.scale.of = rows;
  e.scale.eps = eps;
  return conventions(e);
}
}  // namespace detail

/// advantage_estimator="grpo": the sum of the rewards minus its mean in the group, divided by its
/// std in the group + 1e-4.
inline constexpr Grpo grpo = detail::scaled<Grpo>(scale::Of::Group);
/// advantage_estimator="grpo" with scale_rewards="none": the reward minus the mean of the group.
inline constexpr DrGrpo grpo_no_scale = detail::conventions(DrGrpo{});
/// advantage_estimator="grpo" with scale_rewards="batch": centered in the group, divided by the std
/// of all rewards + 1e-4.
inline constexpr Grpo grpo_batch_scale = detail::scaled<Grpo>(scale::Of::Batch);
/// advantage_estimator="rloo": the reward minus the mean of the others in the group.
inline constexpr Rloo rloo = detail::conventions(Rloo{});
/// advantage_estimator="rloo" with scale_rewards="group".
inline constexpr auto rloo_group_scale = detail::scaled<detail::ScaledRloo>(scale::Of::Group);
/// advantage_estimator="rloo" with scale_rewards="batch".
inline constexpr auto rloo_batch_scale = detail::scaled<detail::ScaledRloo>(scale::Of::Batch);
/// advantage_estimator="reinforce_plus_plus": centered in the group, divided by the std of the
/// centered values of the batch + 1e-4.
inline constexpr Grpo reinforce_plus_plus = detail::scaled<Grpo>(scale::Of::BatchCentered);
/// advantage_estimator="reinforce_plus_plus" with scale_rewards="group", which is `grpo`.
inline constexpr Grpo reinforce_plus_plus_group_scale = grpo;
/// advantage_estimator="reinforce_plus_plus" with scale_rewards="none", which is `grpo_no_scale`.
inline constexpr DrGrpo reinforce_plus_plus_no_scale = grpo_no_scale;
/// advantage_estimator="grpo" with scale_rewards="gdpo": eps 1e-8 in both stages.
inline constexpr Gdpo gdpo = [] {
  Gdpo e = detail::scaled<Gdpo>(scale::Of::Group, 1e-8);
  e.missing.infinite = InfiniteEntry::NanToNum;
  e.renorm.eps = 1e-8;
  return e;
}();

// The losses of GRPOTrainer._compute_loss_and_metrics and MegatronGRPOTrainer.loss_func. They are
// TRL's, but with beta 0.04 and a KL term between clamps. importance_sampling_level="sequence" is
// with_level<level::Sequence<>>(loss), "sequence_token" is
// with_level<level::SequenceToken<>>(loss).

/// The KL term of these losses: K3 with its input clamped to +-20 and its value to +-10. The second
/// clamp ends the gradient at ref_logp - logp = 2.6, where K3 is 10.
inline constexpr Kl<kl::K3> clamped_kl{0.04, Against::Ref, {-20, 20}, {-10, 10}};
/// loss_type="grpo": the mean over all rows of their token means.
inline constexpr PolicyLoss<> grpo_loss{{}, {}, clamped_kl};
/// loss_type="bnpo": the mean over the tokens of the micro-batch.
inline constexpr PolicyLoss<> bnpo_loss{{}, {}, clamped_kl, aggregate::token_mean()};
/// loss_type="dr_grpo". Set aggregate.constant = max_completion_length; it has no default.
inline constexpr PolicyLoss<> dr_grpo_loss{
    {}, {}, clamped_kl, aggregate::seq_mean_token_sum_norm()};
/// loss_type="dapo": the sum over tokens divided by num_items_in_batch. Set Normalizer::given =
/// num_items_in_batch and aggregate.scale = num_processes. Since 4.6.0 GRPOTrainer multiplies by
/// gradient_accumulation_steps too, because its base class divides by them, and MegatronGRPOTrainer
/// by num_microbatches, for the same reason: what reaches the optimizer is this loss with this
/// scale, where it was smaller by that factor before.
inline constexpr PolicyLoss<> dapo_loss{{}, {}, clamped_kl, aggregate::token_mean(Over::Given)};
/// loss_type="cispo": divided as `dapo_loss`. Set factor.first.max_ratio = epsilon_high, which is
/// the bound itself. Here it is 5; the trainer's default, 0.2, clips nearly every token.
inline constexpr CispoLoss<> cispo_loss{
    {}, {}, clamped_kl, aggregate::token_mean(Over::Given), {{0, 5}, {}}};
/// loss_type="fipo": `dapo_loss` with the weights of the pre-pass `fipo`.
inline constexpr auto fipo_loss = dapo_loss;
/// loss_type="sapo": `grpo_loss` with SAPO's gate in place of the clip. tau_pos and tau_neg are
/// those members of surrogate, 1 and 1.05.
inline constexpr PolicyLoss<level::Token<>, surrogate::Soft> sapo_loss{{}, {}, clamped_kl};
/// compute_sdar_loss, the term that SDAR adds to the losses above: the mean over the tokens of
/// gate (teacher_logp - logp), where gate = sigmoid(5 (teacher_logp - logp)) is detached. It needs
/// teacher_logp, and no advantages. Here kl.beta is 1: the trainer adds this loss times
/// sdar_loss_coef. kl.factor.first.gate_beta is sdar_gate_beta; loss_agg_mode is `aggregate`, of
/// which seq_mean_token_sum() and seq_mean_token_mean() are the others. In one loss with the
/// surrogate it is a KL term with an aggregate of its own:
///
///     with_kl(loss, Kls<...>{loss.kl, {with_aggregate(sdar_loss.kl, aggregate::token_mean())}})
inline constexpr PolicyLoss<level::Token<>, surrogate::None,
                            Kl<kl::ForwardK1, kl::Direct, Factors<factor::TeacherGate>>>
    sdar_loss{{}, {}, {1.0, Against::Teacher}, aggregate::token_mean()};
/// loss_type="bnpo" of MegatronGRPOTrainer, which is its dapo since 4.6.0. Before it was
/// `bnpo_loss`, as it still is in GRPOTrainer.
inline constexpr auto megatron_bnpo_loss = dapo_loss;
/// loss_type="real", with real_tau 0.5. It is a loss over groups and no PolicyLoss, so it is not
/// among the names of `losses`. Call it as real_loss(batch, groups, count(batch, groups), gradient)
/// with groups_of(num_generations); a last group that is not whole needs by_offsets, and counts.
/// The KL term is the mean over the tokens of the micro-batch.
inline constexpr ContrastiveLoss<Kl<kl::K3>> real_loss{0.5, true, clamped_kl};

// The pre-passes of rollout_importance_sampling_mode, with a threshold of 2. The log ratios
// old_logp - rollout_logp are clamped to +-20, and the weights multiply the KL term too.

/// rollout_importance_sampling_mode="token_truncate": the ratio of each token, at most 2.
inline constexpr prepass::Importance token_truncate = presets::weight(
    prepass::Statistic::Token, {-math::infinity, 2}, {-20, 20}, Reach::SurrogateAndKl);
/// rollout_importance_sampling_mode="sequence_truncate": the geometric mean of the ratios of the
/// row, each bounded, at most 2.
inline constexpr prepass::Importance sequence_truncate = [] {
  prepass::Importance pass = presets::weight(prepass::Statistic::SequenceMean, {-math::infinity, 2},
                                             {}, Reach::SurrogateAndKl);
  pass.token_clamp = {-20, 20};
  return pass;
}();
namespace detail {
constexpr prepass::MaskedImportance masked(prepass::Statistic statistic) {
  return presets::masked(
      presets::weight(prepass::Statistic::Token, {}, {-20, 20}, Reach::SurrogateAndKl),
      presets::gate(prepass::Estimator::Ratio, statistic, -math::infinity, 2, Reach::SurrogateAndKl,
                    {-20, 20}));
}
}  // namespace detail
/// rollout_importance_sampling_mode="token_mask": the ratio of each token, and 0 where it is above
/// 2.
inline constexpr prepass::MaskedImportance token_mask = detail::masked(prepass::Statistic::Token);
/// rollout_importance_sampling_mode="sequence_mask": the ratio of each token, and 0 in rows whose
/// geometric mean of the ratios is above 2.
inline constexpr prepass::MaskedImportance sequence_mask =
    detail::masked(prepass::Statistic::SequenceMean);
/// off_policy_sequence_mask_delta=0.5: rows that have a mean A < 0 and whose mean of rollout - logp
/// is above `max` leave the mask, and so the counts. ms-swift has no default: it is off there
/// unless set.
inline constexpr prepass::Gate off_policy_sequence_mask =
    prepass::off_policy_sequence_mask(0.5, Reach::Mask, prepass::GateAdvantage::Row);

/// The weights of loss_type="fipo", with fipo_decay_rate 32, fipo_clip_range 0.2,
/// fipo_clip_high_only and fipo_safety_threshold 4. Where the trainer's delta is set, set
/// drop_above = delta beside surrogate.delta.
inline constexpr prepass::FutureKl fipo{};

/// rlsd_lambda=0.5 (apply_rlsd_reweight): weights by the teacher's ratio within
/// rlsd_reweight_clip_range, 0.2. rlsd_negative_only is the member negative_only. Where
/// rlsd_lambda_warmup_steps or rlsd_lambda_decay_steps move lambda, set `mix` in each step.
inline constexpr prepass::TeacherRatio rlsd{0.5};

/// teacher_kl_coef=1 (expand_advantage_to_per_token): the teacher's log ratio added to the
/// advantage of the row, which is bound as the reward of each of its tokens.
inline constexpr auto teacher = distillation_advantage;

/// rlhf_type=gkd with gkd_logits_topk (gkd_loss): the Jensen-Shannon divergence, beta 0.5, over the
/// teacher's tokens, of which both are renormalized; the mean over the positions. Set
/// teacher_temperature and LogitBatch::temperature to its temperature. It is for
/// distillation_from_logits().
inline constexpr DistillationLoss gkd_topk_loss{0.5, Rest::Renormalize};

/// The estimators by name.
inline constexpr auto estimators = [](const auto& f) {
  return f(Preset{"ms_swift::grpo", grpo, "advantage_estimator=grpo", version},
           Preset{"ms_swift::grpo_no_scale", grpo_no_scale,
                  "advantage_estimator=grpo scale_rewards=none", version},
           Preset{"ms_swift::grpo_batch_scale", grpo_batch_scale,
                  "advantage_estimator=grpo scale_rewards=batch", version},
           Preset{"ms_swift::rloo", rloo, "advantage_estimator=rloo", version},
           Preset{"ms_swift::rloo_group_scale", rloo_group_scale,
                  "advantage_estimator=rloo scale_rewards=group", version},
           Preset{"ms_swift::rloo_batch_scale", rloo_batch_scale,
                  "advantage_estimator=rloo scale_rewards=batch", version},
           Preset{"ms_swift::reinforce_plus_plus", reinforce_plus_plus,
                  "advantage_estimator=reinforce_plus_plus", version},
           Preset{"ms_swift::reinforce_plus_plus_group_scale", reinforce_plus_plus_group_scale,
                  "advantage_estimator=reinforce_plus_plus scale_rewards=group", version},
           Preset{"ms_swift::reinforce_plus_plus_no_scale", reinforce_plus_plus_no_scale,
                  "advantage_estimator=reinforce_plus_plus scale_rewards=none", version},
           Preset{"ms_swift::gdpo", gdpo, "advantage_estimator=grpo scale_rewards=gdpo", version});
};
/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"ms_swift::grpo", grpo_loss, "loss_type=grpo", version},
           Preset{"ms_swift::bnpo", bnpo_loss, "loss_type=bnpo", version},
           Preset{"ms_swift::dr_grpo", dr_grpo_loss, "loss_type=dr_grpo", version},
           Preset{"ms_swift::dapo", dapo_loss, "loss_type=dapo", version},
           Preset{"ms_swift::cispo", cispo_loss, "loss_type=cispo", version},
           Preset{"ms_swift::megatron_bnpo", megatron_bnpo_loss,
                  "MegatronGRPOTrainer loss_type=bnpo", release},
           Preset{"ms_swift::fipo", fipo_loss, "loss_type=fipo", version},
           Preset{"ms_swift::sapo", sapo_loss, "loss_type=sapo", version},
           Preset{"ms_swift::sdar", sdar_loss, "compute_sdar_loss", version});
};
/// The losses over groups by name.
inline constexpr auto contrastive_losses = [](const auto& f) {
  return f(Preset{"ms_swift::real", real_loss, "loss_type=real", version});
};
/// The pre-passes by name.
inline constexpr auto prepasses = [](const auto& f) {
  return f(Preset{"ms_swift::token_truncate", token_truncate,
                  "rollout_importance_sampling_mode=token_truncate", version},
           Preset{"ms_swift::sequence_truncate", sequence_truncate,
                  "rollout_importance_sampling_mode=sequence_truncate", version},
           Preset{"ms_swift::token_mask", token_mask, "rollout_importance_sampling_mode=token_mask",
                  version},
           Preset{"ms_swift::sequence_mask", sequence_mask,
                  "rollout_importance_sampling_mode=sequence_mask", version},
           Preset{"ms_swift::off_policy_sequence_mask", off_policy_sequence_mask,
                  "off_policy_sequence_mask_delta=0.5", release},
           Preset{"ms_swift::fipo", fipo, "loss_type=fipo", version},
           Preset{"ms_swift::rlsd", rlsd, "rlsd_lambda=0.5", version});
};
/// The estimators over tokens by name.
inline constexpr auto token_advantages = [](const auto& f) {
  return f(Preset{"ms_swift::teacher", teacher, "teacher_kl_coef=1", version});
};
}  // namespace ms_swift
GDPO_END_NAMESPACE
