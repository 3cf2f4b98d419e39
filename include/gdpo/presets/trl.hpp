#pragma once
// Presets of TRL.
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/logits/distillation_loss.hpp>
#include <gdpo/loss/named.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/presets/correction.hpp>
#include <gdpo/presets/preset.hpp>

GDPO_BEGIN_NAMESPACE
/// The estimators of TRL, GRPOTrainer._generate_and_score_completions, and its losses and rollout
/// corrections.
///
/// A missing (NaN) reward is skipped, a row that no reward function scored is excluded, whatever
/// their weights are, and the advantage in a group of one row is 0. What is NaN because of an
/// infinite reward counts as 0.
namespace trl {
inline constexpr const char* version = "huggingface/trl@f2cd5771";
/// The release that these presets were last tested against.
inline constexpr const char* release = "trl 1.16.0";

namespace detail {
inline constexpr Missing missing{MissingEntry::Skip, MissingRow::ExcludeUnscored,
                                 InfiniteEntry::NanToNum};
}  // namespace detail

/// multi_objective_aggregation="sum_then_normalize" with scale_rewards="group", the defaults: the
/// sum of the rewards minus its mean in the group, divided by its std in the group + 1e-4.
inline constexpr Grpo grpo = [] {
  Grpo e{};
  e.missing = detail::missing;
  e.scale.eps = 1e-4;
  return e;
}();
/// scale_rewards="none": the sum of the rewards minus its mean in the group.
inline constexpr DrGrpo grpo_no_scale = [] {
  DrGrpo e{};
  e.missing = detail::missing;
  return e;
}();
/// scale_rewards="batch": centered in the group, divided by the std of all rewards + 1e-4.
inline constexpr Grpo grpo_batch_scale = [] {
  Grpo e = grpo;
  e.scale.of = scale::Of::Batch;
  return e;
}();
/// multi_objective_aggregation="normalize_then_sum", which is GDPO: eps 1e-4 in both stages, the
/// second over the rows of the batch.
inline constexpr Gdpo gdpo = [] {
  Gdpo e{};
  e.missing = detail::missing;
  e.scale.eps = 1e-4;
  e.renorm.eps = 1e-4;
  return e;
}();

/// RLOOTrainer._generate_and_score_completions: the sum of the rewards minus its mean over the
/// other scored rows of the group; a row that is alone gets 0. reward_clip_range is `reward_clip`,
/// and beta is penalty.coef, of RewardBatch::penalty = the sum of old_logp - ref_logp over the row.
inline constexpr Rloo rloo = [] {
  Rloo e{};
  e.missing = detail::missing;
  e.singleton = Singleton::Exclude;
  return e;
}();
/// RLOOTrainer with normalize_advantages: then divided by their std + 1e-4 over the rows that are
/// scored and not alone.
inline constexpr Rloo rloo_normalized = [] {
  Rloo e = rloo;
  e.renorm = renorm::batch(1, 1e-4);
  return e;
}();

// The losses of GRPOTrainer._compute_loss, with its defaults beta 0 and epsilon 0.2. Other options:
//   delta                                   loss.surrogate.delta
//   importance_sampling_level="sequence"    with_level<level::Sequence<>>(loss)
//   gradient_accumulation_steps             nothing with the counts of the whole step, which
//                                           contain that division; TRL's own numbers, a mean of
//                                           the micro-batches' losses, are those of each one's own
//                                           counts with aggregate.scale = 1 / steps (not for dapo)
//   use_bias_correction_kl=True             with_kl(loss, Kl<kl::K3, kl::ImportanceWeighted>{beta})
//                                           (by name "k3*"); its default where beta is not 0
//   off_policy_mask_threshold               the pre-pass `off_policy_mask`

/// loss_type="grpo": the mean over all rows of their token means.
inline constexpr PolicyLoss<> grpo_loss{{}, {}, {0.0}};
/// loss_type="bnpo": the mean over the tokens of the micro-batch.
inline constexpr PolicyLoss<> bnpo_loss{{}, {}, {0.0}, aggregate::token_mean()};
/// loss_type="dr_grpo". Set aggregate.constant = max_completion_length; it has no default.
inline constexpr PolicyLoss<> dr_grpo_loss{{}, {}, {0.0}, aggregate::seq_mean_token_sum_norm()};
/// loss_type="dapo", its default: the sum over tokens divided by num_items_in_batch, the tokens of
/// all processes. Set Normalizer::given to it, and aggregate.scale = num_processes *
/// steps_per_generation / gradient_accumulation_steps: gradients are averaged over the processes,
/// and the count is that of a generation batch, of which a step sees this part. (Up to 1.10.0
/// scale = num_processes: the same where the two options are equal, as they are by default.) TRL
/// computes it in _generate_and_score_completions,
/// as the sum of the gathered completion lengths, and _compute_loss reads
/// inputs["num_items_in_batch"]; here it is the sum of count(batch).tokens over the processes and
/// the micro-batches of the generation batch, which are those of the step by default.
inline constexpr PolicyLoss<> dapo_loss{{}, {}, {0.0}, aggregate::token_mean(Over::Given)};

/// loss_type="cispo": divided as `dapo_loss`, whose notes on Normalizer::given and aggregate.scale
/// hold here too. The bound of the ratio is epsilon_high itself, not 1 + epsilon_high: set
/// factor.first.max_ratio = epsilon_high. Here it is 5, as TRL's documentation recommends; TRL's
/// own default, 0.2, clips nearly every token. epsilon and delta have no effect.
inline constexpr CispoLoss<> cispo_loss{
    {}, {}, {0.0}, aggregate::token_mean(Over::Given), {{0, 5}, {}}};

/// loss_type="luspo" with importance_sampling_level="sequence", as TRL recommends for it: GSPO's
/// ratio, and the mean over all rows of their token sums, so that a row counts by its length
/// (LUSPO, arXiv 2602.05261). Up to 1.9.2 TRL did not apply the mask here. That changes no number
/// as long as all terms of a row are equal; with ratios of tokens, a KL term or weights of tokens
/// it took means over the padding too, which no preset does.
inline constexpr PolicyLoss<level::Sequence<>> luspo_loss{
    {}, {}, {0.0}, aggregate::seq_mean_token_sum()};

/// loss_type="sapo": `grpo_loss` with SAPO's gate in place of the clip. Set surrogate.tau_pos =
/// sapo_temperature_pos and tau_neg = sapo_temperature_neg; here they are 1 and 1.05, TRL's
/// defaults. epsilon and delta have no effect.
inline constexpr auto sapo_loss = gdpo::sapo_loss;
/// loss_type="vespo": divided as `dapo_loss`. vespo_k_pos, vespo_lambda_pos, vespo_k_neg and
/// vespo_lambda_neg are those members of factor.first; here they are 2, 3, 3 and 2, TRL's defaults.
/// epsilon and delta have no effect. importance_sampling_level has one on use_bias_correction_kl
/// alone: TRL multiplies the KL term by the ratio of that level, and kl::ImportanceWeighted by the
/// ratio of this loss, the weighed product of the row. There is no rule for the former. TRL takes
/// the weights of vllm_importance_sampling_mode into the ratio of the row: give the pre-pass
/// reach = Reach::Level.
inline constexpr VespoLoss<> vespo_loss{vespo_level, {}, {0.0}, aggregate::token_mean(Over::Given)};

/// RLOOTrainer._compute_loss: the clip of PPO on the ratio of the whole completion, the product of
/// its tokens' ratios; the mean over rows. Its KL penalty is in the reward. A row without a valid
/// token adds nothing here; in TRL it adds -A / rows to the value, which has no gradient.
inline constexpr PolicyLoss<level::Sequence<map::None, statistic::Sum>> rloo_loss{{}, {}, {0.0}};
/// GMPOTrainer._compute_loss (experimental): log ratios of tokens clipped at +-0.4 (epsilon and
/// epsilon_high, in log space) on the side of the advantage, the geometric mean of the row's
/// ratios; the mean over rows. Rows without a valid token are as in `rloo_loss`.
/// top_entropy_quantile takes tokens out of that mean: bind a mask.
inline constexpr auto gmpo_loss = gdpo::gmpo_loss;

// The pre-passes of vllm_importance_sampling_mode, with a cap of 3. A token whose rollout_logp is
// NaN has the ratio 1 (up to 1.10.0 it made the loss NaN). The ratio of a token is here
// exp(old_logp - rollout_logp). vllm_importance_sampling_clip_min and _clip_max are the bounds
// `clip` of the weights, or `min` and `max` of the masks.

namespace detail {
constexpr prepass::Importance truncated(prepass::Statistic statistic) {
  prepass::Importance pass = presets::weight(statistic, {-math::infinity, 3});
  pass.missing = prepass::MissingRollout::NoDifference;
  return pass;
}
constexpr prepass::MaskedImportance masked(prepass::Statistic statistic) {
  prepass::Gate gate = presets::gate(prepass::Estimator::Ratio, statistic, -math::infinity, 3);
  gate.missing = prepass::MissingRollout::NoDifference;
  return presets::masked(presets::weight(statistic), gate);
}
}  // namespace detail
/// vllm_importance_sampling_mode="token_truncate": the ratio of each token, at most 3.
inline constexpr prepass::Importance token_truncate = detail::truncated(prepass::Statistic::Token);
/// vllm_importance_sampling_mode="sequence_truncate": the product of the ratios of the row, at most
/// 3.
inline constexpr prepass::Importance sequence_truncate =
    detail::truncated(prepass::Statistic::SequenceSum);
/// vllm_importance_sampling_mode="token_mask": the ratio of each token, and 0 where it is above 3.
inline constexpr prepass::MaskedImportance token_mask = detail::masked(prepass::Statistic::Token);
/// vllm_importance_sampling_mode="sequence_mask", TRL's default: the product of the ratios of the
/// row, and 0 where it is above 3.
inline constexpr prepass::MaskedImportance sequence_mask =
    detail::masked(prepass::Statistic::SequenceSum);
/// off_policy_mask_threshold=0.5: drops rows that have A < 0 and whose mean of rollout - logp is
/// above `max`. TRL has no default: it is off there unless set.
inline constexpr prepass::Gate off_policy_mask = prepass::off_policy_sequence_mask(
    0.5, Reach::Surrogate, prepass::GateAdvantage::Token, prepass::MissingRollout::NoDifference);

/// IWOPDTrainer with distillation_objective="iw_opd": weights that fall with the prefix, where
/// iw_opd_gamma is `gain` and iw_opd_epsilon `eps`. Its advantages are those of
/// `distillation_advantage` between teacher and sampler, and its loss is surrogate::Reinforce with
/// aggregate::token_mean().
inline constexpr prepass::TeacherPrefix iw_opd{0.5, 1e-8};

/// ServerDistillationTrainer with beta=0 and loss_add_tail: the forward KL over the teacher's
/// loss_top_k tokens and the rest as one more; the mean over the positions. It is for
/// distillation_from_logits().
inline constexpr DistillationLoss server_distillation_loss{0, Rest::Tail};

/// The estimators by name.
inline constexpr auto estimators = [](const auto& f) {
  return f(Preset{"trl::grpo", grpo, "scale_rewards=group", version},
           Preset{"trl::grpo_no_scale", grpo_no_scale, "scale_rewards=none", version},
           Preset{"trl::grpo_batch_scale", grpo_batch_scale, "scale_rewards=batch", version},
           Preset{"trl::gdpo", gdpo, "multi_objective_aggregation=normalize_then_sum", version},
           Preset{"trl::rloo", rloo, "RLOOTrainer", release},
           Preset{"trl::rloo_normalized", rloo_normalized, "RLOOTrainer normalize_advantages=True",
                  release});
};
/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"trl::grpo", grpo_loss, "loss_type=grpo", version},
           Preset{"trl::bnpo", bnpo_loss, "loss_type=bnpo", version},
           Preset{"trl::dr_grpo", dr_grpo_loss, "loss_type=dr_grpo", version},
           Preset{"trl::dapo", dapo_loss, "loss_type=dapo", version},
           Preset{"trl::cispo", cispo_loss, "loss_type=cispo", version},
           Preset{"trl::luspo", luspo_loss, "loss_type=luspo importance_sampling_level=sequence",
                  release},
           Preset{"trl::sapo", sapo_loss, "loss_type=sapo", version},
           Preset{"trl::vespo", vespo_loss, "loss_type=vespo", version},
           Preset{"trl::rloo", rloo_loss, "RLOOTrainer", release},
           Preset{"trl::gmpo", gmpo_loss, "GMPOTrainer", release});
};
/// The pre-passes by name.
inline constexpr auto prepasses = [](const auto& f) {
  return f(
      Preset{"trl::token_truncate", token_truncate, "vllm_importance_sampling_mode=token_truncate",
             version},
      Preset{"trl::sequence_truncate", sequence_truncate,
             "vllm_importance_sampling_mode=sequence_truncate", version},
      Preset{"trl::token_mask", token_mask, "vllm_importance_sampling_mode=token_mask", release},
      Preset{"trl::sequence_mask", sequence_mask, "vllm_importance_sampling_mode=sequence_mask",
             release},
      Preset{"trl::off_policy_mask", off_policy_mask, "off_policy_mask_threshold=0.5", release},
      Preset{"trl::iw_opd", iw_opd, "IWOPDTrainer distillation_objective=iw_opd", release});
};
}  // namespace trl
GDPO_END_NAMESPACE
