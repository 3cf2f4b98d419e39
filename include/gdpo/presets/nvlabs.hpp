#pragma once
// Presets of NVlabs/GDPO.
#include <gdpo/presets/preset.hpp>
#include <gdpo/presets/verl.hpp>

GDPO_BEGIN_NAMESPACE
/// NVlabs/GDPO, the code of the GDPO paper's authors: a fork of TRL 0.18 and a fork of an older
/// verl.
namespace nvlabs {
inline constexpr const char* version = "NVlabs/GDPO@b080e63d";

/// masked_whiten of the verl fork, for whiten_into(). Unlike verl's it adds no 1e-8 to the count of
/// tokens that it divides by.
inline constexpr Renorm masked_whiten = renorm::token_weighted_batch(1, 1e-8, EpsAt::Var);

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

// The estimators of the TRL fork. For a group of one row they give 0. Where the published code
// divides by a std it gives NaN there; the presets with nan_singleton in their names do so too.

/// TRL fork, apply_gdpo=False: GRPO, divided by the std of the group + 1e-4.
inline constexpr Grpo trl_grpo = detail::trl_conventions(detail::scaled(Grpo{}, 1e-4));
/// TRL fork, apply_gdpo=False with scale_rewards=False: GRPO without the std.
inline constexpr DrGrpo trl_grpo_no_scale = detail::trl_conventions(DrGrpo{});
/// TRL fork, apply_gdpo=True: GDPO with eps 1e-4 in both stages.
inline constexpr Gdpo trl_gdpo =
    detail::trl_conventions(detail::scaled(detail::renormed(Gdpo{}), 1e-4));
/// TRL fork, apply_gdpo=False, with the published code's NaN for a group of one (torch.std of one
/// number is NaN).
inline constexpr Grpo trl_grpo_nan_singleton = detail::trl_conventions(trl_grpo, Singleton::Nan);
/// TRL fork, apply_gdpo=True, with the published code's NaN for a group of one; the second stage
/// spreads it over the batch.
inline constexpr Gdpo trl_gdpo_nan_singleton = detail::trl_conventions(trl_gdpo, Singleton::Nan);

/// verl fork, "grpo" of compute_advantage: compute_grpo_outcome_advantage, with eps 1e-6.
inline constexpr Grpo verl_grpo = verl::detail::conventions(detail::scaled(Grpo{}, 1e-6));
/// verl fork, "grpo_no_std" of compute_advantage: GRPO without the std.
inline constexpr DrGrpo verl_grpo_no_std = verl::detail::conventions(DrGrpo{});
/// verl fork, compute_grpo_bn_outcome_advantage: `verl_grpo`, then whitened over the tokens of the
/// batch.
inline constexpr Grpo verl_grpo_bn = detail::whitened(detail::scaled(Grpo{}, 1e-6));
/// verl fork, compute_grpo_no_std_bn_outcome_advantage: `verl_grpo_no_std`, then whitened over the
/// tokens of the batch.
inline constexpr DrGrpo verl_grpo_no_std_bn = detail::whitened(DrGrpo{});
/// verl fork, "gdpo" of compute_advantage: GDPO with eps 1e-6, whitened over the tokens of the
/// batch.
inline constexpr Gdpo verl_gdpo = detail::whitened(detail::scaled(Gdpo{}, 1e-6));

// The losses of the TRL fork, GRPOTrainer._compute_loss, have beta 0.04. Its default is "bnpo".

/// TRL fork, loss_type="grpo": the mean over all rows of their token means.
inline constexpr auto trl_grpo_loss = grpo_loss;
/// TRL fork, loss_type="bnpo", its default: the mean over the tokens of the micro-batch.
inline constexpr PolicyLoss<> trl_bnpo_loss{{}, {}, {}, aggregate::token_mean()};
/// TRL fork, loss_type="dr_grpo". Set aggregate.constant = max_completion_length; it has no
/// default.
inline constexpr PolicyLoss<> trl_dr_grpo_loss{{}, {}, {}, aggregate::seq_mean_token_sum_norm()};
/// verl fork, compute_policy_loss: the mean over the tokens of the micro-batch, without a clamp of
/// the log ratio and without dual clip.
///
/// With use_kl_loss=True the fork subtracts the KL term from the loss; this library adds it, if
/// kl.beta is set.
inline constexpr PolicyLoss<> verl_loss{
    {}, {}, {0.0, Against::Ref, {}, {-10, 10}}, aggregate::token_mean()};

/// The estimators by name.
inline constexpr auto estimators = [](const auto& f) {
  return f(
      Preset{"nvlabs::trl_grpo", trl_grpo, "apply_gdpo=False", version},
      Preset{"nvlabs::trl_grpo_no_scale", trl_grpo_no_scale, "apply_gdpo=False scale_rewards=False",
             version},
      Preset{"nvlabs::trl_gdpo", trl_gdpo, "apply_gdpo=True", version},
      Preset{"nvlabs::trl_grpo_nan_singleton", trl_grpo_nan_singleton, "apply_gdpo=False", version},
      Preset{"nvlabs::trl_gdpo_nan_singleton", trl_gdpo_nan_singleton, "apply_gdpo=True", version},
      Preset{"nvlabs::verl_grpo", verl_grpo, "compute_advantage[grpo]", version},
      Preset{"nvlabs::verl_grpo_no_std", verl_grpo_no_std, "compute_advantage[grpo_no_std]",
             version},
      Preset{"nvlabs::verl_grpo_bn", verl_grpo_bn, "compute_grpo_bn_outcome_advantage", version},
      Preset{"nvlabs::verl_grpo_no_std_bn", verl_grpo_no_std_bn,
             "compute_grpo_no_std_bn_outcome_advantage", version},
      Preset{"nvlabs::verl_gdpo", verl_gdpo, "compute_advantage[gdpo]", version});
};
/// The whitenings by name.
inline constexpr auto whitenings = [](const auto& f) {
  return f(Preset{"nvlabs::masked_whiten", masked_whiten, "masked_whiten", version});
};
/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"nvlabs::trl_grpo", trl_grpo_loss, "loss_type=grpo", version},
           Preset{"nvlabs::trl_bnpo", trl_bnpo_loss, "loss_type=bnpo", version},
           Preset{"nvlabs::trl_dr_grpo", trl_dr_grpo_loss, "loss_type=dr_grpo", version},
           Preset{"nvlabs::verl", verl_loss, "compute_policy_loss", version});
};
}  // namespace nvlabs
GDPO_END_NAMESPACE
