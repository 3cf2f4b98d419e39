#pragma once
#include <gdpo/loss/named.hpp>

GDPO_BEGIN_NAMESPACE
/// Liger Kernel, LigerFusedLinearGRPOFunction.ppo_loss_fn: beta 0.04, epsilon 0.2, no clamps; its
/// vllm_is_ratio is TokenBatch::weights. Level "sequence": with_level<level::Sequence<>>(loss). It counts clipping before
/// `delta`, LossMetrics after it: they differ only where delta < 1 + high.
namespace liger {
inline constexpr const char* version = "linkedin/Liger-Kernel@ead96b61";
/// loss_type="grpo", "bnpo", "dr_grpo" (aggregate.constant = max_completion_length is required), "dapo" (without
/// num_items_in_batch: the tokens of the batch; with it, set over = Over::Given).
inline constexpr ClippedLoss<aggregate::SeqMeanTokenMean> grpo_loss{};
inline constexpr ClippedLoss<aggregate::TokenMean> bnpo_loss{};
inline constexpr ClippedLoss<aggregate::SeqMeanTokenSumNorm> dr_grpo_loss{};
inline constexpr ClippedLoss<aggregate::TokenMean> dapo_loss{};
}  // namespace liger
GDPO_END_NAMESPACE
