#pragma once
// The losses of the papers. Each is a value: copy it and set members of the copy.
//
//   auto loss = gdpo::gspo_loss;
//   loss.surrogate.dual = 3;
//
// There is no type GspoLoss, because braces replace a whole member: in
// GspoLoss{.surrogate = {.dual = 3}} the clip range would be the 0.2 of surrogate::Ratio and no
// longer GSPO's 3e-4.
#include <gdpo/loss/policy_loss.hpp>

GDPO_BEGIN_NAMESPACE

/// GRPO (arXiv 2402.03300): clip 0.2, KL term K3 with beta 0.04 against the reference policy, mean
/// over all rows of their token means.
inline constexpr PolicyLoss<> grpo_loss{};
/// DAPO (arXiv 2503.14476): clip 0.2 below and 0.28 above, no KL (beta 0), mean over tokens.
inline constexpr PolicyLoss<> dapo_loss{{}, {0.2, 0.28}, {0.0}, aggregate::token_mean()};
/// Dr.GRPO (arXiv 2503.20783): clip 0.2, no KL (beta 0), mean over rows of their token sums divided
/// by `aggregate.constant`. Set that member to the maximal completion length, in tokens.
inline constexpr PolicyLoss<> dr_grpo_loss{{}, {}, {0.0}, aggregate::seq_mean_token_sum_norm()};
/// GSPO (arXiv 2507.18071): one ratio per sequence, clip 3e-4 below and 4e-4 above, no KL (beta 0),
/// mean over rows.
///
/// The ratio is the geometric mean of the tokens' ratios, so the noise of single tokens averages
/// out. The paper draws two conclusions. In mixture-of-experts models the expert routing may differ
/// between two passes and need not be replayed (section 5.3). And the sampling engine's own
/// log-probs may serve as old_logp, which saves a forward pass (section 5.4).
inline constexpr PolicyLoss<level::Sequence<>> gspo_loss{{}, {3e-4, 4e-4}, {0.0}};
/// GSPO-token (arXiv 2507.18071, eq. 13 and 14): the ratio of gspo_loss, but each token has its own
/// advantage and gradient.
inline constexpr PolicyLoss<level::SequenceToken<>> gspo_token_loss{{}, {3e-4, 4e-4}, {0.0}};
/// The type of CISPO: REINFORCE whose tokens are weighted by their ratio between bounds, without
/// the gradient of that ratio.
template <class Level = level::Token<>, class Kl = gdpo::Kl<>>
using CispoLoss =
    PolicyLoss<Level, surrogate::Reinforce, Kl, Aggregate, Factors<factor::ClippedRatio>>;
/// CISPO (MiniMax-M1, arXiv 2506.13585, eq. 4): no lower bound of the ratio, no KL (beta 0), mean
/// over tokens. The paper tunes the upper bound and does not tell it; 5 is what TRL's documentation
/// recommends.
inline constexpr CispoLoss<> cispo_loss{{}, {}, {0.0}, aggregate::token_mean(), {{0, 5}, {}}};
/// SAPO (arXiv 2511.20347): a smooth gate in place of the clip, no KL (beta 0), mean over all rows
/// of their token means.
inline constexpr PolicyLoss<level::Token<>, surrogate::Soft> sapo_loss{{}, {}, {0.0}};
/// The type of VESPO. The ratio is the product of the row's, from log ratios that are clamped.
template <class Kl = gdpo::Kl<>>
using VespoLoss = PolicyLoss<level::Sequence<map::Clamp, statistic::Sum>, surrogate::Reinforce, Kl,
                             Aggregate, Factors<factor::Gamma>>;
/// The level of VESPO as its authors and trainers run it: token log ratios within +-20, their sum
/// within log 1e-8 and 20.
inline constexpr level::Sequence<map::Clamp, statistic::Sum> vespo_level{
    {-20, 20}, {}, {-18.420680743952367, 20}};
/// VESPO (arXiv 2602.10693): REINFORCE weighted by a gamma function of the row's ratio, no KL
/// (beta 0), mean over tokens.
inline constexpr VespoLoss<> vespo_loss{vespo_level, {}, {0.0}, aggregate::token_mean()};
/// The type of GMPO: one ratio per row, the geometric mean of ratios that are bounded before.
template <class Kl = gdpo::Kl<>>
using GmpoLoss = PolicyLoss<level::Sequence<map::TrustRegion>, surrogate::Ratio, Kl>;
/// GMPO (arXiv 2507.20673): log ratios of tokens clipped at +-0.4 on the side of the advantage, the
/// geometric mean of the row's ratios, no KL (beta 0), mean over rows.
inline constexpr GmpoLoss<> gmpo_loss{{}, {math::infinity, math::infinity}, {0.0}};
/// TOPR (arXiv 2503.14286): REINFORCE whose tokens with A <= 0 are weighted by their ratio, at most
/// 1; no KL (beta 0), mean over tokens.
inline constexpr PolicyLoss<level::Token<>, surrogate::Reinforce, Kl<>, Aggregate,
                            Factors<factor::SignedRatio>>
    topr_loss{{}, {}, {0.0}, aggregate::token_mean()};
/// UP-GRPO (arXiv 2607.06987): REINFORCE where A > 0, elsewhere the clip with 0.2 below and the
/// dual clip with 3; no KL (beta 0), mean over tokens.
inline constexpr PolicyLoss<level::Token<>, surrogate::PositiveReinforce> up_grpo_loss{
    {}, {0.2, 3}, {0.0}, aggregate::token_mean()};
/// On-policy distillation: the mean over tokens of logp - teacher_logp, the reverse KL divergence
/// of the sampled token, with the gradient of REINFORCE, (logp - teacher_logp) d logp. It needs
/// teacher_logp, and neither advantages nor old_logp. Thinking Machines, "On-Policy Distillation"
/// (2025), whose trainer takes the negative as the advantage of an importance-weighted policy loss
/// instead: that is `distillation_advantage` (value/token_advantage.hpp).
///
/// kl.beta is the coefficient. Kl<kl::K1, kl::ScoreFunction> in its place adds d logp to the
/// gradient, which is 0 in expectation and only noise. Next to rewards it is one more KL term:
///
///     with_kl(dapo_loss, distillation_loss.kl)
inline constexpr PolicyLoss<level::Token<>, surrogate::None, Kl<kl::K1, kl::StraightThroughK2>>
    distillation_loss{{}, {}, {1.0, Against::Teacher}, aggregate::token_mean()};
static_assert(std::is_trivially_copyable_v<PolicyLoss<>>, "losses are kernel arguments");

GDPO_END_NAMESPACE
