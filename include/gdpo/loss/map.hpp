#pragma once
// Maps: bounds on the log ratio of a token.
#include <gdpo/loss/term.hpp>
#include <gdpo/math/bounds.hpp>

GDPO_BEGIN_NAMESPACE

namespace detail {

template <class V>
struct Bounded {
  V value;            ///< x clamped to the bounds; NaN stays NaN.
  mask_t<V> outside;  ///< x was outside. NaN is not outside, so that it reaches the loss.
};
template <class V>
GDPO_INLINE Bounded<V> bound(const Bounds& bounds, const V& x) {
  using math::constant;
  const V lo = constant<V>(bounds.lo), hi = constant<V>(bounds.hi);
  return {(math::max)((math::min)(x, hi), lo), math::either(x<lo, x> hi)};
}

}  // namespace detail

/// Maps: what a level does to the log ratio of each token before anything else uses it.
///
/// Contract of a map:
///
///     template <class V> Mapped<V> operator()(const Token<V>&) const;
///
/// A map reads `token_log_ratio`, and may read the advantage and the log-probs; `log_ratio` and
/// `ratio` are not known yet. It may declare the flags of loss/factor.hpp and check its settings in
/// `void check(const char* function) const`.
namespace map {

/// Leaves the log ratio as it is.
struct None {
  template <class V>
  GDPO_INLINE Mapped<V> operator()(const Token<V>& t) const {
    return {t.token_log_ratio, math::constant<V>(1.0)};
  }
};

/// Clamps the log ratio: min(max(x, lo), hi), without gradient outside; verl and OpenRLHF: +-20.
///
/// `LossMetrics::log_ratio_bounded` counts the tokens that it holds.
struct Clamp {
  double lo = -20;  ///< Lower end, in nats; -infinity: off.
  double hi = 20;   ///< Upper end, in nats; infinity: off.
  template <class V>
  GDPO_INLINE Mapped<V> operator()(const Token<V>& t) const {
    const auto x = detail::bound({lo, hi}, t.token_log_ratio);
    return {x.value, math::select(x.outside, math::constant<V>(0.0), math::constant<V>(1.0))};
  }
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("lo", s.lo, anything(), "lower end, in nats; -infinity: off");
    field("hi", s.hi, anything(), "upper end, in nats; infinity: off");
  }
  /// Throws unless lo < hi.
  void check_together(const char* function, const detail::FieldPath& path) const {
    detail::check_ends(function, path, lo, hi);
  }
};

/// GMPO's trust region: a bound on the side to which the advantage pushes (arXiv 2507.20673).
///
///     A > 0    min(x, high)       A < 0    max(x, -low)       A = 0    0
///
/// of the log ratio x, without gradient where the bound holds. It is the clip of PPO in log space.
/// With level::Sequence, whose ratio is the geometric mean of the tokens' ratios, each token is
/// bounded before the mean is taken: that is GMPO; verl's loss_mode "geo_mean", TRL's GMPOTrainer.
/// A token with A = 0 counts as ratio 1.
///
/// `LossMetrics::log_ratio_bounded` counts the tokens that it holds, and those with A = 0.
struct TrustRegion {
  double low = 0.4;   ///< Where A < 0 the log ratio is at least -low. At least 0, in nats.
  double high = 0.4;  ///< Where A > 0 the log ratio is at most high. At least 0, in nats.
  template <class V>
  GDPO_INLINE Mapped<V> operator()(const Token<V>& t) const {
    using math::constant, math::select;
    const V zero = constant<V>(0.0), off = constant<V>(math::infinity), x = t.token_log_ratio;
    const auto positive = t.advantage > zero, negative = t.advantage < zero;
    const V most = select(positive, constant<V>(high), off),
            least = select(negative, constant<V>(-low), -off);
    const auto stops = math::either(math::either(x<least, x> most), math::is_zero(t.advantage));
    const V held = (math::max)(V((math::min)(x, most)), least);
    return {select(math::is_zero(t.advantage), zero, held), select(stops, zero, constant<V>(1.0))};
  }
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("low", s.low, at_least(0).or_infinity(), "where A < 0, the log ratio is at least -low");
    field("high", s.high, at_least(0).or_infinity(), "where A > 0, it is at most high");
  }
};

}  // namespace map
GDPO_END_NAMESPACE
