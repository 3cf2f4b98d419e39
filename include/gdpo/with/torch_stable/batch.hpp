#pragma once
// A TokenBatch from the arguments of an operator.
#include <gdpo/with/torch_stable/tensor.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

// The arrays of a TokenBatch as the arguments of an operator, generated from the lists of them.
#define GDPO_TORCH_ARRAYS(X) GDPO_TOKEN_ARRAYS(X) GDPO_TOKEN_MARKS(X) GDPO_ROW_COLUMNS(X)
#define GDPO_TORCH_PARAMETER(name, ...) const Array &name,
#define GDPO_TORCH_NAME(name, ...) name,
#define GDPO_TORCH_TEXT(name, ...) "Tensor? " #name "=None, "
#define GDPO_TORCH_PARAMETERS GDPO_TORCH_ARRAYS(GDPO_TORCH_PARAMETER) const Array& offsets
#define GDPO_TORCH_NAMES GDPO_TORCH_ARRAYS(GDPO_TORCH_NAME) offsets
#define GDPO_TORCH_SCHEMA GDPO_TORCH_ARRAYS(GDPO_TORCH_TEXT) "Tensor? offsets=None"

/// The batch of an operator's arrays, whose numbers are read as S.
template <class S>
TokenBatch<S> batch_of(const Call& call, GDPO_TORCH_PARAMETERS) {
  TokenBatch<S> batch;
#define GDPO_X(name, ...) batch.name = tokens<S>(call, "batch." #name, name);
  GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, type) batch.name = tokens<type>(call, "batch." #name, name);
  GDPO_TOKEN_MARKS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...) batch.name = column(call, "batch." #name, name);
  GDPO_ROW_COLUMNS(GDPO_X)
#undef GDPO_X
  batch.offsets = index_column(call, "batch.offsets", offsets);
  return batch;
}

/// Whether calls that take either log-probs read numbers as double: one of the two is float64, or
/// neither is there and one of the others is.
inline bool reads_doubles(const Array& logp, const Array& old_logp, const Array& rollout_logp = {},
                          const Array& teacher_logp = {}) {
  const auto is_double = [](const Array& array) {
    return array && array->scalar_type() == ScalarType::Double;
  };
  if (logp || old_logp) return is_double(logp) || is_double(old_logp);
  return is_double(rollout_logp) || is_double(teacher_logp);
}

}  // namespace detail

}  // namespace torch_stable
GDPO_END_NAMESPACE
