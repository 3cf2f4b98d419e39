#pragma once
// Presets of Liger Kernel.
#include <gdpo/loss/named.hpp>
#include <gdpo/presets/preset.hpp>

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
inline constexpr PolicyLoss<> grpo_loss{};
/// loss_type="bnpo": the mean over the tokens of the batch.
inline constexpr PolicyLoss<> bnpo_loss{{}, {}, {}, aggregate::token_mean()};
/// loss_type="dr_grpo". Set aggregate.constant = max_completion_length; it has no default.
inline constexpr PolicyLoss<> dr_grpo_loss{{}, {}, {}, aggregate::seq_mean_token_sum_norm()};
/// loss_type="dapo" without num_items_in_batch, which divides by the tokens of the batch. With
/// num_items_in_batch set aggregate.over = Over::Given and bind it as Normalizer::given.
inline constexpr PolicyLoss<> dapo_loss{{}, {}, {}, aggregate::token_mean()};
/// loss_type="cispo": divided as `dapo_loss`. Set factor.first.max_ratio = epsilon_high, which is
/// the bound itself. Here it is 5; the default, 0.2, clips nearly every token.
inline constexpr CispoLoss<> cispo_loss{{}, {}, {}, aggregate::token_mean(), {{0, 5}, {}}};

/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"liger::grpo", grpo_loss, "loss_type=grpo", version},
           Preset{"liger::bnpo", bnpo_loss, "loss_type=bnpo", version},
           Preset{"liger::dr_grpo", dr_grpo_loss, "loss_type=dr_grpo", version},
           Preset{"liger::dapo", dapo_loss, "loss_type=dapo", version},
           Preset{"liger::cispo", cispo_loss, "loss_type=cispo", version});
};
}  // namespace liger
GDPO_END_NAMESPACE
