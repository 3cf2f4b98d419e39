#include "device_loss.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <gdpo/cuda/loss/policy_loss.hpp>
#include <vector>

#include "next_device.hpp"

namespace conformance {
namespace {

using gdpo::index_t;

// The shape of a token array: `rows` of `width`. Packed tokens are one row.
struct Tokens {
  bool packed;
  index_t rows, width;
  template <class T>
  explicit Tokens(const gdpo::TokenView<T>& of)
      : packed(of.rank() == 1), rows(packed ? 1 : of.extent(0)), width(of.extent(packed ? 0 : 1)) {}
  std::size_t size() const { return static_cast<std::size_t>(rows * width); }
  template <template <class> class Tokens, class T>
  Tokens<T> view(T* data) const {
    if (packed) return gdpo::view(data, width);
    return gdpo::view(data, rows, width);
  }
};

// A batch of the host, copied to the device. It is valid as long as this object.
template <class S>
class BatchOnDevice {
 public:
  explicit BatchOnDevice(const gdpo::TokenBatch<S>& host) : batch_(host) {
#define GDPO_X(in_batch, ...) copy(batch_.in_batch, numbers_);
    GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
    for (const auto flags : {&Batch::mask, &Batch::completion_mask}) copy(batch_.*flags, flags_);
    copy(batch_.segments, integers_);
    for (const auto column : {&Batch::advantages, &Batch::row_weights, &Batch::truncated}) {
      copy(batch_.*column, columns_);
    }
    copy(batch_.offsets, offsets_);
  }
  BatchOnDevice(const BatchOnDevice&) = delete;
  BatchOnDevice& operator=(const BatchOnDevice&) = delete;

  const gdpo::TokenBatch<S>& operator()() const { return batch_; }

 private:
  using Batch = gdpo::TokenBatch<S>;

  template <class T>
  static void copy(gdpo::TokenView<T>& tokens, std::deque<OnDevice<T>>& arrays) {
    if (!tokens) return;
    const Tokens shape(tokens);
    std::vector<T> values(shape.size());
    for (index_t i = 0; i < shape.rows; ++i) {
      T* const to = values.data() + i * shape.width;
      const T* const from = tokens.row(i, 0, shape.width, to);
      if (from != to) std::copy(from, from + shape.width, to);
    }
    tokens = shape.template view<gdpo::TokenView>(arrays.emplace_back(values).data());
  }
  template <class R>
  static void copy(gdpo::ColumnOf<R>& column, std::deque<OnDevice<R>>& arrays) {
    if (!column) return;
    std::vector<R> values;
    for (index_t i = 0; i < column.size(); ++i) values.push_back(column(i));
    column = gdpo::view(arrays.emplace_back(values).data(), column.size());
  }

  Batch batch_;
  std::deque<OnDevice<S>> numbers_;
  std::deque<OnDevice<unsigned char>> flags_;
  std::deque<OnDevice<std::int64_t>> integers_;
  std::deque<OnDevice<double>> columns_;
  std::deque<OnDevice<index_t>> offsets_;
};

}  // namespace

template <class S>
gdpo::LossResult on_device(const AnyLoss& loss, const gdpo::TokenBatch<S>& batch,
                           const gdpo::Normaliser& normaliser, S* gradient) {
  BatchOnDevice<S> on(batch);
  const Tokens shape(batch.logp);
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
        of(next_device(), on(), gdpo::cuda::DeviceNormaliser(normaliser), out, result.data(),
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
gdpo::Normaliser count_on_device(const gdpo::TokenBatch<S>& batch) {
  BatchOnDevice<S> on(batch);
  OnDevice<gdpo::Normaliser> counts(std::vector<gdpo::Normaliser>(1));
  TestScratch scratch(gdpo::cuda::scratch_bytes(on()));
  gdpo::cuda::count_into(next_device(), on(), counts.data(), scratch());
  return counts.host()[0];
}

#define INSTANTIATE(S)                                                            \
  template gdpo::LossResult on_device(const AnyLoss&, const gdpo::TokenBatch<S>&, \
                                      const gdpo::Normaliser&, S*);               \
  template gdpo::Normaliser count_on_device(const gdpo::TokenBatch<S>&);
INSTANTIATE(double)
INSTANTIATE(float)
#undef INSTANTIATE

}  // namespace conformance
