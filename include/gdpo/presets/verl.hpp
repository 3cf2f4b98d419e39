#pragma once
#include <gdpo/advantage/group_advantage.hpp>

GDPO_BEGIN_NAMESPACE
/// verl-project/verl @1dda039, core_algos.py. A group of one keeps its reward (Raw); missing rewards are not handled:
/// NaN propagates. The row's advantage goes to its valid tokens (broadcast_into).
namespace verl {
using Whitened = GroupAdvantage<baseline::Mean, scale::StdDev, combine::NormalizeThenSum, renorm::TokenWeightedBatch>;
using WhitenedNoStd =
    GroupAdvantage<baseline::Mean, scale::None, combine::NormalizeThenSum, renorm::TokenWeightedBatch>;
using ReinforceBaseline =
    GroupAdvantage<baseline::Mean, scale::None, combine::SumThenNormalize, renorm::TokenWeightedBatch>;

namespace detail {
template <class Estimator>
constexpr Estimator conventions(Estimator e, Singleton singleton = Singleton::Raw) {
  e.missing = {MissingEntry::Propagate, MissingRow::Keep};
  e.singleton = singleton;
  return e;
}
/// masked_whiten: rsqrt(var + 1e-8), counts + 1e-8.
template <class Estimator>
constexpr Estimator whitened(Estimator e) {
  e.renorm.ddof = 1;
  e.renorm.eps = 1e-8;
  e.renorm.eps_at = EpsAt::Var;
  e.renorm.count_eps = 1e-8;
  return conventions(e);
}
template <class Estimator>
constexpr Estimator scaled(Estimator e) {
  e.scale.eps = 1e-6;
  return e;
}
}  // namespace detail

/// compute_grpo_outcome_advantage and its vectorized twin.
inline constexpr Grpo grpo = detail::conventions(detail::scaled(Grpo{}));
/// The same with norm_adv_by_std_in_grpo=False.
inline constexpr DrGrpo grpo_no_std = detail::conventions(DrGrpo{});
/// compute_gdpo_outcome_advantage: the second stage counts every row as often as it has tokens.
inline constexpr Whitened gdpo = detail::whitened(detail::scaled(Whitened{}));
inline constexpr WhitenedNoStd gdpo_no_std = detail::whitened(WhitenedNoStd{});
/// compute_rloo_outcome_advantage keeps the reward of a group of one, its vectorized twin gives 0.
inline constexpr Rloo rloo = detail::conventions(Rloo{});
inline constexpr Rloo rloo_vectorized = detail::conventions(Rloo{}, Singleton::Zero);
/// compute_reinforce_plus_plus_baseline_outcome_advantage.
inline constexpr ReinforceBaseline reinforce_plus_plus_baseline = detail::whitened(ReinforceBaseline{});
}  // namespace verl
GDPO_END_NAMESPACE
