#pragma once
// Factors of the surrogate, such as importance weights that depend on the ratio.
#include <gdpo/core/declares.hpp>
#include <gdpo/loss/map.hpp>

GDPO_BEGIN_NAMESPACE

namespace detail {
// The flags that a surrogate, map or factor may declare; see Factors. The last two are for
// surrogates: `ratio_only` says that d_logp is 0, `general_rows` that a loss is to compile one loop
// over tokens, and not others for rows without optional arrays.
GDPO_DECLARED(reads_ref);
GDPO_DECLARED(reads_rollout);
GDPO_DECLARED(reads_teacher);
GDPO_DECLARED(reads_tag);
GDPO_DECLARED(reads_row_advantage);
GDPO_DECLARED(ratio_only);
GDPO_DECLARED(general_rows);
// For surrogates too: value and derivatives are 0 whatever the token holds, so that a loss needs no
// advantages.
GDPO_DECLARED(adds_nothing);
// The same, because it reads no advantage.
GDPO_DECLARED(without_advantage);
// One of several that is chosen at run time; `visit` calls a function with it (any_surrogate.hpp).
GDPO_DECLARED(is_chosen);
/// Throws invalid_input unless `least` is at most `most`, two bounds of a ratio by their names.
inline void check_ratio_bounds(const char* function, const FieldPath& path, const char* least_name,
                               double least, const char* most_name, double most) {
  if (!(least > most && most > 0)) return;  // one alone: its range
  contract::fail(function, path.text(least_name) + ", " + path.text(most_name),
                 contract::text(least) + " and " + contract::text(most),
                 contract::Text(least_name) + " of at most " + most_name);
}
/// Both derivatives of a surrogate's term by the token's logp, where the ratio is the token's own.
template <class S, class V>
GDPO_INLINE V both_slopes(const S& surrogate, const Term<V>& term) {
  if constexpr (is_chosen_v<S>) {
    return surrogate.visit([&term](const auto& chosen) { return both_slopes(chosen, term); });
  } else if constexpr (ratio_only_v<S>) {
    return term.d_log_ratio;
  } else {
    return term.d_log_ratio + term.d_logp;
  }
}
/// Whether a surrogate, or the chosen one of several, adds nothing to a loss.
template <class S>
GDPO_INLINE bool adds_nothing(const S& surrogate) {
  if constexpr (is_chosen_v<S>) {
    return surrogate.visit([](const auto& chosen) { return adds_nothing(chosen); });
  } else {
    return (void)surrogate, adds_nothing_v<S>;
  }
}
/// Whether a surrogate, or the chosen one of several, reads the advantage of a token.
template <class S>
GDPO_INLINE bool reads_advantage(const S& surrogate) {
  if constexpr (is_chosen_v<S>) {
    return surrogate.visit([](const auto& chosen) { return reads_advantage(chosen); });
  } else {
    return (void)surrogate, !adds_nothing_v<S> && !without_advantage_v<S>;
  }
}
}  // namespace detail

/// A list of factors of the surrogate; `Factors<>` is none.
///
/// A factor is a number computed from one token. It is detached: no gradient flows through it. The
/// product of all factors and of `TokenBatch::weights` multiplies the surrogate's value and
/// gradient. Where it is 0 or not finite, the token's surrogate is dropped with its gradient, and
/// one that is not finite is counted in `NonFiniteInputs::weights`. What needs a whole row or the
/// batch is a pre-pass instead (gdpo/prepass.hpp), which fills TokenBatch::weights.
///
/// Contract of a factor:
///
///     template <class V> V operator()(const Token<V>&) const;
///
/// A factor, and likewise a surrogate or map, declares which optional members of Token it reads:
/// `reads_ref`, `reads_rollout`, `reads_teacher`, `reads_tag` and `reads_row_advantage`, each as
/// `static constexpr bool ... = true`. The loss then reads the array, or computes the mean, and
/// throws invalid_input where the array is absent. Without the flag the member may be 0. Settings
/// are listed as fields (core/fields.hpp).
///
/// A factor that clips may say which tokens: `template <class V> void clips(const Token<V>&,
/// Term<V>&) const` sets `low`, `high` and `outside` of the surrogate's term, which the clip
/// metrics count.
///
/// The factors are `first`, `rest.first`, `rest.rest.first`, ...
template <class... F>
struct Factors;
/// No factor.
template <>
struct Factors<> {
  /// It has no settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self&, const Field&) {}
};
/// At least one factor.
template <class First, class... Rest>
struct Factors<First, Rest...> {
  static_assert(is_factor_v<First>,
                "a Factor needs: template <class V> V operator()(const gdpo::Token<V>&) const");
  /// Whether one of the factors reads ref_logp.
  static constexpr bool reads_ref =
      (detail::reads_ref_v<First> || ... || detail::reads_ref_v<Rest>);
  /// Whether one of the factors reads rollout_logp.
  static constexpr bool reads_rollout =
      (detail::reads_rollout_v<First> || ... || detail::reads_rollout_v<Rest>);
  /// Whether one of the factors reads teacher_logp.
  static constexpr bool reads_teacher =
      (detail::reads_teacher_v<First> || ... || detail::reads_teacher_v<Rest>);
  /// Whether one of the factors reads the tag.
  static constexpr bool reads_tag =
      (detail::reads_tag_v<First> || ... || detail::reads_tag_v<Rest>);
  /// Whether one of the factors reads row_advantage.
  static constexpr bool reads_row_advantage =
      (detail::reads_row_advantage_v<First> || ... || detail::reads_row_advantage_v<Rest>);
  First first{};            ///< The first factor.
  Factors<Rest...> rest{};  ///< The others.
  /// The settings of all factors (core/fields.hpp): "factor.max_ratio".
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("", s.first, "a detached factor");
    field("", s.rest, "the factors behind it");
  }
};

/// Factors that the library has.
namespace factor {

/// The level's ratio between bounds, without its gradient: min(max(r, min_ratio), max_ratio).
///
/// With surrogate::Reinforce it is CISPO (MiniMax-M1, arXiv 2506.13585, eq. 4 and 5): every token
/// keeps a gradient, also where its ratio is clipped, and the bound only limits its size.
/// (Truncated importance sampling is the same with `max_ratio` alone.)
///
/// Clip metrics: a token is clipped from above if r > max_ratio and A > 0, from below if
/// r < min_ratio and A < 0, and outside if r is beyond either bound. A ratio on a bound is inside.
/// Where r is NaN the factor is 1, and the surrogate of that token is NaN because of its log-probs.
struct ClippedRatio {
  double min_ratio = 0;               ///< Lower bound of the ratio, at least 0; 0: none.
  double max_ratio = math::infinity;  ///< Upper bound, more than 0 and at least min_ratio.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("min_ratio", s.min_ratio, at_least(0), "lower bound of the detached ratio");
    field("max_ratio", s.max_ratio, more_than(0).or_infinity(),
          "upper bound of the detached ratio");
  }
  /// Throws invalid_input unless min_ratio is at most max_ratio.
  void check_together(const char* function, const detail::FieldPath& path) const {
    detail::check_ratio_bounds(function, path, "min_ratio", min_ratio, "max_ratio", max_ratio);
  }
  /// The factor of a token.
  template <class V>
  GDPO_INLINE V operator()(const Token<V>& t) const {
    using math::constant, math::select;
    const V r = select(math::is_nan(t.ratio), constant<V>(1.0), t.ratio);
    return (math::max)((math::min)(r, constant<V>(max_ratio)), constant<V>(min_ratio));
  }
  /// Which clip metrics count a token.
  template <class V>
  GDPO_INLINE void clips(const Token<V>& t, Term<V>& term) const {
    using math::constant;
    const mask_t<V> below = t.ratio < constant<V>(min_ratio);
    const mask_t<V> above = t.ratio > constant<V>(max_ratio);
    detail::flag_clip(term, t.advantage, below, above);
  }
};

/// A gate by a teacher: sigmoid(gate_beta (teacher_logp - logp)), which is above 1/2 where the
/// teacher holds the token for more probable than the policy does.
///
/// On a KL term against the teacher it is SDAR (ms-swift compute_sdar_loss, whose gate_beta is 5).
/// Where teacher_logp - logp is NaN the gate is 1, and a term against the teacher is NaN.
struct TeacherGate {
  double gate_beta = 5;  ///< How steep the gate is, per nat; at least 0. 0: 1/2 everywhere.
  static constexpr bool reads_teacher = true;  ///< It reads `Token::teacher_logp`.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("gate_beta", s.gate_beta, at_least(0), "how steep the teacher's gate is, per nat");
  }
  /// The factor of a token.
  template <class V>
  GDPO_INLINE V operator()(const Token<V>& t) const {
    using math::constant, math::exp_parts;
    const V one = constant<V>(1.0), gap = t.teacher_logp - t.logp;
    const V x = math::mul(constant<V>(-gate_beta), gap);
    return math::select(math::is_nan(x), one, one / (one + exp_parts(x).exp));
  }
};

/// The level's ratio between bounds that depend on the sign of the advantage, without its gradient.
///
///     A > threshold    min(max(r, positive_min), positive_max)
///     elsewhere        min(max(r, negative_min), negative_max)
///
/// With surrogate::Reinforce it is TOPR (arXiv 2503.14286): by default good tokens have the
/// weight 1, as in supervised learning, and bad ones their ratio, at most 1, so that those which
/// the policy has left already no longer push. With all bounds 0 and 1 it is REINFORCE with
/// truncated importance sampling; ROLL, Trinity-RFT.
///
/// Clip metrics count a token as ClippedRatio does, but none of a sign whose bounds are equal.
/// Where r is NaN the factor is 1 before the bounds, and the surrogate of that token is NaN because
/// of its log-probs.
struct SignedRatio {
  double positive_min = 1;  ///< Lower bound where A > threshold, at least 0.
  double positive_max = 1;  ///< Upper bound there, more than 0 and at least positive_min.
  double negative_min = 0;  ///< Lower bound elsewhere, at least 0.
  double negative_max = 1;  ///< Upper bound there, more than 0 and at least negative_min.
  double threshold = 0;     ///< An advantage above it is positive.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("positive_min", s.positive_min, at_least(0),
          "lower bound of the ratio where A is positive");
    field("positive_max", s.positive_max, more_than(0).or_infinity(), "upper bound there");
    field("negative_min", s.negative_min, at_least(0), "lower bound of the ratio elsewhere");
    field("negative_max", s.negative_max, more_than(0).or_infinity(), "upper bound there");
    field("threshold", s.threshold, finite(), "an advantage above it is positive");
  }
  /// Throws invalid_input unless each lower bound is at most the upper one.
  void check_together(const char* function, const detail::FieldPath& path) const {
    detail::check_ratio_bounds(function, path, "positive_min", positive_min, "positive_max",
                               positive_max);
    detail::check_ratio_bounds(function, path, "negative_min", negative_min, "negative_max",
                               negative_max);
  }
  /// The factor of a token.
  template <class V>
  GDPO_INLINE V operator()(const Token<V>& t) const {
    using math::constant, math::select;
    const auto positive = t.advantage > constant<V>(threshold);
    const V r = select(math::is_nan(t.ratio), constant<V>(1.0), t.ratio);
    const V most = select(positive, constant<V>(positive_max), constant<V>(negative_max)),
            least = select(positive, constant<V>(positive_min), constant<V>(negative_min));
    return (math::max)(V((math::min)(r, most)), least);
  }
  /// Which clip metrics count a token.
  template <class V>
  GDPO_INLINE void clips(const Token<V>& t, Term<V>& term) const {
    using math::constant, math::select;
    const V off = constant<V>(math::infinity);
    const auto positive = t.advantage > constant<V>(threshold);
    const bool frees_positive = positive_min < positive_max,
               frees_negative = negative_min < negative_max;
    const V most = select(positive, frees_positive ? constant<V>(positive_max) : off,
                          frees_negative ? constant<V>(negative_max) : off);
    const V least = select(positive, frees_positive ? constant<V>(positive_min) : -off,
                           frees_negative ? constant<V>(negative_min) : -off);
    const mask_t<V> below = t.ratio < least;
    const mask_t<V> above = t.ratio > most;
    detail::flag_clip(term, t.advantage, below, above);
  }
};

/// VESPO's weight of a ratio W, without its gradient: e^(lambda + k log W - lambda W)
/// (arXiv 2602.10693).
///
/// It is W^k e^(-lambda (W - 1)), the density of a gamma distribution up to a constant. At W = 1 it
/// is 1, it is largest at W = k / lambda, and it goes to 0 on both sides: a sequence that the
/// policy has left, or that it has moved to, teaches less. `pos` holds where A >= 0, `neg` where
/// A < 0. VESPO is surrogate::Reinforce times this factor at level::Sequence with statistic::Sum,
/// whose ratio is the product of the tokens' ratios; TRL, Liger, unsloth-zoo: loss_type "vespo".
///
/// Where W is NaN the factor is 1, and the surrogate of that token is NaN because of its log-probs.
struct Gamma {
  double k_pos = 2;       ///< Power of W where A >= 0. At least 0.
  double lambda_pos = 3;  ///< Decay in W there. At least 0.
  double k_neg = 3;       ///< Power of W where A < 0. At least 0.
  double lambda_neg = 2;  ///< Decay in W there. At least 0.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("k_pos", s.k_pos, at_least(0), "power of the ratio where A >= 0");
    field("lambda_pos", s.lambda_pos, at_least(0), "decay in the ratio where A >= 0");
    field("k_neg", s.k_neg, at_least(0), "power of the ratio where A < 0");
    field("lambda_neg", s.lambda_neg, at_least(0), "decay in the ratio where A < 0");
  }
  /// The factor of a token.
  template <class V>
  GDPO_INLINE V operator()(const Token<V>& t) const {
    using math::constant, math::fma, math::select;
    constexpr double limit = math::exp_limit<math::scalar_t<V>>;
    const auto negative = t.advantage < constant<V>(0.0), unknown = math::is_nan(t.ratio);
    const V k = select(negative, constant<V>(k_neg), constant<V>(k_pos)),
            lambda = select(negative, constant<V>(lambda_neg), constant<V>(lambda_pos));
    // Bounded, because 0 times an infinite log ratio would be NaN.
    const V log_w = detail::bound({-limit, limit}, t.log_ratio).value;
    const V power = fma(-lambda, t.ratio, V(fma(k, log_w, lambda)));
    return select(unknown, constant<V>(1.0), math::exp_or_zero(power));
  }
};

/// SAPO's gate of the ratio, without its gradient: 4 q / tau with q = 1 / (1 + e^(-tau (r - 1))).
///
/// Times surrogate::Reinforce it is -sg(gate) A log p, which Trinity-RFT calls SAPO
/// (SAPOPolicyLossFn). It is another loss than SAPO (surrogate::Soft): the weight of a token rises
/// with its ratio, from near 0 to 4 / tau. At r = 1 it is 2 / tau, where that of SAPO is 1.
///
/// tau is tau_pos where A > 0, else tau_neg. Where r is NaN the factor is 1, and the surrogate of
/// that token is NaN because of its log-probs. It counts no clips.
struct SoftGate {
  double tau_pos = 1;     ///< Temperature where A > 0. More than 0.
  double tau_neg = 1.05;  ///< Temperature elsewhere. More than 0.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("tau_pos", s.tau_pos, more_than(0), "temperature of the gate where A > 0");
    field("tau_neg", s.tau_neg, more_than(0), "temperature of the gate elsewhere");
  }
  /// The factor of a token.
  template <class V>
  GDPO_INLINE V operator()(const Token<V>& t) const {
    using math::constant, math::mul, math::select;
    const V one = constant<V>(1.0);
    const auto positive = t.advantage > constant<V>(0.0);
    const V tau = select(positive, constant<V>(tau_pos), constant<V>(tau_neg)),
            scale = select(positive, constant<V>(4 / tau_pos), constant<V>(4 / tau_neg));
    const V e = math::exp_or_zero(V(mul(tau, V(one - t.ratio))));
    return select(math::is_nan(t.ratio), one, V(scale / V(one + e)));
  }
};

/// REC's range of the ratio, with the weight of a token inside and 0 outside, without a gradient.
///
///     w = clip(r, min_ratio, max_ratio) e^(A / temp)    where the token stays, else 0
///
/// A token stays if one of these holds:
///
///     1 - low <= r <= 1 + high
///     r <= 1 - low_prime     and A >= 0
///     r >= 1 + high_prime    and A <= 0
///
/// So a token with A > 0 may come back from a ratio that is far too small, and one with A < 0 from
/// one that is far too large. Times surrogate::Reinforce it is REC of Trinity-RFT
/// (RECPolicyLossFn). Its clip_mode:
///
///     none        low = high = infinity
///     two-side    low and high; low_prime = high_prime = infinity
///     one-side    low_prime = low and high_prime = high: a bound above where A > 0, below where
///                 A < 0, none where A is 0
///     ring        all four
///
/// The first part is its weight: none by min_ratio = max_ratio = 1, importance_sampling by 0 and
/// infinity, advantage by a finite `temp`. Clip metrics: a token that is dropped is outside, and
/// clipped from below if A < 0 and r < 1 - low, from above if A > 0 and r > 1 + high. A ratio on a
/// bound stays. Where r is NaN the weight is that of r = 1, and the surrogate of that token is NaN
/// because of its log-probs.
struct Ring {
  double low = math::infinity;   ///< The range begins at 1 - low. 0 to 1; infinity: no bound.
  double high = math::infinity;  ///< It ends at 1 + high. At least 0; infinity: no bound.
  /// Where A >= 0, ratios up to 1 - low_prime stay too. 0 to 1; infinity: none.
  double low_prime = math::infinity;
  /// Where A <= 0, ratios from 1 + high_prime on stay too. At least 0; infinity: none.
  double high_prime = math::infinity;
  double min_ratio = 1;  ///< Lower bound of the ratio in the weight, at least 0.
  double max_ratio = 1;  ///< Upper bound there, more than 0 and at least min_ratio.
  /// The weight has the factor e^(A / temp), which saturates at e^80 in a float batch and e^700 in
  /// double. At least 0.01, where it does so for advantages of 0.8 and 7; infinity: no factor.
  double temp = math::infinity;
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    const auto below = at_least(0).at_most(1).or_infinity();
    field("low", s.low, below, "tokens with a ratio from 1 - low on stay");
    field("high", s.high, at_least(0).or_infinity(), "those up to 1 + high stay");
    field("low_prime", s.low_prime, below, "where A >= 0, those up to 1 - low_prime stay too");
    field("high_prime", s.high_prime, at_least(0).or_infinity(),
          "where A <= 0, those from 1 + high_prime on stay too");
    field("min_ratio", s.min_ratio, at_least(0), "lower bound of the detached ratio");
    field("max_ratio", s.max_ratio, more_than(0).or_infinity(),
          "upper bound of the detached ratio");
    field("temp", s.temp, at_least(0.01).or_infinity(), "the weight has the factor e^(A / temp)");
  }
  /// Throws invalid_input unless min_ratio is at most max_ratio.
  void check_together(const char* function, const detail::FieldPath& path) const {
    detail::check_ratio_bounds(function, path, "min_ratio", min_ratio, "max_ratio", max_ratio);
  }
  /// The factor of a token.
  template <class V>
  GDPO_INLINE V operator()(const Token<V>& t) const {
    using math::constant, math::select;
    const V zero = constant<V>(0.0), one = constant<V>(1.0);
    const V r = select(math::is_nan(t.ratio), one, t.ratio);
    V weight = (math::max)(V((math::min)(r, constant<V>(max_ratio))), constant<V>(min_ratio));
    if (temp < math::infinity)
      weight = math::mul(weight, math::exp_or_zero(V(t.advantage / constant<V>(temp))));
    const Dropped<mask_t<V>> gone = dropped(t);
    return select(math::either(gone.below, gone.above), zero, weight);
  }
  /// Which clip metrics count a token.
  template <class V>
  GDPO_INLINE void clips(const Token<V>& t, Term<V>& term) const {
    const Dropped<mask_t<V>> gone = dropped(t);
    detail::flag_clip(term, t.advantage, gone.below, gone.above);
  }

 private:
  template <class Mask>
  struct Dropped {
    Mask below, above;
  };
  template <class V>
  GDPO_INLINE Dropped<mask_t<V>> dropped(const Token<V>& t) const {
    using math::both, math::constant, math::either;
    const V zero = constant<V>(0.0), one = constant<V>(1.0);
    // r - 1 against the settings: kernels have no registers left for four bounds of r. A small r is
    // lost in 1 - r, so that low_prime = 1, which leaves no r > 0 far below, is asked apart.
    const V fallen = one - t.ratio, risen = t.ratio - one;
    const mask_t<V> negative = t.advantage < zero;
    const mask_t<V> positive = t.advantage > zero;
    const mask_t<V> below = fallen > constant<V>(low);
    const mask_t<V> above = risen > constant<V>(high);
    const mask_t<V> none_far_below =
        both(mask_t<V>(constant<V>(low_prime) >= one), mask_t<V>(t.ratio > zero));
    const mask_t<V> not_far_below =
        either(mask_t<V>(fallen < constant<V>(low_prime)), none_far_below);
    const mask_t<V> not_far_above = risen < constant<V>(high_prime);
    return {both(below, either(negative, not_far_below)),
            both(above, either(positive, not_far_above))};
  }
};

/// The token's probability p as a weight, without its gradient: p (1 - decay p).
///
/// Times surrogate::Likelihood, with decay 0 it is -sg(p) log p, whose gradient is that of -p: a
/// token that the policy finds unlikely teaches little (DFT, arXiv 2508.05629; Trinity-RFT:
/// SFTISLossFn). With decay 1 it is -sg(p (1 - p)) log p, which holds back the likely ones too
/// (CHORD, arXiv 2508.11408; Trinity-RFT: SFTPhiLossFn).
///
/// Where p is so small that it is no normal number, the factor is 0. Where log p is NaN the factor
/// is 1, and the surrogate of that token is NaN. It counts no clips.
struct Probability {
  double decay = 0;  ///< 0 to 1: how far a certain token is held back.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("decay", s.decay, at_least(0).at_most(1), "the weight is p (1 - decay p)");
  }
  /// The factor of a token.
  template <class V>
  GDPO_INLINE V operator()(const Token<V>& t) const {
    using math::constant, math::fma, math::select;
    const V zero = constant<V>(0.0), least = constant<V>(-math::exp_limit<math::scalar_t<V>>);
    const auto e = math::exp_parts(t.logp);
    const V p = select(t.logp < least, zero, e.exp);
    // 1 - decay p, without the cancellation where p is near 1.
    const V rest = fma(constant<V>(-decay), e.expm1, constant<V>(1.0 - decay));
    return select(math::is_nan(t.logp), constant<V>(1.0), V(math::mul(p, rest)));
  }
};

}  // namespace factor

namespace detail {

template <class P>
constexpr bool is_factors_v = false;
template <class... F>
constexpr bool is_factors_v<Factors<F...>> = true;

template <class F, class V, class = void>
constexpr bool has_clips_v = false;
template <class F, class V>
constexpr bool has_clips_v<F, V,
                           std::void_t<decltype(std::declval<const F&>().clips(
                               std::declval<const Token<V>&>(), std::declval<Term<V>&>()))>> = true;
/// Lets the factors say which tokens they clip.
template <class V>
GDPO_INLINE void add_clips(const Factors<>&, const Token<V>&, Term<V>&) {}
template <class First, class... Rest, class V>
GDPO_INLINE void add_clips(const Factors<First, Rest...>& factors, const Token<V>& t,
                           Term<V>& term) {
  if constexpr (has_clips_v<First, V>) factors.first.clips(t, term);
  add_clips(factors.rest, t, term);
}

/// The product of all factors at a token; 1 if there are none.
template <class V>
GDPO_INLINE V product(const Factors<>&, const Token<V>&) {
  return math::constant<V>(1.0);
}
template <class First, class... Rest, class V>
GDPO_INLINE V product(const Factors<First, Rest...>& factors, const Token<V>& t) {
  const V first = factors.first(t);
  if constexpr (sizeof...(Rest) == 0) {
    return first;
  } else {
    return math::mul(first, product(factors.rest, t));
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
