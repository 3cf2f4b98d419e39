#pragma once
// Surrogates: the part of the loss of a token that its advantage weighs.
#include <gdpo/loss/term.hpp>

GDPO_BEGIN_NAMESPACE

/// Surrogates: the part of a token's loss that its advantage weighs.
///
/// Contract of a surrogate:
///
///     template <class V> Term<V> operator()(const Token<V>&) const;
///
/// A surrogate whose `d_logp` is always 0 may declare `static constexpr bool ratio_only = true`,
/// which saves an addition. It may also declare the flags of loss/factor.hpp and check its settings
/// in `void check(const char* function) const`.
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
    field("low", s.low,
          at_least(0).at_most(1).with_note("the ratio is clipped to 1 - low").or_infinity(),
          "the ratio is clipped to at least 1 - low");
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

}  // namespace surrogate
GDPO_END_NAMESPACE
