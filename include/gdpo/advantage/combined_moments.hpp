#pragma once
// What ranks exchange between the two stages of an estimator.
#include <gdpo/advantage/renorm.hpp>
#include <gdpo/advantage/stat.hpp>

// Plain data, which crosses ranks: it stands outside the inline namespace.
namespace gdpo {

/// What a rank knows of the combined values of its rows after the first stage; merge() adds ranks.
struct CombinedMoments {
  /// Of the combined values. Each row counts once, or once for each token with RenormOver::Tokens.
  /// Where the values are only rescaled, n is their number and the range is not kept: -inf to inf.
  Moments values;
  /// The combined values of every group sum to 0, so that the second stage need not subtract their
  /// mean. False if any rank has a raw singleton (Singleton::Raw), or by the baseline.
  bool zero_sum = true;
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The moments of a rank as merge() needs them: those of values that are only rescaled come without
/// number and range, and then the weight is the number of rows.
GDPO_DEVICE inline CombinedMoments combined_moments(Moments m, RenormOver over, bool zero_sum) {
  if (rescales(over, zero_sum)) {
    m.n = static_cast<index_t>(m.weight);
    m.min = -math::infinity, m.max = math::infinity;
  }
  return {m, zero_sum};
}

/// Refuses estimators whose first stage already needs the rows of all ranks.
template <class Estimator>
void check_first_stage(const char* function, const Estimator& e) {
  if (!BatchReaders::of(e.baseline, e.scale).any) return;
  contract::fail(
      function, "estimator", "a baseline or scale that reads the whole batch",
      "one that reads its group alone; gather the rows (dist::gather_rows) for this one");
}

}  // namespace detail

/// What all ranks know together: the moments of the union, and zero_sum only if both have it.
inline CombinedMoments merge(const CombinedMoments& a, const CombinedMoments& b) {
  return {merge(a.values, b.values), a.zero_sum && b.zero_sum};
}

GDPO_END_NAMESPACE
