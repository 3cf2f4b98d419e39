#pragma once
// The two stages of an estimator on a device, for a batch whose rows are on several ranks.
// advantage/two_stages.hpp explains them.
#include <gdpo/cuda/advantage/device_advantages.hpp>

GDPO_BEGIN_NAMESPACE

/// The first stage on a device. The combined values stay in `scratch` (cuda::scratch_bytes), for
/// finish().
///
/// moments: one CombinedMoments on the device. Copy it to the host once the stream has written it,
/// merge it over the ranks (dist::all_merge), and give the result to finish().
template <class Device, class T, class Groups, class B, class S, class C, class Renorm,
          std::enable_if_t<detail::is_device_v<Device>, int> = 0>
void first_stage(const Device& device, const RewardBatch<T, Groups>& batch,
                 const GroupAdvantage<B, S, C, Renorm>& estimator, View<CombinedMoments, 1> moments,
                 const cuda::Scratch& scratch) {
  constexpr const char* function = "gdpo::first_stage";
  contract::check_array(function, "rewards", batch.rewards);
  contract::check_array(function, "moments", moments);
  if (moments.extent[0] != 1)
    contract::fail(function, "moments", contract::text(moments.extent[0]) + " entries", "one");
  detail::check_first_stage(function, estimator);
  cuda::detail::call_in_scratch(function, batch, estimator, scratch)
      .first_stage(device, moments.data);
}

/// The second stage on a device, with the scratch that first_stage() has filled for this batch.
/// merged: the moments of all ranks, on the host. out: (N) on the device, float or double.
template <class Device, class T, class Groups, class B, class S, class C, class Renorm, class R,
          std::enable_if_t<detail::is_device_v<Device>, int> = 0>
void finish(const Device& device, const RewardBatch<T, Groups>& batch,
            const GroupAdvantage<B, S, C, Renorm>& estimator, const CombinedMoments& merged,
            View<R, 1> out, const cuda::Scratch& scratch) {
  constexpr const char* function = "gdpo::finish";
  detail::check_out(function, batch, out);
  detail::check_first_stage(function, estimator);
  cuda::detail::call_in_scratch(function, batch, estimator, scratch).finish(device, merged, out);
}

GDPO_END_NAMESPACE
