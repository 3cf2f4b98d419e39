#pragma once
#include <gdpo/loss/engine/token_terms.hpp>
#include <gdpo/loss/policy_loss.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// dloss/dlogp of one valid token, at a level of tokens: the number that the loss call writes for it, without the loss and its
/// metrics. x, from: the token and its optional numbers, as TokenTerms reads them. weight: W_i of its sequence.
GDPO_CALLS_ANY
template <class Loss, class From>
GDPO_DEVICE inline float token_gradient(const Loss& loss, const From& from, Token<float> x,
                                        double weight) {
  static_assert(!decltype(Loss::level)::of_segment,
                "the gradient of a token needs its whole segment");
  using Terms = TokenTerms<float, decltype(with_metrics<metrics::None>(loss))>;
  if (weight == 0) return 0;  // drops the token, whatever stands there
  typename Terms::Sums sums;
  typename Terms::Ranges ranges;
  const SegmentRatio no_segment{};
  const auto slopes =
      Terms::template of_token<General, float>(loss, no_segment, from, true, x, sums, ranges);
  const float gradient = Terms::gradient(slopes, true, static_cast<float>(weight));
  const auto spoiled = Terms::census(loss.level, loss.kl, loss.factor, no_segment, from, x,
                                     [](NonFinite NonFiniteInputs::*) {});
  return spoiled.gradient() ? math::nan<float>() : gradient;
}

}  // namespace detail
GDPO_END_NAMESPACE
