#pragma once
#include <gdpo/presets/verl.hpp>

GDPO_BEGIN_NAMESPACE
/// NVlabs/GDPO @b080e63: the authors' code, a fork of TRL 0.18 and one of an older verl.
namespace nvlabs {

namespace detail {
/// The TRL fork turns a missing reward into 0 before anything else.
template <class Estimator>
constexpr Estimator trl_conventions(Estimator e, Singleton singleton = Singleton::Zero) {
  e.missing = {MissingEntry::Zero, MissingRow::Keep};
  e.singleton = singleton;
  return e;
}
template <class Estimator>
constexpr Estimator scaled(Estimator e, double eps) {
  e.scale.eps = eps;
  return e;
}
constexpr Gdpo renormed(Gdpo e) {
  e.renorm.eps = 1e-4;
  return e;
}
/// The verl fork's masked_mean divides by the plain count.
template <class Estimator>
constexpr Estimator whitened(Estimator e) {
  e = verl::detail::whitened(e);
  e.renorm.count_eps = 0;
  return e;
}
}  // namespace detail

/// TRL fork, apply_gdpo=False; scale_rewards=False; apply_gdpo=True (eps 1e-4 in both stages).
inline constexpr Grpo trl_grpo = detail::trl_conventions(detail::scaled(Grpo{}, 1e-4));
inline constexpr DrGrpo trl_grpo_no_scale = detail::trl_conventions(DrGrpo{});
inline constexpr Gdpo trl_gdpo = detail::trl_conventions(detail::scaled(detail::renormed(Gdpo{}), 1e-4));
/// The same with the published code's NaN for a group of one (torch.std of one number), which spreads over the batch.
inline constexpr Grpo trl_grpo_nan_singleton = detail::trl_conventions(trl_grpo, Singleton::Nan);
inline constexpr Gdpo trl_gdpo_nan_singleton = detail::trl_conventions(trl_gdpo, Singleton::Nan);

/// verl fork: compute_grpo_outcome_advantage, _no_std, _bn (whitened over tokens), _no_std_bn, and
/// compute_advantage[gdpo].
inline constexpr Grpo verl_grpo = verl::detail::conventions(detail::scaled(Grpo{}, 1e-6));
inline constexpr DrGrpo verl_grpo_no_std = verl::detail::conventions(DrGrpo{});
using WhitenedGrpo =
    GroupAdvantage<baseline::Mean, scale::StdDev, combine::SumThenNormalize, renorm::TokenWeightedBatch>;
inline constexpr WhitenedGrpo verl_grpo_bn = detail::whitened(detail::scaled(WhitenedGrpo{}, 1e-6));
inline constexpr verl::ReinforceBaseline verl_grpo_no_std_bn = detail::whitened(verl::ReinforceBaseline{});
inline constexpr verl::Whitened verl_gdpo = detail::whitened(detail::scaled(verl::Whitened{}, 1e-6));
}  // namespace nvlabs
GDPO_END_NAMESPACE
