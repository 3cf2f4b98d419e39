#pragma once
// Estimator: how far two policies are apart at one token.
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/math/log1p.hpp>
#include <gdpo/prepass/pair.hpp>

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// What is computed from the log-probs a and b of a token, where x = a - b as Pair says.
///
/// With p = e^a, q = e^b. Ratio takes the statistic of x and then the exponential; the others
/// compute their estimate at each token and take the statistic of that. K1, K2 and K3 estimate
/// KL(b || a) from tokens that b sampled. The last five look at the sampled token against all
/// others: a token that both policies find unlikely has a small one, however large its ratio is.
/// They read the log-probs as they are; `clamp` bounds x alone.
enum class Estimator {
  Ratio,                 ///< e^statistic(x)
  K1,                    ///< -x
  K2,                    ///< x^2 / 2
  K3,                    ///< e^x - 1 - x
  ReverseK3,             ///< e^-x - 1 + x: k3 of the pair the other way round.
  RatioDeviation,        ///< |e^x - 1|; its mean under b is twice the total variation.
  ProbabilityGain,       ///< p - q: above 0 where the token has become more likely.
  BinaryTotalVariation,  ///< |p - q|: total variation of {token, any other}.
  BinaryKl,              ///< KL(b || a) of {token, any other}: q log(q/p) + (1-q) log((1-q)/(1-p)).
  ReverseBinaryKl,       ///< KL(a || b) of {token, any other}.
  SignedBinaryKl         ///< BinaryKl with the sign of x.
};
/// The enumerators of Estimator with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Estimator) {
  using E = Enumerator<Estimator>;
  return std::array{E{"ratio", Estimator::Ratio},
                    E{"k1", Estimator::K1},
                    E{"k2", Estimator::K2},
                    E{"k3", Estimator::K3},
                    E{"reverse_k3", Estimator::ReverseK3},
                    E{"ratio_deviation", Estimator::RatioDeviation},
                    E{"probability_gain", Estimator::ProbabilityGain},
                    E{"binary_total_variation", Estimator::BinaryTotalVariation},
                    E{"binary_kl", Estimator::BinaryKl},
                    E{"reverse_binary_kl", Estimator::ReverseBinaryKl},
                    E{"signed_binary_kl", Estimator::SignedBinaryKl}};
}

}  // namespace prepass

namespace detail {

/// e^x: 0 below -700 and infinite above 700, so that no library decides its bits.
GDPO_INLINE double ratio_of(double x) {
  return x > math::exp_limit<double>    ? math::infinity
         : x < -math::exp_limit<double> ? 0.0
                                        : math::exp_bounded(x);
}

/// log(a / b) of numbers above 0, with the same bits everywhere; infinite where b is 0.
GDPO_INLINE double log_of_quotient(double a, double b) {
  if (math::is_zero(b)) return math::infinity;
  return a < b ? -math::log1p((b - a) / a) : math::log1p((a - b) / b);
}

/// KL(b || a) of the two outcomes "this token" and "any other", from the log-probs of the token
/// under a and b, in nats; those above 0 count as 0. Where q is 1 the second part is 0, and where
/// only p is 1 it is infinite. `eps` is added to both probabilities of the others in the logarithm.
GDPO_INLINE double binary_kl(double a, double b, double eps) {
  a = (math::min)(a, 0.0), b = (math::min)(b, 0.0);
  const double p_other = -math::exp_parts(a).expm1, q_other = -math::exp_parts(b).expm1;
  const double q = ratio_of(b);
  const double first = math::is_zero(q) ? 0.0 : math::mul(q, b - a);
  const double second = math::is_zero(q_other)
                            ? 0.0
                            : math::mul(q_other, log_of_quotient(q_other + eps, p_other + eps));
  return first + second;
}

/// The estimate of one token, whose x has been clamped; of Ratio it is x itself.
GDPO_INLINE double estimate(prepass::Estimator estimator, const Difference& d, double x,
                            double eps) {
  using prepass::Estimator;
  switch (estimator) {
    case Estimator::Ratio:
      return x;
    case Estimator::K1:
      return -x;
    case Estimator::K2:
      return math::mul(math::mul(x, x), 0.5);
    case Estimator::K3:
      return math::exp_parts(x).k3;
    case Estimator::ReverseK3:
      return math::exp_parts(-x).k3;
    case Estimator::RatioDeviation:
      return math::abs(math::exp_parts(x).expm1);
    case Estimator::ProbabilityGain:
      return ratio_of(d.left) - ratio_of(d.right);
    case Estimator::BinaryTotalVariation:
      return math::abs(ratio_of(d.left) - ratio_of(d.right));
    case Estimator::BinaryKl:
      return binary_kl(d.left, d.right, eps);
    case Estimator::ReverseBinaryKl:
      return binary_kl(d.right, d.left, eps);
    case Estimator::SignedBinaryKl: {
      const double kl = binary_kl(d.left, d.right, eps);
      return x < 0 ? -kl : kl;
    }
  }
  return x;
}

}  // namespace detail
GDPO_END_NAMESPACE
