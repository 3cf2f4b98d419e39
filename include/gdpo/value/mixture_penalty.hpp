#pragma once
// penalty::Mixture: a Jensen-Shannon divergence from a teacher, as a penalty at each token.
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/lanes/lanes.hpp>
#include <gdpo/math/log1p.hpp>
#include <gdpo/value/token_advantage.hpp>

GDPO_BEGIN_NAMESPACE
namespace penalty {

/// The Jensen-Shannon divergence of policy and teacher, estimated at the sampled token alone.
///
///     x = (teacher - logp) / temperature
///     m = log((1 - lambda) + lambda e^x)              the mixture, less logp / temperature
///     value = lambda (x - m) + (1 - lambda) (0 - m)   for 0 < lambda < 1
///     value = -x for lambda 0, x for lambda 1: the log ratios of the two divergences between them
///
/// The other policy of the token, ReturnBatch::ref_logp, is the teacher. For 0 < lambda < 1 the
/// value is never above 0, because the logarithm is concave, and 0 where both log-probs agree:
/// unlike the divergence of whole distributions it has no sign that tells the teacher's tokens from
/// the others. As a penalty with coef > 0 it rewards every token on which the two differ. lambda 0
/// is distillation_advantage.
///
/// The value is off by a few units of 2^-53 |x|. It is -infinity where one of the two log-probs is
/// infinite (a token that the teacher excludes), and NaN where both are.
///
/// It is a KL term for penalty::Token. It has no gradient: token advantages are constants.
/// Trinity-RFT JSDAdvantage (lambda_coef, temperature).
struct Mixture {
  double lambda = 0.5;             ///< Share of the teacher in the mixture, 0 to 1.
  double temperature = 1;          ///< Log-probs are divided by it, more than 0.
  Against against = Against::Ref;  ///< Not read: a penalty takes the log-probs that it is given.

  /// The value at a token. V: double or lanes of it.
  template <class V>
  GDPO_INLINE Term<V> operator()(const gdpo::Token<V>& t) const {
    const V zero = math::constant<V>(0.0);
    const V x = (t.ref_logp - t.logp) / math::constant<V>(temperature);
    return {value_of(x), zero, zero};
  }
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("lambda", s.lambda, at_least(0).at_most(1), "share of the teacher in the mixture");
    field("temperature", s.temperature, more_than(0), "log-probs are divided by it");
    field("against", s.against, "not read: a penalty takes the log-probs that it is given");
  }

 private:
  GDPO_INLINE double value_of(double x) const {
    if (lambda <= 0) return -x;
    if (lambda >= 1) return x;
    // With y = |x| and the share a of the policy that holds the token for less probable:
    //   value = -(a y + log(1 - a + a e^-y))
    const double share = x > 0 ? 1 - lambda : lambda, y = math::abs(x);
    const double rest = math::mul(share, math::exp_parts(-y).expm1);
    return (math::min)(-(math::mul(share, y) + math::log1p(rest)), 0.0);  // rounding: not above 0
  }
  template <class V>
  GDPO_INLINE V value_of(const V& x) const {
    constexpr int n = math::Lanes<V>::width;
    double lane[n];
    math::Lanes<V>::store(lane, x);
    for (int j = 0; j < n; ++j) lane[j] = value_of(lane[j]);
    return math::Lanes<V>::load(lane);
  }
};

}  // namespace penalty

/// The advantage of a token from the log of a mixture of its sampler and a teacher.
///
///     A_t = rewards_t - coef value_t      value of penalty::Mixture; coef is penalty.coef, here 1
///
/// Bind the teacher's log-probs as ReturnBatch::ref_logp and the sampler's as ReturnBatch::logp.
inline constexpr TokenAdvantage<returns::RewardToGo, penalty::Mixture> mixture_advantage{{0},
                                                                                         {1, {}}};

GDPO_END_NAMESPACE
