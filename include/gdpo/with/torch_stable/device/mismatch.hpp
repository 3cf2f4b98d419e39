#pragma once
// The operator of mismatch() for tensors of a device.
#include <gdpo/cuda/mismatch/device_mismatch.hpp>
#include <gdpo/with/torch_stable/device/memory.hpp>
#include <gdpo/with/torch_stable/mismatch.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

template <class Queue, class S>
Tensor device_mismatch_of(const Call& call, const MismatchSettings& settings, index_t first_row,
                          GDPO_TORCH_PARAMETERS) {
  const Queue queue(call);
  const TokenBatch<S> batch = batch_of<S>(call, GDPO_TORCH_NAMES);
  const Tensor report =
      new_tensor(call, {static_cast<std::int64_t>(sizeof(MismatchReport))}, ScalarType::Byte);
  const Tensor scratch = new_memory(call, cuda::mismatch_bytes(batch));
  cuda::mismatch_into(queue.on(), batch, static_cast<MismatchReport*>(report.mutable_data_ptr()),
                      scratch_in(scratch), settings, first_row);
  return report;
}

}  // namespace detail

namespace device {

/// torch_stable::mismatch. The report stays on the device; merge_mismatch and mismatch_map take a
/// copy of it on the CPU.
template <class Queue>
Tensor mismatch(const std::string& keys, double bound, const std::string& settings,
                std::int64_t first_row, GDPO_TORCH_PARAMETERS) {
  constexpr const char* function = "gdpo::mismatch";
  const Array* first = nullptr;
#define GDPO_X(name, ...) &name,
  for (const Array* array : {GDPO_TORCH_ARRAYS(GDPO_X) & offsets})
    if (!first && *array) first = array;
#undef GDPO_X
  if (!first) {
    contract::fail(function, "batch.rollout_logp", "no array", "the sampling policy's log-probs");
  }
  const auto run = detail::reads_doubles(logp, old_logp) ? detail::device_mismatch_of<Queue, double>
                                                         : detail::device_mismatch_of<Queue, float>;
  return run(detail::call_on(function, **first),
             detail::mismatch_settings_of(function, keys, bound, settings),
             static_cast<index_t>(first_row), GDPO_TORCH_NAMES);
}

/// Registers the operator above.
template <class Queue, class Library>
void register_mismatch(Library& library) {
  library.impl("mismatch", TORCH_BOX(&mismatch<Queue>));
}

}  // namespace device

}  // namespace torch_stable
GDPO_END_NAMESPACE
