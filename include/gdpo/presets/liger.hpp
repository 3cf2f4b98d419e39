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
/// The release that these presets were last tested against.
inline constexpr const char* release = "liger 0.8.5";
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
/// loss_type="luspo" with importance_sampling_level="sequence": GSPO's ratio, and the mean over all
/// rows of their token sums. Without a KL term Liger gives the same. With one, or with ratios of
/// tokens, Liger takes the mean over the padded width of n times each position's loss, padding
/// included. That is aggregate::seq_mean_token_sum_norm(width) of a batch without a mask, with
/// row_weights = n, the number of the row's valid tokens.
inline constexpr PolicyLoss<level::Sequence<>> luspo_loss{
    {}, {}, {}, aggregate::seq_mean_token_sum()};
/// loss_type="sapo": `grpo_loss` with SAPO's gate in place of the clip. sapo_temperature_pos and
/// sapo_temperature_neg are surrogate.tau_pos and tau_neg, 1 and 1.05.
inline constexpr PolicyLoss<level::Token<>, surrogate::Soft> sapo_loss{};
/// loss_type="vespo": divided as `dapo_loss`. vespo_k_pos and so on are members of factor.first. A
/// vllm_is_ratio goes into the ratio of the row: bind its logarithm as
/// TokenBatch::level_log_weights. (Liger adds up those of padded positions too.)
inline constexpr VespoLoss<> vespo_loss{vespo_level, {}, {}, aggregate::token_mean()};

/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"liger::grpo", grpo_loss, "loss_type=grpo", version},
           Preset{"liger::bnpo", bnpo_loss, "loss_type=bnpo", version},
           Preset{"liger::dr_grpo", dr_grpo_loss, "loss_type=dr_grpo", version},
           Preset{"liger::dapo", dapo_loss, "loss_type=dapo", version},
           Preset{"liger::cispo", cispo_loss, "loss_type=cispo", version},
           Preset{"liger::luspo", luspo_loss, "loss_type=luspo importance_sampling_level=sequence",
                  release},
           Preset{"liger::sapo", sapo_loss, "loss_type=sapo", version},
           Preset{"liger::vespo", vespo_loss, "loss_type=vespo", version});
};
}  // namespace liger
GDPO_END_NAMESPACE
