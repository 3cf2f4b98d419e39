#pragma once
// The policy losses of Trinity-RFT as presets, and their masks.
#include <gdpo/loss/named.hpp>
#include <gdpo/presets/correction.hpp>
#include <gdpo/presets/preset.hpp>
#include <gdpo/value/token_advantage.hpp>

GDPO_BEGIN_NAMESPACE
/// The losses of Trinity-RFT, algorithm/policy_loss_fn, without its separate KL loss, and its
/// distillation.
///
/// Each mean over tokens adds 1e-8 to their number. Its loss_agg_mode:
///
///     token-mean               aggregate::token_mean() with count_eps = 1e-8
///     seq-mean-token-sum       aggregate::seq_mean_token_sum(), over all rows
///     seq-mean-token-mean      aggregate::seq_mean_token_mean() with row_count_eps = 1e-8
///     seq-mean-token-sum-norm  aggregate::token_mean(Over::Given) with count_eps = 1e-8, given the
///                              padded width: it is not divided by the number of rows
namespace trinity {
inline constexpr const char* version = "trinity 0.6.0";
namespace detail {
inline constexpr Aggregate token_mean{Aggregate::Mode::TokenMean, Over::Tokens, 1e-8};
inline constexpr Aggregate seq_mean_token_mean{Aggregate::Mode::SeqMeanTokenMean, Over::Rows, 0, 1,
                                               1e-8};
}  // namespace detail
/// PPOPolicyLossFn: the log ratio clamped to +-20, clip 0.2, dual clip 3, and "token-mean".
/// enable_sequence_masking is the pre-pass `sequence_masking`.
inline constexpr PolicyLoss<level::Token<map::Clamp>> ppo_loss{
    {{-20, 20}}, {0.2, 0.2, math::infinity, 3}, {0.0}, detail::token_mean};
/// GSPOLossFn: GSPO-token, clip 3e-4 below and 4e-4 above, and "seq-mean-token-mean".
inline constexpr PolicyLoss<level::SequenceToken<>> gspo_loss{
    {{}, {1e-8}}, {3e-4, 4e-4}, {0.0}, detail::seq_mean_token_mean};
/// CISPOPolicyLossFn: the detached ratio between 1 - clip_range_low and 1 + clip_range_high, which
/// are 1 (no lower bound) and 0.28, and "token-mean". enable_mask_clip is the pre-pass `mask_clip`.
inline constexpr CispoLoss<> cispo_loss{
    {}, {}, {0.0}, detail::token_mean, {{1 - 1.0, 1 + 0.28}, {}}};

/// PPOPolicyLossFn with enable_sequence_masking: drops the tokens with A < 0 of rows whose mean of
/// old_logp - logp is above delta_sequence_masking, 0.1. They still count.
inline constexpr prepass::Gate sequence_masking = [] {
  prepass::Gate pass = prepass::off_policy_sequence_mask(0.1);
  pass.pair = prepass::Pair::Update, pass.clamp = {-20, 20}, pass.count_eps = 1e-10;
  return pass;
}();
/// CISPOPolicyLossFn with enable_mask_clip: drops tokens whose ratio is outside 1 -
/// mask_clip_range_low and 1 + mask_clip_range_high, which are 1 (no lower bound) and 0.28, where
/// the update would push it further.
inline constexpr prepass::Gate mask_clip = [] {
  prepass::Gate pass =
      presets::gate(prepass::Estimator::Ratio, prepass::Statistic::Token, 1 - 1.0, 1 + 0.28);
  pass.pair = prepass::Pair::Update, pass.when = prepass::When::Outward;
  return pass;
}();

/// OnPolicyDistillAdvantage: the teacher's log ratio times kl_coef, 1, and no reward.
inline constexpr auto on_policy_distill = distillation_advantage;

/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"trinity::ppo", ppo_loss, "PPOPolicyLossFn", version},
           Preset{"trinity::gspo", gspo_loss, "GSPOLossFn", version},
           Preset{"trinity::cispo", cispo_loss, "CISPOPolicyLossFn", version});
};
/// The estimators over tokens by name.
inline constexpr auto token_advantages = [](const auto& f) {
  return f(
      Preset{"trinity::on_policy_distill", on_policy_distill, "OnPolicyDistillAdvantage", version});
};
/// The pre-passes by name.
inline constexpr auto prepasses = [](const auto& f) {
  return f(
      Preset{"trinity::sequence_masking", sequence_masking, "enable_sequence_masking", version},
      Preset{"trinity::mask_clip", mask_clip, "enable_mask_clip", version});
};
}  // namespace trinity
GDPO_END_NAMESPACE
