#pragma once
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/loss/named.hpp>
#include <gdpo/prepass.hpp>

GDPO_BEGIN_NAMESPACE
/// open-instruct, DataPreparationActor. Missing rewards are not handled: NaN propagates.
namespace open_instruct {
inline constexpr const char* version = "allenai/open-instruct@e6c3044a";
/// advantage_normalization_type="standard": population std + 1e-8.
inline constexpr Grpo standard = [] {
  Grpo e{};
  e.scale.ddof = 0;
  e.scale.eps = 1e-8;
  e.missing = {MissingEntry::Propagate, MissingRow::Keep};
  return e;
}();
/// advantage_normalization_type="centered" (the default): no std.
inline constexpr DrGrpo centered = [] {
  DrGrpo e{};
  e.missing = {MissingEntry::Propagate, MissingRow::Keep};
  return e;
}();

/// compute_grpo_loss and masked_mean: clip 0.2 / 0.272, K3 on a log ratio within +-40, the sum over tokens by
/// normaliser.given (the tokens of the accumulation group, or a constant). kl_estimator 0, 1, 2 are K1, K2, K3; 3 is
/// Kl<kl::K1, kl::ImportanceWeighted>. use_rho_correction: `rho`, below.
inline constexpr ClippedLoss<aggregate::TokenMean> dapo_loss{
    {}, {0.2, 0.272}, {0.05, Against::Ref, {-40, 40}}, {Over::Given}};
/// rho_clamp at its default, at most 2; rho_mask bounds are a Gate with the same clamp.
inline constexpr prepass::Importance rho{
    prepass::Statistic::Token, {-10, 10}, {-math::infinity, 2}};
}  // namespace open_instruct
GDPO_END_NAMESPACE
