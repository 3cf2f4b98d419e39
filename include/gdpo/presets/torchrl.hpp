#pragma once
// Presets of torchrl: the mask of its GRPO loss, and its CISPO.
#include <gdpo/loss/named.hpp>
#include <gdpo/presets/correction.hpp>
#include <gdpo/presets/preset.hpp>

GDPO_BEGIN_NAMESPACE
/// The mask of torchrl's GRPOLoss, whose losses are those of TRL: aggregation="token_mean" is
/// trl::bnpo_loss, "prompt_mean" trl::grpo_loss.
namespace torchrl {
inline constexpr const char* version = "torchrl 0.14.1";
/// kl_mask_threshold=0.1: tokens leave the mask, and so the counts, if half the square of logp -
/// old_logp is larger. torchrl has no default: it is off there unless set.
inline constexpr prepass::Gate kl_mask = [] {
  prepass::Gate pass = presets::gate(prepass::Estimator::K2, prepass::Statistic::Token,
                                     -math::infinity, 0.1, Reach::Mask);
  pass.pair = prepass::Pair::Update;
  return pass;
}();

/// CISPOLoss with aggregation="token_mean": the clipped ratio with its gradient, and not its factor
/// on REINFORCE, so tokens outside the bounds have no gradient (surrogate::Clipped).
inline constexpr PolicyLoss<level::Token<>, surrogate::Clipped> cispo_loss{
    {}, {}, {0.0}, aggregate::token_mean()};

/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"torchrl::cispo", cispo_loss, "CISPOLoss", version});
};
/// The pre-passes by name.
inline constexpr auto prepasses = [](const auto& f) {
  return f(Preset{"torchrl::kl_mask", kl_mask, "kl_mask_threshold=0.1", version});
};
}  // namespace torchrl
GDPO_END_NAMESPACE
