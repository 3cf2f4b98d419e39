#pragma once
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/loss/named.hpp>
#include <gdpo/prepass.hpp>

GDPO_BEGIN_NAMESPACE
/// ms-swift, compute_advantages. A row without any reward counts as 0 (Keep); groups of one: 0.
/// Names: advantage_estimator, then scale_rewards where it is not that estimator's own default. kl_in_reward: set
/// penalty.coef = beta and give the row KL as RewardBatch::penalty.
namespace ms_swift {
inline constexpr const char* version = "modelscope/ms-swift@3602360a";

namespace detail {
using ScaledRloo =
    GroupAdvantage<baseline::LeaveOneOut, scale::StdDev, combine::SumThenNormalize, renorm::None>;

template <class Estimator>
constexpr Estimator conventions(Estimator e) {
  e.missing = {MissingEntry::Skip, MissingRow::Keep};
  return e;
}
template <class Estimator>
constexpr Estimator scaled(scale::Of of, double eps = 1e-4) {
  Estimator e{};
  e.scale.of = of;
  e.scale.eps = eps;
  return conventions(e);
}
}  // namespace detail

inline constexpr Grpo grpo = detail::scaled<Grpo>(scale::Of::Group);
inline constexpr DrGrpo grpo_no_scale = detail::conventions(DrGrpo{});
inline constexpr Grpo grpo_batch_scale = detail::scaled<Grpo>(scale::Of::Batch);
inline constexpr Rloo rloo = detail::conventions(Rloo{});
inline constexpr auto rloo_group_scale = detail::scaled<detail::ScaledRloo>(scale::Of::Group);
inline constexpr auto rloo_batch_scale = detail::scaled<detail::ScaledRloo>(scale::Of::Batch);
/// Centred in the group, divided by the std of the centred values of the batch + 1e-4.
inline constexpr Grpo reinforce_plus_plus = detail::scaled<Grpo>(scale::Of::BatchCentred);
inline constexpr Grpo reinforce_plus_plus_group_scale = grpo;
inline constexpr DrGrpo reinforce_plus_plus_no_scale = grpo_no_scale;
/// scale_rewards="gdpo": eps 1e-8 in both stages.
inline constexpr Gdpo gdpo = [] {
  Gdpo e = detail::scaled<Gdpo>(scale::Of::Group, 1e-8);
  e.renorm.eps = 1e-8;
  return e;
}();

/// GRPOTrainer._compute_loss_and_metrics, MegatronGRPOTrainer.loss_func: as TRL, with beta 0.04 and K3 between clamps (its
/// gradient ends at ref_logp - logp = 2.6). Levels "sequence" and "sequence_token": with_level<level::Sequence<>>(loss),
/// with_level<level::SequenceToken<>>(loss).
inline constexpr Kl<kl::K3> clamped_kl{0.04, Against::Ref, {-20, 20}, {-10, 10}};
/// loss_type="grpo", "bnpo", "dr_grpo" (aggregate.constant = max_completion_length is required), "dapo" (normaliser.given =
/// num_items_in_batch, scale = num_processes).
inline constexpr ClippedLoss<aggregate::SeqMeanTokenMean> grpo_loss{{}, {}, clamped_kl};
inline constexpr ClippedLoss<aggregate::TokenMean> bnpo_loss{{}, {}, clamped_kl};
inline constexpr ClippedLoss<aggregate::SeqMeanTokenSumNorm> dr_grpo_loss{{}, {}, clamped_kl};
inline constexpr ClippedLoss<aggregate::TokenMean> dapo_loss{{}, {}, clamped_kl, {Over::Given}};

/// rollout_importance_sampling_mode with its threshold of 2; it multiplies the KL term as well. "token_mask" and
/// "sequence_mask" are two pre-passes, ms_swift::token_weight and the mask.
inline constexpr prepass::Importance token_weight{
    prepass::Statistic::Token, {-20, 20}, {}, 0, Reach::SurrogateAndKl};
inline constexpr prepass::Importance token_truncate{
    prepass::Statistic::Token, {-20, 20}, {-math::infinity, 2}, 0, Reach::SurrogateAndKl};
inline constexpr prepass::Importance sequence_truncate{
    prepass::Statistic::SequenceMean, {-20, 20}, {-math::infinity, 2}, 0, Reach::SurrogateAndKl};
inline constexpr prepass::Gate token_mask = [] {
  prepass::Gate gate{};
  gate.clamp = {-20, 20};
  gate.max = 2;
  gate.reach = Reach::SurrogateAndKl;
  return gate;
}();
inline constexpr prepass::Gate sequence_mask = [] {
  prepass::Gate gate = token_mask;
  gate.statistic = prepass::Statistic::SequenceMean;
  return gate;
}();
}  // namespace ms_swift
GDPO_END_NAMESPACE
