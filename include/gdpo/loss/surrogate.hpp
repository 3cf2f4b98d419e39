#pragma once
// Surrogates: the part of the loss of a token that its advantage weighs.
#include <gdpo/loss/term.hpp>

GDPO_BEGIN_NAMESPACE

namespace detail {
/// The range of `low`, where a surrogate clips the ratio to at least 1 - low.
inline constexpr Range low_of_clip =
    at_least(0).at_most(1).with_note("the ratio is clipped to 1 - low").or_infinity();
}  // namespace detail

/// Surrogates: the part of a token's loss that its advantage weighs.
///
/// Contract of a surrogate:
///
///     template <class V> Term<V> operator()(const Token<V>&) const;
///
/// A surrogate whose `d_logp` is always 0 may declare `static constexpr bool ratio_only = true`,
/// which saves an addition. One that is always 0 declares `adds_nothing`, and one that reads no
/// advantage `without_advantage`: a loss then needs no advantages. It may also declare the flags of
/// loss/factor.hpp and check its settings in `void check(const char* function) const`.
namespace surrogate {

/// The clipped ratio of PPO, with the bounds that later methods added.
///
/// With advantage A and the level's ratio r = e^(log ratio), the loss of a token is
///
///     max(-A min(r, delta), -A clip(r, 1 - low, 1 + high)),    and at most -A dual where A < 0
///
/// Sources: PPO (arXiv 1707.06347) eq. 7, with the sign of a loss; low != high is the clip-higher
/// of DAPO (arXiv 2503.14476); delta is from INTELLECT-2, TRL and Liger; dual is the dual clip
/// (arXiv 1912.09729; verl: 3).
///
/// Gradient: since d r / d log r = r, the derivative of -A r by log r is -A r, the value itself.
/// Where a bound holds the ratio, the derivative is 0. With L = 1 - low, H = 1 + high,
/// U = min(H, delta) and D = min(max(H, delta), dual):
///
///     A > 0    r <= U         value -A r     derivative -A r
///              r > U                -A U                0
///     A < 0    r < L                -A L                0
///              L <= r <= D          -A r               -A r
///              r > D                -A D                0
///     A = 0                          0                  0
///
/// A ratio exactly on a bound is inside, so its gradient passes. At r = L and r = H the clipped and
/// the unclipped branch tie; the tie takes the unclipped one.
///
/// The ratio saturates and is never infinite (`Token::ratio`), so A = 0 meets no 0 times infinity
/// and a clipped token never gives NaN. A NaN ratio or advantage shows in value and derivative.
struct Ratio {
  /// The ratio is clipped to at least 1 - low. 0 to 1, or infinity: no clip from below.
  double low = 0.2;
  /// The ratio is clipped to at most 1 + high. At least 0; infinity: no clip from above.
  double high = 0.2;
  /// Upper bound of the ratio in the unclipped branch. It matters most where A < 0, because there
  /// the clip puts no upper bound on the loss. More than 0; infinity: off.
  double delta = math::infinity;
  /// Where A < 0 the loss is at most -A dual. More than 1; infinity: off.
  double dual = math::infinity;
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("low", s.low, detail::low_of_clip, "the ratio is clipped to at least 1 - low");
    field("high", s.high, at_least(0).or_infinity(), "the ratio is clipped to at most 1 + high");
    field("delta", s.delta, more_than(0).or_infinity(),
          "upper bound of the ratio in the unclipped branch");
    field("dual", s.dual, more_than(1).or_infinity(), "where A < 0, the loss is at most -A dual");
  }

  /// The term depends on logp through the ratio alone.
  static constexpr bool ratio_only = true;
  // The table above is -A clamp(r, least, most): -A clamp(r, -infinity, U) where A > 0, and
  // -A clamp(r, L, D) where A < 0. Computing it so needs no maximum over branches.
  template <class V>
  GDPO_INLINE Term<V> operator()(const Token<V>& t) const {
    using math::constant, math::either, math::mul, math::select;
    const V zero = constant<V>(0.0), minus_a = -t.advantage;
    const V off = constant<V>(math::infinity), lo = constant<V>(1.0 - low),
            hi = constant<V>(1.0 + high);
    const double above = (math::max)(delta, 1.0 + high);
    const auto negative = t.advantage < zero;
    const auto positive = t.advantage > zero;
    const V least = select(negative, lo, -off);
    const V most = select(negative, constant<V>((math::min)(above, dual)),
                          select(positive, constant<V>((math::min)(delta, 1.0 + high)), off));
    const V clamped = (math::max)((math::min)(t.ratio, most), least), value = mul(minus_a, clamped);
    const auto held = math::differ(clamped, t.ratio);
    Term<V> term{value, select(held, zero, value), zero};
    const auto below = t.ratio < lo;
    const auto beyond = t.ratio > hi;
    // `low` and `high` compare min(r, delta) with the range. If delta < 1 - low, min(r, delta) is
    // always below the range, so `low` flags every token with A < 0. If delta <= 1 + high, it is
    // never above the range, so `high` flags none.
    term.low = t.ratio <
               select(negative, constant<V>(delta < 1.0 - low ? math::infinity : 1.0 - low), -off);
    term.high =
        t.ratio >
        select(positive, constant<V>(delta > 1.0 + high ? 1.0 + high : math::infinity), off);
    term.outside = either(below, beyond);
    // If dual >= max(H, delta), the other bound is reached first and the dual clip never holds.
    term.dual = t.ratio > select(negative, constant<V>(above > dual ? dual : math::infinity), off);
    return term;
  }
};

/// The surrogate of REINFORCE: -A logp, without a ratio.
///
/// Its derivative by the token's own logp is -A; the ratio does not appear. With a detached factor
/// clip(ratio) it is CISPO (arXiv 2506.13585). Where A is 0, value and derivative are 0 even for a
/// token of probability 0 (logp = -infinity).
struct Reinforce {
  template <class V>
  GDPO_INLINE Term<V> operator()(const Token<V>& t) const {
    using math::is_zero;
    const V zero = math::constant<V>(0.0);
    const V value = math::select(is_zero(t.advantage), zero,
                                 math::mul(-t.advantage, t.logp));  // 0 times -infinity is NaN
    return {value, zero, -t.advantage};
  }
};

/// No surrogate: value and derivatives are exactly 0, whatever the token holds.
///
/// For losses that are KL terms alone, such as ms_swift::sdar_loss. Such a loss needs no
/// advantages.
struct None {
  static constexpr bool ratio_only = true;    ///< d_logp is 0.
  static constexpr bool adds_nothing = true;  ///< No advantages are needed.
  template <class V>
  GDPO_INLINE Term<V> operator()(const Token<V>&) const {
    const V zero = math::constant<V>(0.0);
    return {zero, zero, zero};
  }
};

/// SAPO: a smooth gate in place of the clip (arXiv 2511.20347).
///
/// With advantage A, the level's ratio r, tau = tau_pos where A > 0, else tau_neg, and the sigmoid
/// q = 1 / (1 + e^(-tau (r - 1))), the loss of a token is
///
///     -4 A q / tau,    with the derivative -4 A q (1 - q) r by log r
///
/// At r = 1 the derivative is -A, that of the ratio itself, and it fades on both sides: a token
/// that moves away loses its gradient bit by bit, where a clip takes it at once. A larger tau fades
/// sooner; tau_neg > tau_pos holds back the tokens with A < 0, whose gradient reaches all other
/// tokens of the vocabulary.
///
/// Where tau (r - 1) is large the gate is exactly 1, so a ratio that saturates (`Token::ratio`) has
/// the derivative 0. A NaN ratio or advantage shows in value and derivative.
/// No clip metric counts a token. TRL, verl, ms-swift, Liger and unsloth-zoo: loss_type "sapo".
struct Soft {
  double tau_pos = 1;     ///< Temperature where A > 0. More than 0.
  double tau_neg = 1.05;  ///< Temperature elsewhere. More than 0.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("tau_pos", s.tau_pos, more_than(0), "temperature of the gate where A > 0");
    field("tau_neg", s.tau_neg, more_than(0), "temperature of the gate elsewhere");
  }

  /// The term depends on logp through the ratio alone.
  static constexpr bool ratio_only = true;
  template <class V>
  GDPO_INLINE Term<V> operator()(const Token<V>& t) const {
    using math::constant, math::mul, math::select;
    const V zero = constant<V>(0.0), one = constant<V>(1.0), minus_a = -t.advantage;
    const auto positive = t.advantage > zero;
    const V tau = select(positive, constant<V>(tau_pos), constant<V>(tau_neg)),
            scale = select(positive, constant<V>(4 / tau_pos), constant<V>(4 / tau_neg));
    const V e = math::exp_or_zero(V(mul(tau, one - t.ratio))), sum = one + e, q = one / sum;
    const V slope = mul(mul(mul(constant<V>(4.0), minus_a), q), V(mul(V(e / sum), t.ratio)));
    return {mul(mul(scale, minus_a), q), slope, zero};
  }
};

/// The ratio between bounds, on both sides and whatever the sign of the advantage.
///
///     -A clip(r, 1 - low, 1 + high),    without gradient outside
///
/// It is what torchrl calls CISPO: there the gradient goes through the clipped ratio, so a token
/// outside the bounds has none. (CISPO itself detaches the ratio, and every token keeps a gradient:
/// factor::ClippedRatio.) surrogate::Ratio differs where the update would bring a token back: for
/// A > 0 and r < 1 - low, or A < 0 and r > 1 + high, it lets the gradient pass.
///
/// A ratio on a bound is inside. A NaN ratio or advantage shows in the value, and a NaN ratio in
/// the derivative too.
struct Clipped {
  double low = 0.2;   ///< The ratio is at least 1 - low. 0 to 1, or infinity: no bound.
  double high = 0.2;  ///< The ratio is at most 1 + high. At least 0; infinity: no bound.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("low", s.low, detail::low_of_clip, "the ratio is at least 1 - low");
    field("high", s.high, at_least(0).or_infinity(), "the ratio is at most 1 + high");
  }

  /// The term depends on logp through the ratio alone.
  static constexpr bool ratio_only = true;
  template <class V>
  GDPO_INLINE Term<V> operator()(const Token<V>& t) const {
    using math::constant;
    const V zero = constant<V>(0.0), lo = constant<V>(1.0 - low), hi = constant<V>(1.0 + high);
    const V value = math::mul(-t.advantage, V((math::max)(V((math::min)(t.ratio, hi)), lo)));
    const auto below = t.ratio<lo, above = t.ratio> hi;
    Term<V> term{value, math::select(math::either(below, above), zero, value), zero};
    detail::flag_clip(term, t.advantage, below, above);
    return term;
  }
};

/// UP-GRPO: REINFORCE where the advantage is positive, the clipped ratio elsewhere
/// (arXiv 2607.06987).
///
///     A > 0     -A log p, without a ratio, a clip or an old policy
///     A <= 0    surrogate::Ratio with the same settings
///
/// A good token is learned at full strength however far it has moved; the clip and the dual clip
/// bound what a bad one may do. Its value jumps with the sign of A, which the gradient does not
/// see.
struct PositiveReinforce {
  double low = 0.2;              ///< Ratio::low.
  double dual = math::infinity;  ///< Ratio::dual.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("low", s.low, detail::low_of_clip,
          "where A <= 0, the ratio is clipped to at least 1 - low");
    field("dual", s.dual, more_than(1).or_infinity(), "where A < 0, the loss is at most -A dual");
  }

  template <class V>
  GDPO_INLINE Term<V> operator()(const Token<V>& t) const {
    using math::select;
    const V zero = math::constant<V>(0.0);
    const auto positive = t.advantage > zero;
    const Term<V> free = Reinforce{}(t);
    // Where A <= 0 the upper bound of the ratio has no effect.
    Term<V> term = Ratio{low, math::infinity, math::infinity, dual}(t);
    term.value = select(positive, free.value, term.value);
    term.d_log_ratio = select(positive, zero, term.d_log_ratio);
    term.d_logp = select(positive, free.d_logp, zero);
    return term;
  }
};

/// sPPO: the log ratio in place of the ratio, within a range (arXiv 2108.05828).
///
///     -A log r    where 1 / (1 + epsilon) <= r <= 1 + epsilon
///     0           elsewhere, without a gradient
///
/// The derivative by log r is -A wherever the token is in the range, so neither a small nor a large
/// ratio weighs a token; outside it counts no more, whatever the sign of A. The range is the same
/// on both sides of log r = 0. Its value jumps to 0 at the bounds, which the gradient does not see.
/// Trinity-RFT: sPPOPolicyLossFn.
///
/// A ratio on a bound is inside. A NaN ratio or advantage shows in the value. Clip metrics count a
/// token outside as with `Clipped`.
struct LogRatio {
  /// The range of r is 1 / (1 + epsilon) to 1 + epsilon. At least 0; infinity: every ratio.
  double epsilon = 0.3;
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("epsilon", s.epsilon, at_least(0).or_infinity(),
          "the ratio counts from 1 / (1 + epsilon) to 1 + epsilon");
  }

  /// The term depends on logp through the ratio alone.
  static constexpr bool ratio_only = true;
  template <class V>
  GDPO_INLINE Term<V> operator()(const Token<V>& t) const {
    using math::constant, math::either, math::is_zero, math::select;
    const V zero = constant<V>(0.0), minus_a = -t.advantage;
    const V lo = constant<V>(1.0 / (1.0 + epsilon)), hi = constant<V>(1.0 + epsilon);
    const auto below = t.ratio<lo, above = t.ratio> hi;
    const auto gone = either(below, above);
    // 0 times the infinite log ratio of a range without bounds would be NaN.
    const V value =
        select(either(gone, is_zero(t.advantage)), zero, math::mul(minus_a, t.log_ratio));
    Term<V> term{value, select(gone, zero, minus_a), zero};
    detail::flag_clip(term, t.advantage, below, above);
    return term;
  }
};

/// The negative log-likelihood of the tokens, -log p: cross entropy, the loss of supervised
/// fine-tuning. It reads no advantage, so a loss of it needs none.
///
///     max(-log p, floor),    without a gradient where -log p < floor
///
/// With `floor` a token that is likely enough teaches nothing any more. A token is weighed by
/// TokenBatch::weights, and by its own probability with factor::Probability. To add the likelihood
/// to another loss, use the term Kl<kl::ForwardK1>{beta, Against::Data}; or, where it has a mask or
/// counts apart, call both losses and add up losses and gradients. Trinity-RFT: SFTLossFn,
/// SFTISLossFn, SFTPhiLossFn; SkyRL: cross_entropy_loss.
///
/// A NaN log-prob shows in the value. No clip metric counts a token.
struct Likelihood {
  /// A token counts as this where its -log p, in nats, is less. At least 0; 0: off, also where
  /// rounding makes a log-prob positive.
  double floor = 0;
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("floor", s.floor, at_least(0).with_note("0: off"),
          "the least -log p of a token, in nats, without a gradient below");
  }

  static constexpr bool without_advantage = true;  ///< No advantages are needed.
  template <class V>
  GDPO_INLINE Term<V> operator()(const Token<V>& t) const {
    using math::constant, math::select;
    const V zero = constant<V>(0.0), least = constant<V>(floor > 0 ? floor : -math::infinity);
    const V nll = -t.logp;
    const auto held = nll < least;
    return {select(held, least, nll), zero, select(held, zero, constant<V>(-1.0))};
  }
};

}  // namespace surrogate
GDPO_END_NAMESPACE
