#pragma once
#include <gdpo/lanes/pack.hpp>
#include <gdpo/math/settings.hpp>

namespace gdpo {
/// Where eps stands between a variance v and the multiplier of the centred value.
enum class EpsAt {
  Std,       ///< 1 / (sqrt v + eps)
  Var,       ///< 1 / sqrt(v + eps)
  ClampStd,  ///< 1 / max(sqrt v, eps)
  ClampVar,  ///< 1 / sqrt(max(v, eps))
  None       ///< 1: centre only
};
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// The multiplier of a centred value whose set has variance `variance` on `dof` degrees of freedom: one formula for
/// every scale and every renormalisation, on V = double or lanes. dof <= 0: 0, unknown spread is not zero spread. A
/// denominator of 0: 0. NaN: NaN.
template <class V>
GDPO_DEVICE V multiplier(double eps, EpsAt at, const V& variance, index_t dof) {
  using math::constant, math::is_zero, math::select, math::sqrt;
  if (at == EpsAt::None) return constant<V>(1.0);
  if (dof <= 0) return constant<V>(0.0);
  const V e = constant<V>(eps), zero = constant<V>(0.0);
  const V under = at == EpsAt::Var        ? variance + e
                  : at == EpsAt::ClampVar ? V((math::max)(variance, e))
                                          : variance;
  const V root = sqrt(under);
  const V denominator = at == EpsAt::Std        ? root + e
                        : at == EpsAt::ClampStd ? V((math::max)(root, e))
                                                : root;
  return select(is_zero(denominator), zero, constant<V>(1.0) / denominator);
}

GDPO_END_NAMESPACE
