#pragma once
#include <gdpo/advantage/group_advantage.hpp>

GDPO_BEGIN_NAMESPACE
/// huggingface/trl @f2cd577, GRPOTrainer._generate_and_score_completions. Missing rewards: Skip, Exclude; groups of
/// one: 0.
namespace trl {
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
}  // namespace trl
GDPO_END_NAMESPACE
