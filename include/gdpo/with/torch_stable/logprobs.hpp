#pragma once
// The operators from logits to log-probs and back.
#include <gdpo/logits/token_logprobs.hpp>
#include <gdpo/with/torch_stable/tensor.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

/// Calls f(batch) with the logits as a LogitBatch of rank 2 or 3.
template <class F>
void with_logits(const Call& call, const Tensor& logits, const Array& targets, const Array& mask,
                 double temperature, const F& f) {
  const TensorInfo table = table_info(call, "logits", logits);
  gdpo::detail::visit_elements(
      call.function, "logits", table, gdpo::detail::RealTypes{}, [&](auto* element) {
        using T = std::decay_t<decltype(*element)>;
        const auto run = [&](auto batch) {
          batch.targets = tokens<std::int64_t>(call, "targets", targets);
          batch.mask = tokens<unsigned char>(call, "mask", mask);
          batch.temperature = temperature;
          f(batch);
        };
        using gdpo::detail::view_of;
        if (table.rank == 2) return run(LogitBatch<T, 2>{view_of<const T, 2>(table), {}, {}, {}});
        run(LogitBatch<T, 3>{view_of<const T, 3>(table), {}, {}, {}});
      });
}

}  // namespace detail

/// What an operator of this name declares.
inline constexpr const char* token_logprobs_schema =
    "token_logprobs(Tensor logits, Tensor targets, Tensor? mask=None, float temperature=1.0) -> "
    "(Tensor, Tensor, Tensor)";
/// Log-probs of the targets, entropies (both float32) and logsumexp (float64) of each row of logits
/// (logits/token_logprobs.hpp). logits: (N, V) or (B, T, V) with stride 1 over the vocabulary;
/// targets: (N) or (B, T), int32 or int64; mask: as targets, rows with 0 are not read and get 0.
inline std::tuple<Tensor, Tensor, Tensor> token_logprobs(const Tensor& logits,
                                                         const Tensor& targets, const Array& mask,
                                                         double temperature) {
  constexpr const char* function = "gdpo::token_logprobs";
  std::tuple<Tensor, Tensor, Tensor> result{
      detail::new_like(function, logits, 1, ScalarType::Float),
      detail::new_like(function, logits, 1, ScalarType::Float),
      detail::new_like(function, logits, 1, ScalarType::Double)};
  detail::with_logits(function, logits, targets, mask, temperature, [&result](const auto& batch) {
    token_logprobs_into(gdpo::parallel(Threads{}), batch,
                        {detail::tokens_out<float>(std::get<0>(result)),
                         detail::tokens_out<float>(std::get<1>(result)),
                         detail::tokens_out<double>(std::get<2>(result))});
  });
  return result;
}

/// What an operator of this name declares.
inline constexpr const char* token_logprobs_backward_schema =
    "token_logprobs_backward(Tensor? dlogp, Tensor? dentropy, Tensor logits, Tensor targets, "
    "Tensor? mask, float temperature, Tensor logsumexp, Tensor entropy) -> Tensor";
/// The gradient by the logits from those by log-probs and entropies, of which one may be absent. It
/// has the type of the logits and is rounded once. The other arguments are those of token_logprobs
/// and its results.
inline Tensor token_logprobs_backward(const Array& dlogp, const Array& dentropy,
                                      const Tensor& logits, const Tensor& targets,
                                      const Array& mask, double temperature,
                                      const Tensor& logsumexp, const Tensor& entropy) {
  constexpr const char* function = "gdpo::token_logprobs_backward";
  Tensor dlogits = detail::new_like(function, logits, 0, logits.scalar_type());
  detail::with_logits(function, logits, targets, mask, temperature, [&](const auto& batch) {
    using T = std::decay_t<decltype(*batch.logits.data)>;
    constexpr int rank = sizeof(batch.logits.extent) / sizeof(index_t);
    gdpo::token_logprobs_backward(gdpo::parallel(Threads{}), batch,
                                  {detail::tokens<float>(function, "grad.logp", dlogp),
                                   detail::tokens<float>(function, "grad.entropy", dentropy)},
                                  detail::tokens<double>(function, "logsumexp", logsumexp),
                                  detail::tokens<float>(function, "entropy", entropy),
                                  detail::new_view<T, rank>(dlogits));
  });
  return dlogits;
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
