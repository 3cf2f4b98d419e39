#pragma once
#include <gdpo/loss/term.hpp>

GDPO_BEGIN_NAMESPACE

/// What a token's advantage and ratio contribute. Contract:
///   template <class V> Term<V> operator()(const Token<V>&) const;
namespace surrogate {

/// max(-A min(r, delta), -A clip(r, 1 - low, 1 + high)), and where A < 0 not above -A dual. PPO (arXiv 1707.06347) eq. 7;
/// low != high is DAPO's clip-higher (arXiv 2503.14476); `delta` bounds the unclipped ratio from above for either sign
/// (INTELLECT-2; TRL, Liger); `dual` > 1 is the dual clip (arXiv 1912.09729; verl: 3). Infinite: off.
/// Gradient: of the branch taken, and 0 outside its clamp; the clamps pass on their closed interval; a tie of the branches
/// takes the unclipped one; where the dual clip holds, 0. The ratio is finite, so a clipped token never gives NaN.
struct Ratio {
  double low = 0.2, high = 0.2;
  double delta = math::infinity, dual = math::infinity;

  // max(-A min(r, delta), -A clip(r)), cut at -A dual, is -A clamp(r, L, U) with bounds that only the sign of A chooses.
  static constexpr bool ratio_only = true;
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
    // Of min(r, delta): a delta below the range puts every ratio below it, one inside leaves none above.
    term.low = t.ratio <
               select(negative, constant<V>(delta < 1.0 - low ? math::infinity : 1.0 - low), -off);
    term.high =
        t.ratio >
        select(positive, constant<V>(delta > 1.0 + high ? 1.0 + high : math::infinity), off);
    term.outside = either(below, beyond);
    term.dual = t.ratio > select(negative, constant<V>(above > dual ? dual : math::infinity), off);
    return term;
  }
  void check(const char* function) const {
    const auto number = [function](const char* name, double value, bool fits, const char* needed) {
      if (!fits || math::is_nan(value))
        contract::fail(function, contract::Text("surrogate.") + name, contract::text(value),
                       needed);
    };
    number("low", low, low >= 0 && (low <= 1 || math::is_inf(low)),
           "0 to 1 (the ratio is clipped to 1 - low), or infinity: off");
    number("high", high, high >= 0, "at least 0 (infinity: off)");
    number("delta", delta, delta > 0, "more than 0 (infinity: off)");
    number("dual", dual, dual > 1, "more than 1 (infinity: off)");
  }
};

/// -A logp: no ratio. REINFORCE; with a factor clip(ratio) it is CISPO.
struct Reinforce {
  template <class V>
  GDPO_INLINE Term<V> operator()(const Token<V>& t) const {
    using math::is_zero;
    const V zero = math::constant<V>(0.0);
    const V value = math::select(is_zero(t.advantage), zero,
                                 math::mul(-t.advantage, t.logp));  // logp may be -inf
    return {value, zero, -t.advantage};
  }
};

}  // namespace surrogate
GDPO_END_NAMESPACE
