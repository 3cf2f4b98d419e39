#pragma once
// The policy losses of unsloth-zoo as presets, and its corrections between sampler and trainer.
#include <gdpo/loss/named.hpp>
#include <gdpo/presets/trl.hpp>

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
constexpr prepass::Gate rejection(prepass::Estimator estimator, prepass::Statistic statistic,
                                  Bounds bounds) {
  return presets::rejection(estimator, statistic, bounds, Reach::SurrogateAndKl,
                            prepass::MissingRollout::NoDifference);
}
}  // namespace detail
/// rollout_rs="token_k1" with rollout_rs_threshold="0.5_2.0": k1, of a token.
inline constexpr prepass::Gate token_k1 =
    detail::rejection(prepass::Estimator::K1, prepass::Statistic::Token, presets::half_to_twice);
/// rollout_rs="token_k2" with rollout_rs_threshold=0.1: k2, of a token.
inline constexpr prepass::Gate token_k2 =
    detail::rejection(prepass::Estimator::K2, prepass::Statistic::Token, {-math::infinity, 0.1});
/// rollout_rs="token_k3" with rollout_rs_threshold=0.1: k3, of a token.
inline constexpr prepass::Gate token_k3 =
    detail::rejection(prepass::Estimator::K3, prepass::Statistic::Token, {-math::infinity, 0.1});
/// rollout_rs="seq_sum_k1" with rollout_rs_threshold="0.5_2.0": k1, summed over the row.
inline constexpr prepass::Gate seq_sum_k1 = detail::rejection(
    prepass::Estimator::K1, prepass::Statistic::SequenceSum, presets::half_to_twice);
/// rollout_rs="seq_sum_k2" with rollout_rs_threshold=0.1: k2, summed over the row.
inline constexpr prepass::Gate seq_sum_k2 = detail::rejection(
    prepass::Estimator::K2, prepass::Statistic::SequenceSum, {-math::infinity, 0.1});
/// rollout_rs="seq_sum_k3" with rollout_rs_threshold=0.1: k3, summed over the row.
inline constexpr prepass::Gate seq_sum_k3 = detail::rejection(
    prepass::Estimator::K3, prepass::Statistic::SequenceSum, {-math::infinity, 0.1});
/// rollout_rs="seq_mean_k1" with rollout_rs_threshold="0.999_1.001": k1, mean of the row.
inline constexpr prepass::Gate seq_mean_k1 =
    detail::rejection(prepass::Estimator::K1, prepass::Statistic::SequenceMean, presets::per_mille);
/// rollout_rs="seq_mean_k2" with rollout_rs_threshold=0.01: k2, mean of the row.
inline constexpr prepass::Gate seq_mean_k2 = detail::rejection(
    prepass::Estimator::K2, prepass::Statistic::SequenceMean, {-math::infinity, 0.01});
/// rollout_rs="seq_mean_k3" with rollout_rs_threshold=0.01: k3, mean of the row.
inline constexpr prepass::Gate seq_mean_k3 = detail::rejection(
    prepass::Estimator::K3, prepass::Statistic::SequenceMean, {-math::infinity, 0.01});
/// rollout_rs="seq_max_k2" with rollout_rs_threshold=0.1: k2, largest of the row.
inline constexpr prepass::Gate seq_max_k2 = detail::rejection(
    prepass::Estimator::K2, prepass::Statistic::SequenceMax, {-math::infinity, 0.1});
/// rollout_rs="seq_max_k3" with rollout_rs_threshold=0.1: k3, largest of the row.
inline constexpr prepass::Gate seq_max_k3 = detail::rejection(
    prepass::Estimator::K3, prepass::Statistic::SequenceMax, {-math::infinity, 0.1});

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
