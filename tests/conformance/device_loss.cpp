#include "device_loss.hpp"

#include <algorithm>
#include <gdpo/cuda/loss/device_loss.hpp>
#include <vector>

#include "device_arrays.hpp"

namespace conformance {
namespace {

// A batch of the host, copied to the device. It is valid as long as this object.
template <class S>
class BatchOnDevice {
 public:
  explicit BatchOnDevice(const gdpo::TokenBatch<S>& host) : batch_(host) {
#define GDPO_X(in_batch, ...) arrays_.copy(batch_.in_batch);
    GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
    for (const auto flags : {&Batch::mask, &Batch::completion_mask}) arrays_.copy(batch_.*flags);
    arrays_.copy(batch_.segments);
#define GDPO_X(in_batch, ...) arrays_.copy(batch_.in_batch);
    GDPO_ROW_COLUMNS(GDPO_X)
#undef GDPO_X
    arrays_.copy(batch_.offsets);
  }
  BatchOnDevice(const BatchOnDevice&) = delete;
  BatchOnDevice& operator=(const BatchOnDevice&) = delete;

  const gdpo::TokenBatch<S>& operator()() const { return batch_; }

 private:
  using Batch = gdpo::TokenBatch<S>;

  Batch batch_;
  DeviceArrays<S> arrays_;
};

}  // namespace

template <class S>
gdpo::LossResult on_device(const AnyLoss& loss, const gdpo::TokenBatch<S>& batch,
                           const gdpo::Normalizer& normalizer, S* gradient, S* by_entropies) {
  BatchOnDevice<S> on(batch);
  const TokensShape shape(batch.logp);
  OnDevice<S> slopes, entropy_slopes;
  gdpo::LossGradient<S> out;
  const auto bind = [&shape](S* host, OnDevice<S>& memory, gdpo::TokenOut<S>& tokens) {
    if (!host) return;
    memory = OnDevice<S>(std::vector<S>(host, host + shape.size()));
    tokens = shape.template view<gdpo::TokenOut>(memory.data());
  };
  bind(gradient, slopes, out.logp), bind(by_entropies, entropy_slopes, out.entropies);
  OnDevice<gdpo::LossResult> result(std::vector<gdpo::LossResult>(1));
  std::visit(
      [&](const auto& of) {
        TestScratch scratch(gdpo::cuda::scratch_bytes(of, on()));
        of(next_device(), on(), gdpo::cuda::DeviceNormalizer(normalizer), out, result.data(),
           scratch());
      },
      loss);
  const auto fetch = [](const OnDevice<S>& memory, S* host) {
    if (!host) return;
    const std::vector<S> values = memory.host();
    std::copy(values.begin(), values.end(), host);
  };
  fetch(slopes, gradient), fetch(entropy_slopes, by_entropies);
  return result.host()[0];
}

template <class S>
gdpo::Normalizer count_on_device(const gdpo::TokenBatch<S>& batch) {
  BatchOnDevice<S> on(batch);
  OnDevice<gdpo::Normalizer> counts(std::vector<gdpo::Normalizer>(1));
  TestScratch scratch(gdpo::cuda::scratch_bytes(on()));
  gdpo::cuda::count_into(next_device(), on(), counts.data(), scratch());
  return counts.host()[0];
}

#define INSTANTIATE(S)                                                            \
  template gdpo::LossResult on_device(const AnyLoss&, const gdpo::TokenBatch<S>&, \
                                      const gdpo::Normalizer&, S*, S*);           \
  template gdpo::Normalizer count_on_device(const gdpo::TokenBatch<S>&);
INSTANTIATE(double)
INSTANTIATE(float)
#undef INSTANTIATE

}  // namespace conformance
