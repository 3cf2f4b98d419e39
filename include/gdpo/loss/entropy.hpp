#pragma once
// EntropyBonus: the entropy of the policy as a term of the loss.
#include <gdpo/math/check_fields.hpp>
#include <gdpo/tokens/normalizer.hpp>
#include <gdpo/tokens/token_view.hpp>

namespace gdpo {
/// What the entropies of a batch are averaged over.
enum class EntropyMean {
  Loss,   ///< As the loss is: each row has the weight W_i that its aggregate gives.
  Tokens  ///< Over all valid tokens of the step, `Normalizer::tokens`, whatever the aggregate.
};
/// The enumerators of EntropyMean with their words.
GDPO_DATA_INLINE constexpr auto enumerators(EntropyMean) {
  using E = Enumerator<EntropyMean>;
  return std::array{E{"loss", EntropyMean::Loss}, E{"tokens", EntropyMean::Tokens}};
}
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// A bonus for the entropy of the policy, which keeps it from collapsing: the loss falls by
///
///     coef sum over rows i of W'_i (sum over valid tokens t of v_it H_it)
///
/// H is `TokenBatch::entropies` in nats, v `TokenBatch::entropy_weights`, or 1 without that array.
/// W'_i is W_i for EntropyMean::Loss, where the entropies are averaged as the loss is (verl's
/// entropy_coeff, slime, Trinity-RFT), and 1 / Normalizer::tokens times the row's
/// `TokenBatch::row_weights` for EntropyMean::Tokens (TRL's and unsloth's entropy_coef, OpenRLHF's
/// entropy_loss_coef). The aggregate's `scale` is part of W_i alone.
///
/// **Gradient.** d loss / d H_it = -coef W'_i v_it, which a loss call writes to
/// `LossGradient::entropies`; from there token_logprobs_backward takes it to the logits. From
/// logits the same call does both. The entropy of a token depends on all logits of its row, so from
/// log-probs of the sampled tokens alone it has no gradient: H must be computed by the model's
/// side.
///
/// **Some tokens only.** `prepare` with prepass::TopEntropy and Reach::Entropy gives weights 0 to
/// the tokens of low entropy; with prepass::MeanOne behind it the mean is that over the others (TRL
/// and unsloth with top_entropy_quantile).
///
/// Edge cases: a token whose v is 0 or not finite adds nothing, and one that is not finite is
/// counted in `NonFiniteInputs::weights`; an H that is NaN makes the loss NaN and leaves the
/// gradient as it is. Where `coef` is 0, no entropy is read for the loss, and its bits are those
/// without the term.
///
/// Order of summation: the tokens of a row in 16 lanes of double that are added as a tree, then the
/// rows as those of the loss.
struct EntropyBonus {
  double coef = 0;                       ///< Any finite number; 0: off, below 0: a penalty.
  EntropyMean mean = EntropyMean::Loss;  ///< What the entropies are averaged over.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("coef", s.coef, finite().with_note("0: off"), "coefficient of the entropy bonus");
    field("mean", s.mean, "what the entropies are averaged over");
  }

  /// coef W'_i: what multiplies the weighted entropies of a row with valid tokens.
  ///
  /// `weight` is W_i, `given` the row's TokenBatch::row_weights, or 1. 0 where W'_i is not finite.
  GDPO_INLINE double row_scale(double weight, double given, const Normalizer& normalizer) const {
    const double tokens = normalizer.tokens;
    const double share = mean == EntropyMean::Loss ? weight : tokens > 0 ? given / tokens : 0.0;
    return coef == 0 || math::not_finite(share) ? 0.0 : math::mul(coef, share);
  }
};

/// Where a loss call writes its gradient; each part is optional.
///
/// A view is the gradient by the log-probs alone, as most losses have it:
///
///     loss(batch, n, dlogp);
///     loss(batch, n, {dlogp, dentropies});  // with an EntropyBonus
template <class S>
struct LossGradient {
  TokenOut<S> logp;       ///< d loss / d logp, in the shape of the batch.
  TokenOut<S> entropies;  ///< d loss / d entropies, likewise; 0 without an EntropyBonus.

  LossGradient() = default;
  /// The gradient by the log-probs alone.
  template <class Out, std::enable_if_t<std::is_convertible_v<const Out&, TokenOut<S>>, int> = 0>
  LossGradient(const Out& by_logp) : logp(by_logp) {}
  /// Both.
  LossGradient(const TokenOut<S>& by_logp, const TokenOut<S>& by_entropies)
      : logp(by_logp), entropies(by_entropies) {}
};

namespace detail {

/// The entropy bonus of a loss. A type of loss without the member has none.
template <class Loss, class = void>
constexpr bool has_entropy_v = false;
template <class Loss>
constexpr bool has_entropy_v<Loss, std::void_t<decltype(std::declval<const Loss&>().entropy)>> =
    true;
template <class Loss>
GDPO_INLINE constexpr EntropyBonus entropy_of(const Loss& loss) {
  if constexpr (has_entropy_v<Loss>) {
    return loss.entropy;
  } else {
    return (void)loss, EntropyBonus{};
  }
}
/// v of a token, from TokenBatch::entropy_weights; 0 in place of one that is not finite.
GDPO_INLINE double entropy_weight(double given) { return math::not_finite(given) ? 0.0 : given; }
/// d loss / d H of a valid token. `scale` is that of its row (EntropyBonus::row_scale).
GDPO_INLINE double entropy_slope(double scale, double weight) {
  return math::is_zero(weight) || math::is_zero(scale) ? 0.0 : math::mul(-scale, weight);
}

}  // namespace detail

GDPO_END_NAMESPACE
