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
    for (const auto column : {&Batch::advantages, &Batch::row_weights, &Batch::truncated}) {
      arrays_.copy(batch_.*column);
    }
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
                           const gdpo::Normalizer& normalizer, S* gradient) {
  BatchOnDevice<S> on(batch);
  const TokensShape shape(batch.logp);
  OnDevice<S> slopes;
  gdpo::TokenOut<S> out;
  if (gradient) {
    slopes = OnDevice<S>(std::vector<S>(gradient, gradient + shape.size()));
    out = shape.template view<gdpo::TokenOut>(slopes.data());
  }
  OnDevice<gdpo::LossResult> result(std::vector<gdpo::LossResult>(1));
  std::visit(
      [&](const auto& of) {
        TestScratch scratch(gdpo::cuda::scratch_bytes(of, on()));
        of(next_device(), on(), gdpo::cuda::DeviceNormalizer(normalizer), out, result.data(),
           scratch());
      },
      loss);
  if (gradient) {
    const std::vector<S> values = slopes.host();
    std::copy(values.begin(), values.end(), gradient);
  }
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
                                      const gdpo::Normalizer&, S*);               \
  template gdpo::Normalizer count_on_device(const gdpo::TokenBatch<S>&);
INSTANTIATE(double)
INSTANTIATE(float)
#undef INSTANTIATE

}  // namespace conformance
