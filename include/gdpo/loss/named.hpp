#pragma once
#include <gdpo/loss/policy_loss.hpp>

// The losses of the papers, by name. Each is a value, and its type has no name of its own: copy the
// value and set members.
//
//   auto loss = gdpo::gspo_loss;
//   loss.surrogate.dual = 3;
//
// A type GspoLoss would be a trap, because braces replace a whole member: in
// GspoLoss{.surrogate = {.dual = 3}} the clip range would be surrogate::Ratio's 0.2 and no longer
// GSPO's 3e-4.
GDPO_BEGIN_NAMESPACE

/// The clipped ratio of each token with the KL term K3, summed by an aggregate: what most trainers compose.
template <class Aggregate>
using ClippedLoss = PolicyLoss<level::Token<>, surrogate::Ratio, Kl<kl::K3>, Aggregate>;

/// GRPO (arXiv 2402.03300): clip 0.2, beta 0.04, the mean over sequences of their token means.
inline constexpr PolicyLoss<> grpo_loss{};
/// DAPO (arXiv 2503.14476): clip 0.2 / 0.28, no KL, the mean over tokens.
inline constexpr ClippedLoss<aggregate::TokenMean> dapo_loss{{}, {0.2, 0.28}, {0.0}};
/// Dr.GRPO (arXiv 2503.20783): clip 0.2, no KL; aggregate.constant, the maximal completion length, is required.
inline constexpr ClippedLoss<aggregate::SeqMeanTokenSumNorm> dr_grpo_loss{{}, {}, {0.0}};
/// GSPO (arXiv 2507.18071): one ratio a sequence, clip 3e-4 / 4e-4, no KL. The ratio is the geometric mean over the sequence, so
/// the noise of single tokens averages out: expert routing that differs between two passes needs no replay (section 5.3), and
/// the sampling engine's own log-probs may stand in for old_logp, without a second forward pass (section 5.4).
inline constexpr PolicyLoss<level::Sequence<>> gspo_loss{{}, {3e-4, 4e-4}, {0.0}};
/// GSPO-token (eq. 13-14): the same ratio, each token with its own advantage and gradient.
inline constexpr PolicyLoss<level::SequenceToken<>> gspo_token_loss{{}, {3e-4, 4e-4}, {0.0}};
static_assert(std::is_trivially_copyable_v<PolicyLoss<>>, "losses are kernel arguments");

GDPO_END_NAMESPACE
