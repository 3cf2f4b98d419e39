#pragma once
// Presets of NeMo-RL.
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/loss/any_kl.hpp>
#include <gdpo/loss/named.hpp>
#include <gdpo/presets/correction.hpp>
#include <gdpo/presets/preset.hpp>
#include <gdpo/presets/verl.hpp>
#include <gdpo/value/outcome_advantage.hpp>
#include <gdpo/value/value_loss.hpp>

GDPO_BEGIN_NAMESPACE
/// The estimators of NeMo-RL, advantage_estimator.py, and its losses and corrections,
/// loss_functions.py.
///
/// The std is that of the other completions where use_leave_one_out_baseline is on, NeMo-RL's
/// default. A spread of 0 does not divide (EpsAt::StdOrOne). A group of one row gets 0. Missing
/// (NaN) rewards are not handled: NaN propagates. For kl_type and kl_coef of the GAE set
/// penalty.kl.estimator and penalty.coef.
namespace nemo_rl {
inline constexpr const char* version = "NVIDIA-NeMo/RL@7ea279ab";

namespace detail {
template <class Combine>
using LeaveOneOut = GroupAdvantage<baseline::LeaveOneOut, scale::LeaveOneOutStd, Combine>;

template <class Estimator>
constexpr Estimator conventions(Estimator e) {
  e.missing = {MissingEntry::Propagate, MissingRow::Keep};
  return e;
}
template <class Estimator>
constexpr Estimator scaled() {
  Estimator e{};
  e.scale.eps = 1e-6;
  e.scale.eps_at = EpsAt::StdOrOne;
  return conventions(e);
}
}  // namespace detail

/// GRPOAdvantageEstimator with normalize_rewards and use_leave_one_out_baseline, the defaults: the
/// reward minus the mean of the others, divided by the std of the others + 1e-6.
inline constexpr auto grpo = detail::scaled<detail::LeaveOneOut<combine::SumThenNormalize>>();
/// GRPOAdvantageEstimator with use_leave_one_out_baseline=False: mean and std of the group.
inline constexpr Grpo grpo_group_mean = detail::scaled<Grpo>();
/// GRPOAdvantageEstimator with normalize_rewards=False: the reward minus the mean of the others.
inline constexpr Rloo grpo_no_std = detail::conventions(Rloo{});
/// GRPOAdvantageEstimator with both options off: the reward minus the mean of the group.
inline constexpr DrGrpo grpo_group_mean_no_std = detail::conventions(DrGrpo{});
/// GDPOAdvantageEstimator with the defaults: each reward as in `grpo`, then over the rows of the
/// batch, without eps.
inline constexpr auto gdpo = detail::scaled<detail::LeaveOneOut<combine::NormalizeThenSum>>();
/// GDPOAdvantageEstimator with use_leave_one_out_baseline=False.
inline constexpr Gdpo gdpo_group_mean = detail::scaled<Gdpo>();

/// GDPOAdvantageEstimator with normalize_rewards=False: each reward minus the mean of the others,
/// then over the rows of the batch.
inline constexpr auto gdpo_no_std = detail::conventions(
    GroupAdvantage<baseline::LeaveOneOut, scale::None, combine::NormalizeThenSum>{});
/// GDPOAdvantageEstimator with both options off: each reward minus the mean of the group, then over
/// the rows of the batch.
inline constexpr auto gdpo_group_mean_no_std =
    detail::conventions(GroupAdvantage<baseline::Mean, scale::None, combine::NormalizeThenSum>{});

/// GeneralizedAdvantageEstimator: GAE over the valid tokens with gae_lambda 0.95, then whitened
/// over them. The penalty is K3 with its input clamped to +-20 and its value to +-10.
inline constexpr TokenAdvantage<returns::Gae, AnyKl> gae{
    {1, 0.95}, {0, {0, Against::Ref, {-20, 20}, {-10, 10}}}, {}, verl::masked_whiten};
/// The same as in VAPO (arXiv 2504.05118): gae_lambda_value=1 for the returns, and for the
/// advantages lambda = 1 - 1 / (0.05 n) in a row of n tokens (length_adaptive_alpha).
inline constexpr auto vapo = [] {
  auto e = gae;
  e.returns.lambda_returns = 1;
  e.returns.length_alpha = 0.05;
  return e;
}();

/// Normalization over the valid tokens of the batch: the population variance, at least 1e-8.
inline constexpr Renorm batch_norm = renorm::token_weighted_batch(0, 1e-8, EpsAt::ClampVar);
namespace detail {
template <class Rows>
constexpr auto outcome(Rows rows) {
  using Tokens = TokenAdvantage<returns::RewardToGo, AnyKl>;
  return OutcomeAdvantage<Rows, Tokens>{
      conventions(rows), Tokens{{0}, {0, {0, Against::Ref, {-20, 20}, {-10, 10}}}, {}, batch_norm},
      Placement::EveryToken};
}
}  // namespace detail
/// ReinforcePlusPlusAdvantageEstimator with minus_baseline, the default: the reward minus the mean
/// of its group at every token, then whitened over the tokens by their population std, the variance
/// being at least 1e-8. With use_kl_in_reward set tokens.penalty: coef is kl_coef, kl.estimator
/// kl_type.
inline constexpr auto reinforce_plus_plus_outcome = detail::outcome(DrGrpo{});
/// RawRewardAdvantageEstimator with normalize_advantages: the reward itself at every token,
/// whitened as in `reinforce_plus_plus_outcome`. ReinforcePlusPlusAdvantageEstimator with
/// minus_baseline=False is the same.
inline constexpr auto raw_reward_outcome = detail::outcome(RawReward{});

/// MseValueLossFn: half the squared error, a mean over the tokens of the step. Set clip =
/// cliprange, whose default is none.
inline constexpr ValueLoss<> value_loss{};
/// The KL term of ClippedPGLossFn: K3 with its input clamped to +-20, its value to +-10, and the
/// gradient of value times e^(logp - detach(logp)). reference_policy_kl_penalty is beta, 0.01.
inline constexpr Kl<kl::K3, kl::ScoreFunction> score_kl{0.01, Against::Ref, {-20, 20}, {-10, 10}};
/// ClippedPGLossFn: clip 0.2 (ratio_clip_min, ratio_clip_max), no dual clip (ratio_clip_c is
/// surrogate.dual), and token_level_loss, the mean over the tokens of the step, to whose number
/// NeMo-RL adds 1e-8. Without token_level_loss it is aggregate::seq_mean_token_mean(); with
/// sequence_level_importance_ratios with_level<level::Sequence<>>(loss); for force_on_policy_ratio
/// bind logp as old_logp.
inline constexpr PolicyLoss<level::Token<>, surrogate::Ratio, Kl<kl::K3, kl::ScoreFunction>>
    clipped_pg_loss{{}, {}, score_kl, aggregate::token_mean()};
/// ClippedPGLossFn with disable_ppo_ratio: REINFORCE.
inline constexpr PolicyLoss<level::Token<>, surrogate::Reinforce, Kl<kl::K3, kl::ScoreFunction>>
    reinforce_loss{{}, {}, score_kl, aggregate::token_mean()};
/// ClippedPGLossFn with use_cispo: the detached ratio between 1 - ratio_clip_min and 1 +
/// ratio_clip_max, 0.2 both.
inline constexpr CispoLoss<level::Token<>, Kl<kl::K3, kl::ScoreFunction>> cispo_loss{
    {}, {}, score_kl, aggregate::token_mean(), {{1 - 0.2, 1 + 0.2}, {}}};
/// positive_example_nll_weight of ClippedPGLossFn (VAPO, arXiv 2504.05118): -log p of the rows with
/// a reward above 0, which NeMo-RL adds to its loss. Call it with the mask of these rows and the
/// count of their tokens in the micro-batch, with aggregate.scale = positive_example_nll_weight,
/// and add up losses and gradients. It needs no advantages.
inline constexpr PolicyLoss<level::Token<>, surrogate::Likelihood> positive_nll_loss{
    {}, {}, {0.0}, {Aggregate::Mode::TokenMean, Over::Tokens, 1e-8}};

// The corrections of use_importance_sampling_correction. NeMo-RL has no default of
// truncated_importance_sampling_ratio and _ratio_min: set the bounds.

/// use_importance_sampling_correction without a type: the ratio of each token.
inline constexpr prepass::Importance importance_sampling =
    presets::weight(prepass::Statistic::Token);
/// The same with sequence_level_importance_ratios: the product of the ratios of the row.
inline constexpr prepass::Importance sequence_importance_sampling =
    presets::weight(prepass::Statistic::SequenceSum);
/// truncated_importance_sampling_type="tis": the ratio of each token, at most 2.
inline constexpr prepass::Importance tis =
    presets::weight(prepass::Statistic::Token, {-math::infinity, 2});
/// truncated_importance_sampling_type="icepop": the ratio of each token, and 0 outside [0.5, 5].
inline constexpr prepass::MaskedImportance icepop =
    presets::masked(presets::weight(prepass::Statistic::Token),
                    presets::gate(prepass::Estimator::Ratio, prepass::Statistic::Token, 0.5, 5));
/// truncated_importance_sampling_type="seq-mask-tis": the ratio of each token, and 0 in rows whose
/// geometric mean of the ratios is outside [0.999, 1.002].
inline constexpr prepass::MaskedImportance seq_mask_tis = [] {
  prepass::MaskedImportance pass = presets::masked(
      presets::weight(prepass::Statistic::Token),
      presets::gate(prepass::Estimator::Ratio, prepass::Statistic::SequenceMean, 0.999, 1.002));
  pass.rest.first.count_eps = 1e-8;
  return pass;
}();

/// use_on_policy_kl_approximation: the KL term is weighted by the ratio of the policy to the
/// sampler.
inline constexpr prepass::Importance on_policy_kl = [] {
  prepass::Importance pass = presets::weight(prepass::Statistic::Token);
  pass.pair = prepass::Pair::Drift;
  pass.reach = Reach::Kl;
  return pass;
}();

/// The estimators by name.
inline constexpr auto estimators = [](const auto& f) {
  return f(Preset{"nemo_rl::grpo", grpo, "GRPOAdvantageEstimator", version},
           Preset{"nemo_rl::grpo_group_mean", grpo_group_mean,
                  "GRPOAdvantageEstimator use_leave_one_out_baseline=False", version},
           Preset{"nemo_rl::grpo_no_std", grpo_no_std,
                  "GRPOAdvantageEstimator normalize_rewards=False", version},
           Preset{"nemo_rl::grpo_group_mean_no_std", grpo_group_mean_no_std,
                  "GRPOAdvantageEstimator use_leave_one_out_baseline=False normalize_rewards=False",
                  version},
           Preset{"nemo_rl::gdpo", gdpo, "GDPOAdvantageEstimator", version},
           Preset{"nemo_rl::gdpo_group_mean", gdpo_group_mean,
                  "GDPOAdvantageEstimator use_leave_one_out_baseline=False", version},
           Preset{"nemo_rl::gdpo_no_std", gdpo_no_std,
                  "GDPOAdvantageEstimator normalize_rewards=False", version},
           Preset{"nemo_rl::gdpo_group_mean_no_std", gdpo_group_mean_no_std,
                  "GDPOAdvantageEstimator use_leave_one_out_baseline=False normalize_rewards=False",
                  version});
};
/// The estimators over tokens by name.
inline constexpr auto token_advantages = [](const auto& f) {
  return f(Preset{"nemo_rl::gae", gae, "GeneralizedAdvantageEstimator", version},
           Preset{"nemo_rl::vapo", vapo,
                  "GeneralizedAdvantageEstimator gae_lambda_value=1 length_adaptive_alpha=0.05",
                  version});
};
/// The estimators from rows to tokens by name.
inline constexpr auto outcome_advantages = [](const auto& f) {
  return f(
      Preset{"nemo_rl::reinforce_plus_plus", reinforce_plus_plus_outcome,
             "ReinforcePlusPlusAdvantageEstimator", version},
      Preset{"nemo_rl::raw_reward", raw_reward_outcome, "RawRewardAdvantageEstimator", version});
};
/// The whitenings by name; GeneralizedAdvantageEstimator takes verl::masked_whiten.
inline constexpr auto whitenings = [](const auto& f) {
  return f(
      Preset{"nemo_rl::batch_norm", batch_norm, "ReinforcePlusPlusAdvantageEstimator", version});
};
/// The value losses by name.
inline constexpr auto value_losses = [](const auto& f) {
  return f(Preset{"nemo_rl::value_loss", value_loss, "MseValueLossFn", version});
};
/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(
      Preset{"nemo_rl::clipped_pg", clipped_pg_loss, "ClippedPGLossFn", version},
      Preset{"nemo_rl::reinforce", reinforce_loss, "disable_ppo_ratio", version},
      Preset{"nemo_rl::cispo", cispo_loss, "use_cispo", version},
      Preset{"nemo_rl::positive_nll", positive_nll_loss, "positive_example_nll_weight", version});
};
/// The pre-passes by name.
inline constexpr auto prepasses = [](const auto& f) {
  return f(
      Preset{"nemo_rl::importance_sampling", importance_sampling,
             "use_importance_sampling_correction", version},
      Preset{"nemo_rl::sequence_importance_sampling", sequence_importance_sampling,
             "use_importance_sampling_correction sequence_level_importance_ratios", version},
      Preset{"nemo_rl::tis", tis, "truncated_importance_sampling_type=tis", version},
      Preset{"nemo_rl::icepop", icepop, "truncated_importance_sampling_type=icepop", version},
      Preset{"nemo_rl::seq_mask_tis", seq_mask_tis,
             "truncated_importance_sampling_type=seq-mask-tis", version},
      Preset{"nemo_rl::on_policy_kl", on_policy_kl, "use_on_policy_kl_approximation", version});
};
}  // namespace nemo_rl
GDPO_END_NAMESPACE
