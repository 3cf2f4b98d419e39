// Losses on the device.
#pragma once

#include <gdpo/loss.hpp>
#include <gdpo/runtime.hpp>
#include <variant>

#include "with.hpp"

namespace conformance {

// Every loss that the runner calls. KL term and aggregate are chosen at run time, so that few
// kernels are compiled.
using AnyLoss =
    detail::With<detail::With<gdpo::runtime::Loss,
                              gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Reinforce,
                                               gdpo::kl::None>>::type,
                 std::decay_t<decltype(gdpo::torchrl::grpo_kl_loss)>>::type;

// Runs the loss. Unless they are null, `gradient` receives dloss/dlogp at every token of the batch
// and `by_entropies` dloss/dentropies. S is double or float.
template <class S>
gdpo::LossResult on_device(const AnyLoss& loss, const gdpo::TokenBatch<S>& batch,
                           const gdpo::Normalizer& normalizer, S* gradient, S* by_entropies);

// The counts of a batch.
template <class S>
gdpo::Normalizer count_on_device(const gdpo::TokenBatch<S>& batch);

}  // namespace conformance
