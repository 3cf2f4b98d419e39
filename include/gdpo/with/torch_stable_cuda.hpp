#pragma once
/// \file
/// The operators of with/torch_stable.hpp for tensors of an NVIDIA GPU, on PyTorch's stream.
///
///     STABLE_TORCH_LIBRARY_IMPL(mine, CUDA, library) {
///       using namespace gdpo::torch_stable;
///       device::register_losses<CurrentStream>(library);
///       device::register_logits<CurrentStream>(library);
///       device::register_advantages<CurrentStream>(library);
///       device::register_mismatch<CurrentStream>(library);
///       device::register_prepasses<CurrentStream>(library);
///     }
///
/// These are policy_loss, policy_loss_forward, value_loss and count; policy_loss_from_logits and
/// its form in place, token_logprobs and its backward, scaled and scale_; advantages; prepare; and
/// mismatch.
/// Each of the five groups may be compiled in a file of its own; losses and logits in one file
/// share the kernels of losses. Their schemas are those of the library for the CPU, and so are
/// arguments and results. What they compute, and how near it is to the CPU: gdpo/cuda.hpp. There
/// are no others for a device (pid, diagnose, maps and merges).
///
/// No operator waits for the device; memory comes from PyTorch's allocator. So a CUDA graph can
/// capture them (torch.cuda.graph), and counts, losses and metrics stay on the device until they
/// are read. Counts on the CPU are checked, those on the device are not. advantages returns NaN for
/// the numbers of its report, and refuses constraints.
///
/// Build: with nvcc of CUDA 12 or 13 and the headers of PyTorch 2.10 or later, as C++17, with
/// TORCH_TARGET_VERSION as for the CPU and with USE_CUDA, without which PyTorch's header does not
/// declare the stream. Link libtorch_cuda.
///
/// Errors: those of the operators for the CPU; a launch that fails gives a RuntimeError with the
/// words of the CUDA runtime.
#include <gdpo/cuda/device/on.hpp>
#include <gdpo/with/torch_stable/device/advantages.hpp>
#include <gdpo/with/torch_stable/device/logits.hpp>
#include <gdpo/with/torch_stable/device/loss.hpp>
#include <gdpo/with/torch_stable/device/mismatch.hpp>
#include <gdpo/with/torch_stable/device/prepare.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

/// PyTorch's current stream of the device of a call; that device is current while this lives.
class CurrentStream {
 public:
  /// Makes the device of the call current and asks PyTorch for its stream.
  explicit CurrentStream(const detail::Call& call)
      : guard_(call.device_index), on_(stream_of(call.device_index)) {}
  /// The device tag of the kernels.
  const cuda::On& on() const { return on_; }

 private:
  static cudaStream_t stream_of(std::int32_t device) {
    void* stream = nullptr;
    GDPO_TORCH_CALL(aoti_torch_get_current_cuda_stream(device, &stream));
    return static_cast<cudaStream_t>(stream);
  }
  torch::stable::accelerator::DeviceGuard guard_;
  cuda::On on_;
};

}  // namespace torch_stable
GDPO_END_NAMESPACE
