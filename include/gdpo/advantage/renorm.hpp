#pragma once
#include <gdpo/advantage/multiplier.hpp>
#include <gdpo/stats/moments.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

inline void check_renorm(const char* function, int ddof, double eps, double count_eps) {
  check_ddof(function, "renorm.ddof", ddof);
  check_eps(function, "renorm.eps", eps);
  check_eps(function, "renorm.count_eps", count_eps);
}

}  // namespace detail

/// The second normalisation, of the combined values s:  a_i = (s_i - mean) multiplier(v),
///   mean = sum s / (n + count_eps),   v = sum (s - mean)^2 / (n + count_eps) * n / (n - ddof).
/// Where the mean is 0 by construction (baseline Mean or LeaveOneOut, one multiplier a group, no raw singleton) it is
/// not subtracted over a batch or a group: a pure rescale, so that 0 stays exactly 0. Excluded and unused rows are in
/// no statistic; excluded rows keep 0. keep_mean scales about the mean and adds it back (verl's masked_whiten,
/// shift_mean=False).
namespace renorm {

/// No second normalisation: the combined values are the advantages (GRPO, Dr.GRPO, RLOO).
struct None {};

/// Over all rows of the batch: GDPO, eq. 6 (default); TRL, NVlabs' TRL fork, ms-swift, NeMo-RL. With one group in the
/// batch it is defined and GroupReport::one_group is set: then it cannot tell groups apart.
struct Batch {
  int ddof = 1;
  double eps = 0;
  EpsAt eps_at = EpsAt::Std;
  double count_eps = 0;
  bool keep_mean = false;
  void check(const char* function) const { detail::check_renorm(function, ddof, eps, count_eps); }
};

/// Over the rows of each group, as some descriptions of GDPO have it: it undoes what GDPO gains (presets/per_group.hpp).
struct PerGroup {
  int ddof = 1;
  double eps = 0;
  EpsAt eps_at = EpsAt::Std;
  double count_eps = 0;
  bool keep_mean = false;
  void check(const char* function) const { detail::check_renorm(function, ddof, eps, count_eps); }
};

/// Over the valid tokens of the batch: row i counts RewardBatch::tokens(i) times, n is the number of tokens. verl and
/// NVlabs' verl fork (masked_whiten). The mean is subtracted: a degenerate group gets a constant that is not 0.
struct TokenWeightedBatch {
  int ddof = 1;
  double eps = 1e-8;
  EpsAt eps_at = EpsAt::Var;
  double count_eps = 0;
  bool keep_mean = false;
  void check(const char* function) const { detail::check_renorm(function, ddof, eps, count_eps); }
};

}  // namespace renorm

namespace detail {

/// a = (s - shift) multiplier + back, with s == shift giving exactly `back`. V: double or lanes.
struct Affine {
  double shift = 0, multiplier = 1, back = 0;
  template <class V>
  GDPO_INLINE V operator()(const V& s) const {
    using math::constant, math::is_zero, math::mul, math::select;
    const V zero = constant<V>(0.0), d = s - constant<V>(shift);
    return select(is_zero(d), zero, mul(d, constant<V>(multiplier))) + constant<V>(back);
  }
};

/// The renormalisation of a set of values with these moments. `centred`: their mean is 0 by construction and is not
/// subtracted.
template <class Renorm>
GDPO_DEVICE Affine affine_of(const Renorm& r, const Moments& m, bool centred) {
  if (!(m.weight + r.count_eps > 0)) return {0, 0, 0};
  const Spread spread = spread_of(m, r.ddof, r.count_eps);
  if (math::is_nan(spread.variance)) return {math::nan(), math::nan(), 0};
  const double k = multiplier(r.eps, r.eps_at, spread.variance, spread.known ? 1 : 0);
  if (centred) return {0, k, 0};
  return {spread.mean, k, r.keep_mean ? spread.mean : 0.0};
}

}  // namespace detail
GDPO_END_NAMESPACE
