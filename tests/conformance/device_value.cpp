#include <algorithm>
#include <gdpo/cuda/value/device_outcomes.hpp>
#include <gdpo/cuda/value/device_returns.hpp>
#include <gdpo/cuda/value/device_value_loss.hpp>

#include "device_arrays.hpp"
#include "value.hpp"

namespace conformance {
namespace {

// Room on the device for one number a token of `batch`, and a view of it in that shape.
template <class S>
struct DeviceTokens {
  TokensShape shape;
  OnDevice<S> numbers;

  DeviceTokens(const TokensShape& of, const S* host)
      : shape(of), numbers(std::vector<S>(host, host + of.size())) {}
  gdpo::TokenOut<S> out() { return shape.template view<gdpo::TokenOut>(numbers.data()); }
  void read(S* host) const {
    const std::vector<S> values = numbers.host();
    std::copy(values.begin(), values.end(), host);
  }
};

// The batch with its arrays on the device.
template <class S>
gdpo::ReturnBatch<S> copied(gdpo::ReturnBatch<S> on, DeviceArrays<S>& arrays) {
  for (const auto tokens : {&gdpo::ReturnBatch<S>::rewards, &gdpo::ReturnBatch<S>::values,
                            &gdpo::ReturnBatch<S>::logp, &gdpo::ReturnBatch<S>::ref_logp}) {
    arrays.copy(on.*tokens);
  }
  arrays.copy(on.mask), arrays.copy(on.offsets);
  arrays.copy(on.row_rewards), arrays.copy(on.bootstrap);
  return on;
}

template <class T>
OnDevice<std::remove_const_t<T>> copied(gdpo::View<T, 1> view) {
  std::vector<std::remove_const_t<T>> values;
  for (gdpo::index_t i = 0; i < view.extent[0]; ++i) values.push_back(view(i));
  return OnDevice<std::remove_const_t<T>>(values);
}

}  // namespace

template <class S>
void outcomes_on_device(const gdpo::RewardBatch<double, gdpo::ById>& rewards,
                        const gdpo::ReturnBatch<S>& batch,
                        const gdpo::runtime::OutcomeAdvantage& estimator, S* advantages,
                        S* returns) {
  using gdpo::index_t;
  const TokensShape shape(batch.mask);
  DeviceArrays<S> arrays;
  const gdpo::ReturnBatch<S> on = copied(batch, arrays);
  const index_t rows = rewards.rewards.extent[0];
  OnDevice<double> scores = copied(gdpo::column(rewards.rewards, 0));
  OnDevice<index_t> order = copied(rewards.groups.order()),
                    offsets = copied(rewards.groups.offsets());
  const auto groups = gdpo::cuda::sorted_groups(
      gdpo::view(static_cast<const index_t*>(order.data()), rows),
      gdpo::view(static_cast<const index_t*>(offsets.data()), rewards.groups.count(rows) + 1));
  const gdpo::RewardBatch on_rewards{gdpo::view(static_cast<const double*>(scores.data()), rows),
                                     groups};
  DeviceTokens<S> to_advantages(shape, advantages), to_returns(shape, returns);
  std::visit(
      [&](const auto& e) {
        TestScratch scratch(gdpo::cuda::scratch_bytes(e, on_rewards, on));
        gdpo::advantages_and_returns_into(next_device(), on_rewards, on, e, to_advantages.out(),
                                          to_returns.out(), scratch());
      },
      estimator);
  to_advantages.read(advantages), to_returns.read(returns);
}

template <class S>
void returns_on_device(const gdpo::ReturnBatch<S>& batch,
                       const gdpo::runtime::TokenAdvantage& estimator, S* advantages, S* returns) {
  const TokensShape shape(batch.mask);
  DeviceArrays<S> arrays;
  const gdpo::ReturnBatch<S> on = copied(batch, arrays);
  DeviceTokens<S> to_advantages(shape, advantages), to_returns(shape, returns);
  std::visit(
      [&](const auto& e) {
        TestScratch scratch(gdpo::cuda::scratch_bytes(e, on));
        gdpo::advantages_and_returns_into(next_device(), on, e, to_advantages.out(),
                                          to_returns.out(), scratch());
      },
      estimator);
  to_advantages.read(advantages), to_returns.read(returns);
}

template <class S>
gdpo::ValueLossResult value_loss_on_device(const gdpo::runtime::ValueLoss& loss,
                                           const gdpo::ValueBatch<S>& batch,
                                           const gdpo::Normalizer& normalizer, S* gradient) {
  gdpo::ValueBatch<S> on = batch;
  DeviceArrays<S> arrays;
  for (const auto tokens : {&gdpo::ValueBatch<S>::values, &gdpo::ValueBatch<S>::old_values,
                            &gdpo::ValueBatch<S>::returns}) {
    arrays.copy(on.*tokens);
  }
  arrays.copy(on.mask), arrays.copy(on.offsets), arrays.copy(on.row_weights);
  arrays.copy(on.group_tokens);
  DeviceTokens<S> slopes(TokensShape(batch.values), gradient);
  OnDevice<gdpo::ValueLossResult> result(std::vector<gdpo::ValueLossResult>(1));
  TestScratch scratch(gdpo::cuda::scratch_bytes(loss, on));
  loss(next_device(), on, gdpo::cuda::DeviceNormalizer(normalizer), slopes.out(), result.data(),
       scratch());
  slopes.read(gradient);
  return result.host()[0];
}

#define INSTANTIATE(S)                                                              \
  template void outcomes_on_device(const gdpo::RewardBatch<double, gdpo::ById>&,    \
                                   const gdpo::ReturnBatch<S>&,                     \
                                   const gdpo::runtime::OutcomeAdvantage&, S*, S*); \
  template void returns_on_device(const gdpo::ReturnBatch<S>&,                      \
                                  const gdpo::runtime::TokenAdvantage&, S*, S*);    \
  template gdpo::ValueLossResult value_loss_on_device(                              \
      const gdpo::runtime::ValueLoss&, const gdpo::ValueBatch<S>&, const gdpo::Normalizer&, S*);
INSTANTIATE(double)
INSTANTIATE(float)
#undef INSTANTIATE

}  // namespace conformance
