#pragma once
// The operators from logits for tensors of a device.
#include <gdpo/cuda/logits/device_logprobs.hpp>
#include <gdpo/cuda/logits/device_loss_from_logits.hpp>
#include <gdpo/with/torch_stable/device/loss.hpp>
#include <gdpo/with/torch_stable/from_logits.hpp>
#include <gdpo/with/torch_stable/scale.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

/// Calls f with the loss, which measures its means, as a LossOfLogits.
template <class Device, class T, class F>
void visit_loss_of_logits(const runtime::Loss& named, const F& f) {
  std::visit(
      [&f](const auto& loss) {
        const auto with_means = with_metrics<metrics::Means>(loss);
        const cuda::detail::LossOfLogitsAs<Device, std::decay_t<decltype(with_means)>, T, T>
            logits_loss(with_means);
        f(static_cast<const cuda::detail::LossOfLogits<Device, T, T>&>(logits_loss));
      },
      named);
}

template <class Queue>
std::tuple<Tensor, Tensor, Tensor, Tensor> device_loss_from_logits(
    const Call& call, const std::string& line, const Tensor& counts, const Tensor& logits,
    const Tensor& targets, double temperature, const Tensor& dlogits, GDPO_TORCH_PARAMETERS) {
  const Queue queue(call);
  const TokenBatch<float> batch = batch_beside_logits(call, GDPO_TORCH_NAMES);
  const runtime::Loss& named = configured(line);
  const Tensor log_probs = new_like(call, logits, 1, ScalarType::Float),
               entropy = new_like(call, logits, 1, ScalarType::Float);
  Array loss, numbers;
  with_logits(call, logits, targets, {}, temperature, [&](const auto& b) {
    using T = std::decay_t<decltype(*b.logits.data)>;
    constexpr int rank = sizeof(b.logits.extent) / sizeof(index_t);
    cuda::FromLogits out;
    out.logp = tokens_out<float>(log_probs);
    out.entropies = tokens_out<float>(entropy);
    std::tie(loss, numbers) = device_loss<float>(
        call, queue.on(), counts, cuda::scratch_bytes(b, batch, call.function),
        [&](const auto& normalizer, LossResult* result, const cuda::Scratch& scratch) {
          visit_loss_of_logits<std::decay_t<decltype(queue.on())>, T>(
              named, [&](const auto& logits_loss) {
                cuda::detail::visit_logits(queue.on(), logits_loss, b, batch, normalizer,
                                           new_view<T, rank>(dlogits), result, scratch, out);
              });
        });
  });
  return {*loss, *numbers, log_probs, entropy};
}

/// scale_rows, a block for each row. In place, a factor of 1 has nothing to do.
template <class T>
struct ScaleRows {
  static constexpr int largest_block = 256;
  TableRows<T> source, out;
  Factor scale;
  bool in_place;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const auto factor = scale.value<ScaledIn<T>>();
    const bool idle = in_place && factor == 1;
    for (index_t i = block.index(); i < source.rows && !idle; i += block.count()) {
      const T* x = source(i);
      T* y = out(i);
      block.each([&](int thread) {
        for (index_t v = thread; v < source.vocabulary; v += block.threads())
          scale_number(x[v], y[v], factor);
      });
    }
  }
};
template <class Queue>
void scale_on(const Call& call, const Tensor& source, const Tensor& factor, const Tensor& out,
              bool in_place) {
  const Queue queue(call);
  with_table(call, source, [&](auto* element) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(element)>>;
    const ScaleRows<T> kernel{TableRows<T>(source), TableRows<T>(out), Factor(call, factor),
                              in_place};
    const index_t most = queue.on().tuning().blocks;
    queue.on().launch((std::min)(kernel.source.rows, most), kernel.largest_block, 0, kernel);
  });
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
                                  {detail::tokens<float>(call, "grad.logp", dlogp),
                                   detail::tokens<float>(call, "grad.entropy", dentropy)},
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
  const detail::Call call = detail::call_on("gdpo::policy_loss_from_logits", logits);
  const detail::TensorInfo table = detail::table_info(call, "logits", logits);
  contract::check_apart("gdpo::policy_loss_from_logits", "logits", table.rank, table.extent,
                        table.stride);
  return detail::device_loss_from_logits<Queue>(call, loss, counts, logits, targets, temperature,
                                                logits, GDPO_TORCH_NAMES);
}

/// torch_stable::scaled.
template <class Queue>
Tensor scaled(const Tensor& table, const Tensor& by) {
  const detail::Call call = detail::call_on("gdpo::scaled", table);
  Tensor out = detail::new_like(call, table, 0, table.scalar_type());
  detail::scale_on<Queue>(call, table, by, out, false);
  return out;
}
/// torch_stable::scale_in_place.
template <class Queue>
void scale_in_place(const Tensor& table, const Tensor& by) {
  detail::scale_on<Queue>(detail::call_on("gdpo::scale_", table), table, by, table, true);
}

/// Registers the operators above.
template <class Queue, class Library>
void register_logits(Library& library) {
  library.impl("token_logprobs", TORCH_BOX(&token_logprobs<Queue>));
  library.impl("token_logprobs_backward", TORCH_BOX(&token_logprobs_backward<Queue>));
  library.impl("policy_loss_from_logits", TORCH_BOX(&policy_loss_from_logits<Queue>));
  library.impl("policy_loss_from_logits_", TORCH_BOX(&policy_loss_from_logits_in_place<Queue>));
  library.impl("scaled", TORCH_BOX(&scaled<Queue>));
  library.impl("scale_", TORCH_BOX(&scale_in_place<Queue>));
}

}  // namespace device

}  // namespace torch_stable
GDPO_END_NAMESPACE
