#pragma once
// Estimator: how far two policies are apart at one token.
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/lanes/log_lanes.hpp>
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

// NaN passes through minima, maxima and comparisons of lanes as it should unless the compiler
// assumes that there is none: then what follows looks for it by its bits.

/// x clamped to the bounds; NaN stays NaN.
template <class V>
GDPO_INLINE V bound_or_nan(const Bounds& bounds, const V& x) {
  const V inside = bound(bounds, x).value;
  if constexpr (GDPO_FINITE_MATH) {
    return math::select(math::is_nan(x), x, inside);
  } else {
    return inside;
  }
}
/// x, and 0 for NaN and infinities.
template <class V>
GDPO_INLINE V finite_or_zero(const V& x) {
  const V zero = math::constant<V>(0.0);
  if constexpr (GDPO_FINITE_MATH) {
    return math::select(math::not_finite(x), zero, x);
  } else {
    const V infinite = math::constant<V>(math::infinity);
    return math::select(math::both(x > V(-infinite), x < infinite), x, zero);
  }
}
/// 1 where lo <= x <= hi, else 0, also for NaN.
template <class V>
GDPO_INLINE V is_between(const V& x, double lo, double hi) {
  const V zero = math::constant<V>(0.0), one = math::constant<V>(1.0),
          least = math::constant<V>(lo), most = math::constant<V>(hi);
  if constexpr (GDPO_FINITE_MATH) {
    return math::select(math::either(math::either(x<least, x> most), math::is_nan(x)), zero, one);
  } else {
    return math::select(math::both(x >= least, x <= most), one, zero);
  }
}

/// e^x: 0 below -700 and infinite above 700, so that no library decides its bits. NaN stays NaN.
template <class V>
GDPO_INLINE V ratio_of(const V& x) {
  const V limit = math::constant<V>(math::exp_limit<double>),
          minus_limit = math::constant<V>(-math::exp_limit<double>);
  const V ratio = math::exp_bounded(V((math::max)(V((math::min)(x, limit)), minus_limit)));
  const V result = math::select(x > limit, math::constant<V>(math::infinity),
                                V(math::select(x < minus_limit, math::constant<V>(0.0), ratio)));
  if constexpr (GDPO_FINITE_MATH) {
    return math::select(math::is_nan(x), x, result);
  } else {
    return result;
  }
}

/// log(a / b) of numbers above 0, with the same bits everywhere; infinite where b is 0.
template <class V>
GDPO_INLINE V log_of_quotient(const V& a, const V& b) {
  const auto less = a < b;
  const V low = math::select(less, a, b), high = math::select(less, b, a);
  const V log = log1p_of(V((high - low) / low));
  return math::select(math::is_zero(b), math::constant<V>(math::infinity),
                      V(math::select(less, V(-log), log)));
}

/// KL(b || a) of the two outcomes "this token" and "any other", from the log-probs of the token
/// under a and b, in nats; those above 0 count as 0. Where q is 1 the second part is 0, and where
/// only p is 1 it is infinite. `eps` is added to both probabilities of the others in the logarithm.
template <class V>
GDPO_INLINE V binary_kl(const V& logp, const V& logq, double eps) {
  const V zero = math::constant<V>(0.0), a = (math::min)(logp, zero), b = (math::min)(logq, zero);
  const V p_other = -math::exp_parts(a).expm1, q_other = -math::exp_parts(b).expm1;
  const V q = ratio_of(b), added = math::constant<V>(eps);
  const V first = math::select(math::is_zero(q), zero, math::mul(q, V(b - a)));
  const V second = math::mul(q_other, log_of_quotient(V(q_other + added), V(p_other + added)));
  return first + V(math::select(math::is_zero(q_other), zero, second));
}

/// The estimate of a token, whose x has been clamped; of Ratio it is x itself.
template <class V>
GDPO_INLINE V estimate(prepass::Estimator estimator, const DifferenceOf<V>& d, const V& x,
                       double eps) {
  using prepass::Estimator;
  switch (estimator) {
    case Estimator::Ratio:
      return x;
    case Estimator::K1:
      return -x;
    case Estimator::K2:
      return math::mul(math::mul(x, x), math::constant<V>(0.5));
    case Estimator::K3:
    case Estimator::ReverseK3:
    case Estimator::RatioDeviation: {
      const auto parts = math::exp_parts(estimator == Estimator::ReverseK3 ? V(-x) : x);
      return estimator == Estimator::RatioDeviation ? V(math::abs(parts.expm1)) : parts.k3;
    }
    case Estimator::ProbabilityGain:
    case Estimator::BinaryTotalVariation: {
      const V gain = ratio_of(d.left) - ratio_of(d.right);
      return estimator == Estimator::ProbabilityGain ? gain : V(math::abs(gain));
    }
    case Estimator::BinaryKl:
    case Estimator::ReverseBinaryKl:
    case Estimator::SignedBinaryKl: {
      const bool reverse = estimator == Estimator::ReverseBinaryKl;
      const V kl = binary_kl(reverse ? d.right : d.left, reverse ? d.left : d.right, eps);
      if (estimator != Estimator::SignedBinaryKl) return kl;
      return math::select(x < math::constant<V>(0.0), V(-kl), kl);
    }
  }
  return x;
}

}  // namespace detail
GDPO_END_NAMESPACE
