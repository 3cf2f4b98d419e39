#pragma once
// The factor that a variance turns into, and where eps stands in it.
#include <gdpo/lanes/pack.hpp>
#include <gdpo/math/check_fields.hpp>

namespace gdpo {
/// Where eps stands between a variance v and the multiplier of a centered value.
enum class EpsAt {
  Std,       ///< 1 / (sqrt v + eps)
  Var,       ///< 1 / sqrt(v + eps)
  ClampStd,  ///< 1 / max(sqrt v, eps)
  ClampVar,  ///< 1 / sqrt(max(v, eps))
  None,      ///< 1: the values are centered only, and eps is not used.
  /// 1 / (sqrt v + eps) for v > 0, else 1, also where the spread is unknown: a set without a spread
  /// is left unscaled (NeMo-RL). It differs from Std only where such a set has values that are not
  /// 0 after centering: under scale::LeaveOneOutStd, or a baseline from outside the group.
  StdOrOne
};
/// The enumerators of EpsAt with their words.
GDPO_DATA_INLINE constexpr auto enumerators(EpsAt) {
  using E = Enumerator<EpsAt>;
  return std::array{E{"std", EpsAt::Std},
                    E{"var", EpsAt::Var},
                    E{"clamp_std", EpsAt::ClampStd},
                    E{"clamp_var", EpsAt::ClampVar},
                    E{"none", EpsAt::None},
                    E{"std_or_one", EpsAt::StdOrOne}};
}
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// The multiplier of a centered value of a set with this variance on `dof` degrees of freedom.
/// Every scale and every renormalization uses this one formula; V is double or a pack of lanes.
/// An unknown spread (dof <= 0) gives 0, not 1 / eps, since it is not a spread of 0. A
/// denominator of 0 gives 0, a NaN variance NaN. Under EpsAt::None the multiplier is always 1;
/// under StdOrOne it is 1 where the spread is 0 or unknown.
template <class V>
GDPO_DEVICE V multiplier(double eps, EpsAt eps_at, const V& variance, index_t dof) {
  using math::constant, math::is_zero, math::select, math::sqrt;
  if (eps_at == EpsAt::None) return constant<V>(1.0);
  const V without_spread = constant<V>(eps_at == EpsAt::StdOrOne ? 1.0 : 0.0);
  if (dof <= 0) return without_spread;
  const V e = constant<V>(eps);
  const V radicand = eps_at == EpsAt::Var        ? variance + e
                     : eps_at == EpsAt::ClampVar ? V((math::max)(variance, e))
                                                 : variance;
  const V root = sqrt(radicand);
  const V denominator = eps_at == EpsAt::Std || eps_at == EpsAt::StdOrOne ? root + e
                        : eps_at == EpsAt::ClampStd                       ? V((math::max)(root, e))
                                                                          : root;
  // Under StdOrOne eps does not hide a spread of 0.
  const V spread = eps_at == EpsAt::StdOrOne ? root : denominator;
  return select(is_zero(spread), without_spread, constant<V>(1.0) / denominator);
}

GDPO_END_NAMESPACE
