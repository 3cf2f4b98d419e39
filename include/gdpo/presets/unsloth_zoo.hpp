#pragma once
// The policy losses of unsloth-zoo as presets, and its corrections between sampler and trainer.
#include <gdpo/loss/named.hpp>
#include <gdpo/presets/trl.hpp>
#include <gdpo/presets/verl.hpp>

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
/// loss_type="sapo": `grpo_loss` with SAPO's gate in place of the clip. sapo_temperature_pos and
/// sapo_temperature_neg are surrogate.tau_pos and tau_neg, 1 and 1.05.
inline constexpr PolicyLoss<level::Token<>, surrogate::Soft> sapo_loss{{}, {}, clamped_kl};
/// loss_type="vespo": divided as `dapo_loss`; the notes of trl::vespo_loss hold here.
inline constexpr VespoLoss<> vespo_loss{
    vespo_level, {}, clamped_kl, aggregate::token_mean(Over::Given)};

// The corrections: TRL's (presets/trl.hpp), and the following. For rollout_logps_as_old set
// pair = prepass::Pair::Update in the rejections.

/// vllm_importance_sampling_mode="geometric_truncate": the geometric mean of the ratios of the row,
/// at most 3.
inline constexpr prepass::Importance geometric_truncate =
    trl::detail::truncated(prepass::Statistic::SequenceMean);
/// vllm_importance_sampling_mode="geometric_mask": the geometric mean of the ratios of the row, and
/// 0 where it is above 3.
inline constexpr prepass::MaskedImportance geometric_mask =
    trl::detail::masked(prepass::Statistic::SequenceMean);
/// off_policy_mask_threshold=0.5, as in TRL.
inline constexpr prepass::Gate off_policy_mask = trl::off_policy_mask;

// The options of rollout_rs, which are verl's (presets/verl.hpp, whose notes on bounds hold here).
// What they drop leaves the surrogate and the KL term and still counts.

namespace detail {
/// A rejection of verl's as it acts here.
constexpr prepass::Gate rejection(prepass::Gate gate) {
  gate.reach = Reach::SurrogateAndKl;
  gate.missing = prepass::MissingRollout::NoDifference;
  return gate;
}
}  // namespace detail
/// rollout_rs="token_k1": k1, of a token; the bounds of verl's.
inline constexpr prepass::Gate token_k1 = detail::rejection(verl::token_k1);
/// rollout_rs="token_k2": k2, of a token; the bounds of verl's.
inline constexpr prepass::Gate token_k2 = detail::rejection(verl::token_k2);
/// rollout_rs="token_k3": k3, of a token; the bounds of verl's.
inline constexpr prepass::Gate token_k3 = detail::rejection(verl::token_k3);
/// rollout_rs="seq_sum_k1": k1, summed over the row; the bounds of verl's.
inline constexpr prepass::Gate seq_sum_k1 = detail::rejection(verl::seq_sum_k1);
/// rollout_rs="seq_sum_k2": k2, summed over the row; the bounds of verl's.
inline constexpr prepass::Gate seq_sum_k2 = detail::rejection(verl::seq_sum_k2);
/// rollout_rs="seq_sum_k3": k3, summed over the row; the bounds of verl's.
inline constexpr prepass::Gate seq_sum_k3 = detail::rejection(verl::seq_sum_k3);
/// rollout_rs="seq_mean_k1": k1, mean of the row; the bounds of verl's.
inline constexpr prepass::Gate seq_mean_k1 = detail::rejection(verl::seq_mean_k1);
/// rollout_rs="seq_mean_k2": k2, mean of the row; the bounds of verl's.
inline constexpr prepass::Gate seq_mean_k2 = detail::rejection(verl::seq_mean_k2);
/// rollout_rs="seq_mean_k3": k3, mean of the row; the bounds of verl's.
inline constexpr prepass::Gate seq_mean_k3 = detail::rejection(verl::seq_mean_k3);
/// rollout_rs="seq_max_k2": k2, largest of the row; the bounds of verl's.
inline constexpr prepass::Gate seq_max_k2 = detail::rejection(verl::seq_max_k2);
/// rollout_rs="seq_max_k3": k3, largest of the row; the bounds of verl's.
inline constexpr prepass::Gate seq_max_k3 = detail::rejection(verl::seq_max_k3);

/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"unsloth_zoo::grpo", grpo_loss, "loss_type=grpo", version},
           Preset{"unsloth_zoo::bnpo", bnpo_loss, "loss_type=bnpo", version},
           Preset{"unsloth_zoo::dr_grpo", dr_grpo_loss, "loss_type=dr_grpo", version},
           Preset{"unsloth_zoo::dapo", dapo_loss, "loss_type=dapo", version},
           Preset{"unsloth_zoo::cispo", cispo_loss, "loss_type=cispo", version},
           Preset{"unsloth_zoo::luspo", luspo_loss,
                  "loss_type=luspo importance_sampling_level=sequence", version},
           Preset{"unsloth_zoo::sapo", sapo_loss, "loss_type=sapo", version},
           Preset{"unsloth_zoo::vespo", vespo_loss, "loss_type=vespo", version});
};
/// The pre-passes by name.
inline constexpr auto prepasses = [](const auto& f) {
  return f(Preset{"unsloth_zoo::geometric_truncate", geometric_truncate,
                  "vllm_importance_sampling_mode=geometric_truncate", version},
           Preset{"unsloth_zoo::geometric_mask", geometric_mask,
                  "vllm_importance_sampling_mode=geometric_mask", version},
           Preset{"unsloth_zoo::off_policy_mask", off_policy_mask, "off_policy_mask_threshold=0.5",
                  version},
           Preset{"unsloth_zoo::token_k1", token_k1, "rollout_rs=token_k1", version},
           Preset{"unsloth_zoo::token_k2", token_k2, "rollout_rs=token_k2", version},
           Preset{"unsloth_zoo::token_k3", token_k3, "rollout_rs=token_k3", version},
           Preset{"unsloth_zoo::seq_sum_k1", seq_sum_k1, "rollout_rs=seq_sum_k1", version},
           Preset{"unsloth_zoo::seq_sum_k2", seq_sum_k2, "rollout_rs=seq_sum_k2", version},
           Preset{"unsloth_zoo::seq_sum_k3", seq_sum_k3, "rollout_rs=seq_sum_k3", version},
           Preset{"unsloth_zoo::seq_mean_k1", seq_mean_k1, "rollout_rs=seq_mean_k1", version},
           Preset{"unsloth_zoo::seq_mean_k2", seq_mean_k2, "rollout_rs=seq_mean_k2", version},
           Preset{"unsloth_zoo::seq_mean_k3", seq_mean_k3, "rollout_rs=seq_mean_k3", version},
           Preset{"unsloth_zoo::seq_max_k2", seq_max_k2, "rollout_rs=seq_max_k2", version},
           Preset{"unsloth_zoo::seq_max_k3", seq_max_k3, "rollout_rs=seq_max_k3", version});
};
}  // namespace unsloth_zoo
GDPO_END_NAMESPACE
