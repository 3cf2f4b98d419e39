#pragma once
#include <gdpo/loss/policy_loss.hpp>

GDPO_BEGIN_NAMESPACE

// The settings in which a named loss differs from its policies' own. Set members after construction: one that is braced
// in an initialiser, GspoLoss{.surrogate = {.dual = 3}}, begins with the policy's own defaults.
namespace defaults {
struct DrGrpo {
  template <class P>
  static constexpr P of(P policy) {
    if constexpr (is_kl_v<P>) detail::for_each_kl(policy, [](auto& kl) { kl.beta = 0; });
    return policy;
  }
};
struct Dapo {
  template <class P>
  static constexpr P of(P policy) {
    if constexpr (std::is_same_v<P, surrogate::Ratio>) policy.high = 0.28;
    return DrGrpo::of(policy);
  }
};
struct Gspo {
  template <class P>
  static constexpr P of(P policy) {
    if constexpr (std::is_same_v<P, surrogate::Ratio>) policy.low = 3e-4, policy.high = 4e-4;
    return DrGrpo::of(policy);
  }
};
}  // namespace defaults

/// GRPO (arXiv 2402.03300): clip 0.2, beta 0.04, the mean over sequences of their token means.
using GrpoLoss = PolicyLoss<>;
/// DAPO (arXiv 2503.14476): clip 0.2 / 0.28, no KL, the mean over tokens.
using DapoLoss = PolicyLoss<level::Token<>, surrogate::Ratio, Kl<>, aggregate::TokenMean, Factors<>, defaults::Dapo>;
/// Dr.GRPO (arXiv 2503.20783): clip 0.2, no KL; aggregate.constant, the maximal completion length, is required.
using DrGrpoLoss =
    PolicyLoss<level::Token<>, surrogate::Ratio, Kl<>, aggregate::SeqMeanTokenSumNorm, Factors<>, defaults::DrGrpo>;
/// GSPO (arXiv 2507.18071): one ratio a sequence, clip 3e-4 / 4e-4, no KL. The ratio is the geometric mean over the sequence, so
/// the noise of single tokens averages out: expert routing that differs between two passes needs no replay (section 5.3), and
/// the sampling engine's own log-probs may stand in for old_logp, without a second forward pass (section 5.4).
using GspoLoss =
    PolicyLoss<level::Sequence<>, surrogate::Ratio, Kl<>, aggregate::SeqMeanTokenMean, Factors<>, defaults::Gspo>;
/// GSPO-token (eq. 13-14): the same ratio, each token with its own advantage and gradient.
using GspoTokenLoss =
    PolicyLoss<level::SequenceToken<>, surrogate::Ratio, Kl<>, aggregate::SeqMeanTokenMean, Factors<>, defaults::Gspo>;
static_assert(std::is_trivially_copyable_v<GrpoLoss>, "losses are kernel arguments");

GDPO_END_NAMESPACE
