#pragma once
// Presets of slime.
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/loss/any_kl.hpp>
#include <gdpo/loss/named.hpp>
#include <gdpo/presets/correction.hpp>
#include <gdpo/presets/preset.hpp>
#include <gdpo/value/outcome_advantage.hpp>
#include <gdpo/value/value_loss.hpp>

GDPO_BEGIN_NAMESPACE
/// The estimators of slime, RolloutManager._post_process_rewards and
/// compute_advantages_and_returns, and its losses and corrections.
///
/// Rewards of rows are normalized first, then given to the tokens. Each token pays penalty.coef =
/// kl_coef times its KL; kl_loss_type is penalty.kl.estimator. Missing (NaN) rewards are not
/// handled. With normalize_advantages set renorm = slime::whiten.
namespace slime {
inline constexpr const char* version = "THUDM/slime@624b824a";

namespace detail {
template <class Estimator>
constexpr Estimator conventions(Estimator e, Singleton singleton = Singleton::Zero) {
  e.missing = {MissingEntry::Propagate, MissingRow::Keep};
  e.singleton = singleton;
  return e;
}
constexpr Grpo scaled(Singleton singleton) {
  Grpo e{};
  e.scale.eps = 1e-6;
  return conventions(e, singleton);
}
}  // namespace detail

/// advantage_estimator="grpo" or "gspo": centered in the group, divided by its std + 1e-6. A group
/// of one row gets 0.
inline constexpr Grpo grpo = detail::scaled(Singleton::Zero);
/// The same with NaN for a group of one row, as slime gives it.
inline constexpr Grpo grpo_nan_singleton = detail::scaled(Singleton::Nan);
/// advantage_estimator="grpo" without grpo_std_normalization, or "reinforce_plus_plus_baseline":
/// the reward minus the mean of the group.
inline constexpr DrGrpo grpo_no_std = detail::conventions(DrGrpo{});

/// normalize_advantages, for `renorm`: over the tokens of the batch, by sqrt(variance + 1e-8).
inline constexpr Renorm whiten = renorm::token_weighted_batch();
/// advantage_estimator="ppo" (vanilla_gae, chunked_gae): GAE with lambd 1 in which every position
/// of the response is a step, masked ones too.
inline constexpr TokenAdvantage<returns::Gae, AnyKl> ppo{
    {1, 1, same_lambda, 0, Steps::Row}, {0, {0, Against::Ref, {}, {}, KlEstimator::K1}}};
/// advantage_estimator="reinforce_plus_plus": discounted rewards to go in which every position of
/// the response is a step, and only valid ones carry reward.
inline constexpr TokenAdvantage<returns::RewardToGo, AnyKl> reinforce_plus_plus{
    {1, Steps::RowRewardOnValid}, {0, {0, Against::Ref, {}, {}, KlEstimator::K1}}};

namespace detail {
template <class Rows>
constexpr auto outcome(const Rows& rows) {
  auto tokens = reinforce_plus_plus;
  tokens.returns = {0};
  return OutcomeAdvantage<Rows, decltype(tokens)>{rows, tokens, Placement::EveryToken};
}
}  // namespace detail
/// advantage_estimator="grpo" or "gspo": the advantage of `grpo` at every token. There is no
/// penalty, whatever kl_coef is.
inline constexpr auto grpo_outcome = detail::outcome(grpo);
/// advantage_estimator="reinforce_plus_plus_baseline": the advantage of `grpo_no_std` at every
/// token, less its penalty. With normalize_advantages set tokens.renorm = slime::whiten.
inline constexpr auto reinforce_plus_plus_baseline_outcome = detail::outcome(grpo_no_std);

/// policy_loss_function with advantage_estimator="cispo": the detached ratio between 1 - eps_clip
/// and 1 + eps_clip_high, 0.2 both. The mean over the rows of the step of their token means: set
/// Normalizer::given = global_batch_size. Where rollouts are split into rows (rollout_ids), set
/// aggregate = aggregate::group_mean(), whose groups are the rollouts. use_kl_loss is kl.beta =
/// kl_loss_coef.
inline constexpr CispoLoss<level::Token<>, Kl<kl::K1>> cispo_loss{
    {}, {}, {0.0}, aggregate::seq_mean_token_mean(Over::Given), {{1 - 0.2, 1 + 0.2}, {}}};

/// policy_loss_function with advantage_estimator="grpo" and others: clip 0.2 (eps_clip,
/// eps_clip_high), no dual clip (eps_clip_c is surrogate.dual); divided as `cispo_loss`. For "gspo"
/// use with_level<level::Sequence<>>(loss). kl_loss_type is the estimator, "low_var_kl" K3 with
/// kl.output +-10; use_unbiased_kl is kl::ImportanceWeighted.
inline constexpr PolicyLoss<level::Token<>, surrogate::Ratio, Kl<kl::K1>> policy_loss{
    {}, {}, {0.0}, aggregate::seq_mean_token_mean(Over::Given)};

/// use_tis: the ratio of each token, between tis_clip_low, 0, and tis_clip, 2.
inline constexpr prepass::Importance tis = presets::weight(prepass::Statistic::Token, {0, 2});
/// custom_tis_function_path of icepop_function: the ratio of each token, and 0 outside
/// [tis_clip_low, tis_clip], here [0.5, 2].
inline constexpr prepass::MaskedImportance icepop =
    presets::masked(presets::weight(prepass::Statistic::Token),
                    presets::gate(prepass::Estimator::Ratio, prepass::Statistic::Token, 0.5, 2));
/// use_opsm: drops the tokens with A < 0 of rows whose mean of old_logp - logp is above opsm_delta,
/// 1e-4. They still count. For use_rollout_logprobs bind rollout_logp as old_logp.
inline constexpr prepass::Gate opsm = [] {
  prepass::Gate pass = prepass::off_policy_sequence_mask(1e-4);
  pass.pair = prepass::Pair::Update;
  return pass;
}();

/// value_loss_function: the larger squared error, not halved, with clip 0.2 (value_clip); the mean
/// over rows of their token means.
inline constexpr ValueLoss<> value_loss{0.2, false, aggregate::seq_mean_token_mean()};

/// The estimators by name.
inline constexpr auto estimators = [](const auto& f) {
  return f(
      Preset{"slime::grpo", grpo, "advantage_estimator=grpo", version},
      Preset{"slime::grpo_nan_singleton", grpo_nan_singleton, "advantage_estimator=grpo", version},
      Preset{"slime::grpo_no_std", grpo_no_std,
             "advantage_estimator=grpo grpo_std_normalization=False", version});
};
/// The estimators over tokens by name.
inline constexpr auto token_advantages = [](const auto& f) {
  return f(Preset{"slime::ppo", ppo, "advantage_estimator=ppo", version},
           Preset{"slime::reinforce_plus_plus", reinforce_plus_plus,
                  "advantage_estimator=reinforce_plus_plus", version});
};
/// The estimators from rows to tokens by name.
inline constexpr auto outcome_advantages = [](const auto& f) {
  return f(Preset{"slime::grpo", grpo_outcome, "advantage_estimator=grpo", version},
           Preset{"slime::reinforce_plus_plus_baseline", reinforce_plus_plus_baseline_outcome,
                  "advantage_estimator=reinforce_plus_plus_baseline", version});
};
/// The whitenings by name.
inline constexpr auto whitenings = [](const auto& f) {
  return f(Preset{"slime::whiten", whiten, "normalize_advantages", version});
};
/// The value losses by name.
inline constexpr auto value_losses = [](const auto& f) {
  return f(Preset{"slime::value_loss", value_loss, "value_loss_function", version});
};
/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"slime::policy_loss", policy_loss, "advantage_estimator=grpo", version},
           Preset{"slime::cispo", cispo_loss, "advantage_estimator=cispo", version});
};
/// The pre-passes by name.
inline constexpr auto prepasses = [](const auto& f) {
  return f(Preset{"slime::tis", tis, "use_tis", version},
           Preset{"slime::icepop", icepop, "custom_tis_function_path=icepop_function", version},
           Preset{"slime::opsm", opsm, "use_opsm", version});
};
}  // namespace slime
GDPO_END_NAMESPACE
