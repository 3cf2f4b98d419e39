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

/// The second normalisation: from the combined values s_i to the advantages a_i.
///
///     a_i  = (s_i - mean) multiplier(v)          multiplier: advantage/multiplier.hpp
///     mean = sum s / (n + count_eps)
///     v    = sum (s - mean)^2 / (n + count_eps) * n / (n - ddof)
///
/// The sums run over n rows: those of the batch, those of a group, or those of the batch with
/// each row counted once per token. Excluded and unused rows enter no sum; excluded rows keep 0.
///
/// In `Batch` and `PerGroup` the mean is not subtracted where it is 0 by construction: the
/// baseline has zero_sum (Mean, LeaveOneOut), each group has one multiplier, and no group is a
/// raw singleton (`Singleton::Raw`). The step is then a pure rescale, so that 0 stays exactly 0.
namespace renorm {

/// No second normalisation: the combined values are the advantages (GRPO, Dr.GRPO, RLOO).
struct None {};

/// Over all rows of the batch.
/// GDPO (arXiv 2601.05242), eq. 6, the default; TRL, NVlabs' TRL fork, ms-swift, NeMo-RL. With a
/// single group in the batch it cannot tell groups apart; GroupReport::one_group says so.
struct Batch {
  int ddof = 1;    ///< Degrees of freedom taken off n, at least 0: 1 sample std, 0 population std.
  double eps = 0;  ///< At least 0.
  EpsAt eps_at = EpsAt::Std;  ///< Where eps stands.
  double count_eps = 0;       ///< Added to the count that sums are divided by, at least 0.
  bool keep_mean = false;     ///< Scale about the mean and add it back: a_i + mean.
  void check(const char* function) const { detail::check_renorm(function, ddof, eps, count_eps); }
};

/// Over the rows of each group, as some descriptions of GDPO have it.
/// It undoes what GDPO gains over GRPO (presets/per_group.hpp).
struct PerGroup {
  int ddof = 1;    ///< Degrees of freedom taken off n, at least 0: 1 sample std, 0 population std.
  double eps = 0;  ///< At least 0.
  EpsAt eps_at = EpsAt::Std;  ///< Where eps stands.
  double count_eps = 0;       ///< Added to the count that sums are divided by, at least 0.
  bool keep_mean = false;     ///< Scale about the mean and add it back: a_i + mean.
  void check(const char* function) const { detail::check_renorm(function, ddof, eps, count_eps); }
};

/// Over the tokens of the batch: row i counts RewardBatch::tokens(i) times, n is the number of
/// tokens. verl and NVlabs' verl fork, masked_whiten. The mean is always subtracted: weighted by
/// tokens, it is not 0 where lengths differ. A degenerate group then gets a constant that is not
/// 0.
struct TokenWeightedBatch {
  int ddof = 1;  ///< Degrees of freedom taken off n, at least 0: 1 sample std, 0 population std.
  double eps = 1e-8;          ///< At least 0.
  EpsAt eps_at = EpsAt::Var;  ///< Where eps stands.
  double count_eps = 0;       ///< Added to the count that sums are divided by, at least 0.
  bool keep_mean = false;     ///< Scale about the mean and add it back (verl, shift_mean=False).
  void check(const char* function) const { detail::check_renorm(function, ddof, eps, count_eps); }
};

}  // namespace renorm

namespace detail {

/// a = (s - shift) multiplier + back. Where s == shift it is exactly `back`, whatever the
/// multiplier. V: double or lanes.
struct Affine {
  double shift = 0, multiplier = 1, back = 0;
  template <class V>
  GDPO_INLINE V operator()(const V& s) const {
    using math::constant, math::is_zero, math::mul, math::select;
    const V zero = constant<V>(0.0), d = s - constant<V>(shift);
    return select(is_zero(d), zero, mul(d, constant<V>(multiplier))) + constant<V>(back);
  }
};

/// Whether a renormalisation over the batch only rescales: its mean is 0 by construction. Weighted
/// by tokens, combined values that sum to 0 in each group need not have mean 0.
template <class Renorm>
GDPO_INLINE constexpr bool rescales(bool zero_sum) {
  return zero_sum && !std::is_same_v<Renorm, renorm::TokenWeightedBatch>;
}

/// The renormalisation of a set of values with these moments. centred: their mean is 0 by
/// construction and is not subtracted.
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
