#pragma once
// Losses and log-probs from logits in LibTorch tensors.
#include <gdpo/logits.hpp>
#include <gdpo/with/torch/loss.hpp>

GDPO_BEGIN_NAMESPACE

/// Logits of a language model in tensors on the host, with the tokens that they are to predict: the
/// members of a LogitBatch. `aligned` makes it from whole sequences.
struct TorchLogits {
  /// (B, T, V), or packed (N, V); float, double, bfloat16 or half, with stride 1 over the
  /// vocabulary.
  at::Tensor logits;
  /// (B, T) or (N), int32 or int64: the token that each row is to predict. Where there are T - 1
  /// for each sequence of (B, T, V), the last row of the sequence predicts nothing.
  at::Tensor targets;
  at::Tensor mask;         ///< The shape of `targets`. 0: the row does not count.
  at::Tensor offsets;      ///< (B + 1), for (N, V): the last row of each sequence does not count.
  double temperature = 1;  ///< The logits are divided by it.
};

/// The logits of whole sequences, in which each row predicts the token that follows. Logits with
/// their gradient are not sliced, so that autograd copies none of them.
///
/// logits: (B, T, V) or (N, V); undefined to count before the forward pass. input_ids: (B, T) or
/// (N), the tokens of the same positions. mask: of these tokens, 0: not predicted; undefined: all
/// are. offsets: (B + 1), for (N, V).
/// Errors: `invalid_input` for shapes that do not fit.
inline TorchLogits aligned(const at::Tensor& logits, const at::Tensor& input_ids,
                           const at::Tensor& mask = {}, const at::Tensor& offsets = {}) {
  constexpr const char* function = "gdpo::aligned";
  using contract::fail;
  detail::check_rank(function, "input_ids", detail::torch_info(function, "input_ids", input_ids), 1,
                     2, "(B, T) or (N)");
  const std::int64_t rank = input_ids.dim();
  const auto shape = [](const at::Tensor& t) {
    return contract::shape(static_cast<int>(t.dim()), t.sizes().data());
  };
  if (rank == 1 && !offsets.defined())
    fail(function, "offsets", "an undefined tensor", "where the sequences begin and end, (B + 1)");
  if (rank == 2 && offsets.defined())
    fail(function, "offsets", "a tensor, with input_ids (B, T)", "none, or input_ids (N)");
  if (mask.defined() && mask.sizes() != input_ids.sizes()) {
    fail(function, "mask", shape(mask), shape(input_ids) + ", the shape of input_ids");
  }
  if (logits.defined() &&
      (logits.dim() != rank + 1 ||
       logits.sizes().slice(0, static_cast<std::size_t>(rank)) != input_ids.sizes())) {
    fail(function, "logits", shape(logits),
         shape(input_ids) + ", the shape of input_ids, and the vocabulary");
  }
  TorchLogits batch;
  batch.logits = logits, batch.offsets = offsets;
  batch.targets = input_ids.narrow(rank - 1, input_ids.size(rank - 1) > 0,
                                   (std::max<std::int64_t>)(input_ids.size(rank - 1) - 1, 0));
  if (mask.defined())
    batch.mask = mask.narrow(rank - 1, mask.size(rank - 1) > 0, batch.targets.size(rank - 1));
  return batch;
}

namespace detail {

/// The tensors as a LogitBatch, without the logits.
template <class T, int Rank>
LogitBatch<T, Rank> logit_batch(const char* function, const TorchLogits& x) {
  LogitBatch<T, Rank> batch;
  batch.targets = torch_tokens<std::int64_t>(function, "targets", x.targets);
  batch.mask = torch_tokens<unsigned char>(function, "mask", x.mask);
  batch.offsets = torch_indices(function, "offsets", x.offsets);
  batch.temperature = x.temperature;
  return batch;
}
/// Whether the last row of each padded sequence predicts nothing: the targets are one less.
inline bool last_row_is_idle(const TorchLogits& x) {
  const at::Tensor& shaped = x.targets.defined() ? x.targets : x.mask;
  return x.logits.dim() == 3 && shaped.defined() && shaped.dim() == 2 &&
         shaped.size(1) + 1 == x.logits.size(1);
}

template <class T, int Rank, class Exec, class Loss>
TorchLoss loss_of_logits(const Exec& exec, const Loss& loss, const TorchLogits& x,
                         const TensorInfo& table, const TokenBatch<float>& batch,
                         const Normalizer& normalizer, LogitsWorkspace& workspace) {
  constexpr const char* function = "gdpo::torch_loss_from_logits";
  LogitBatch<T, Rank> logits = logit_batch<T, Rank>(function, x);
  logits.logits = view_of<const T, Rank>(table);
  const bool idle = last_row_is_idle(x);
  if (idle) --logits.logits.extent[1];
  TorchLoss r;
  at::Tensor gradient;
  if (wants_gradient(x.logits)) {
    gradient = at::empty(x.logits.sizes(), x.logits.scalar_type());
    View<T, Rank> dlogits = view_of<T, Rank>(torch_info(function, "dlogits", gradient));
    if (idle) {
      --dlogits.extent[1];
      gradient.select(1, gradient.size(1) - 1).zero_();
    }
    r.result = policy_loss_from_logits(exec, loss, logits, batch, normalizer, dlogits, workspace);
  } else {
    if (entropy_of(loss).coef != 0) refuse_entropies(function, batch.entropies);
    const TokenBatch<float> bound = bind_logits(function, logits, batch, workspace);
    const LogitRows<T, Rank> rows(logits);
    LogitBatch<T, Rank> visited = logits;
    visited.mask = rows.dense(workspace.mask);
    visited.targets = visited.targets.with_tokens(rows.rows());  // the mask hides the last row
    visited.offsets = {};
    token_logprobs_into(exec, visited,
                        {rows.dense(workspace.logp), rows.dense(workspace.entropies),
                         rows.dense(workspace.logsumexp)});
    r.result = evaluate(exec, loss, bound, normalizer, {}, workspace.loss);
  }
  r.loss = torch_value(function, x.logits, gradient, r.result.loss, at::kFloat);
  return r;
}

}  // namespace detail

/// The counts of logits in tensors, for the normalizer of their loss. The logits are not read and
/// may be undefined: `count(aligned({}, input_ids, mask))` counts before the forward pass. `batch`
/// may have a mask or offsets of its own.
inline Normalizer count(const TorchLogits& logits, const TorchBatch& batch = {}) {
  constexpr const char* function = "gdpo::count";
  const TokenBatch<float> tokens = detail::token_batch<float>(function, batch);
  std::int64_t rank = logits.logits.defined() ? logits.logits.dim() : 0;
  for (const at::Tensor* shaped : {&logits.mask, &logits.targets, &batch.mask})
    if (rank == 0 && shaped->defined()) rank = shaped->dim() + 1;
  if (rank == 3) {
    auto counted = detail::logit_batch<float, 3>(function, logits);
    if (logits.logits.defined() && !counted.mask && !counted.targets) {
      counted.logits.extent[0] = static_cast<index_t>(logits.logits.size(0));
      counted.logits.extent[1] = static_cast<index_t>(logits.logits.size(1));
    }
    return count(counted, tokens);
  }
  auto counted = detail::logit_batch<float, 2>(function, logits);
  if (rank == 2 && logits.logits.defined()) {
    counted.logits.extent[0] = static_cast<index_t>(logits.logits.size(0));
  } else if (counted.offsets.size() > 0) {  // targets and mask may lack the last row
    counted.logits.extent[0] = counted.offsets(counted.offsets.size() - 1);
  }
  return count(counted, tokens);
}

/// A policy loss straight from logits in a tensor, as a function that autograd differentiates:
/// `backward()` gives the logits the gradient of the library, bit for bit, times that of the loss.
///
///     const auto logits = gdpo::aligned(model(ids), ids, completion_mask);
///     gdpo::TorchBatch batch;  // old_logp, ... in the shape of logits.targets; no logp
///     gdpo::torch_loss_from_logits(gdpo::dapo_loss, logits, batch,
///                                  gdpo::count(logits, batch)).loss.backward();
///
/// exec, loss, batch, normalizer and workspace: as in `policy_loss_from_logits`, with the same
/// memory traffic; the workspace then holds log-probs and entropies. The gradient has the dtype of
/// the logits, is contiguous, and is the only array of their size that is allocated, unless the
/// gradient of the loss is not 1: then backward multiplies it. It is rounded before: where a loss
/// is scaled for the small range of half, put the scale into `loss.aggregate.scale` instead. Where
/// autograd is off or the logits need no gradient, only the loss is computed.
///
/// Errors: as of `torch_loss`.
template <class Exec, class Loss>
TorchLoss torch_loss_from_logits(const Exec& exec, const Loss& loss, const TorchLogits& logits,
                                 const TokenBatch<float>& batch, const Normalizer& normalizer,
                                 LogitsWorkspace& workspace) {
  constexpr const char* function = "gdpo::torch_loss_from_logits";
  const detail::TensorInfo table = detail::torch_info(function, "logits", logits.logits);
  detail::check_rank(function, "logits", table, 2, 3, "(B, T, V) or (N, V)");
  return detail::visit_elements(function, "logits", table, detail::RealTypes{},
                                [&](auto* element) -> TorchLoss {
                                  using T = std::decay_t<decltype(*element)>;
                                  if (table.rank == 2) {
                                    return detail::loss_of_logits<T, 2>(
                                        exec, loss, logits, table, batch, normalizer, workspace);
                                  }
                                  return detail::loss_of_logits<T, 3>(exec, loss, logits, table,
                                                                      batch, normalizer, workspace);
                                });
}
/// The same of a batch in tensors.
template <class Exec, class Loss>
TorchLoss torch_loss_from_logits(const Exec& exec, const Loss& loss, const TorchLogits& logits,
                                 const TorchBatch& batch, const Normalizer& normalizer,
                                 LogitsWorkspace& workspace) {
  const auto tokens = detail::token_batch<float>("gdpo::torch_loss_from_logits", batch);
  return torch_loss_from_logits(exec, loss, logits, tokens, normalizer, workspace);
}
/// The same with its own workspace, on one thread in lanes (`simd`).
template <class Loss>
TorchLoss torch_loss_from_logits(const Loss& loss, const TorchLogits& logits,
                                 const TorchBatch& batch, const Normalizer& normalizer) {
  LogitsWorkspace workspace;
  return torch_loss_from_logits(simd, loss, logits, batch, normalizer, workspace);
}

GDPO_END_NAMESPACE
