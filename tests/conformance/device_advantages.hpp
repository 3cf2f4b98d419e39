// Advantages on the device.
#pragma once

#include <gdpo/advantages.hpp>
#include <gdpo/runtime.hpp>
#include <vector>

#include "with.hpp"

namespace conformance {

// The weighted sum of the rewards of a row, and nothing else.
using SummedRewards = gdpo::RawReward;

// Every estimator that the runner calls. SummedRewards is among them: presets have its type.
using DeviceEstimator = detail::With<gdpo::runtime::Estimator,
                                     std::decay_t<decltype(gdpo::prime_rl::rae_advantage)>>::type;

// One advantage per row, in the precision that the library gives for T, which is double or float.
// If the members of every group are adjacent, the groups are passed as offsets, otherwise sorted.
template <class T>
std::vector<double> on_device(const gdpo::RewardBatch<T, gdpo::ById>& batch,
                              const DeviceEstimator& estimator);

}  // namespace conformance
