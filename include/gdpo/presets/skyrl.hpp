#pragma once
// The policy losses of SkyRL as presets, and the pre-passes of two of them.
#include <gdpo/loss/named.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/presets/preset.hpp>

GDPO_BEGIN_NAMESPACE
/// The losses of SkyRL, ppo_utils.py, chosen by policy_loss_type.
///
/// They are sums over tokens: SkyRL has divided the advantages by the counts of its loss_reduction
/// before. To divide here instead, set `aggregate` (token_mean is Over::Tokens; sequence_mean is
/// aggregate::seq_mean_token_mean()). SkyRL computes its KL term apart from them, so beta is 0.
namespace skyrl {
inline constexpr const char* version = "skyrl 0.3.0";
/// policy_loss_type="regular" (ppo_policy_loss): the log ratio clamped to +-20, and clip 0.2.
/// "dual_clip" is surrogate.dual = clip_ratio_c, 3 by default.
inline constexpr PolicyLoss<level::Token<map::Clamp>> regular_loss{
    {{-20, 20}}, {}, {0.0}, aggregate::token_sum()};
/// policy_loss_type="gspo" (gspo_policy_loss): GSPO-token with the log ratio of the sequence at
/// most 10, and clip 0.2.
inline constexpr PolicyLoss<level::SequenceToken<>> gspo_loss{
    {{}, {}, {-math::infinity, 10}}, {}, {0.0}, aggregate::token_sum()};
/// policy_loss_type="cispo" (compute_policy_loss_cispo): the log ratio clamped to +-20, the
/// detached ratio between 1 - cispo_eps_clip_low and 1 + cispo_eps_clip_high, which are 0 and 5.
inline constexpr CispoLoss<level::Token<map::Clamp>> cispo_loss{
    {{-20, 20}}, {}, {0.0}, aggregate::token_sum(), {{1 - 0.0, 1 + 5.0}, {}}};

/// policy_loss_type="clip_cov" (compute_policy_loss_clip_cov): clip 0.2, without a clamp of the log
/// ratio. The pre-pass `clip_cov` takes its picks out of the loss.
inline constexpr PolicyLoss<> clip_cov_loss{{}, {}, {0.0}, aggregate::token_sum()};
/// policy_loss_type="kl_cov" (compute_policy_loss_kl_cov): the ratio without a clip, plus
/// ppo_kl_coef |logp - old_logp| on the picks of the pre-pass `kl_cov`, without which it is on all
/// tokens. ppo_kl_coef, kl.beta here, is 1.
inline constexpr PolicyLoss<level::Token<>, surrogate::Ratio, Kl<kl::Abs>> kl_cov_loss{
    {}, {math::infinity, math::infinity}, {1.0, Against::Old}, aggregate::token_sum()};

/// The picks of policy_loss_type="clip_cov": 2e-4 of the tokens (clip_cov.clip_ratio), at random
/// among those with a covariance between 1 and 5 (clip_cov_lb, clip_cov_ub). Set `seed` anew in
/// each step.
inline constexpr prepass::Covariance clip_cov{};
/// The picks of policy_loss_type="kl_cov": the fifth of the tokens (kl_cov.kl_cov_frac) with the
/// largest covariance.
inline constexpr prepass::Covariance kl_cov = [] {
  prepass::Covariance pass{};
  pass.pick = prepass::CovariancePick::Top;
  pass.keep = prepass::CovarianceKeep::Picked;
  pass.share = 0.2;
  pass.reach = Reach::Kl;
  return pass;
}();

/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"skyrl::regular", regular_loss, "policy_loss_type=regular", version},
           Preset{"skyrl::gspo", gspo_loss, "policy_loss_type=gspo", version},
           Preset{"skyrl::cispo", cispo_loss, "policy_loss_type=cispo", version},
           Preset{"skyrl::clip_cov", clip_cov_loss, "policy_loss_type=clip_cov", version},
           Preset{"skyrl::kl_cov", kl_cov_loss, "policy_loss_type=kl_cov", version});
};
/// The pre-passes by name.
inline constexpr auto prepasses = [](const auto& f) {
  return f(Preset{"skyrl::clip_cov", clip_cov, "policy_loss_type=clip_cov", version},
           Preset{"skyrl::kl_cov", kl_cov, "policy_loss_type=kl_cov", version});
};
}  // namespace skyrl
GDPO_END_NAMESPACE
