#pragma once
// The operator of value losses.
#include <gdpo/value.hpp>
#include <gdpo/with/torch_stable/loss.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

// The arrays of a ValueBatch as the arguments of an operator.
#define GDPO_TORCH_VALUE_ARRAYS(X) \
  X(values) X(old_values) X(returns) X(mask) X(row_weights) X(group_tokens)
#define GDPO_TORCH_VALUE_PARAMETERS \
  GDPO_TORCH_VALUE_ARRAYS(GDPO_TORCH_PARAMETER) const Array& offsets
#define GDPO_TORCH_VALUE_NAMES GDPO_TORCH_VALUE_ARRAYS(GDPO_TORCH_NAME) offsets
#define GDPO_TORCH_VALUE_SCHEMA GDPO_TORCH_VALUE_ARRAYS(GDPO_TORCH_TEXT) "Tensor? offsets=None"

/// The batch of an operator's arrays, whose numbers are read as S.
template <class S>
ValueBatch<S> value_batch_of(const Call& call, GDPO_TORCH_VALUE_PARAMETERS) {
  ValueBatch<S> batch;
  batch.values = tokens<S>(call, "batch.values", values);
  batch.old_values = tokens<S>(call, "batch.old_values", old_values);
  batch.returns = tokens<S>(call, "batch.returns", returns);
  batch.mask = tokens<unsigned char>(call, "batch.mask", mask);
  batch.row_weights = column(call, "batch.row_weights", row_weights);
  batch.group_tokens = column(call, "batch.group_tokens", group_tokens);
  batch.offsets = index_column(call, "batch.offsets", offsets);
  return batch;
}

/// The value loss of that line, which measures what policy_loss does: metrics::Means.
inline auto configured_value_loss(const std::string& line) {
  return with_metrics<metrics::Means>(remembered(
      line, [](const std::string& text) { return runtime::configured_value_loss(text); }));
}
/// Throws unless there are values.
inline void check_values(const char* function, const Array& values) {
  if (values) return;
  contract::fail(function, "batch.values", "no array", "the values of the critic that is trained");
}

template <class S>
std::tuple<Tensor, Tensor, Tensor> value_loss_of(const char* function, const std::string& line,
                                                 const Tensor& counts, bool with_gradient,
                                                 GDPO_TORCH_VALUE_PARAMETERS) {
  const ValueBatch<S> batch = value_batch_of<S>(function, GDPO_TORCH_VALUE_NAMES);
  const Normalizer normalizer = counts_of(function, counts);
  const Tensor gradient = new_gradient<S>(function, *values, with_gradient);
  const TokenOut<S> out = with_gradient ? tokens_out<S>(gradient) : TokenOut<S>{};
  thread_local ValueWorkspace<S> workspace;
  const ValueLossResult result =
      configured_value_loss(line)(gdpo::parallel(Threads{}), batch, normalizer, out, workspace);
  const Tensor loss = new_tensor(function, {}, scalar_type<S>);
  *static_cast<S*>(loss.mutable_data_ptr()) = static_cast<S>(result.loss);
  return {loss, gradient, numbers_of(result)};
}

}  // namespace detail

/// What an operator of this name declares: the arrays are those of a ValueBatch.
inline constexpr const char* value_loss_schema =
    "value_loss(str loss, Tensor counts, bool gradient, " GDPO_TORCH_VALUE_SCHEMA
    ") -> (Tensor, Tensor, Tensor)";
/// A value loss with its gradient and metrics (value/value_loss.hpp).
///
/// `loss`: the line of runtime::configured_value_loss. `counts`: (4) float64, the counts of the
/// step as `count` returns them. The other arguments are the members of ValueBatch. Numbers are
/// computed in float64 where `values` is float64, else in float32.
///
/// Returns the loss, a scalar; dloss/dvalues in the shape of `values`, or without `gradient` an
/// empty tensor, both in the type that numbers are computed in; and the numbers of the
/// ValueLossResult, whose names are those of a "value_result". Metrics are metrics::Means.
///
/// Errors: those of ValueLoss, and `invalid_input` for tensors of other types, ranks or devices.
inline std::tuple<Tensor, Tensor, Tensor> value_loss(const std::string& loss, const Tensor& counts,
                                                     bool gradient, GDPO_TORCH_VALUE_PARAMETERS) {
  constexpr const char* function = "gdpo::value_loss";
  detail::check_values(function, values);
  const auto compute = values->scalar_type() == ScalarType::Double ? detail::value_loss_of<double>
                                                                   : detail::value_loss_of<float>;
  return compute(function, loss, counts, gradient, GDPO_TORCH_VALUE_NAMES);
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
