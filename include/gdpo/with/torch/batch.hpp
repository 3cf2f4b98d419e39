#pragma once
// TorchBatch: the tokens of a batch in LibTorch tensors.
#include <gdpo/with/torch/view.hpp>

GDPO_BEGIN_NAMESPACE

/// The tokens of one (micro-)batch in tensors on the host: the arrays of a TokenBatch, under the
/// same names, in the same shapes. TokenBatch says what each array is. An undefined tensor is an
/// absent array.
///
///     gdpo::TorchBatch batch;
///     batch.logp = logp;          // (B, T), or packed (N) with offsets (B + 1)
///     batch.old_logp = old_logp;
///     batch.mask = mask;          // of bool or any other dtype
///     batch.advantages = advantages;
///
/// Nothing is copied, whatever the strides: float, bfloat16 and half are read as they are, as
/// double is beside a `logp` of double; marks, columns and offsets may have any dtype of integers.
struct TorchBatch {
  at::Tensor logp;              ///< (tokens) Under the policy being trained, in nats.
  at::Tensor old_logp;          ///< (tokens) Under the policy that the ratio is against.
  at::Tensor ref_logp;          ///< (tokens) Under the reference policy.
  at::Tensor rollout_logp;      ///< (tokens) As the sampling engine reported them.
  at::Tensor teacher_logp;      ///< (tokens) Under a teacher.
  at::Tensor advantages;        ///< (B) One for each row.
  at::Tensor token_advantages;  ///< (tokens) One for each token, instead of `advantages`.
  at::Tensor mask;              ///< (tokens) 0: the token does not belong to the loss.
  at::Tensor offsets;           ///< (B + 1) Where each row of packed tokens begins.
  at::Tensor segments;          ///< (tokens) Ids of segments, such as turns.
  at::Tensor row_weights;       ///< (B) Factor of the row's weight.
  at::Tensor group_tokens;      ///< (B) Valid tokens of the row's group, for means over groups.
  at::Tensor weights;           ///< (tokens) Factor of the surrogate.
  at::Tensor kl_weights;        ///< (tokens) Factor of the KL terms.
  at::Tensor entropy_weights;   ///< (tokens) Factor of the entropies in an EntropyBonus.
  at::Tensor tags;              ///< (tokens) For policies that read Token::tag.
  at::Tensor entropies;         ///< (tokens) In nats, for an EntropyBonus, metrics, pre-passes.
  at::Tensor truncated;         ///< (B) Not 0: the completion reached the length limit.
  at::Tensor completion_mask;   ///< (tokens) Not 0: the token counts towards its length.
  /// (tokens) Logs of weights of the ratio, at levels of segments.
  at::Tensor level_log_weights;
};

namespace detail {

static_assert(sizeof(TorchBatch) ==
                  (token_arrays + token_marks + row_columns + 1) * sizeof(at::Tensor),
              "a new array of TokenBatch needs its tensor in TorchBatch");

template <class S>
TokenBatch<S> token_batch(const char* function, const TorchBatch& batch) {
  TokenBatch<S> b;
#define GDPO_X(name, ...) b.name = torch_tokens<S>(function, "batch." #name, batch.name);
  GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, type) b.name = torch_tokens<type>(function, "batch." #name, batch.name);
  GDPO_TOKEN_MARKS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...) b.name = torch_column_of(function, "batch." #name, batch.name);
  GDPO_ROW_COLUMNS(GDPO_X)
#undef GDPO_X
  b.offsets = torch_indices(function, "batch.offsets", batch.offsets);
  return b;
}

}  // namespace detail

/// The tensors as a TokenBatch, for pre-passes and every other call of the library. The batch holds
/// views: the tensors must outlive it.
///
/// S: float, or double if a token array is of double. Errors: `invalid_input`, which names the
/// tensor, for a dtype or rank that the array cannot have, and for a tensor that is sparse or not
/// on the host. Shapes are checked by the call that takes the batch.
template <class S = float>
TokenBatch<S> token_batch(const TorchBatch& batch) {
  return detail::token_batch<S>("gdpo::token_batch", batch);
}
/// Deleted, because a temporary batch may hold the only tensors of their storages.
template <class S = float>
void token_batch(const TorchBatch&&) = delete;

/// The counts of a batch in tensors, for the normalizer of its loss: `count` of its `token_batch`.
inline Normalizer count(const TorchBatch& batch) {
  return count(detail::token_batch<double>("gdpo::count", batch));
}

GDPO_END_NAMESPACE
