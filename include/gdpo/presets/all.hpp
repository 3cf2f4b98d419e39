#pragma once
#include <gdpo/presets/liger.hpp>
#include <gdpo/presets/ms_swift.hpp>
#include <gdpo/presets/nemo_rl.hpp>
#include <gdpo/presets/nvlabs.hpp>
#include <gdpo/presets/open_instruct.hpp>
#include <gdpo/presets/openrlhf.hpp>
#include <gdpo/presets/paper.hpp>
#include <gdpo/presets/per_group.hpp>
#include <gdpo/presets/skyrl.hpp>
#include <gdpo/presets/slime.hpp>
#include <gdpo/presets/textbook.hpp>
#include <gdpo/presets/trinity.hpp>
#include <gdpo/presets/trl.hpp>
#include <gdpo/presets/unsloth_zoo.hpp>
#include <gdpo/presets/verl.hpp>

GDPO_BEGIN_NAMESPACE
/// The list of presets. The names at run time, the conformance runner, the checks of the kernels
/// and the tests are made from it. A new preset is a value in the header of its trainer and a line
/// here.
///
///     gdpo::presets::for_each_estimator([](const auto& preset) { std::puts(preset.name); });
namespace presets {

/// A line of the list.
template <class T>
struct Preset {
  /// The name by which gdpo::runtime finds it, such as "trl::gdpo".
  const char* name;
  /// The estimator, loss, pre-pass or aggregate.
  T value;
  /// What selects it in the trainer: an option, or else the function that computes it.
  const char* option;
  /// The trainer's sources that its results were recorded from, as repository@commit; or else the
  /// release that it was run beside, or the paper.
  const char* version;
};
template <class T>
Preset(const char*, T, const char*, const char*) -> Preset<T>;

/// Calls f(preset...) with the whole list of estimators.
template <class F>
constexpr auto with_estimators(const F& f) {
  return f(
      Preset{"gdpo", Gdpo{}, "", "arXiv 2601.05242"},
      Preset{"grpo", Grpo{}, "", "arXiv 2402.03300"},
      Preset{"dr_grpo", DrGrpo{}, "", "arXiv 2503.20783"},
      Preset{"rloo", Rloo{}, "", "arXiv 2402.14740"},
      Preset{"gdpo_shrunk", ShrunkGdpo{}, "", "arXiv 2601.05242"},
      Preset{"grpo_shrunk", ShrunkGrpo{}, "", "arXiv 2402.03300"},
      Preset{"paper::gdpo", paper::gdpo, "eq. 4-7", paper::version},
      Preset{"paper::grpo", paper::grpo, "eq. 1-2", paper::version},
      Preset{"paper::grpo_no_std", paper::grpo_no_std, "GRPO w/o std", paper::version},
      Preset{"trl::grpo", trl::grpo, "scale_rewards=group", trl::version},
      Preset{"trl::grpo_no_scale", trl::grpo_no_scale, "scale_rewards=none", trl::version},
      Preset{"trl::grpo_batch_scale", trl::grpo_batch_scale, "scale_rewards=batch", trl::version},
      Preset{"trl::gdpo", trl::gdpo, "multi_objective_aggregation=normalize_then_sum",
             trl::version},
      Preset{"verl::grpo", verl::grpo, "adv_estimator=grpo", verl::version},
      Preset{"verl::grpo_no_std", verl::grpo_no_std,
             "adv_estimator=grpo norm_adv_by_std_in_grpo=False", verl::version},
      Preset{"verl::gdpo", verl::gdpo, "adv_estimator=gdpo", verl::version},
      Preset{"verl::gdpo_no_std", verl::gdpo_no_std,
             "compute_gdpo_outcome_advantage norm_adv_by_std_in_grpo=False", verl::version},
      Preset{"verl::rloo", verl::rloo, "adv_estimator=rloo", verl::version},
      Preset{"verl::rloo_vectorized", verl::rloo_vectorized, "adv_estimator=rloo_vectorized",
             verl::version},
      Preset{"verl::reinforce_plus_plus_baseline", verl::reinforce_plus_plus_baseline,
             "adv_estimator=reinforce_plus_plus_baseline", verl::version},
      Preset{"verl::opo", verl::opo, "adv_estimator=opo", verl::version},
      Preset{"verl::gpg", verl::gpg, "adv_estimator=gpg", verl::version},
      Preset{"verl::grpo_passk", verl::grpo_passk, "adv_estimator=grpo_passk", verl::version},
      Preset{"verl::grpo_passk_no_std", verl::grpo_passk_no_std,
             "adv_estimator=grpo_passk norm_adv_by_std_in_grpo=False", verl::version},
      Preset{"nvlabs::trl_grpo", nvlabs::trl_grpo, "apply_gdpo=False", nvlabs::version},
      Preset{"nvlabs::trl_grpo_no_scale", nvlabs::trl_grpo_no_scale,
             "apply_gdpo=False scale_rewards=False", nvlabs::version},
      Preset{"nvlabs::trl_gdpo", nvlabs::trl_gdpo, "apply_gdpo=True", nvlabs::version},
      Preset{"nvlabs::trl_grpo_nan_singleton", nvlabs::trl_grpo_nan_singleton, "apply_gdpo=False",
             nvlabs::version},
      Preset{"nvlabs::trl_gdpo_nan_singleton", nvlabs::trl_gdpo_nan_singleton, "apply_gdpo=True",
             nvlabs::version},
      Preset{"nvlabs::verl_grpo", nvlabs::verl_grpo, "compute_advantage[grpo]", nvlabs::version},
      Preset{"nvlabs::verl_grpo_no_std", nvlabs::verl_grpo_no_std, "compute_advantage[grpo_no_std]",
             nvlabs::version},
      Preset{"nvlabs::verl_grpo_bn", nvlabs::verl_grpo_bn, "compute_grpo_bn_outcome_advantage",
             nvlabs::version},
      Preset{"nvlabs::verl_grpo_no_std_bn", nvlabs::verl_grpo_no_std_bn,
             "compute_grpo_no_std_bn_outcome_advantage", nvlabs::version},
      Preset{"nvlabs::verl_gdpo", nvlabs::verl_gdpo, "compute_advantage[gdpo]", nvlabs::version},
      Preset{"ms_swift::grpo", ms_swift::grpo, "advantage_estimator=grpo", ms_swift::version},
      Preset{"ms_swift::grpo_no_scale", ms_swift::grpo_no_scale,
             "advantage_estimator=grpo scale_rewards=none", ms_swift::version},
      Preset{"ms_swift::grpo_batch_scale", ms_swift::grpo_batch_scale,
             "advantage_estimator=grpo scale_rewards=batch", ms_swift::version},
      Preset{"ms_swift::rloo", ms_swift::rloo, "advantage_estimator=rloo", ms_swift::version},
      Preset{"ms_swift::rloo_group_scale", ms_swift::rloo_group_scale,
             "advantage_estimator=rloo scale_rewards=group", ms_swift::version},
      Preset{"ms_swift::rloo_batch_scale", ms_swift::rloo_batch_scale,
             "advantage_estimator=rloo scale_rewards=batch", ms_swift::version},
      Preset{"ms_swift::reinforce_plus_plus", ms_swift::reinforce_plus_plus,
             "advantage_estimator=reinforce_plus_plus", ms_swift::version},
      Preset{"ms_swift::reinforce_plus_plus_group_scale", ms_swift::reinforce_plus_plus_group_scale,
             "advantage_estimator=reinforce_plus_plus scale_rewards=group", ms_swift::version},
      Preset{"ms_swift::reinforce_plus_plus_no_scale", ms_swift::reinforce_plus_plus_no_scale,
             "advantage_estimator=reinforce_plus_plus scale_rewards=none", ms_swift::version},
      Preset{"ms_swift::gdpo", ms_swift::gdpo, "advantage_estimator=grpo scale_rewards=gdpo",
             ms_swift::version},
      Preset{"open_instruct::standard", open_instruct::standard,
             "advantage_normalization_type=standard", open_instruct::version},
      Preset{"open_instruct::centered", open_instruct::centered,
             "advantage_normalization_type=centered", open_instruct::version},
      Preset{"nemo_rl::grpo", nemo_rl::grpo, "GRPOAdvantageEstimator", nemo_rl::version},
      Preset{"nemo_rl::grpo_group_mean", nemo_rl::grpo_group_mean,
             "GRPOAdvantageEstimator use_leave_one_out_baseline=False", nemo_rl::version},
      Preset{"nemo_rl::grpo_no_std", nemo_rl::grpo_no_std,
             "GRPOAdvantageEstimator normalize_rewards=False", nemo_rl::version},
      Preset{"nemo_rl::grpo_group_mean_no_std", nemo_rl::grpo_group_mean_no_std,
             "GRPOAdvantageEstimator use_leave_one_out_baseline=False normalize_rewards=False",
             nemo_rl::version},
      Preset{"nemo_rl::gdpo", nemo_rl::gdpo, "GDPOAdvantageEstimator", nemo_rl::version},
      Preset{"nemo_rl::gdpo_group_mean", nemo_rl::gdpo_group_mean,
             "GDPOAdvantageEstimator use_leave_one_out_baseline=False", nemo_rl::version},
      Preset{"slime::grpo", slime::grpo, "advantage_estimator=grpo", slime::version},
      Preset{"slime::grpo_nan_singleton", slime::grpo_nan_singleton, "advantage_estimator=grpo",
             slime::version},
      Preset{"slime::grpo_no_std", slime::grpo_no_std,
             "advantage_estimator=grpo grpo_std_normalization=False", slime::version},
      Preset{"textbook::grpo_numpy", textbook::grpo_numpy, "the numpy listing", textbook::version},
      Preset{"textbook::grpo_torch", textbook::grpo_torch, "the PyTorch listing",
             textbook::version},
      Preset{"per_group::gdpo", per_group::gdpo, "", per_group::version});
}

/// Calls f(preset...) with the whole list of estimators over tokens.
template <class F>
constexpr auto with_token_advantages(const F& f) {
  return f(Preset{"verl::gae", verl::gae, "adv_estimator=gae", verl::version},
           Preset{"verl::reinforce_plus_plus", verl::reinforce_plus_plus,
                  "adv_estimator=reinforce_plus_plus", verl::version},
           Preset{"openrlhf::gae", openrlhf::gae, "advantage_estimator=gae", openrlhf::version},
           Preset{"openrlhf::reinforce", openrlhf::reinforce, "advantage_estimator=reinforce",
                  openrlhf::version},
           Preset{"nemo_rl::gae", nemo_rl::gae, "GeneralizedAdvantageEstimator", nemo_rl::version},
           Preset{"nemo_rl::vapo", nemo_rl::vapo,
                  "GeneralizedAdvantageEstimator gae_lambda_value=1 length_adaptive_alpha=0.05",
                  nemo_rl::version},
           Preset{"slime::ppo", slime::ppo, "advantage_estimator=ppo", slime::version},
           Preset{"slime::reinforce_plus_plus", slime::reinforce_plus_plus,
                  "advantage_estimator=reinforce_plus_plus", slime::version});
}

/// Calls f(preset...) with the whole list of value losses.
template <class F>
constexpr auto with_value_losses(const F& f) {
  return f(Preset{"verl::value_loss", verl::value_loss, "compute_value_loss", verl::version},
           Preset{"openrlhf::value_loss", openrlhf::value_loss, "ValueLoss", openrlhf::version},
           Preset{"nemo_rl::value_loss", nemo_rl::value_loss, "MseValueLossFn", nemo_rl::version},
           Preset{"slime::value_loss", slime::value_loss, "value_loss_function", slime::version});
}

/// Calls f(preset...) with the whole list of losses.
template <class F>
constexpr auto with_losses(const F& f) {
  return f(
      Preset{"grpo", grpo_loss, "", "arXiv 2402.03300"},
      Preset{"dapo", dapo_loss, "", "arXiv 2503.14476"},
      Preset{"dr_grpo", dr_grpo_loss, "", "arXiv 2503.20783"},
      Preset{"gspo", gspo_loss, "", "arXiv 2507.18071"},
      Preset{"gspo_token", gspo_token_loss, "", "arXiv 2507.18071"},
      Preset{"cispo", cispo_loss, "", "arXiv 2506.13585"},
      Preset{"trl::grpo", trl::grpo_loss, "loss_type=grpo", trl::version},
      Preset{"trl::bnpo", trl::bnpo_loss, "loss_type=bnpo", trl::version},
      Preset{"trl::dr_grpo", trl::dr_grpo_loss, "loss_type=dr_grpo", trl::version},
      Preset{"trl::dapo", trl::dapo_loss, "loss_type=dapo", trl::version},
      Preset{"trl::cispo", trl::cispo_loss, "loss_type=cispo", trl::version},
      Preset{"trl::luspo", trl::luspo_loss, "loss_type=luspo importance_sampling_level=sequence",
             trl::release},
      Preset{"verl::vanilla", verl::vanilla_loss, "policy_loss.loss_mode=vanilla", verl::version},
      Preset{"verl::gspo", verl::gspo_loss, "policy_loss.loss_mode=gspo", verl::release},
      Preset{"verl::v0_9_0::gspo", verl::v0_9_0::gspo_loss, "policy_loss.loss_mode=gspo",
             verl::version},
      Preset{"verl::cispo", verl::cispo_loss, "policy_loss.loss_mode=cispo", verl::version},
      Preset{"nvlabs::trl_grpo", nvlabs::trl_grpo_loss, "loss_type=grpo", nvlabs::version},
      Preset{"nvlabs::trl_bnpo", nvlabs::trl_bnpo_loss, "loss_type=bnpo", nvlabs::version},
      Preset{"nvlabs::trl_dr_grpo", nvlabs::trl_dr_grpo_loss, "loss_type=dr_grpo", nvlabs::version},
      Preset{"nvlabs::verl", nvlabs::verl_loss, "compute_policy_loss", nvlabs::version},
      Preset{"ms_swift::grpo", ms_swift::grpo_loss, "loss_type=grpo", ms_swift::version},
      Preset{"ms_swift::bnpo", ms_swift::bnpo_loss, "loss_type=bnpo", ms_swift::version},
      Preset{"ms_swift::dr_grpo", ms_swift::dr_grpo_loss, "loss_type=dr_grpo", ms_swift::version},
      Preset{"ms_swift::dapo", ms_swift::dapo_loss, "loss_type=dapo", ms_swift::version},
      Preset{"ms_swift::cispo", ms_swift::cispo_loss, "loss_type=cispo", ms_swift::version},
      Preset{"ms_swift::megatron_bnpo", ms_swift::megatron_bnpo_loss,
             "MegatronGRPOTrainer loss_type=bnpo", ms_swift::release},
      Preset{"open_instruct::dapo", open_instruct::dapo_loss, "loss_fn=dapo",
             open_instruct::version},
      Preset{"open_instruct::cispo", open_instruct::cispo_loss, "loss_fn=cispo",
             open_instruct::version},
      Preset{"nemo_rl::cispo", nemo_rl::cispo_loss, "use_cispo", nemo_rl::version},
      Preset{"slime::cispo", slime::cispo_loss, "advantage_estimator=cispo", slime::version},
      Preset{"liger::grpo", liger::grpo_loss, "loss_type=grpo", liger::version},
      Preset{"liger::bnpo", liger::bnpo_loss, "loss_type=bnpo", liger::version},
      Preset{"liger::dr_grpo", liger::dr_grpo_loss, "loss_type=dr_grpo", liger::version},
      Preset{"liger::dapo", liger::dapo_loss, "loss_type=dapo", liger::version},
      Preset{"liger::cispo", liger::cispo_loss, "loss_type=cispo", liger::version},
      Preset{"unsloth_zoo::grpo", unsloth_zoo::grpo_loss, "loss_type=grpo", unsloth_zoo::version},
      Preset{"unsloth_zoo::bnpo", unsloth_zoo::bnpo_loss, "loss_type=bnpo", unsloth_zoo::version},
      Preset{"unsloth_zoo::dr_grpo", unsloth_zoo::dr_grpo_loss, "loss_type=dr_grpo",
             unsloth_zoo::version},
      Preset{"unsloth_zoo::dapo", unsloth_zoo::dapo_loss, "loss_type=dapo", unsloth_zoo::version},
      Preset{"unsloth_zoo::cispo", unsloth_zoo::cispo_loss, "loss_type=cispo",
             unsloth_zoo::version},
      Preset{"unsloth_zoo::luspo", unsloth_zoo::luspo_loss,
             "loss_type=luspo importance_sampling_level=sequence", unsloth_zoo::version},
      Preset{"skyrl::regular", skyrl::regular_loss, "policy_loss_type=regular", skyrl::version},
      Preset{"skyrl::gspo", skyrl::gspo_loss, "policy_loss_type=gspo", skyrl::version},
      Preset{"skyrl::cispo", skyrl::cispo_loss, "policy_loss_type=cispo", skyrl::version},
      Preset{"trinity::ppo", trinity::ppo_loss, "PPOPolicyLossFn", trinity::version},
      Preset{"trinity::gspo", trinity::gspo_loss, "GSPOLossFn", trinity::version},
      Preset{"trinity::cispo", trinity::cispo_loss, "CISPOPolicyLossFn", trinity::version},
      Preset{"textbook::grpo", textbook::grpo_loss, "both listings", textbook::version});
}

/// Calls f(preset...) with the whole list of pre-passes.
template <class F>
constexpr auto with_prepasses(const F& f) {
  return f(
      Preset{"trl::token_truncate", trl::token_truncate,
             "vllm_importance_sampling_mode=token_truncate", trl::version},
      Preset{"trl::sequence_truncate", trl::sequence_truncate,
             "vllm_importance_sampling_mode=sequence_truncate", trl::version},
      Preset{"trl::token_weight", trl::token_weight, "vllm_importance_sampling_mode=token_mask",
             trl::version},
      Preset{"trl::token_mask", trl::token_mask, "vllm_importance_sampling_mode=token_mask",
             trl::version},
      Preset{"trl::sequence_weight", trl::sequence_weight,
             "vllm_importance_sampling_mode=sequence_mask", trl::version},
      Preset{"trl::sequence_mask", trl::sequence_mask,
             "vllm_importance_sampling_mode=sequence_mask", trl::version},
      Preset{"ms_swift::token_truncate", ms_swift::token_truncate,
             "rollout_importance_sampling_mode=token_truncate", ms_swift::version},
      Preset{"ms_swift::sequence_truncate", ms_swift::sequence_truncate,
             "rollout_importance_sampling_mode=sequence_truncate", ms_swift::version},
      Preset{"ms_swift::token_weight", ms_swift::token_weight,
             "rollout_importance_sampling_mode=token_mask or sequence_mask", ms_swift::version},
      Preset{"ms_swift::token_mask", ms_swift::token_mask,
             "rollout_importance_sampling_mode=token_mask", ms_swift::version},
      Preset{"ms_swift::sequence_mask", ms_swift::sequence_mask,
             "rollout_importance_sampling_mode=sequence_mask", ms_swift::version},
      Preset{"open_instruct::rho", open_instruct::rho, "use_rho_correction",
             open_instruct::version});
}

/// Calls f(preset...) with verl's aggregates.
template <class F>
constexpr auto with_aggregates(const F& f) {
  return f(Preset{"token-mean", verl::token_mean, "loss_agg_mode=token-mean", verl::version},
           Preset{"token-sum", verl::token_sum, "loss_agg_mode=token-sum", verl::version},
           Preset{"seq-mean-token-sum", verl::seq_mean_token_sum,
                  "loss_agg_mode=seq-mean-token-sum", verl::version},
           Preset{"seq-mean-token-sum-norm", verl::seq_mean_token_sum_norm,
                  "loss_agg_mode=seq-mean-token-sum-norm", verl::version},
           Preset{"seq-mean-token-mean", verl::seq_mean_token_mean,
                  "loss_agg_mode=seq-mean-token-mean", verl::version});
}

/// Calls f(preset) for each estimator of the list.
template <class F>
constexpr void for_each_estimator(const F& f) {
  with_estimators([&f](const auto&... preset) { (f(preset), ...); });
}
/// Calls f(preset) for each estimator over tokens of the list.
template <class F>
constexpr void for_each_token_advantage(const F& f) {
  with_token_advantages([&f](const auto&... preset) { (f(preset), ...); });
}
/// Calls f(preset) for each value loss of the list.
template <class F>
constexpr void for_each_value_loss(const F& f) {
  with_value_losses([&f](const auto&... preset) { (f(preset), ...); });
}
/// Calls f(preset) for each loss of the list.
template <class F>
constexpr void for_each_loss(const F& f) {
  with_losses([&f](const auto&... preset) { (f(preset), ...); });
}
/// Calls f(preset) for each pre-pass of the list.
template <class F>
constexpr void for_each_prepass(const F& f) {
  with_prepasses([&f](const auto&... preset) { (f(preset), ...); });
}
/// Calls f(preset) for each aggregate of the list.
template <class F>
constexpr void for_each_aggregate(const F& f) {
  with_aggregates([&f](const auto&... preset) { (f(preset), ...); });
}
}  // namespace presets
GDPO_END_NAMESPACE
