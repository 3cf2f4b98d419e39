#pragma once
#include <gdpo/presets/verl.hpp>

GDPO_BEGIN_NAMESPACE
/// NVlabs/GDPO: the authors' code, a fork of TRL 0.18 and one of an older verl.
namespace nvlabs {
inline constexpr const char* version = "NVlabs/GDPO@b080e63d";

/// masked_whiten of the verl fork (whiten_into): its masked_mean divides by the plain count.
inline constexpr renorm::TokenWeightedBatch masked_whiten{1, 1e-8, EpsAt::Var};

namespace detail {
/// The TRL fork turns a missing reward into 0 before anything else.
template <class Estimator>
constexpr Estimator trl_conventions(Estimator e, Singleton singleton = Singleton::Zero) {
  e.missing = {MissingEntry::Zero, MissingRow::Keep};
  e.singleton = singleton;
  return e;
}
using verl::detail::scaled;
constexpr Gdpo renormed(Gdpo e) {
  e.renorm.eps = 1e-4;
  return e;
}
template <class Estimator>
constexpr Estimator whitened(Estimator e) {
  e = verl::detail::whitened(e);
  e.renorm = masked_whiten;
  return e;
}
}  // namespace detail

/// TRL fork, apply_gdpo=False; scale_rewards=False; apply_gdpo=True (eps 1e-4 in both stages).
inline constexpr Grpo trl_grpo = detail::trl_conventions(detail::scaled(Grpo{}, 1e-4));
inline constexpr DrGrpo trl_grpo_no_scale = detail::trl_conventions(DrGrpo{});
inline constexpr Gdpo trl_gdpo =
    detail::trl_conventions(detail::scaled(detail::renormed(Gdpo{}), 1e-4));
/// The same with the published code's NaN for a group of one (torch.std of one number), which spreads over the batch.
inline constexpr Grpo trl_grpo_nan_singleton = detail::trl_conventions(trl_grpo, Singleton::Nan);
inline constexpr Gdpo trl_gdpo_nan_singleton = detail::trl_conventions(trl_gdpo, Singleton::Nan);

/// verl fork: compute_grpo_outcome_advantage, _no_std, _bn (whitened over tokens), _no_std_bn, and
/// compute_advantage[gdpo].
inline constexpr Grpo verl_grpo = verl::detail::conventions(detail::scaled(Grpo{}, 1e-6));
inline constexpr DrGrpo verl_grpo_no_std = verl::detail::conventions(DrGrpo{});
inline constexpr auto verl_grpo_bn =
    detail::whitened(detail::scaled(with_renorm<renorm::TokenWeightedBatch>(Grpo{}), 1e-6));
inline constexpr auto verl_grpo_no_std_bn = detail::whitened(verl::detail::ReinforceBaseline{});
inline constexpr auto verl_gdpo = detail::whitened(detail::scaled(verl::detail::Whitened{}, 1e-6));

/// TRL fork, GRPOTrainer._compute_loss: beta 0.04. Its default is "bnpo"; dr_grpo needs aggregate.constant =
/// max_completion_length.
inline constexpr auto trl_grpo_loss = grpo_loss;
inline constexpr ClippedLoss<aggregate::TokenMean> trl_bnpo_loss{};
inline constexpr ClippedLoss<aggregate::SeqMeanTokenSumNorm> trl_dr_grpo_loss{};
/// verl fork, compute_policy_loss: no clamp, no dual clip, the mean over the tokens of the micro-batch. use_kl_loss: it
/// subtracts the KL term; this library adds it.
inline constexpr ClippedLoss<aggregate::TokenMean> verl_loss{
    {}, {}, {0.0, Against::Ref, {}, {-10, 10}}};
}  // namespace nvlabs
GDPO_END_NAMESPACE
