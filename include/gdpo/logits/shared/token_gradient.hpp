#pragma once
// The derivative of a policy loss by the log-prob of one token.
#include <gdpo/loss/policy_loss.hpp>
#include <gdpo/loss/shared/token_terms.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// d loss / d logp of one valid token at level::Token: exactly the number that the loss call
/// writes. x is the token; `source` gives its optional inputs, as TokenTerms reads them; weight is
/// W_i of its sequence. Loss and metrics are not computed: TokenTerms is instantiated with
/// metrics::None.
GDPO_CALLS_ANY
template <class Loss, class Source>
GDPO_DEVICE inline float token_gradient(const Loss& loss, const Source& source, Token<float> x,
                                        double weight) {
  static_assert(!decltype(Loss::level)::of_segment,
                "the gradient of a token needs its whole segment");
  using Terms = TokenTerms<float, decltype(with_metrics<metrics::None>(loss))>;
  static_assert(!Terms::own_aggregates, "the weights of its row are more than one number");
  const typename Terms::Parts whole{};
  if (weight == 0) return 0;  // the row is dropped, whatever its inputs are
  typename Terms::Sums sums;
  typename Terms::Ranges ranges;
  const SegmentRatio no_segment{};
  const auto slopes = Terms::template of_token<General, float>(loss, whole, no_segment, source,
                                                               true, x, sums, ranges);
  const float gradient =
      Terms::template gradient<General>(slopes, true, static_cast<float>(weight));
  // As in the loss call, an input that is not finite makes the gradient NaN if the loss reads it.
  // The formulas may lose a NaN on the way, so the inputs are checked.
  const auto non_finite =
      Terms::scan_non_finite(loss.level, loss.surrogate, loss.kl, loss.factor, whole, no_segment,
                             source, x, [](NonFinite NonFiniteInputs::*) {});
  return non_finite.gradient ? math::nan<float>() : gradient;
}

}  // namespace detail
GDPO_END_NAMESPACE
