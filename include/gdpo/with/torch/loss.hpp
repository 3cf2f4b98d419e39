#pragma once
// Policy losses of LibTorch tensors, which autograd differentiates.
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <gdpo/with/torch/batch.hpp>

GDPO_BEGIN_NAMESPACE

/// A loss that autograd differentiates, and what the call measured besides.
struct TorchLoss {
  /// The loss, of no dimension: float, or double for log-probs of double. Where gradients are
  /// recorded, `loss.backward()` brings the library's gradient to what the loss is a function of.
  at::Tensor loss;
  /// The same loss as a number, its parts, its counts and the metrics.
  LossResult result;
};

namespace detail {

/// A function of autograd whose value and gradient were computed outside of it.
struct TorchGradient : torch::autograd::Function<TorchGradient> {
  /// The value. The first two tensors are what it is a function of, the next two the gradients by
  /// them.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor&,
                            const at::Tensor&, const at::Tensor& gradient,
                            const at::Tensor& second_gradient, double value, at::ScalarType dtype,
                            const char* function) {
    context->save_for_backward({gradient, second_gradient});
    context->saved_data["function"] = std::string(function);
    return at::scalar_tensor(value, dtype);
  }
  /// The gradient times that of the value. Autograd rounds it to the dtype of the tensor.
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& outer) {
    // Autograd records a backward pass only if it is to be differentiated again.
    if (at::GradMode::is_enabled()) {
      contract::fail(context->saved_data["function"].toStringRef().c_str(), "create_graph", "true",
                     "false, because the loss has a first derivative only");
    }
    torch::autograd::variable_list gradients = context->get_saved_variables();
    const double factor = outer[0].item<double>();
    for (at::Tensor& gradient : gradients) {
      // The factor of a scaled loss may be beyond the range of half, so the product is of float.
      if (!gradient.defined() || factor == 1) continue;
      if (gradient.element_size() < 4) gradient = gradient.to(at::kFloat);
      gradient = gradient.mul(outer[0].to(gradient.scalar_type()));
    }
    gradients.resize(7);  // none by the other arguments
    return gradients;
  }
};

/// Whether autograd needs the gradient by a tensor.
inline bool wants_gradient(const at::Tensor& argument) {
  return argument.requires_grad() && at::GradMode::is_enabled();
}
/// The loss as a tensor. `gradient`: by `argument`; undefined: none is wanted. The second pair
/// likewise.
inline at::Tensor torch_value(const char* function, const at::Tensor& argument,
                              const at::Tensor& gradient, double value, at::ScalarType dtype,
                              const at::Tensor& second_argument = {},
                              const at::Tensor& second_gradient = {}) {
  const bool first = gradient.defined(), second = second_gradient.defined();
  if (!first && !second) return at::scalar_tensor(value, dtype);
  // LibTorch 1.13 takes no undefined tensors. An empty one without a gradient stands for them.
  const at::Tensor none = at::empty({0});
  return TorchGradient::apply(first ? argument : none, second ? second_argument : none,
                              first ? gradient : none, second ? second_gradient : none, value,
                              dtype, function);
}

template <class Exec, class Loss, class S>
TorchLoss torch_loss(const char* name, const Exec& exec, const Loss& loss, const at::Tensor& logp,
                     const TokenBatch<S>& batch, const Normalizer& normalizer,
                     LossWorkspace<S>& workspace, const at::Tensor& entropies = {}) {
  constexpr const char* function = "gdpo::torch_loss";
  TokenBatch<S> bound = batch;
  bound.logp = torch_tokens<S>(function, name, logp);
  LossGradient<S> out;
  const auto new_gradient = [&](const at::Tensor& argument, TokenOut<S>& tokens) {
    if (!argument.defined() || !wants_gradient(argument)) return at::Tensor();
    const at::Tensor gradient = at::empty(argument.sizes(), torch_dtype<S>());
    tokens = tokens_out<S>(torch_info(function, "gradient", gradient));
    return gradient;
  };
  const bool has_entropy = entropy_of(loss).coef != 0;
  const at::Tensor gradient = new_gradient(logp, out.logp),
                   by_entropies =
                       has_entropy ? new_gradient(entropies, out.entropies) : at::Tensor();
  TorchLoss r;
  r.result = evaluate(exec, loss, bound, normalizer, out, workspace);
  r.loss = torch_value(function, logp, gradient, r.result.loss, torch_dtype<S>(), entropies,
                       by_entropies);
  return r;
}

}  // namespace detail

/// A policy loss of log-probs in a tensor, as a function that autograd differentiates: `backward()`
/// gives `logp` the gradient of the library, bit for bit, times that of the loss.
///
///     const gdpo::Normalizer counts = gdpo::count(batch);  // a TorchBatch; add all micro-batches
///     const gdpo::TorchLoss r = gdpo::torch_loss(gdpo::dapo_loss, batch, counts);
///     r.loss.backward();
///
/// exec, loss and normalizer: as in gdpo/loss.hpp. Value and gradient are computed in one pass over
/// the tokens, now; backward multiplies. Where autograd is off, or `logp` needs no gradient, none
/// is computed. A loss with an EntropyBonus has a gradient by `batch.entropies` too, where these
/// need one; there is no gradient by any other tensor.
///
/// The loss and its gradient are computed in double if `logp` is of double, else in float; the
/// gradient is rounded to the dtype of `logp` after it is multiplied.
///
/// Errors: `invalid_input` for what the loss refuses, and for tensors that `token_batch` refuses.
/// backward throws it where it is to be differentiated again (create_graph): there is no second
/// derivative.
template <class Exec, class Loss, std::enable_if_t<detail::is_exec_v<Exec>, int> = 0>
TorchLoss torch_loss(const Exec& exec, const Loss& loss, const TorchBatch& batch,
                     const Normalizer& normalizer) {
  constexpr const char* function = "gdpo::torch_loss";
  const auto run = [&](auto workspace, auto bound) {
    return detail::torch_loss("batch.logp", exec, loss, batch.logp, bound, normalizer, workspace,
                              batch.entropies);
  };
  if (batch.logp.defined() && batch.logp.scalar_type() == at::kDouble)
    return run(LossWorkspace<double>{}, detail::token_batch<double>(function, batch));
  return run(LossWorkspace<float>{}, detail::token_batch<float>(function, batch));
}
/// The same on one thread in lanes (`simd`).
template <class Loss>
TorchLoss torch_loss(const Loss& loss, const TorchBatch& batch, const Normalizer& normalizer) {
  return torch_loss(simd, loss, batch, normalizer);
}
/// The same of a TokenBatch, such as one that `prepare` has changed. Its `logp` is not read; that
/// of the tensor is. S is double if the tensor is of double, else float. workspace: kept by the
/// caller.
template <class Exec, class Loss, class S>
TorchLoss torch_loss(const Exec& exec, const Loss& loss, const at::Tensor& logp,
                     const TokenBatch<S>& batch, const Normalizer& normalizer,
                     LossWorkspace<S>& workspace) {
  return detail::torch_loss("logp", exec, loss, logp, batch, normalizer, workspace);
}

GDPO_END_NAMESPACE
