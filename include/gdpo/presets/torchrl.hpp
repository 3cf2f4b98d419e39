#pragma once
// Presets of torchrl: its GRPO and CISPO losses, and their masks.
#include <gdpo/loss/named.hpp>
#include <gdpo/presets/correction.hpp>
#include <gdpo/presets/preset.hpp>
#include <limits>

GDPO_BEGIN_NAMESPACE
/// The losses of torchrl, and the masks of its GRPOLoss.
///
/// They divide by the tokens of the batch, aggregation="token_mean". "prompt_mean" is
/// aggregate::seq_mean_token_mean(), a mean over rows, and "none" aggregate::token_sum().
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

/// GRPOLoss without an old log-prob at some tokens: those at which it is NaN leave the mask, and so
/// the counts. So do tokens at which it is infinite.
inline constexpr prepass::Gate missing_old_logp = [] {
  prepass::Gate pass =
      presets::gate(prepass::Estimator::K2, prepass::Statistic::Token, -math::infinity,
                    (std::numeric_limits<double>::max)(), Reach::Mask);
  pass.pair = prepass::Pair::Update;
  return pass;
}();

/// GRPOLoss: clip 0.2 (clip_epsilon), no KL (beta 0). With clip_epsilon=(0.2, 0.28) it is DAPOLoss.
inline constexpr PolicyLoss<> grpo_loss{{}, {}, {0.0}, aggregate::token_mean()};

namespace detail {
/// A KL term of GRPOLoss: K3, summed over the valid tokens and divided by all positions of the
/// padded batch. For packed rows replace padded_width by a constant.
constexpr auto kl_term(Against against) {
  Aggregate positions = aggregate::seq_mean_token_sum_norm();
  positions.padded_width = true;
  return with_aggregate(Kl<>{0.0, against}, positions);
}
using KlTerm = decltype(kl_term(Against::Ref));
}  // namespace detail
/// GRPOLoss with KL terms: kl.first.beta is kl_to_ref_coeff, and kl.rest.first.beta
/// kl_to_inference_coeff, of the term against old_logp. Both are 0. torchrl divides these terms by
/// all positions of the padded batch.
inline constexpr auto grpo_kl_loss =
    with_kl(grpo_loss, Kls<detail::KlTerm, detail::KlTerm>{detail::kl_term(Against::Ref),
                                                           {detail::kl_term(Against::Old), {}}});

/// CISPOLoss with aggregation="token_mean": the clipped ratio with its gradient, and not its factor
/// on REINFORCE, so tokens outside the bounds have no gradient (surrogate::Clipped).
inline constexpr PolicyLoss<level::Token<>, surrogate::Clipped> cispo_loss{
    {}, {}, {0.0}, aggregate::token_mean()};

/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"torchrl::grpo", grpo_loss, "GRPOLoss", version},
           Preset{"torchrl::cispo", cispo_loss, "CISPOLoss", version});
};
/// The pre-passes by name.
inline constexpr auto prepasses = [](const auto& f) {
  return f(Preset{"torchrl::kl_mask", kl_mask, "kl_mask_threshold=0.1", version},
           Preset{"torchrl::missing_old_logp", missing_old_logp, "GRPOLoss", version});
};
}  // namespace torchrl
GDPO_END_NAMESPACE
