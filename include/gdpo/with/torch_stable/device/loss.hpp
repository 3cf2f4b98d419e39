#pragma once
// The operators of losses and counts for tensors of a device.
#include <gdpo/cuda/loss/device_loss.hpp>
#include <gdpo/cuda/value/device_value_loss.hpp>
#include <gdpo/with/torch_stable/device/memory.hpp>
#include <gdpo/with/torch_stable/loss.hpp>
#include <gdpo/with/torch_stable/value_loss.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

/// read_counts on the device.
struct ReadCounts {
  const double* source;
  Normalizer* out;
  GDPO_INLINE void operator()(index_t) const { *out = read_counts(source); }
};
/// write_counts on the device.
struct WriteCounts {
  const Normalizer* source;
  double* out;
  GDPO_INLINE void operator()(index_t) const { write_counts(*source, out); }
};
/// Writes a result as numbers (numbers_of), and its loss as a scalar.
template <class S, class Result>
struct WriteResult {
  const Result* source;
  double* numbers;
  S* loss;
  GDPO_INLINE void operator()(index_t) const {
    double* out = numbers;
    for_each_number(*source, WriteNumbers{out});
    *loss = static_cast<S>(source->loss);
  }
};
/// Counts of a step: on the CPU they are known now, on the device when a kernel runs.
template <class Device>
cuda::DeviceNormalizer device_counts(const Call& call, const Device& device, const Tensor& counts,
                                     Normalizer* memory) {
  if (counts.is_cpu() && !call.on_cpu()) return counts_of(call.function, counts);
  const double* source = count_numbers(call, counts);
  launch_each(device, 1, ReadCounts{source, memory});
  return cuda::DeviceNormalizer(memory);
}

/// The memory of a loss call: counts and result on the device, and the scratch of the kernels.
template <class Result>
struct DeviceLossMemory {
  Normalizer* counts;
  Result* result;
  unsigned char* scratch;
  DeviceLossMemory(cuda::detail::ScratchCursor& cursor, std::size_t bytes)
      : counts(cursor.take<Normalizer>(1)),
        result(cursor.take<Result>(1)),
        scratch(cursor.take<unsigned char>(static_cast<index_t>(bytes))) {}
};

/// Calls f(counts, result on the device, scratch of that many bytes), and returns the loss and the
/// numbers of the result.
template <class S, class Result = LossResult, class Device, class F>
std::tuple<Tensor, Tensor> device_loss(const Call& call, const Device& device, const Tensor& counts,
                                       std::size_t bytes, const F& f) {
  using Memory = DeviceLossMemory<Result>;
  const Tensor block = new_memory(call, cuda::detail::bytes_of<Memory>(bytes));
  const auto memory = cuda::detail::take_memory<Memory>(call.function, scratch_in(block), bytes);
  f(device_counts(call, device, counts, memory.counts), memory.result,
    cuda::Scratch{memory.scratch, bytes});
  const Tensor loss = new_tensor(call, {}, scalar_type<S>);
  const Tensor numbers = new_tensor(call, {size_of(Result{})}, ScalarType::Double);
  launch_each(device, 1,
              WriteResult<S, Result>{memory.result, data_of(numbers),
                                     static_cast<S*>(loss.mutable_data_ptr())});
  return {loss, numbers};
}

template <class Queue, class S>
std::tuple<Tensor, Tensor, Tensor, Tensor> device_loss_of(const char* function,
                                                          const std::string& line,
                                                          const Tensor& counts, bool with_gradient,
                                                          bool by_entropies,
                                                          GDPO_TORCH_PARAMETERS) {
  const Call call = call_on(function, *logp);
  const Queue queue(call);
  const TokenBatch<S> batch = batch_of<S>(call, GDPO_TORCH_NAMES);
  const NewGradients<S> gradients(call, *logp, with_gradient, by_entropies);
  const LossGradient<S> out = gradients.out();
  const runtime::Loss& named = configured(line);
  const auto launch = [&](const auto& normalizer, LossResult* result,
                          const cuda::Scratch& scratch) {
    std::visit(
        [&](const auto& loss) {
          with_metrics<metrics::Means>(loss)(queue.on(), batch, normalizer, out, result, scratch);
        },
        named);
  };
  const auto [value, numbers] = device_loss<S>(
      call, queue.on(), counts, cuda::detail::loss_bytes("gdpo::PolicyLoss", batch), launch);
  return {value, gradients.by_logp, gradients.by_entropies, numbers};
}

template <class Queue, class S>
std::tuple<Tensor, Tensor, Tensor> device_value_loss_of(const char* function,
                                                        const std::string& line,
                                                        const Tensor& counts, bool with_gradient,
                                                        GDPO_TORCH_VALUE_PARAMETERS) {
  const Call call = call_on(function, *values);
  const Queue queue(call);
  const ValueBatch<S> batch = value_batch_of<S>(call, GDPO_TORCH_VALUE_NAMES);
  const Tensor gradient = new_gradient<S>(call, *values, with_gradient);
  const TokenOut<S> out = with_gradient ? tokens_out<S>(gradient) : TokenOut<S>{};
  const auto loss = configured_value_loss(line);
  const auto launch = [&](const auto& normalizer, ValueLossResult* result,
                          const cuda::Scratch& scratch) {
    loss(queue.on(), batch, normalizer, out, result, scratch);
  };
  const auto [value, numbers] = device_loss<S, ValueLossResult>(
      call, queue.on(), counts, cuda::scratch_bytes(loss, batch), launch);
  return {value, gradient, numbers};
}

}  // namespace detail

namespace device {

/// torch_stable::count.
template <class Queue>
Tensor count(GDPO_TORCH_PARAMETERS) {
  constexpr const char* function = "gdpo::count";
  const Array* first = nullptr;
#define GDPO_X(name, ...) &name,
  for (const Array* array : {GDPO_TORCH_ARRAYS(GDPO_X) & offsets})
    if (!first && *array) first = array;
#undef GDPO_X
  if (!first) contract::fail(function, "batch", "no array", "mask, logp or offsets");
  const detail::Call call = detail::call_on(function, **first);
  const Queue queue(call);
  const TokenBatch<double> batch = detail::batch_of<double>(call, GDPO_TORCH_NAMES);
  const std::size_t bytes = cuda::scratch_bytes(batch);
  using Memory = detail::DeviceLossMemory<LossResult>;
  const Tensor block = detail::new_memory(call, cuda::detail::bytes_of<Memory>(bytes));
  const auto memory = cuda::detail::take_memory<Memory>(function, detail::scratch_in(block), bytes);
  cuda::count_into(queue.on(), batch, memory.counts, cuda::Scratch{memory.scratch, bytes});
  const Tensor counts = detail::new_tensor(call, {4}, ScalarType::Double);
  detail::launch_each(queue.on(), 1, detail::WriteCounts{memory.counts, detail::data_of(counts)});
  return counts;
}

/// torch_stable::policy_loss. `counts` may be on the CPU; then they are checked.
template <class Queue>
std::tuple<Tensor, Tensor, Tensor, Tensor> policy_loss(const std::string& loss,
                                                       const Tensor& counts, bool gradient,
                                                       bool by_entropies, GDPO_TORCH_PARAMETERS) {
  constexpr const char* function = "gdpo::policy_loss";
  if (!logp) {
    contract::fail(function, "batch.logp", "no array", "the log-probs of the policy being trained");
  }
  const auto compute = logp->scalar_type() == ScalarType::Double
                           ? detail::device_loss_of<Queue, double>
                           : detail::device_loss_of<Queue, float>;
  return compute(function, loss, counts, gradient, by_entropies, GDPO_TORCH_NAMES);
}

/// torch_stable::value_loss. `counts` may be on the CPU; then they are checked.
template <class Queue>
std::tuple<Tensor, Tensor, Tensor> value_loss(const std::string& loss, const Tensor& counts,
                                              bool gradient, GDPO_TORCH_VALUE_PARAMETERS) {
  constexpr const char* function = "gdpo::value_loss";
  detail::check_values(function, values);
  const auto compute = values->scalar_type() == ScalarType::Double
                           ? detail::device_value_loss_of<Queue, double>
                           : detail::device_value_loss_of<Queue, float>;
  return compute(function, loss, counts, gradient, GDPO_TORCH_VALUE_NAMES);
}

/// Registers the operators above.
template <class Queue, class Library>
void register_losses(Library& library) {
  library.impl("count", TORCH_BOX(&count<Queue>));
  library.impl("policy_loss", TORCH_BOX(&policy_loss<Queue>));
  library.impl("policy_loss_forward", TORCH_BOX(&policy_loss<Queue>));
  library.impl("value_loss", TORCH_BOX(&value_loss<Queue>));
}

}  // namespace device

}  // namespace torch_stable
GDPO_END_NAMESPACE
