#pragma once
// What operators for tensors of a device share: where they run, their memory, and small kernels.
//
// Their template parameter `Queue` is where they run. It is made from the Call of an operator and
// keeps the device of the tensors current while it lives; `on()` is the device tag of the kernels
// (cuda/device/kernel.hpp). with/torch_stable_cuda.hpp has that of PyTorch's current CUDA stream;
// tests have one of a simulated grid.
#include <gdpo/cuda/device/kernel.hpp>
#include <gdpo/cuda/device/scratch.hpp>
#include <gdpo/cuda/device/tuning.hpp>
#include <gdpo/with/torch_stable/tensor.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

/// The call of an operator whose tensors are on the device of the first of these.
inline Call call_on(const char* function, const Tensor& first) {
  std::int32_t type = 0;
  GDPO_TORCH_CALL(aoti_torch_get_device_type(first.get(), &type));
  return Call(function, type, type == aoti_torch_device_type_cpu() ? 0 : first.get_device_index());
}

/// New memory of PyTorch's allocator, on the device of the call.
inline Tensor new_memory(const Call& call, std::size_t bytes) {
  return new_tensor(call, {static_cast<std::int64_t>(bytes)}, ScalarType::Byte);
}
/// What new_memory gave, as scratch of kernels.
inline cuda::Scratch scratch_in(const Tensor& memory) {
  return {memory.mutable_data_ptr(), static_cast<std::size_t>(memory.numel())};
}

/// Runs f(i) for every i below n, on as many blocks as n needs.
template <class F>
struct EachKernel {
  static constexpr int largest_block = 256;
  index_t n;
  F f;
  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    block.each([&](int thread) {
      const index_t step = block.count() * block.threads();
      for (index_t i = block.index() * block.threads() + thread; i < n; i += step) f(i);
    });
  }
};
template <class Device, class F>
void launch_each(const Device& device, index_t n, const F& f) {
  constexpr int threads = EachKernel<F>::largest_block;
  const index_t most = device.tuning().blocks, blocks = (n + threads - 1) / threads;
  device.launch((std::min)(blocks, most), threads, 0, EachKernel<F>{n, f});
}

}  // namespace detail

}  // namespace torch_stable
GDPO_END_NAMESPACE
