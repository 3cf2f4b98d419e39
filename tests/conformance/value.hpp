// Cases of the critic's side: token rewards and values in, advantages and returns of tokens out;
// values and returns in, a value loss with its gradient out.
#pragma once

#include <gdpo/runtime.hpp>
#include <gdpo/value.hpp>

namespace conformance {

// Advantages and returns on the device. Both arrays have one number for each token of the batch; S
// is double or float.
template <class S>
void returns_on_device(const gdpo::ReturnBatch<S>& batch,
                       const gdpo::runtime::TokenAdvantage& estimator, S* advantages, S* returns);

// The same from the rewards of rows.
template <class S>
void outcomes_on_device(const gdpo::RewardBatch<double, gdpo::ById>& rewards,
                        const gdpo::ReturnBatch<S>& batch,
                        const gdpo::runtime::OutcomeAdvantage& estimator, S* advantages,
                        S* returns);

// The value loss on the device, with its gradient by the value of every token of the batch.
template <class S>
gdpo::ValueLossResult value_loss_on_device(const gdpo::runtime::ValueLoss& loss,
                                           const gdpo::ValueBatch<S>& batch,
                                           const gdpo::Normalizer& normalizer, S* gradient);

}  // namespace conformance
