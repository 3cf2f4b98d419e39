#pragma once
#include <gdpo/loss/named.hpp>

GDPO_BEGIN_NAMESPACE
/// The losses of Liger Kernel, LigerFusedLinearGRPOFunction.ppo_loss_fn: epsilon 0.2, and the KL
/// term K3 with beta 0.04 and no clamps.
///
/// For importance_sampling_level="sequence" use `with_level<level::Sequence<>>(loss)`. Bind its
/// vllm_is_ratio as TokenBatch::weights. Liger counts clipped tokens by the ratio before `delta`,
/// LossMetrics by the ratio after it; the counts differ only if delta < 1 + high.
namespace liger {
inline constexpr const char* version = "linkedin/Liger-Kernel@ead96b61";
/// loss_type="grpo": the mean over all rows of their token means.
inline constexpr ClippedLoss<aggregate::SeqMeanTokenMean> grpo_loss{};
/// loss_type="bnpo": the mean over the tokens of the batch.
inline constexpr ClippedLoss<aggregate::TokenMean> bnpo_loss{};
/// loss_type="dr_grpo". Set aggregate.constant = max_completion_length; it has no default.
inline constexpr ClippedLoss<aggregate::SeqMeanTokenSumNorm> dr_grpo_loss{};
/// loss_type="dapo" without num_items_in_batch, which divides by the tokens of the batch. With
/// num_items_in_batch set aggregate.over = Over::Given and bind it as Normaliser::given.
inline constexpr ClippedLoss<aggregate::TokenMean> dapo_loss{};
}  // namespace liger
GDPO_END_NAMESPACE
