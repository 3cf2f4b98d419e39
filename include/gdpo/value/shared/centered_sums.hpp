#pragma once
// Sums from which the moments of the returns and residuals of a row come.
#include <gdpo/stats/moments.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Sums over the valid tokens of a row from which the moments of two quantities come: of the
/// returns R, and of the residuals R - v. In double, with d = x - center of each,
///
///     mean = center + sum d / n,   m2 = sum d^2 - (sum d)^2 / n
///
/// The loops over the terms have the sums of v and of v - R already, so centers near the means are
/// known before this pass. Where one was not near enough, the pass is run again about the mean that
/// it has given. Hosts and devices both do so.
struct CenteredSums {
  static constexpr int quantities = 2;
  double center[quantities] = {};
  double rest[quantities] = {}, square[quantities] = {};
  double low[quantities] = {math::infinity, math::infinity};
  double high[quantities] = {-math::infinity, -math::infinity};

  /// About the means of n tokens as the sums of v and v - R give them.
  GDPO_INLINE static CenteredSums about(double value, double error, index_t n) {
    const double tokens = static_cast<double>(n);
    return about((value - error) / tokens, -error / tokens);
  }
  /// About two centers; one that is not finite is replaced by 0.
  GDPO_INLINE static CenteredSums about(double of_returns, double of_residuals) {
    CenteredSums s;
    s.center[0] = math::not_finite(of_returns) ? 0.0 : of_returns;
    s.center[1] = math::not_finite(of_residuals) ? 0.0 : of_residuals;
    return s;
  }
  /// The same quantities about the means that these sums give.
  GDPO_INLINE CenteredSums about_means(index_t n) const {
    return about(moments(0, n).mean, moments(1, n).mean);
  }
  /// Adds the sums of other tokens about the same centers.
  GDPO_INLINE void add(const CenteredSums& o) {
    for (int q = 0; q < quantities; ++q) {
      rest[q] += o.rest[q], square[q] += o.square[q];
      low[q] = (math::min)(low[q], o.low[q]), high[q] = (math::max)(high[q], o.high[q]);
    }
  }

  /// Whether (sum d)^2 / n is at most half of sum d^2, for both, so that their difference m2 loses
  /// one bit at the most.
  GDPO_INLINE bool near_enough(index_t n) const {
    for (int q = 0; q < quantities; ++q) {
      const double lost = math::mul(rest[q], rest[q] / static_cast<double>(n));
      if (low[q] != high[q] && lost > math::mul(0.5, square[q])) return false;
    }
    return true;
  }
  GDPO_INLINE Moments moments(int q, index_t n) const {
    Moments m;
    m.weight = static_cast<double>(n);
    if (math::is_nan(rest[q])) {
      m.mean = m.mean_low = m.m2 = m.min = m.max = math::nan();
    } else if (low[q] == high[q]) {
      m.mean = m.min = m.max = low[q];
    } else {
      m = moments_of_sums(m.weight, rest[q], square[q], center[q]);
      m.min = low[q], m.max = high[q];
    }
    m.n = n;
    return m;
  }
};

}  // namespace detail
GDPO_END_NAMESPACE
