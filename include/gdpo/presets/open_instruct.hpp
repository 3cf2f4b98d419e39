#pragma once
// Presets of open-instruct.
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/loss/named.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/presets/correction.hpp>
#include <gdpo/presets/preset.hpp>

GDPO_BEGIN_NAMESPACE
/// The estimators of open-instruct, DataPreparationActor, and its loss and rollout correction.
///
/// Missing (NaN) rewards are not handled: NaN propagates to the advantages.
namespace open_instruct {
inline constexpr const char* version = "allenai/open-instruct@e6c3044a";
/// advantage_normalization_type="standard": divided by the population std of the group + 1e-8.
inline constexpr Grpo standard = [] {
  Grpo e{};
  e.scale.ddof = 0;
  e.scale.eps = 1e-8;
  e.missing = {MissingEntry::Propagate, MissingRow::Keep};
  return e;
}();
/// advantage_normalization_type="centered", its default: the reward minus the mean of the group.
inline constexpr DrGrpo centered = [] {
  DrGrpo e{};
  e.missing = {MissingEntry::Propagate, MissingRow::Keep};
  return e;
}();

/// loss_fn="dapo", computed by compute_grpo_loss and masked_mean: clip 0.2 below and 0.272 above,
/// and the KL term K3 with beta 0.05 on a log ratio clamped to +-40.
///
/// The sum over tokens is divided by Normalizer::given: the tokens of the accumulation group, or a
/// constant. kl_estimator 0, 1 and 2 are kl::K1, kl::K2 and kl::K3; 3 is
/// `Kl<kl::K1, kl::ImportanceWeighted>`.
inline constexpr PolicyLoss<> dapo_loss{
    {}, {0.2, 0.272}, {0.05, Against::Ref, {-40, 40}}, aggregate::token_mean(Over::Given)};
/// loss_fn="cispo": the same with REINFORCE and the detached ratio, at most 1 + clip_higher.
inline constexpr CispoLoss<> cispo_loss{{},
                                        {},
                                        {0.05, Against::Ref, {-40, 40}},
                                        aggregate::token_mean(Over::Given),
                                        {{0, 1 + 0.272}, {}}};
/// use_rho_correction=True with rho_clamp at its default: the ratio of each token to the rollout
/// policy, at most 2, from a log ratio clamped to +-10.
inline constexpr prepass::Importance rho =
    presets::weight(prepass::Statistic::Token, {-math::infinity, 2}, {-10, 10});
/// use_rho_correction=True with rho_mask_lower_bound=0.5 and rho_mask_upper_bound=2 (0, the
/// default, is off): `rho`, and 0 outside these bounds. rho_mask_sequence_level is SequenceMean as
/// the statistic of both parts.
inline constexpr prepass::MaskedImportance rho_mask =
    presets::masked(rho, presets::gate(prepass::Estimator::Ratio, prepass::Statistic::Token, 0.5, 2,
                                       Reach::Surrogate, {-10, 10}));
/// use_rho_correction=True with rho_mask_tv_divergence and rho_mask_upper_bound=0.1 (VACO): `rho`,
/// and 0 at tokens that the update pushes further away, in rows whose mean |ratio - 1| is above
/// 0.1.
inline constexpr prepass::MaskedImportance rho_tv = [] {
  prepass::Gate gate =
      presets::gate(prepass::Estimator::RatioDeviation, prepass::Statistic::SequenceMean,
                    -math::infinity, 0.1, Reach::Surrogate, {-10, 10});
  gate.when = prepass::When::Outward;
  return presets::masked(rho, gate);
}();

/// The estimators by name.
inline constexpr auto estimators = [](const auto& f) {
  return f(
      Preset{"open_instruct::standard", standard, "advantage_normalization_type=standard", version},
      Preset{"open_instruct::centered", centered, "advantage_normalization_type=centered",
             version});
};
/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"open_instruct::dapo", dapo_loss, "loss_fn=dapo", version},
           Preset{"open_instruct::cispo", cispo_loss, "loss_fn=cispo", version});
};
/// The pre-passes by name.
inline constexpr auto prepasses = [](const auto& f) {
  return f(Preset{"open_instruct::rho", rho, "use_rho_correction", version},
           Preset{"open_instruct::rho_mask", rho_mask,
                  "use_rho_correction rho_mask_lower_bound=0.5 rho_mask_upper_bound=2", version},
           Preset{"open_instruct::rho_tv", rho_tv,
                  "use_rho_correction rho_mask_tv_divergence rho_mask_upper_bound=0.1", version});
};
}  // namespace open_instruct
GDPO_END_NAMESPACE
