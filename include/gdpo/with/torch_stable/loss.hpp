#pragma once
// The operators of policy losses and their counts.
#include <gdpo/runtime.hpp>
#include <gdpo/with/torch_stable/batch.hpp>
#include <gdpo/with/torch_stable/result.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

/// The loss of that line.
inline const runtime::Loss& configured(const std::string& line) {
  return remembered(line, [](const std::string& text) { return runtime::configured_loss(text); });
}

/// The four numbers of a tensor of counts.
inline const double* count_numbers(const Call& call, const Tensor& counts) {
  return doubles_in(call, "counts", counts, 1, 4,
                    "float64 of 4 numbers, as count returns it: tokens, rows, non_empty_rows, "
                    "given");
}
/// Reads counts from four numbers.
GDPO_INLINE Normalizer read_counts(const double* numbers) {
  Normalizer n;
  n.tokens = numbers[0], n.rows = numbers[1], n.non_empty_rows = numbers[2], n.given = numbers[3];
  return n;
}
/// Writes counts as four numbers.
GDPO_INLINE void write_counts(const Normalizer& n, double* out) {
  out[0] = n.tokens, out[1] = n.rows, out[2] = n.non_empty_rows, out[3] = n.given;
}
/// The counts of a step from a tensor on the CPU.
inline Normalizer counts_of(const Call& call, const Tensor& counts) {
  return read_counts(count_numbers(call, counts));
}

/// The dtype of S.
template <class S>
constexpr ScalarType scalar_type = sizeof(S) == sizeof(double) ? ScalarType::Double
                                                               : ScalarType::Float;
/// A new tensor for dloss/dlogp in the shape of logp, or an empty one.
template <class S>
Tensor new_gradient(const Call& call, const Tensor& logp, bool wanted) {
  return wanted ? new_like(call, logp, 0, scalar_type<S>) : new_tensor(call, {0}, scalar_type<S>);
}
/// New tensors for the gradients of a loss, each in the shape of logp or empty.
template <class S>
struct NewGradients {
  Tensor by_logp, by_entropies;
  NewGradients(const Call& call, const Tensor& logp, bool logp_wanted, bool entropies_wanted)
      : by_logp(new_gradient<S>(call, logp, logp_wanted)),
        by_entropies(new_gradient<S>(call, logp, entropies_wanted)),
        wanted_{logp_wanted, entropies_wanted} {}
  LossGradient<S> out() const {
    const auto tokens = [](const Tensor& t, bool wanted) {
      return wanted ? tokens_out<S>(t) : TokenOut<S>{};
    };
    return {tokens(by_logp, wanted_[0]), tokens(by_entropies, wanted_[1])};
  }

 private:
  bool wanted_[2];
};

template <class S>
std::tuple<Tensor, Tensor, Tensor, Tensor> loss_of(const char* function, const std::string& line,
                                                   const Tensor& counts, bool with_gradient,
                                                   bool by_entropies, GDPO_TORCH_PARAMETERS) {
  const TokenBatch<S> batch = batch_of<S>(function, GDPO_TORCH_NAMES);
  const Normalizer normalizer = counts_of(function, counts);
  const NewGradients<S> gradients(function, *logp, with_gradient, by_entropies);
  const LossGradient<S> out = gradients.out();
  thread_local LossWorkspace<S> workspace;
  const LossResult result = std::visit(
      [&](const auto& loss) {
        return with_metrics<metrics::Means>(loss)(gdpo::parallel(Threads{}), batch, normalizer, out,
                                                  workspace);
      },
      configured(line));
  Tensor loss = new_tensor(function, {}, scalar_type<S>);
  *static_cast<S*>(loss.mutable_data_ptr()) = static_cast<S>(result.loss);
  return {loss, gradients.by_logp, gradients.by_entropies, numbers_of(result)};
}

}  // namespace detail

/// What an operator of this name declares: the arrays are those of a TokenBatch.
inline constexpr const char* policy_loss_schema =
    "policy_loss(str loss, Tensor counts, bool gradient, bool by_entropies, " GDPO_TORCH_SCHEMA
    ") -> (Tensor, Tensor, Tensor, Tensor)";
/// The same under a name of its own, for functions in Python that give it a derivative themselves:
/// one that is registered with the dispatcher costs more than the loss of a small batch.
inline constexpr const char* policy_loss_forward_schema =
    "policy_loss_forward(str loss, Tensor counts, bool gradient, bool "
    "by_entropies, " GDPO_TORCH_SCHEMA ") -> (Tensor, Tensor, Tensor, Tensor)";
/// A policy loss with its gradient and metrics (loss/policy_loss.hpp).
///
/// `loss`: the line of runtime::configured_loss. `counts`: (4) float64, the counts of the step as
/// `count` returns them: tokens, rows, non_empty_rows, given. The other arguments are the members
/// of TokenBatch; bool stands for a mask of bytes. Numbers are computed in float64 where `logp` is
/// float64, else in float32, to which bfloat16 and float16 are converted row by row.
///
/// Returns the loss, a scalar; dloss/dlogp in the shape of `logp`, or without `gradient` an empty
/// tensor; dloss/dentropies likewise where `by_entropies`, all in the type that numbers are
/// computed in; and the numbers of the LossResult, whose names are those of `result_names`. Metrics
/// are metrics::Means.
///
/// Errors: those of PolicyLoss, and `invalid_input` for tensors of other types, ranks or devices.
inline std::tuple<Tensor, Tensor, Tensor, Tensor> policy_loss(const std::string& loss,
                                                              const Tensor& counts, bool gradient,
                                                              bool by_entropies,
                                                              GDPO_TORCH_PARAMETERS) {
  constexpr const char* function = "gdpo::policy_loss";
  if (!logp) {
    contract::fail(function, "batch.logp", "no array", "the log-probs of the policy being trained");
  }
  const auto compute =
      logp->scalar_type() == ScalarType::Double ? detail::loss_of<double> : detail::loss_of<float>;
  return compute(function, loss, counts, gradient, by_entropies, GDPO_TORCH_NAMES);
}

/// What an operator of this name declares.
inline constexpr const char* loss_over_schema = "loss_over(str loss) -> str";
/// Which count the loss of that line divides by: tokens, rows, non_empty_rows, given, or "" where
/// it divides by none. Errors: `invalid_input` as from configured_loss.
inline std::string loss_over(const std::string& loss) {
  return std::visit(
      [](const auto& l) -> std::string {
        const index_t over = gdpo::detail::over_of(l.aggregate);
        for (const auto& count : gdpo::detail::step_counts) {
          if (static_cast<index_t>(count.over) == over) return count.name;
        }
        return over < 0 ? "" : "given";
      },
      runtime::configured_loss(loss));
}

/// What an operator of this name declares.
inline constexpr const char* count_schema = "count(" GDPO_TORCH_SCHEMA ") -> Tensor";
/// The counts of a batch, (4) float64: tokens, rows, non_empty_rows, and 0 for `given`
/// (tokens/count.hpp). The arguments are those of policy_loss; a mask or offsets suffice.
inline Tensor count(GDPO_TORCH_PARAMETERS) {
  Tensor counts = detail::doubles({4});
  detail::write_counts(gdpo::count(detail::batch_of<double>("gdpo::count", GDPO_TORCH_NAMES)),
                       detail::data_of(counts));
  return counts;
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
