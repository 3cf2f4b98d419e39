#pragma once
// The operators from logits to loss and dloss/dlogits.
#include <gdpo/logits/loss_from_logits.hpp>
#include <gdpo/with/torch_stable/logprobs.hpp>
#include <gdpo/with/torch_stable/loss.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

/// The batch beside logits: log-probs are computed, so none may be given.
inline TokenBatch<float> batch_beside_logits(const Call& call, GDPO_TORCH_PARAMETERS) {
  if (logp) call.fail("batch.logp", "an array", "none: log-probs are those of the logits");
  return batch_of<float>(call, GDPO_TORCH_NAMES);
}

/// Loss, numbers of the result, log-probs and entropies; dlogits are written.
inline std::tuple<Tensor, Tensor, Tensor, Tensor> loss_from_logits(
    const Call& call, const std::string& line, const Tensor& counts, const Tensor& logits,
    const Tensor& targets, double temperature, const Tensor& dlogits, GDPO_TORCH_PARAMETERS) {
  const TokenBatch<float> batch = batch_beside_logits(call, GDPO_TORCH_NAMES);
  const Tensor log_probs = new_like(call, logits, 1, ScalarType::Float),
               entropy = new_like(call, logits, 1, ScalarType::Float),
               loss = new_tensor(call, {}, ScalarType::Float);
  const Normalizer normalizer = counts_of(call, counts);
  using Exec = decltype(gdpo::parallel(Threads{}));
  const auto compute = [&](gdpo::detail::LossOfLogits<Exec>& logits_loss) {
    LossResult result;
    with_logits(call, logits, targets, {}, temperature, [&](const auto& b) {
      using T = std::decay_t<decltype(*b.logits.data)>;
      constexpr int rank = sizeof(b.logits.extent) / sizeof(index_t);
      thread_local LogitsWorkspace workspace;
      result = gdpo::detail::visit_logits(gdpo::parallel(Threads{}), logits_loss, b, batch,
                                          normalizer, new_view<T, rank>(dlogits), workspace);
      const auto copy = [](const std::vector<float>& numbers, const Tensor& tensor) {
        std::copy(numbers.begin(), numbers.end(), static_cast<float*>(tensor.mutable_data_ptr()));
      };
      copy(workspace.logp, log_probs), copy(workspace.entropies, entropy);
    });
    return result;
  };
  const LossResult result = std::visit(
      [&compute](const auto& named) {
        const auto with_means = with_metrics<metrics::Means>(named);
        gdpo::detail::LossOfLogitsAs<Exec, std::decay_t<decltype(with_means)>> logits_loss(
            with_means);
        return compute(logits_loss);
      },
      configured(line));
  *static_cast<float*>(loss.mutable_data_ptr()) = static_cast<float>(result.loss);
  return {loss, numbers_of(result), log_probs, entropy};
}

}  // namespace detail

/// What an operator of this name declares: the arrays are those of a TokenBatch.
inline constexpr const char* policy_loss_from_logits_schema =
    "policy_loss_from_logits(str loss, Tensor counts, Tensor logits, Tensor targets, "
    "float temperature, " GDPO_TORCH_SCHEMA ") -> (Tensor, Tensor, Tensor, Tensor, Tensor)";
/// A policy loss straight from logits, with its gradient by them (logits/loss_from_logits.hpp).
///
/// `loss`, `counts` and the arrays are those of policy_loss, in the shape of the targets; `logp`
/// must be absent. logits: (B, T, V), or (N, V) with packed arrays and their offsets, with stride 1
/// over the vocabulary; targets: what each row of logits predicts, int32 or int64. A token counts
/// where `mask` is not 0. Entropies are those of the logits unless `entropies` is given.
///
/// Returns the loss, a float32 scalar; dloss/dlogits in shape and type of the logits; the numbers
/// of the LossResult; log-probs and entropies in the shape of the targets, float32, 0 at masked
/// tokens. Errors: those of gdpo::policy_loss_from_logits, and `invalid_input` for tensors of other
/// types, ranks or devices.
inline std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> policy_loss_from_logits(
    const std::string& loss, const Tensor& counts, const Tensor& logits, const Tensor& targets,
    double temperature, GDPO_TORCH_PARAMETERS) {
  const detail::Call call("gdpo::policy_loss_from_logits");
  const Tensor dlogits = detail::new_like(call, logits, 0, logits.scalar_type());
  const auto [value, result, log_probs, entropy] = detail::loss_from_logits(
      call, loss, counts, logits, targets, temperature, dlogits, GDPO_TORCH_NAMES);
  return {value, dlogits, result, log_probs, entropy};
}

/// What an operator of this name declares.
inline constexpr const char* policy_loss_from_logits_in_place_schema =
    "policy_loss_from_logits_(str loss, Tensor counts, Tensor(a!) logits, Tensor targets, "
    "float temperature, " GDPO_TORCH_SCHEMA ") -> (Tensor, Tensor, Tensor, Tensor)";
/// The same in place: dloss/dlogits replace the logits, and no second table is needed. Returns what
/// the operator above does, without dlogits.
inline std::tuple<Tensor, Tensor, Tensor, Tensor> policy_loss_from_logits_in_place(
    const std::string& loss, const Tensor& counts, const Tensor& logits, const Tensor& targets,
    double temperature, GDPO_TORCH_PARAMETERS) {
  const detail::TensorInfo table =
      detail::table_info("gdpo::policy_loss_from_logits", "logits", logits);
  contract::check_apart("gdpo::policy_loss_from_logits", "logits", table.rank, table.extent,
                        table.stride);
  return detail::loss_from_logits("gdpo::policy_loss_from_logits", loss, counts, logits, targets,
                                  temperature, logits, GDPO_TORCH_NAMES);
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
