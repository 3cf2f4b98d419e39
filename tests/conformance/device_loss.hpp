// Losses on the device.
#pragma once

#include <gdpo/loss.hpp>
#include <gdpo/runtime.hpp>
#include <variant>

#include "with.hpp"

namespace conformance {

// Every loss of the runner, its KL term and aggregate chosen at run time: few kernels to compile.
using AnyLoss = detail::With<gdpo::runtime::Loss,
                             gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Reinforce,
                                              gdpo::kl::None, gdpo::runtime::Aggregate>>::type;

// The loss, with the gradient at every token of the batch in `gradient`, if that is not null. S is double or float.
template <class S>
gdpo::LossResult on_device(const AnyLoss& loss, const gdpo::TokenBatch<S>& batch,
                           const gdpo::Normaliser& normaliser, S* gradient);

// The counts of a batch.
template <class S>
gdpo::Normaliser count_on_device(const gdpo::TokenBatch<S>& batch);

}  // namespace conformance
