#pragma once
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/loss/named.hpp>
#include <gdpo/prepass.hpp>

GDPO_BEGIN_NAMESPACE
/// TRL, GRPOTrainer._generate_and_score_completions. Missing rewards: Skip, Exclude; groups of
/// one: 0.
namespace trl {
inline constexpr const char* version = "huggingface/trl@f2cd5771";
/// multi_objective_aggregation="sum_then_normalize", scale_rewards="group" (the defaults): std + 1e-4 in the group.
inline constexpr Grpo grpo = [] {
  Grpo e{};
  e.scale.eps = 1e-4;
  return e;
}();
/// scale_rewards="none".
inline constexpr DrGrpo grpo_no_scale{};
/// scale_rewards="batch": centred in the group, divided by the std of all rewards + 1e-4.
inline constexpr Grpo grpo_batch_scale = [] {
  Grpo e = grpo;
  e.scale.of = scale::Of::Batch;
  return e;
}();
/// multi_objective_aggregation="normalize_then_sum": eps 1e-4 in both stages, the second over the rows of the batch.
inline constexpr Gdpo gdpo = [] {
  Gdpo e{};
  e.scale.eps = 1e-4;
  e.renorm.eps = 1e-4;
  return e;
}();

/// GRPOTrainer._compute_loss: beta 0 and epsilon 0.2 are its defaults, `delta` is loss.surrogate.delta. Level "sequence" is
/// with_level<level::Sequence<>>(loss). scale = 1 / gradient_accumulation_steps (not for dapo). use_bias_correction_kl:
/// with_kl(loss, Kl<kl::K3, kl::ImportanceWeighted>{beta}).
/// loss_type="grpo": the mean over all rows of their token means.
inline constexpr ClippedLoss<aggregate::SeqMeanTokenMean> grpo_loss{{}, {}, {0.0}};
/// loss_type="bnpo": the mean over the tokens of the micro-batch.
inline constexpr ClippedLoss<aggregate::TokenMean> bnpo_loss{{}, {}, {0.0}};
/// loss_type="dr_grpo": aggregate.constant = max_completion_length is required.
inline constexpr ClippedLoss<aggregate::SeqMeanTokenSumNorm> dr_grpo_loss{{}, {}, {0.0}};
/// loss_type="dapo" (its default): the sum over tokens by normaliser.given = num_items_in_batch, the tokens of
/// all processes; scale = num_processes, because gradients are averaged over them.
inline constexpr ClippedLoss<aggregate::TokenMean> dapo_loss{{}, {}, {0.0}, {Over::Given}};

/// vllm_importance_sampling_mode with its cap of 3: "token_truncate" and "sequence_truncate" are one pre-pass, the masks two:
/// prepare(batch, memory, trl::sequence_weight, trl::sequence_mask).
inline constexpr prepass::Importance token_truncate{
    prepass::Statistic::Token, {}, {-math::infinity, 3}};
inline constexpr prepass::Importance sequence_truncate{
    prepass::Statistic::SequenceSum, {}, {-math::infinity, 3}};
inline constexpr prepass::Importance token_weight{prepass::Statistic::Token};
inline constexpr prepass::Importance sequence_weight{prepass::Statistic::SequenceSum};
inline constexpr prepass::Gate token_mask = [] {
  prepass::Gate gate{};
  gate.max = 3;
  return gate;
}();
inline constexpr prepass::Gate sequence_mask = [] {
  prepass::Gate gate = token_mask;
  gate.statistic = prepass::Statistic::SequenceSum;
  return gate;
}();
}  // namespace trl
GDPO_END_NAMESPACE
