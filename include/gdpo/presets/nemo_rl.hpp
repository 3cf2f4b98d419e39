#pragma once
// Presets of NeMo-RL.
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/loss/any_kl.hpp>
#include <gdpo/loss/named.hpp>
#include <gdpo/presets/preset.hpp>
#include <gdpo/presets/verl.hpp>
#include <gdpo/value/token_advantage.hpp>
#include <gdpo/value/value_loss.hpp>

GDPO_BEGIN_NAMESPACE
/// The estimators of NeMo-RL, advantage_estimator.py, and its value loss, loss_functions.py.
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

/// MseValueLossFn: half the squared error, a mean over the tokens of the step. Set clip =
/// cliprange, whose default is none.
inline constexpr ValueLoss<> value_loss{};
/// ClippedPGLossFn with use_cispo: the detached ratio between 1 - ratio_clip_min and 1 +
/// ratio_clip_max, 0.2 both, the KL term K3 with beta 0.01 and clamps, and token_level_loss, the
/// mean over the tokens of the step. reference_policy_kl_penalty is kl.beta. (NeMo-RL adds 1e-8 to
/// the number of tokens.)
inline constexpr CispoLoss<> cispo_loss{{},
                                        {},
                                        {0.01, Against::Ref, {-20, 20}, {-10, 10}},
                                        aggregate::token_mean(),
                                        {{1 - 0.2, 1 + 0.2}, {}}};

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
                  "GDPOAdvantageEstimator use_leave_one_out_baseline=False", version});
};
/// The estimators over tokens by name.
inline constexpr auto token_advantages = [](const auto& f) {
  return f(Preset{"nemo_rl::gae", gae, "GeneralizedAdvantageEstimator", version},
           Preset{"nemo_rl::vapo", vapo,
                  "GeneralizedAdvantageEstimator gae_lambda_value=1 length_adaptive_alpha=0.05",
                  version});
};
/// The value losses by name.
inline constexpr auto value_losses = [](const auto& f) {
  return f(Preset{"nemo_rl::value_loss", value_loss, "MseValueLossFn", version});
};
/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"nemo_rl::cispo", cispo_loss, "use_cispo", version});
};
}  // namespace nemo_rl
GDPO_END_NAMESPACE
