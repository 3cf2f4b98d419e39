#pragma once
// The operator of pre-passes for tensors of a device.
#include <gdpo/cuda/prepass/device_prepare.hpp>
#include <gdpo/with/torch_stable/device/memory.hpp>
#include <gdpo/with/torch_stable/prepare.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

/// Writes what has been decided at a token: its mask and weights, 1 where it is masked, and the log
/// of the weight of the ratio, 0 there. Arrays of weights may be absent.
template <class S>
struct WriteDecision {
  unsigned char* mask;
  S *weights, *kl_weights, *entropy_weights, *level_log_weights;
  GDPO_INLINE void operator()(const cuda::detail::DeviceBatch<S>& batch,
                              const gdpo::detail::RowSpan& span, index_t t) const {
    const index_t k = span.begin + t;
    const bool valid = batch.valid(span, t);
    mask[k] = valid;
    const auto write = [&](S* to, const auto& from, S absent) {
      if (to) to[k] = valid && from ? batch.at(from, span, t) : absent;
    };
    write(weights, batch.weights, S(1)), write(kl_weights, batch.kl_weights, S(1));
    write(entropy_weights, batch.entropy_weights, S(1));
    write(level_log_weights, batch.level_log_weights, S(0));
  }
};
/// Copies the threshold of the entropies.
struct WriteThreshold {
  const PrepassFindings* source;
  double* out;
  GDPO_INLINE void operator()(index_t) const { *out = source->entropy_threshold; }
};

template <class Queue, class S>
Decisions device_prepare_of(const Tensor& first, const std::vector<std::string>& passes,
                            const Array& degenerate, const Array& groups, GDPO_TORCH_PARAMETERS) {
  constexpr const char* function = "gdpo::prepare";
  const Call call = call_on(function, first);
  const Queue queue(call);
  const auto& on = queue.on();
  const TokenBatch<S> batch = batch_of<S>(call, GDPO_TORCH_NAMES);
  const std::vector<AnyPrepass> any = prepasses_of(
      passes,
      {batch.truncated, column(call, "degenerate", degenerate), column(call, "groups", groups)});
  const Tensor block = new_memory(call, cuda::prepass_bytes(batch, function));
  cuda::PrepassMemory memory{block.mutable_data_ptr(), static_cast<std::size_t>(block.numel())};
  const TokenBatch<S> prepared =
      std::apply([&](const auto&... pass) { return gdpo::prepare(on, batch, memory, pass...); },
                 as_tuple<most_prepasses>(any));

  const auto layout = gdpo::detail::shape_of(function, batch, gdpo::detail::NeedsLogp::No);
  const std::vector<std::int64_t> size(layout.shape.extent,
                                       layout.shape.extent + layout.shape.rank);
  const WeightsThere there(any, weights, kl_weights, entropy_weights, level_log_weights);
  const auto new_weights = [&](bool wanted) {
    return new_tensor(call, wanted ? size : std::vector<std::int64_t>{0}, scalar_type<S>);
  };
  const auto numbers = [](const Tensor& tensor, bool wanted) {
    return wanted ? static_cast<S*>(tensor.mutable_data_ptr()) : nullptr;
  };
  const Tensor to_mask = new_tensor(call, size, ScalarType::Byte),
               to_weights = new_weights(there.surrogate), to_kl_weights = new_weights(there.kl),
               to_entropy = new_weights(there.entropy), to_level = new_weights(there.level),
               threshold = new_tensor(call, {}, ScalarType::Double);
  if (layout.tokens > 0) {
    cuda::detail::launch_tokens(
        on,
        cuda::detail::DeviceBatch<S>(function, prepared, layout, gdpo::detail::TokenReads::none()),
        cuda::detail::TokenUnits(layout),
        WriteDecision<S>{static_cast<unsigned char*>(to_mask.mutable_data_ptr()),
                         numbers(to_weights, there.surrogate), numbers(to_kl_weights, there.kl),
                         numbers(to_entropy, there.entropy), numbers(to_level, there.level)});
  }
  launch_each(on, 1, WriteThreshold{prepared.prepared.on_device, data_of(threshold)});
  return {to_mask, to_weights, to_kl_weights, to_entropy, to_level, threshold};
}

}  // namespace detail

namespace device {

/// torch_stable::prepare. Packed tokens need an array of tokens besides the offsets.
template <class Queue>
torch_stable::detail::Decisions prepare(const std::vector<std::string>& passes,
                                        const Array& degenerate, const Array& groups,
                                        GDPO_TORCH_PARAMETERS) {
  const Array* first = nullptr;
#define GDPO_X(name, ...) &name,
  for (const Array* array : {GDPO_TORCH_ARRAYS(GDPO_X) & offsets, &degenerate, &groups})
    if (!first && *array) first = array;
#undef GDPO_X
  if (!first) {
    contract::fail("gdpo::prepare", "batch", "no array of tokens and no offsets",
                   "a mask, offsets or log-probs, which say how many tokens the rows have");
  }
  const auto run = detail::reads_doubles(logp, old_logp, rollout_logp, teacher_logp)
                       ? detail::device_prepare_of<Queue, double>
                       : detail::device_prepare_of<Queue, float>;
  return run(**first, passes, degenerate, groups, GDPO_TORCH_NAMES);
}

/// Registers the operator above.
template <class Queue, class Library>
void register_prepasses(Library& library) {
  library.impl("prepare", TORCH_BOX(&prepare<Queue>));
}

}  // namespace device

}  // namespace torch_stable
GDPO_END_NAMESPACE
