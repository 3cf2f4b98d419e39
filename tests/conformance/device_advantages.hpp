// Advantages on the device.
#pragma once

#include <gdpo/advantages.hpp>
#include <gdpo/runtime.hpp>
#include <variant>
#include <vector>

#include "with.hpp"

namespace conformance {

// The rewards of a row, weighted and summed, and nothing else.
using SummedRewards = gdpo::GroupAdvantage<gdpo::baseline::None, gdpo::scale::None,
                                           gdpo::combine::SumThenNormalize, gdpo::renorm::None>;

// Every estimator of the runner.
using DeviceEstimator = detail::With<gdpo::runtime::Estimator, SummedRewards>::type;

// An advantage a row, in the precision that the library gives for T, which is double or float. Where the members of every group
// stand side by side, the groups go there as offsets; else sorted.
template <class T>
std::vector<double> on_device(const gdpo::RewardBatch<T, gdpo::ById>& batch,
                              const DeviceEstimator& estimator);

}  // namespace conformance
