#pragma once
// KL terms: estimators of the divergence from another policy, and rules for their gradient.
#include <gdpo/core/declares.hpp>
#include <gdpo/loss/factor.hpp>
#include <gdpo/loss/map.hpp>
#include <gdpo/tokens/normalizer.hpp>

namespace gdpo {
/// The other policy of a KL term, with which it compares the policy being trained.
enum class Against {
  Ref,      ///< The reference policy, whose log-probs are `TokenBatch::ref_logp`.
  Old,      ///< The policy in the denominator of the ratio: `TokenBatch::old_logp`.
  Teacher,  ///< A teacher: `TokenBatch::teacher_logp`.
  Rollout,  ///< The policy as the sampling engine computed it: `TokenBatch::rollout_logp`.
  Data      ///< The data: the log-prob of each token is 0. With kl::ForwardK1 it is -logp.
};
/// The enumerators of Against with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Against) {
  using E = Enumerator<Against>;
  return std::array{E{"ref", Against::Ref}, E{"old", Against::Old}, E{"teacher", Against::Teacher},
                    E{"rollout", Against::Rollout}, E{"data", Against::Data}};
}
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

namespace detail {
/// What `max_weight` means, of both rules that have it.
inline constexpr const char* phrase_of_max_weight =
    "upper bound of the weight of importance_weighted_k2 and clipped_importance_weighted";
}  // namespace detail

/// Estimators of the KL divergence, and rules for its gradient.
///
/// The formulas below use d = logp - other at one token, in nats, where `other` is the token's
/// log-prob under the other policy. K1, K2 and K3 are the estimators of Schulman, "Approximating KL
/// Divergence" (2020). "Unbiased" and "mean" refer to tokens that the policy itself sampled. `grad
/// logp` is the gradient of a token's logp by the policy's parameters; its mean is 0. detach(x) is
/// x taken as a constant. A clamp *holds* at a token where it replaces a number beyond its bounds
/// by the bound.
///
/// An estimator has the first of these operators, a gradient rule the second:
///
///     template <class V> Estimate<V> operator()(const EstimateArgs<V>&) const;
///     template <class V> Term<V> operator()(const GradientArgs<V>&) const;
///
/// At level::Token without a map, the level's ratio is the token's own, so both derivatives of a
/// term go to the same logp and are added up. A gradient rule may give that sum itself, as the
/// `d_logp` of a member `own_ratio` with the same arguments and result: it can form the sum without
/// cancellation. A rule whose `d_log_ratio` is always 0 may declare `static constexpr bool
/// logp_only = true`, which saves the addition.
namespace kl {

/// What an estimator sees of one token.
template <class V>
struct EstimateArgs {
  V other_minus_logp;  ///< -d = other - logp in nats, clamped to `Kl::input`.
};

/// An estimate of KL(policy || other) from one token, with its derivative.
template <class V>
struct Estimate {
  V value;   ///< The estimate, in nats.
  V d_logp;  ///< Its derivative by the token's logp, which is also its derivative by d.
  /// value + d_logp, in a form of its own because the sum can cancel, as in K3. By the product rule
  /// it is the derivative of e^(logp - detach(logp)) times the value: that factor is 1, and so is
  /// its derivative.
  V value_plus_d_logp;
};

/// The estimate d, whose derivative is 1.
///
/// The value is unbiased. Its own gradient carries no information: it is grad logp whatever d is,
/// and the mean of grad logp is 0. The rules ScoreFunction and ImportanceWeighted give K1 a useful
/// gradient.
struct K1 {
  template <class V>
  GDPO_INLINE Estimate<V> operator()(const EstimateArgs<V>& a) const {
    const V one = math::constant<V>(1.0), x = a.other_minus_logp;
    return {-x, one, one - x};
  }
};

/// The estimate |d|, whose derivative is the sign of d, and 0 at d = 0.
struct Abs {
  template <class V>
  GDPO_INLINE Estimate<V> operator()(const EstimateArgs<V>& a) const {
    using math::constant, math::select;
    const V zero = constant<V>(0.0), one = constant<V>(1.0), x = a.other_minus_logp;
    const V value = select(x < zero, -x, x),
            d_logp = select(x < zero, one, select(x > zero, -one, zero));
    return {value, d_logp, value + d_logp};
  }
};

/// The estimate d^2 / 2, whose derivative is d.
///
/// The value is biased, but its gradient is not: the mean of d grad logp is the gradient of the
/// reverse KL, KL(policy || other).
struct K2 {
  template <class V>
  GDPO_INLINE Estimate<V> operator()(const EstimateArgs<V>& a) const {
    const V x = a.other_minus_logp, value = math::mul(math::mul(x, x), math::constant<V>(0.5));
    return {value, -x, value - x};
  }
};

/// The estimate e^-d - 1 + d, which is never negative and whose derivative is 1 - e^-d.
///
/// The value is unbiased. Value and derivative come from math::exp_parts, so they are accurate to 6
/// and 2 ulp however small d is. value + d_logp is d exactly.
struct K3 {
  template <class V>
  GDPO_INLINE Estimate<V> operator()(const EstimateArgs<V>& a) const {
    using math::exp_parts;
    const auto e = exp_parts(a.other_minus_logp);
    return {e.k3, -e.expm1, -a.other_minus_logp};
  }
};

/// The estimate -d = other - logp of the forward KL, KL(other || policy); its derivative is -1.
///
/// The value is unbiased on tokens that the other policy sampled, and K1 with the sign changed on
/// the policy's own. Its gradient is that of the likelihood: it makes the tokens more probable,
/// each as much as the next, so a factor says which (factor::TeacherGate; ms-swift's SDAR).
/// Against::Data makes it the negative log-likelihood -logp, a cross entropy next to a surrogate
/// (Trinity-RFT: the regularizer forward-kl of RECPolicyLossFn).
struct ForwardK1 {
  template <class V>
  GDPO_INLINE Estimate<V> operator()(const EstimateArgs<V>& a) const {
    const V one = math::constant<V>(1.0), x = a.other_minus_logp;
    return {x, -one, x - one};
  }
};

/// What a gradient rule sees of one token.
template <class V>
struct GradientArgs {
  Estimate<V> estimate;  ///< The estimate after both clamps; where one holds, d_logp is 0.
  mask_t<V> outside;     ///< Whether the clamp `Kl::output` holds.
  V d;                   ///< logp - other in nats, not clamped.
  V ratio;               ///< The level's ratio.
  mask_t<V> bounded;     ///< Whether one of the clamps, `Kl::input` or `Kl::output`, holds.
  V token_log_ratio;     ///< logp - old_logp of the token itself, in nats; 0 without old_logp.
};

/// Gradient rule: d_logp, the derivative of the value. It is 0 where a clamp holds.
///
/// Autograd gives the same for the estimator as written (GRPO; TRL). For K3, the mean of
/// (1 - e^-d) grad logp is the gradient of the forward KL, KL(other || policy), because the factor
/// e^-d turns a mean over the policy into one over the other policy.
struct Direct {
  static constexpr bool logp_only = true;  ///< d_log_ratio is always 0.
  /// The estimate with d_logp.
  template <class V>
  GDPO_INLINE Term<V> operator()(const GradientArgs<V>& a) const {
    return {a.estimate.value, math::constant<V>(0.0), a.estimate.d_logp};
  }
};

/// Gradient rule: d, the derivative of K2, whichever estimator gives the value.
///
/// verl calls it "k1+", "k3+" and so on, after the estimator. Neither the value nor the clamps
/// enter the gradient. The mean of d grad logp is the gradient of the reverse KL.
struct StraightThroughK2 {
  static constexpr bool logp_only = true;  ///< d_log_ratio is always 0.
  /// The estimate with d for its derivative.
  template <class V>
  GDPO_INLINE Term<V> operator()(const GradientArgs<V>& a) const {
    return {a.estimate.value, math::constant<V>(0.0), a.d};
  }
};

/// Gradient rule: value + d_logp, the derivative of value times e^(logp - detach(logp)).
///
/// NeMo-RL has this rule. The factor is 1, and its derivative adds the value: a token that becomes
/// more probable brings its value in more often. So the mean of this gradient is the gradient of
/// the mean value, which for K1 and K3 is the gradient of the reverse KL. For K3 the sum is d.
///
/// The derivative is 0 where the clamp `Kl::output` holds. Where only `Kl::input` holds, d_logp is
/// 0 and the value remains.
struct ScoreFunction {
  static constexpr bool logp_only = true;  ///< d_log_ratio is always 0.
  /// The estimate with value + d_logp for its derivative.
  template <class V>
  GDPO_INLINE Term<V> operator()(const GradientArgs<V>& a) const {
    const V zero = math::constant<V>(0.0);
    return {a.estimate.value, zero, math::select(a.outside, zero, a.estimate.value_plus_d_logp)};
  }
};

/// Gradient rule that weights the value too: with the level's ratio rho, the value is rho value and
/// the gradient rho (value + d_logp).
///
/// It is the unbiased estimate of DeepSeek-V3.2, in TRL use_bias_correction_kl. The old policy
/// sampled the tokens, and rho corrects for that. The gradient goes through rho as well, so there
/// are two derivatives. The one by log rho is rho value, because d rho / d log rho = rho; the level
/// spreads it over the tokens that share the ratio. The one by logp, with rho held fixed, is rho
/// d_logp. At level::Token both go to the same token and add up to rho (value + d_logp), which is
/// rho d for K3.
///
/// Where a clamp holds, d_logp is 0 and only the derivative by log rho remains.
struct ImportanceWeighted {
  /// The term with its two derivatives kept apart.
  template <class V>
  GDPO_INLINE Term<V> operator()(const GradientArgs<V>& a) const {
    const V value = math::mul(a.ratio, a.estimate.value);
    return {value, value, math::mul(a.ratio, a.estimate.d_logp)};
  }
  /// The term with both derivatives in d_logp.
  template <class V>
  GDPO_INLINE Term<V> own_ratio(const GradientArgs<V>& a) const {
    return {math::mul(a.ratio, a.estimate.value), math::constant<V>(0.0),
            math::mul(a.ratio, a.estimate.value_plus_d_logp)};
  }
};

/// Gradient rule: ImportanceWeighted with the ratio at most `max_weight`. With w = min(rho,
/// max_weight) the value is w value and the gradient that of the product, in which a ratio beyond
/// the bound has no gradient: w (value + d_logp), or w d_logp there.
///
/// Trinity-RFT has this rule (CorrectedK3Fn), with 2. Where rho is NaN, so are value and gradient.
struct ClippedImportanceWeighted {
  double max_weight = 10;  ///< Upper bound of the ratio, more than 0; infinity: off.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("max_weight", s.max_weight, more_than(0).or_infinity(), detail::phrase_of_max_weight);
  }
  /// The term with its two derivatives kept apart.
  template <class V>
  GDPO_INLINE Term<V> operator()(const GradientArgs<V>& a) const {
    const V zero = math::constant<V>(0.0), most = math::constant<V>(max_weight);
    const auto held = a.ratio > most;
    const V w = math::select(held, most, a.ratio), value = math::mul(w, a.estimate.value);
    return {value, math::select(held, zero, value), math::mul(w, a.estimate.d_logp)};
  }
  /// The term with both derivatives in d_logp.
  template <class V>
  GDPO_INLINE Term<V> own_ratio(const GradientArgs<V>& a) const {
    const V most = math::constant<V>(max_weight);
    const auto held = a.ratio > most;
    const V w = math::select(held, most, a.ratio),
            slope = math::select(held, a.estimate.d_logp, a.estimate.value_plus_d_logp);
    return {math::mul(w, a.estimate.value), math::constant<V>(0.0), math::mul(w, slope)};
  }
};

/// Gradient rule: w d, the derivative of K2 times the detached weight w = min(r, max_weight), where
/// r = e^(logp - old_logp) is the token's own ratio. The value is the estimate as it is.
///
/// OpenRLHF has this rule (compute_approx_kl with unbiased_gradient; its is_weight_clip is 10). The
/// old policy sampled the tokens, and w corrects for that, as far as the bound lets it: with
/// infinity the mean of w d grad logp over tokens of the old policy is the gradient of the reverse
/// KL. Neither the value, nor the clamps, nor the level or its map enter the gradient. Without
/// old_logp w is 1, and the rule is StraightThroughK2. Where r is NaN, so is the gradient.
struct ImportanceWeightedK2 {
  double max_weight = 10;  ///< Upper bound of the weight, more than 0; infinity: off.
  static constexpr bool logp_only = true;  ///< d_log_ratio is always 0.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("max_weight", s.max_weight, more_than(0).or_infinity(), detail::phrase_of_max_weight);
  }
  /// The estimate with w d for its derivative.
  template <class V>
  GDPO_INLINE Term<V> operator()(const GradientArgs<V>& a) const {
    using math::exp_parts;
    const V r = exp_parts(a.token_log_ratio).exp, most = math::constant<V>(max_weight);
    const V w = math::select(r > most, most, r);
    return {a.estimate.value, math::constant<V>(0.0), math::mul(w, a.d)};
  }
};

/// In the place of a KL term's own aggregate: the term is divided as the rest of the loss.
struct SameAggregate {};

}  // namespace kl

namespace detail {
// A gradient rule may declare logp_only: its d_log_ratio is always 0.
GDPO_DECLARED(logp_only);
/// Whether P has a member own_ratio that takes Args.
template <class P, class Args, class = void>
constexpr bool has_own_ratio_v = false;
template <class P, class Args>
constexpr bool has_own_ratio_v<
    P, Args,
    std::void_t<decltype(std::declval<const P&>().own_ratio(std::declval<const Args&>()))>> = true;
/// The term that P gives for these arguments. If `folded`, P.own_ratio gives it, with both
/// derivatives added up in d_logp; otherwise P's operator() does.
template <bool folded, class V, class P, class Args>
GDPO_INLINE Term<V> term_by(const P& p, const Args& args) {
  if constexpr (folded) {
    return p.own_ratio(args);
  } else {
    return p(args);
  }
}
template <class P>
constexpr bool is_estimator_v =
    std::is_invocable_r_v<kl::Estimate<double>, const P&, const kl::EstimateArgs<double>&>;
template <class P>
constexpr bool is_gradient_rule_v =
    std::is_invocable_r_v<Term<double>, const P&, const kl::GradientArgs<double>&>;

/// The token's log-prob under the other policy of a term. The choice is written with ifs, because
/// ?: on members gives an lvalue, for which the compiler would move vector registers to memory.
template <class V>
GDPO_INLINE V other_logp(Against against, const Token<V>& t) {
  if (against == Against::Ref) return t.ref_logp;
  if (against == Against::Old) return t.old_logp;
  if (against == Against::Teacher) return t.teacher_logp;
  if (against == Against::Data) return math::constant<V>(0.0);
  return t.rollout_logp;
}

}  // namespace detail

/// A KL term of the loss: beta times an estimate of the divergence, with a rule for its gradient.
///
/// For each valid token the loss adds W_i w' beta value, where W_i is the weight of the row
/// (tokens/aggregate.hpp) and w' the token's number in `TokenBatch::kl_weights`, or 1 without that
/// array. `LossMetrics::kl_bounded` counts the tokens where a clamp holds.
///
/// `Estimator` is kl::K1, kl::Abs, kl::K2, kl::K3, kl::ForwardK1 or a type with the same contract;
/// `Gradient` is kl::Direct, kl::StraightThroughK2, kl::ScoreFunction, kl::ImportanceWeighted,
/// kl::ClippedImportanceWeighted, kl::ImportanceWeightedK2 or a type with the same contract.
///
/// **Factors of the term.** `Factor` is a list of detached factors (loss/factor.hpp). Their product
/// multiplies w' of this term: value and gradient, but not `LossMetrics::kl`, which measures the
/// estimate. Where the product is 0 or not finite the term is dropped at that token, and one that
/// is not finite is counted in `NonFiniteInputs::weights`.
///
///     Kl<kl::ForwardK1, kl::Direct, Factors<factor::TeacherGate>>{1, Against::Teacher}  // SDAR
///
/// **An aggregate of the term.** With a type of aggregate for `Aggregate`, the term is divided by
/// its own: W'_i, which this aggregate and `TokenBatch::row_weights` give, stands for W_i. This is
/// for trainers that average the surrogate in one way and the KL in another. `with_aggregate` makes
/// such a term of one without. Every row then has the KL term times W'_i / W_i, in double; where
/// W_i is 0 and W'_i is not, the surrogate alone adds nothing. A loss call checks the count that
/// each aggregate divides by. Types without one have no code for it.
template <class Estimator = kl::K3, class Gradient = kl::Direct, class Factor = Factors<>,
          class Aggregate = kl::SameAggregate>
struct Kl {
  static_assert(detail::is_estimator_v<Estimator>,
                "a KL estimator is kl::K1, kl::Abs, kl::K2, kl::K3, kl::ForwardK1, or needs: "
                "template <class V> gdpo::kl::Estimate<V> "
                "operator()(const gdpo::kl::EstimateArgs<V>&) const");
  static_assert(
      detail::is_gradient_rule_v<Gradient>,
      "a gradient rule is kl::Direct, kl::StraightThroughK2, kl::ScoreFunction, "
      "kl::ImportanceWeighted, kl::ClippedImportanceWeighted, kl::ImportanceWeightedK2, or "
      "needs: template <class V> gdpo::Term<V> operator()(const gdpo::kl::GradientArgs<V>&) const");
  static_assert(detail::is_factors_v<Factor>,
                "factors stand in a list: gdpo::Factors<...>; none: gdpo::Factors<>");
  static_assert(is_aggregate_v<Aggregate> || std::is_same_v<Aggregate, kl::SameAggregate>,
                "an Aggregate needs: double operator()(const gdpo::AggregateArgs&) const; that of "
                "the loss: gdpo::kl::SameAggregate");
  /// Coefficient, at least 0. With 0 the term is off, and the log-probs of the other policy are
  /// neither needed nor read.
  double beta = 0.04;
  Against against = Against::Ref;  ///< The other policy.
  /// Bounds of x = other - logp, in nats. x is clamped to them before it is estimated from. They
  /// are off by default. verl and ms-swift clamp x to +-20 and the value to +-10. K3 reaches a
  /// value of 10 at x = 2.6 and at x = -11, so it has no gradient beyond these.
  Bounds input{};
  Bounds output{};        ///< Bounds of the value, in nats. They are off by default.
  Gradient gradient{};    ///< The rule for the gradient, with its settings.
  Factor factor{};        ///< Detached factors of this term.
  Aggregate aggregate{};  ///< What the term is divided by, if not as the rest of the loss.

  /// The term at one token, without beta. `Term::outside` says whether a clamp holds.
  template <class V>
  GDPO_INLINE Term<V> operator()(const Token<V>& t) const {
    return term<false>(t);
  }
  /// The same for level::Token without a map, where both derivatives go to the same logp: d_logp is
  /// their sum, and d_log_ratio is not to be read.
  template <class V>
  GDPO_INLINE Term<V> own_ratio(const Token<V>& t) const {
    constexpr bool folded = detail::has_own_ratio_v<Gradient, kl::GradientArgs<V>>;
    Term<V> sum = term<folded>(t);
    if constexpr (!folded && !detail::logp_only_v<Gradient>)
      sum.d_logp = sum.d_logp + sum.d_log_ratio;
    return sum;
  }
  /// Whether the value of the term shows that an input was infinite or NaN. Without clamps the
  /// value is then infinite, NaN or huge, so the loss notices it in the sum of the values and need
  /// not look at the input itself. With a ratio in the value it must look, because a tiny one can
  /// make a huge value ordinary again.
  static constexpr bool shows_infinite = !std::is_same_v<Gradient, kl::ImportanceWeighted> &&
                                         !std::is_same_v<Gradient, kl::ClippedImportanceWeighted>;
  /// Whether the term has factors of its own.
  static constexpr bool has_own_factors = !std::is_same_v<Factor, Factors<>>;
  /// The same, where it is known at run time only.
  GDPO_INLINE static constexpr bool is_weighed() { return has_own_factors; }
  /// Whether one of these reads the mean advantage of the row.
  static constexpr bool reads_row_advantage = detail::reads_row_advantage_v<Factor>;
  /// Calls f with the list of factors.
  GDPO_CALLS_ANY
  template <class F>
  GDPO_INLINE decltype(auto) with_factors(const F& f) const {
    return f(factor);
  }
  /// Whether the term is against the reference policy and has no clamps.
  GDPO_INLINE bool is_plain() const {
    return against == Against::Ref && detail::is_off(input) && detail::is_off(output);
  }
  /// The same term, if is_plain(), with constants in place of these settings. The compiler then
  /// drops the clamps and the choice of the policy from the loop over tokens.
  GDPO_INLINE Kl as_plain() const {
    return {beta, Against::Ref, {}, {}, gradient, factor, aggregate};
  }
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("beta", s.beta, at_least(0).with_note("0: off"), "coefficient of the KL term");
    field("against", s.against, "the other policy");
    field("input", s.input, "bounds of other - logp, in nats");
    field("output", s.output, "bounds of the value, in nats");
    field("", s.gradient, "the rule for the gradient");
    field("", s.factor, "detached factors of the term");
    field("aggregate", s.aggregate, "what the term is divided by");
  }

 private:
  /// Computes the term. If `folded`, own_ratio of the gradient rule gives the derivatives.
  template <bool folded, class V>
  GDPO_INLINE Term<V> term(const Token<V>& t) const {
    const V other = detail::other_logp(against, t), d = t.logp - other;
    V minus_d = other - t.logp;
    mask_t<V> input_held{}, output_held{}, bounded{};
    if (!detail::is_off(input)) {
      const auto x = detail::bound(input, minus_d);
      minus_d = x.value, input_held = x.outside;
    }
    kl::Estimate<V> e = Estimator{}(kl::EstimateArgs<V>{minus_d});
    if (!detail::is_off(input) || !detail::is_off(output)) {
      const V zero = math::constant<V>(0.0);
      const auto value = detail::bound(output, e.value);
      output_held = value.outside;
      bounded = math::either(input_held, output_held);
      e.d_logp = math::select(bounded, zero, e.d_logp);
      e.value_plus_d_logp = math::select(bounded, value.value, e.value_plus_d_logp);
      e.value = value.value;
    }
    const kl::GradientArgs<V> a{{e.value, e.d_logp, e.value_plus_d_logp},
                                output_held,
                                d,
                                t.ratio,
                                bounded,
                                t.token_log_ratio};
    Term<V> term = detail::term_by<folded, V>(gradient, a);
    term.outside = bounded;
    return term;
  }
};

/// Whether P is a KL term.
///
/// A KL term of your own has a member `beta`, a member `against`, which names the policy whose
/// log-probs it reads, and
///
///     template <class V> Term<V> operator()(const Token<V>&) const;  // without beta
///
/// It may have a member `aggregate` of its own, as Kl does. Factors of its own need the three
/// members of Kl that tell of them: has_own_factors, is_weighed() and with_factors(f).
template <class P, class = void>
constexpr bool is_kl_v = false;
template <class P>
constexpr bool is_kl_v<
    P, std::void_t<decltype(std::declval<P&>().beta), decltype(std::declval<P&>().against)>> =
    detail::gives_term_v<P, float>&& detail::gives_term_v<P, double>;

namespace detail {
// A KL term may declare shows_infinite and has_own_factors; they mean what they mean in Kl.
GDPO_DECLARED(shows_infinite);
GDPO_DECLARED(has_own_factors);
/// Whether a KL term has an aggregate of its own.
template <class Kl, class = void>
constexpr bool has_aggregate_v = false;
template <class Kl>
constexpr bool has_aggregate_v<Kl, std::void_t<decltype(std::declval<const Kl&>().aggregate)>> =
    is_aggregate_v<std::decay_t<decltype(std::declval<const Kl&>().aggregate)>>;
}  // namespace detail

/// The same KL term with an aggregate of its own: `with_aggregate(gdpo::Kl<>{0.04},
/// gdpo::aggregate::token_mean())`. It replaces the one that the term has.
template <class Estimator, class Gradient, class Factor, class Known, class Aggregate>
constexpr Kl<Estimator, Gradient, Factor, Aggregate> with_aggregate(
    const Kl<Estimator, Gradient, Factor, Known>& kl, const Aggregate& aggregate) {
  return {kl.beta, kl.against, kl.input, kl.output, kl.gradient, kl.factor, aggregate};
}

/// A list of KL terms, each with its own beta, whose values and gradients add up. `Kls<>` has none.
///
/// The terms are `first`, `rest.first`, `rest.rest.first` and so on. `LossMetrics::kl` and
/// `kl_bounded` measure the first term whose beta is not 0.
template <class... Terms>
struct Kls;
/// No KL term.
template <>
struct Kls<> {
  /// It is true, because there is no term that reads an input.
  static constexpr bool shows_infinite = true;
  static constexpr bool has_own_factors = false;      ///< No term has factors.
  static constexpr bool reads_row_advantage = false;  ///< So none reads it.
};
/// At least one KL term.
template <class First, class... Rest>
struct Kls<First, Rest...> {
  /// True if each of the terms declares it.
  static constexpr bool shows_infinite =
      detail::shows_infinite_v<First> && Kls<Rest...>::shows_infinite;
  /// True if one of the terms declares it.
  static constexpr bool has_own_factors =
      detail::has_own_factors_v<First> || Kls<Rest...>::has_own_factors;
  /// True if a factor of one of the terms declares it.
  static constexpr bool reads_row_advantage =
      detail::reads_row_advantage_v<First> || Kls<Rest...>::reads_row_advantage;
  static_assert(is_kl_v<First>,
                "a KL term needs: beta, against, template <class V> Term<V> operator()(const "
                "gdpo::Token<V>&) const");
  First first{};        ///< The first term.
  Kls<Rest...> rest{};  ///< The others.
};

/// A list of KL terms stands wherever one term does.
template <class... Terms>
constexpr bool is_kl_v<Kls<Terms...>, void> = true;

namespace kl {
/// No KL term.
using None = Kls<>;
}  // namespace kl

namespace detail {

template <class Kl>
constexpr bool is_several_v = false;
template <class... Terms>
constexpr bool is_several_v<Kls<Terms...>> = true;

/// Calls f with each term of `kl`, which is one term or a list of them.
GDPO_CALLS_ANY
template <class Kl, class F>
GDPO_INLINE constexpr void for_each_kl(Kl& kl, const F& f) {
  using Plain = std::remove_const_t<Kl>;
  if constexpr (!is_several_v<Plain>) {
    f(kl);
  } else if constexpr (!std::is_same_v<Plain, Kls<>>) {
    for_each_kl(kl.first, f);
    for_each_kl(kl.rest, f);
  }
}

/// How many terms `Kl` is, which is one term or a list of them.
template <class Kl>
constexpr int number_of_kls = 1;
template <class... Terms>
constexpr int number_of_kls<Kls<Terms...>> = static_cast<int>(sizeof...(Terms));
/// Whether one of them has an aggregate of its own.
template <class Kl>
constexpr bool own_aggregates_v = has_aggregate_v<Kl>;
template <class... Terms>
constexpr bool own_aggregates_v<Kls<Terms...>> = (has_aggregate_v<Terms> || ...);
/// Calls f with the aggregate of each term that is on and has its own.
template <class Kl, class F>
GDPO_HOST_INLINE void for_each_own_aggregate(const Kl& kl, const F& f) {
  if constexpr (own_aggregates_v<Kl>) {
    for_each_kl(kl, [&f](const auto& term) {
      if constexpr (has_aggregate_v<std::decay_t<decltype(term)>>) {
        if (term.beta != 0) f(term.aggregate);
      }
    });
  } else {
    (void)kl, (void)f;
  }
}

/// Whether one of the terms that are on has factors of its own.
template <class Kl>
GDPO_INLINE bool any_weighed(const Kl& kl) {
  bool any = false;
  if constexpr (has_own_factors_v<Kl>) {
    for_each_kl(kl, [&any](const auto& term) {
      if constexpr (has_own_factors_v<std::decay_t<decltype(term)>>)
        any = any || (term.beta != 0 && term.is_weighed());
    });
  } else {
    (void)kl;
  }
  return any;
}
/// The product of a term's own factors at a token.
template <class Kl, class V>
GDPO_INLINE V own_factor(const Kl& kl, const Token<V>& t) {
  return kl.with_factors([&t](const auto& factors)
                             GDPO_INLINE_LAMBDA { return product(factors, t); });
}

}  // namespace detail

GDPO_END_NAMESPACE
