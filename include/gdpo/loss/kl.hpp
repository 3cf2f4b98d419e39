#pragma once
#include <gdpo/core/declares.hpp>
#include <gdpo/loss/map.hpp>

namespace gdpo {
/// Which log-probs a KL term compares with.
enum class Against {
  Ref,      ///< the reference policy
  Old,      ///< the policy that the ratio is against
  Teacher,  ///< TokenBatch::teacher_logp
  Rollout   ///< TokenBatch::rollout_logp
};
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace kl {

/// What an estimator sees of one token.
template <class V>
struct EstimateArgs {
  V other_minus_logp;  ///< in nats, -d with d = logp - other, and within the bounds `input` of the term
};

/// An estimate of KL(policy || other) from one token of the policy, and its derivative by that token's logp, which is also the
/// one by d = logp - other. `value_plus_d_logp` is their sum without cancellation: the derivative of e^(logp - constant) value.
/// Schulman, "Approximating KL divergence" (2020). Contract of an estimator:
///   template <class V> Estimate<V> operator()(const EstimateArgs<V>&) const;
template <class V>
struct Estimate {
  V value, d_logp, value_plus_d_logp;
};

/// d. Unbiased; its own gradient carries no information (ScoreFunction and ImportanceWeighted give it one).
struct K1 {
  template <class V>
  GDPO_INLINE Estimate<V> operator()(const EstimateArgs<V>& a) const {
    const V one = math::constant<V>(1.0), x = a.other_minus_logp;
    return {-x, one, one - x};
  }
};

/// |d|; its derivative is sign(d), 0 at 0.
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

/// d^2 / 2; its derivative is d, the gradient of the reverse KL in expectation.
struct K2 {
  template <class V>
  GDPO_INLINE Estimate<V> operator()(const EstimateArgs<V>& a) const {
    const V x = a.other_minus_logp, value = math::mul(math::mul(x, x), math::constant<V>(0.5));
    return {value, -x, value - x};
  }
};

/// e^-d - 1 + d >= 0, from exp_parts: right to a few ulp however small d is. Its derivative is 1 - e^-d.
struct K3 {
  template <class V>
  GDPO_INLINE Estimate<V> operator()(const EstimateArgs<V>& a) const {
    using math::exp_parts;
    const auto e = exp_parts(a.other_minus_logp);
    return {e.k3, -e.expm1, -a.other_minus_logp};
  }
};

/// What a gradient rule sees: the estimate after both clamps (d_logp 0 outside of them), the distance d as it stands, and the
/// level's ratio.
template <class V>
struct GradientArgs {
  Estimate<V> estimate;
  mask_t<V> outside;  ///< the value is outside `output`: it is held at a bound
  V d, ratio;
  mask_t<V> bounded;  ///< a clamp holds, of either kind
};

// A gradient rule makes a Term of an estimate. Contract:
//   template <class V> Term<V> operator()(const GradientArgs<V>&) const;
// `own_ratio(args)`, where a rule has it: the same term at a level whose ratio is the token's own (level::Token without a
// map), with d_log_ratio already added to d_logp.

/// The derivative of the value.
struct Direct {
  template <class V>
  GDPO_INLINE Term<V> operator()(const GradientArgs<V>& a) const {
    return {a.estimate.value, math::constant<V>(0.0), a.estimate.d_logp};
  }
};

/// The gradient of K2, d, whatever the value and its clamps: verl's "k1+", "k3+", ...
struct StraightThroughK2 {
  template <class V>
  GDPO_INLINE Term<V> operator()(const GradientArgs<V>& a) const {
    return {a.estimate.value, math::constant<V>(0.0), a.d};
  }
};

/// The value times e^(logp - its detached self): its derivative is d_logp + value, 0 outside `output`. NeMo-RL.
struct ScoreFunction {
  template <class V>
  GDPO_INLINE Term<V> operator()(const GradientArgs<V>& a) const {
    const V zero = math::constant<V>(0.0);
    return {a.estimate.value, zero, math::select(a.outside, zero, a.estimate.value_plus_d_logp)};
  }
};

/// rho value, gradient rho (value + d_logp), which is rho d for K3. DeepSeek-V3.2's unbiased estimate; TRL
/// use_bias_correction_kl. rho is the level's ratio.
struct ImportanceWeighted {
  template <class V>
  GDPO_INLINE Term<V> operator()(const GradientArgs<V>& a) const {
    const V value = math::mul(a.ratio, a.estimate.value);
    return {value, value, math::mul(a.ratio, a.estimate.d_logp)};
  }
  template <class V>
  GDPO_INLINE Term<V> own_ratio(const GradientArgs<V>& a) const {
    return {math::mul(a.ratio, a.estimate.value), math::constant<V>(0.0),
            math::mul(a.ratio, a.estimate.value_plus_d_logp)};
  }
};

}  // namespace kl

namespace detail {
/// Policy P answers own_ratio(Args).
template <class P, class Args, class = void>
constexpr bool has_own_ratio_v = false;
template <class P, class Args>
constexpr bool has_own_ratio_v<
    P, Args,
    std::void_t<decltype(std::declval<const P&>().own_ratio(std::declval<const Args&>()))>> = true;
/// The term that P gives for these arguments: by its own_ratio where `folded`, else by its operator.
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

template <class V>
GDPO_INLINE V other_logp(Against against, const Token<V>& t) {
  if (against == Against::Ref)
    return t.ref_logp;  // no ?: of lvalues: lanes would leave their registers
  if (against == Against::Old) return t.old_logp;
  if (against == Against::Teacher) return t.teacher_logp;
  return t.rollout_logp;
}

}  // namespace detail

/// A KL term of the loss, beta times an estimate; the members:
///   beta     its coefficient, at least 0; 0: off, and the other policy's log-probs are neither needed nor read
///   against  which policy that is
///   input    bounds of x = other - logp, output: of the value; off by default. No gradient outside; verl and ms-swift: +-20
///            and +-10, which ends the gradient of K3 at other - logp = 2.6
/// Terms that clamp count their tokens in LossMetrics::kl_bounded.
template <class Estimator = kl::K3, class Gradient = kl::Direct>
struct Kl {
  static_assert(detail::is_estimator_v<Estimator>,
                "a KL estimator is kl::K1, kl::Abs, kl::K2, kl::K3, or needs: template <class V> "
                "gdpo::kl::Estimate<V> "
                "operator()(const gdpo::kl::EstimateArgs<V>&) const");
  static_assert(
      detail::is_gradient_rule_v<Gradient>,
      "a gradient rule is kl::Direct, kl::StraightThroughK2, kl::ScoreFunction, "
      "kl::ImportanceWeighted, or "
      "needs: template <class V> gdpo::Term<V> operator()(const gdpo::kl::GradientArgs<V>&) const");
  double beta = 0.04;
  Against against = Against::Ref;
  Bounds input{}, output{};

  /// Unscaled (without beta). `outside`: a clamp holds.
  template <class V>
  GDPO_INLINE Term<V> operator()(const Token<V>& t) const {
    return term<false>(t);
  }
  /// The same where the level's ratio is the token's own.
  template <class V>
  GDPO_INLINE Term<V> own_ratio(const Token<V>& t) const {
    return term<detail::has_own_ratio_v<Gradient, kl::GradientArgs<V>>>(t);
  }
  /// The value is infinite, NaN or huge where an input is infinite or NaN, as long as nothing clamps.
  static constexpr bool shows_infinite = !std::is_same_v<Gradient, kl::ImportanceWeighted>;
  /// Against the reference, without clamps; then as_plain() is the same term, with constants that a compiler sees.
  GDPO_INLINE bool is_plain() const {
    return against == Against::Ref && detail::is_off(input) && detail::is_off(output);
  }
  GDPO_INLINE Kl as_plain() const { return {beta, Against::Ref, {}, {}}; }
  void check(const char* function) const {
    if (!(beta >= 0) || math::is_inf(beta)) {
      contract::fail(function, "kl.beta", contract::text(beta),
                     "a finite number of at least 0 (0: off)");
    }
    detail::check_bounds(function, "kl.input", input);
    detail::check_bounds(function, "kl.output", output);
  }

 private:
  /// folded: by the gradient rule's own_ratio.
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
    const kl::GradientArgs<V> a{
        {e.value, e.d_logp, e.value_plus_d_logp}, output_held, d, t.ratio, bounded};
    Term<V> term = detail::term_by<folded, V>(Gradient{}, a);
    term.outside = bounded;
    return term;
  }
};

/// A user's KL policy: the members `beta` and `against`, and  template <class V> Term<V> operator()(const Token<V>&) const.
template <class P, class = void>
constexpr bool is_kl_v = false;
template <class P>
constexpr bool is_kl_v<
    P, std::void_t<decltype(std::declval<P&>().beta), decltype(std::declval<P&>().against)>> =
    detail::gives_term_v<P, float>&& detail::gives_term_v<P, double>;

namespace detail {
// What a KL term may declare: its value is infinite, NaN or huge where an input is infinite or NaN.
GDPO_DECLARED(shows_infinite);
}  // namespace detail

/// Several KL terms, each with its own beta; none: Kls<>. LossMetrics::kl is of the first that is on.
template <class... Terms>
struct Kls;
template <>
struct Kls<> {
  static constexpr bool shows_infinite = true;
};
template <class First, class... Rest>
struct Kls<First, Rest...> {
  static constexpr bool shows_infinite =
      detail::shows_infinite_v<First> && Kls<Rest...>::shows_infinite;
  static_assert(is_kl_v<First>,
                "a KL term needs: beta, against, template <class V> Term<V> operator()(const "
                "gdpo::Token<V>&) const");
  First first{};
  Kls<Rest...> rest{};
};

template <class... Terms>
constexpr bool is_kl_v<Kls<Terms...>, void> = true;

namespace kl {
using None = Kls<>;
}

namespace detail {

template <class Kl>
constexpr bool is_several_v = false;
template <class... Terms>
constexpr bool is_several_v<Kls<Terms...>> = true;

/// f of each term; Kl is one, or Kls.
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

}  // namespace detail

GDPO_END_NAMESPACE
