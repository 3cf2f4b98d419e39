#pragma once
// Writes the result of a policy loss from its tally, on a device.
#include <gdpo/cuda/tokens/run_rows.hpp>
#include <gdpo/loss/shared/write_result.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

using gdpo::detail::Tally;

/// Writes the LossResult, as FinishRows calls it. Each warp writes one metric at a time.
template <class Metrics>
struct WriteLossResult {
  gdpo::detail::ResultTraits traits;
  const PrepassFindings* found;  ///< By prepare() on the device; null: `traits` has it.
  LossResult* result;

  GDPO_DEVICE void operator()(const Tally& total, const DeviceNormalizer& normalizer, int thread,
                              int threads) const {
    for (int q = thread / warp; thread % warp == 0 && q < gdpo::detail::metrics_of_tokens;
         q += threads / warp)
      gdpo::detail::write_metric<Metrics>(*result, q, gdpo::detail::written_metric(q), total,
                                          traits);
    if (thread != threads - 1) return;
    gdpo::detail::write_others(*result, total, normalizer(), traits);
    if (!found) return;
    result->metrics.entropy_threshold = found->entropy_threshold;
    if (traits.keeps_rollout) result->metrics.non_finite.rollout_logp = found->rollout;
  }
};

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
