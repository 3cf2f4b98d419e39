#pragma once
// Presets of OpenRLHF.
#include <gdpo/loss/any_kl.hpp>
#include <gdpo/presets/preset.hpp>
#include <gdpo/value/token_advantage.hpp>
#include <gdpo/value/value_loss.hpp>

GDPO_BEGIN_NAMESPACE
/// The estimators over tokens of OpenRLHF, RemoteExperienceMaker.compute_advantages_and_returns,
/// and its value loss.
///
/// The reward of a row is clamped (reward_clip_range is `reward_clip`) and added at its last token;
/// each token pays penalty.coef = init_kl_coef times its KL to the reference. For no_std_norm set
/// renorm.eps_at = EpsAt::None.
namespace openrlhf {
inline constexpr const char* version = "OpenRLHF/OpenRLHF@3c3be623";

/// Normalization over the valid tokens of the batch: the population variance, at least 1e-8.
inline constexpr Renorm batch_norm = renorm::token_weighted_batch(0, 1e-8, EpsAt::ClampVar);
/// advantage_estimator="gae": GAE over the valid tokens with lambd 1, then `batch_norm`.
inline constexpr TokenAdvantage<returns::Gae, AnyKl> gae{
    {}, {0, {0, Against::Ref, {}, {}, KlEstimator::K1}}, {}, batch_norm};
/// advantage_estimator="reinforce": discounted rewards to go over the valid tokens, then
/// `batch_norm`. With "reinforce_baseline" the rewards of rows have the mean of their group
/// subtracted first (gdpo::DrGrpo).
inline constexpr TokenAdvantage<returns::RewardToGo, AnyKl> reinforce{
    {}, {0, {0, Against::Ref, {}, {}, KlEstimator::K1}}, {}, batch_norm};

/// ValueLoss with token_level_loss: half the larger squared error, a mean over tokens. Set clip =
/// clip_eps; none by default.
inline constexpr ValueLoss<> value_loss{};

/// The estimators over tokens by name.
inline constexpr auto token_advantages = [](const auto& f) {
  return f(Preset{"openrlhf::gae", gae, "advantage_estimator=gae", version},
           Preset{"openrlhf::reinforce", reinforce, "advantage_estimator=reinforce", version});
};
/// The value losses by name.
inline constexpr auto value_losses = [](const auto& f) {
  return f(Preset{"openrlhf::value_loss", value_loss, "ValueLoss", version});
};
}  // namespace openrlhf
GDPO_END_NAMESPACE
