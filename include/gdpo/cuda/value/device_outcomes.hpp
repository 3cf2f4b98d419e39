#pragma once
// advantages_and_returns_into of an OutcomeAdvantage on a device: the calls of its two parts.
#include <gdpo/cuda/advantage/device_advantages.hpp>
#include <gdpo/cuda/value/device_returns.hpp>
#include <gdpo/value/shared/outcome_batch.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// Scratch of a call: the advantages of the rows, in one of two arrays, and behind them the memory
/// of the two calls, which share it.
template <class S>
struct OutcomeMemory {
  View<double, 1> of_steps;
  View<S, 1> of_tokens;
  std::size_t used;
  OutcomeMemory(ScratchCursor& cursor, Placement placement, index_t rows) {
    const index_t last = placement == Placement::LastStep ? rows : 0;
    of_steps = gdpo::view(cursor.take<double>(last), last);
    of_tokens = gdpo::view(cursor.take<S>(rows - last), rows - last);
    used = cursor.bytes();
  }
};

}  // namespace detail

/// Bytes of Scratch that advantages_and_returns_into(device, rewards, batch, ...) needs.
template <class Rows, class Tokens, class T, class Groups, class S>
std::size_t scratch_bytes(const OutcomeAdvantage<Rows, Tokens>& estimator,
                          const RewardBatch<T, Groups>& rewards, const ReturnBatch<S>& batch) {
  detail::ScratchCursor cursor;
  const detail::OutcomeMemory<S> memory(cursor, estimator.placement, rewards.rewards.extent[0]);
  const std::size_t of_rows = scratch_bytes(estimator.rows, rewards),
                    of_tokens = scratch_bytes(estimator.tokens, batch);
  return memory.used + (of_rows > of_tokens ? of_rows : of_tokens);
}

}  // namespace cuda

/// Computes the advantages and the returns of all tokens on a device from the rewards of rows.
///
/// Arguments and results are as on the host (value/outcome_call.hpp), with device pointers in all
/// views, and the launches are those of the two calls, one behind the other on the stream:
/// device_advantages.hpp and device_returns.hpp say how they compare with the host's. `scratch` has
/// cuda::scratch_bytes(estimator, rewards, batch) bytes.
template <class Device, class T, class Groups, class S, class Rows, class Tokens,
          std::enable_if_t<detail::is_device_v<Device>, int> = 0>
void advantages_and_returns_into(const Device& device, const RewardBatch<T, Groups>& rewards,
                                 const ReturnBatch<S>& batch,
                                 const OutcomeAdvantage<Rows, Tokens>& estimator,
                                 const std::common_type_t<TokenOut<S>>& advantages,
                                 const std::common_type_t<TokenOut<S>>& returns,
                                 const cuda::Scratch& scratch) {
  constexpr const char* function = "gdpo::advantages_and_returns_into";
  detail::check_outcome(function, rewards, batch, estimator, advantages, returns);
  const std::size_t needed = cuda::scratch_bytes(estimator, rewards, batch);
  cuda::detail::check_scratch(function, scratch, needed);
  cuda::detail::ScratchCursor cursor(scratch);
  const cuda::detail::OutcomeMemory<S> memory(cursor, estimator.placement,
                                              rewards.rewards.extent[0]);
  const cuda::Scratch rest{static_cast<unsigned char*>(scratch.data) + memory.used,
                           scratch.bytes - memory.used};
  const ReturnBatch<S> bound =
      detail::with_outcomes(batch, estimator.placement, memory.of_steps, memory.of_tokens);
  // What the second call refuses is refused before the first one launches anything.
  const auto layout =
      detail::return_layout(function, bound, advantages, returns, detail::ReadsArrays::No);
  detail::check_returns(function, estimator.tokens, bound, advantages, returns, layout);
  if (estimator.placement == Placement::LastStep) {
    advantages_into(device, rewards, estimator.rows, memory.of_steps, rest);
  } else {
    advantages_into(device, rewards, estimator.rows, memory.of_tokens, rest);
  }
  advantages_and_returns_into(device, bound, estimator.tokens, advantages, returns, rest);
}

GDPO_END_NAMESPACE
