#pragma once
// The policy losses of unsloth-zoo as presets.
#include <gdpo/loss/named.hpp>
#include <gdpo/presets/preset.hpp>

GDPO_BEGIN_NAMESPACE
/// The losses of unsloth-zoo, grpo_compute_loss: TRL's (presets/trl.hpp, whose notes on the options
/// hold here), with clamps in the KL term, whose beta is 0.
///
/// For importance_sampling_level="sequence" use `with_level<level::Sequence<>>(loss)`.
/// rollout_logps_as_old clamps the log ratio to +-20: `with_level<level::Token<map::Clamp>>(loss)`.
/// sample_weight is TokenBatch::row_weights with aggregate::token_sum().
namespace unsloth_zoo {
inline constexpr const char* version = "unsloth-zoo 2026.10.9";
/// The KL term, switched off: K3 with its input clamped to +-20 and its value to +-10.
inline constexpr Kl<kl::K3> clamped_kl{0.0, Against::Ref, {-20, 20}, {-10, 10}};
/// loss_type="grpo": the mean over all rows of their token means.
inline constexpr PolicyLoss<> grpo_loss{{}, {}, clamped_kl};
/// loss_type="bnpo": the mean over the tokens of the micro-batch.
inline constexpr PolicyLoss<> bnpo_loss{{}, {}, clamped_kl, aggregate::token_mean()};
/// loss_type="dr_grpo". Set aggregate.constant = max_completion_length; it has no default.
inline constexpr PolicyLoss<> dr_grpo_loss{
    {}, {}, clamped_kl, aggregate::seq_mean_token_sum_norm()};
/// loss_type="dapo": the sum over tokens divided by Normalizer::given = num_items_in_batch, with
/// aggregate.scale as in trl::dapo_loss.
inline constexpr PolicyLoss<> dapo_loss{{}, {}, clamped_kl, aggregate::token_mean(Over::Given)};
/// loss_type="cispo": divided as `dapo_loss`. Set factor.first.max_ratio = epsilon_high, which is
/// the bound itself. Here it is 5; the default, 0.2, clips nearly every token.
inline constexpr CispoLoss<> cispo_loss{
    {}, {}, clamped_kl, aggregate::token_mean(Over::Given), {{0, 5}, {}}};
/// loss_type="luspo" with importance_sampling_level="sequence": the mean over all rows of their
/// token sums.
inline constexpr PolicyLoss<level::Sequence<>> luspo_loss{
    {}, {}, clamped_kl, aggregate::seq_mean_token_sum()};

/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"unsloth_zoo::grpo", grpo_loss, "loss_type=grpo", version},
           Preset{"unsloth_zoo::bnpo", bnpo_loss, "loss_type=bnpo", version},
           Preset{"unsloth_zoo::dr_grpo", dr_grpo_loss, "loss_type=dr_grpo", version},
           Preset{"unsloth_zoo::dapo", dapo_loss, "loss_type=dapo", version},
           Preset{"unsloth_zoo::cispo", cispo_loss, "loss_type=cispo", version},
           Preset{"unsloth_zoo::luspo", luspo_loss,
                  "loss_type=luspo importance_sampling_level=sequence", version});
};
}  // namespace unsloth_zoo
GDPO_END_NAMESPACE
