#pragma once
#include <gdpo/advantage/group_advantage.hpp>

GDPO_BEGIN_NAMESPACE
/// modelscope/ms-swift @3602360, compute_advantages. A row without any reward counts as 0 (Keep); groups of one: 0.
/// Names: advantage_estimator, then scale_rewards where it is not that estimator's own default. kl_in_reward: set
/// penalty.coef = beta and give the row KL as RewardBatch::penalty.
namespace ms_swift {
using ScaledRloo = GroupAdvantage<baseline::LeaveOneOut, scale::StdDev, combine::SumThenNormalize, renorm::None>;

namespace detail {
template <class Estimator>
constexpr Estimator conventions(Estimator e) {
  e.missing = {MissingEntry::Skip, MissingRow::Keep};
  return e;
}
template <class Estimator>
constexpr Estimator scaled(scale::Of of, double eps = 1e-4) {
  Estimator e{};
  e.scale.of = of;
  e.scale.eps = eps;
  return conventions(e);
}
}  // namespace detail

inline constexpr Grpo grpo = detail::scaled<Grpo>(scale::Of::Group);
inline constexpr DrGrpo grpo_no_scale = detail::conventions(DrGrpo{});
inline constexpr Grpo grpo_batch_scale = detail::scaled<Grpo>(scale::Of::Batch);
inline constexpr Rloo rloo = detail::conventions(Rloo{});
inline constexpr ScaledRloo rloo_group_scale = detail::scaled<ScaledRloo>(scale::Of::Group);
inline constexpr ScaledRloo rloo_batch_scale = detail::scaled<ScaledRloo>(scale::Of::Batch);
/// Centred in the group, divided by the std of the centred values of the batch + 1e-4.
inline constexpr Grpo reinforce_plus_plus = detail::scaled<Grpo>(scale::Of::BatchCentred);
inline constexpr Grpo reinforce_plus_plus_group_scale = grpo;
inline constexpr DrGrpo reinforce_plus_plus_no_scale = grpo_no_scale;
/// scale_rewards="gdpo": eps 1e-8 in both stages.
inline constexpr Gdpo gdpo = [] {
  Gdpo e = detail::scaled<Gdpo>(scale::Of::Group, 1e-8);
  e.renorm.eps = 1e-8;
  return e;
}();
}  // namespace ms_swift
GDPO_END_NAMESPACE
