#pragma once
// The operators from logits for tensors of a device.
#include <gdpo/cuda/logits/policy_loss.hpp>
#include <gdpo/cuda/logits/token_logprobs.hpp>
#include <gdpo/with/torch_stable/device/loss.hpp>
#include <gdpo/with/torch_stable/from_logits.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

template <class Queue>
std::tuple<Tensor, Tensor, Tensor, Tensor> device_loss_from_logits(
    const Call& call, const std::string& line, const Tensor& counts, const Tensor& logits,
    const Tensor& targets, double temperature, const Tensor& dlogits, GDPO_TORCH_PARAMETERS) {
  const Queue queue(call);
  const TokenBatch<float> batch = batch_beside_logits(call, GDPO_TORCH_NAMES);
  const Tensor log_probs = new_like(call, logits, 1, ScalarType::Float),
               entropy = new_like(call, logits, 1, ScalarType::Float);
  Array loss, numbers;
  with_logits(call, logits, targets, {}, temperature, [&](const auto& b) {
    using T = std::decay_t<decltype(*b.logits.data)>;
    constexpr int rank = sizeof(b.logits.extent) / sizeof(index_t);
    cuda::FromLogits out;
    out.logp = tokens_out<float>(log_probs);
    out.entropies = tokens_out<float>(entropy);
    std::visit(
        [&](const auto& of) {
          std::tie(loss, numbers) = device_loss<float>(
              call, queue.on(), counts, cuda::scratch_bytes(b, batch),
              [&](const auto& normaliser, LossResult* result, const cuda::Scratch& scratch) {
                gdpo::policy_loss_from_logits(queue.on(), with_metrics<metrics::Means>(of), b,
                                              batch, normaliser, new_view<T, rank>(dlogits), result,
                                              scratch, out);
              });
        },
        configured(line));
  });
  return {*loss, *numbers, log_probs, entropy};
}

}  // namespace detail

namespace device {

/// torch_stable::token_logprobs.
template <class Queue>
std::tuple<Tensor, Tensor, Tensor> token_logprobs(const Tensor& logits, const Tensor& targets,
                                                  const Array& mask, double temperature) {
  const detail::Call call = detail::call_on("gdpo::token_logprobs", logits);
  const Queue queue(call);
  std::tuple<Tensor, Tensor, Tensor> result{detail::new_like(call, logits, 1, ScalarType::Float),
                                            detail::new_like(call, logits, 1, ScalarType::Float),
                                            detail::new_like(call, logits, 1, ScalarType::Double)};
  detail::with_logits(call, logits, targets, mask, temperature, [&](const auto& batch) {
    token_logprobs_into(queue.on(), batch,
                        {detail::tokens_out<float>(std::get<0>(result)),
                         detail::tokens_out<float>(std::get<1>(result)),
                         detail::tokens_out<double>(std::get<2>(result))});
  });
  return result;
}

/// torch_stable::token_logprobs_backward.
template <class Queue>
Tensor token_logprobs_backward(const Array& dlogp, const Array& dentropy, const Tensor& logits,
                               const Tensor& targets, const Array& mask, double temperature,
                               const Tensor& logsumexp, const Tensor& entropy) {
  const detail::Call call = detail::call_on("gdpo::token_logprobs_backward", logits);
  const Queue queue(call);
  Tensor dlogits = detail::new_like(call, logits, 0, logits.scalar_type());
  detail::with_logits(call, logits, targets, mask, temperature, [&](const auto& batch) {
    using T = std::decay_t<decltype(*batch.logits.data)>;
    constexpr int rank = sizeof(batch.logits.extent) / sizeof(index_t);
    gdpo::token_logprobs_backward(queue.on(), batch,
                                  {detail::tokens<float>(call, "dlogp", dlogp),
                                   detail::tokens<float>(call, "dentropy", dentropy)},
                                  detail::tokens<double>(call, "logsumexp", logsumexp),
                                  detail::tokens<float>(call, "entropy", entropy),
                                  detail::new_view<T, rank>(dlogits));
  });
  return dlogits;
}

/// torch_stable::policy_loss_from_logits.
template <class Queue>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> policy_loss_from_logits(
    const std::string& loss, const Tensor& counts, const Tensor& logits, const Tensor& targets,
    double temperature, GDPO_TORCH_PARAMETERS) {
  const detail::Call call = detail::call_on("gdpo::policy_loss_from_logits", logits);
  const Tensor dlogits = detail::new_like(call, logits, 0, logits.scalar_type());
  const auto [value, result, log_probs, entropy] = detail::device_loss_from_logits<Queue>(
      call, loss, counts, logits, targets, temperature, dlogits, GDPO_TORCH_NAMES);
  return {value, dlogits, result, log_probs, entropy};
}
/// torch_stable::policy_loss_from_logits_in_place.
template <class Queue>
std::tuple<Tensor, Tensor, Tensor, Tensor> policy_loss_from_logits_in_place(
    const std::string& loss, const Tensor& counts, const Tensor& logits, const Tensor& targets,
    double temperature, GDPO_TORCH_PARAMETERS) {
  return detail::device_loss_from_logits<Queue>(
      detail::call_on("gdpo::policy_loss_from_logits", logits), loss, counts, logits, targets,
      temperature, logits, GDPO_TORCH_NAMES);
}

/// Registers the operators above.
template <class Queue, class Library>
void register_logits(Library& library) {
  library.impl("token_logprobs", TORCH_BOX(&token_logprobs<Queue>));
  library.impl("token_logprobs_backward", TORCH_BOX(&token_logprobs_backward<Queue>));
  library.impl("policy_loss_from_logits", TORCH_BOX(&policy_loss_from_logits<Queue>));
  library.impl("policy_loss_from_logits_", TORCH_BOX(&policy_loss_from_logits_in_place<Queue>));
}

}  // namespace device

}  // namespace torch_stable
GDPO_END_NAMESPACE
