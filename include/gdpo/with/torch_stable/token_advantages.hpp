#pragma once
// The operators from rewards to advantages and returns of tokens, and of token baselines.
#include <gdpo/advantage/gigpo.hpp>
#include <gdpo/with/torch_stable/advantages.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

// The arrays of a ReturnBatch besides its rewards, as the arguments of an operator.
#define GDPO_TORCH_RETURNS_SCHEMA                                                      \
  "Tensor? values=None, Tensor? logp=None, Tensor? ref_logp=None, Tensor? mask=None, " \
  "Tensor? offsets=None, Tensor? bootstrap=None"
#define GDPO_TORCH_RETURNS_PARAMETERS                                               \
  const Array &values, const Array &logp, const Array &ref_logp, const Array &mask, \
      const Array &offsets, const Array &bootstrap
#define GDPO_TORCH_RETURNS_NAMES values, logp, ref_logp, mask, offsets, bootstrap

/// The first of some arrays that is there; it has the shape of the tokens.
inline const Tensor& first_of(const Call& call, std::initializer_list<const Array*> arrays) {
  for (const Array* const array : arrays)
    if (*array) return **array;
  call.fail("mask", "no array of tokens", "one at least, such as the mask, for their shape");
}
inline bool is_double(const Array& array) {
  return array && array->scalar_type() == ScalarType::Double;
}

/// Whether numbers are doubles: one of the arrays of tokens is float64, or there is none and
/// `otherwise`.
inline bool returns_are_double(const Array& rewards, const Array& values, const Array& logp,
                               const Array& ref_logp, bool otherwise) {
  if (!rewards && !values && !logp && !ref_logp) return otherwise;
  return is_double(rewards) || is_double(values) || is_double(logp) || is_double(ref_logp);
}
/// Calls f(batch, advantages, returns) with the arrays of a ReturnBatch, read as S, and two new
/// tensors of its shape as arrays of tokens; returns the tensors.
template <class S, class F>
std::tuple<Tensor, Tensor> with_returns_as(const Call& call, const Array& rewards,
                                           const Array& row_rewards, GDPO_TORCH_RETURNS_PARAMETERS,
                                           const F& f) {
  ReturnBatch<S> batch;
  batch.rewards = tokens<S>(call, "batch.rewards", rewards);
  batch.row_rewards = column(call, "batch.row_rewards", row_rewards);
  batch.values = tokens<S>(call, "batch.values", values);
  batch.logp = tokens<S>(call, "batch.logp", logp);
  batch.ref_logp = tokens<S>(call, "batch.ref_logp", ref_logp);
  batch.mask = tokens<unsigned char>(call, "batch.mask", mask);
  batch.offsets = index_column(call, "batch.offsets", offsets);
  batch.bootstrap = column(call, "batch.bootstrap", bootstrap);
  const Tensor& like = first_of(call, {&rewards, &values, &logp, &ref_logp, &mask});
  constexpr ScalarType type = sizeof(S) == sizeof(double) ? ScalarType::Double : ScalarType::Float;
  std::tuple<Tensor, Tensor> out{new_like(call, like, 0, type), new_like(call, like, 0, type)};
  f(batch, tokens_out<S>(std::get<0>(out)), tokens_out<S>(std::get<1>(out)));
  return out;
}
/// The same, read as double or float.
template <class F>
std::tuple<Tensor, Tensor> with_returns(const Call& call, bool doubles, const Array& rewards,
                                        const Array& row_rewards, GDPO_TORCH_RETURNS_PARAMETERS,
                                        const F& f) {
  if (doubles) {
    return with_returns_as<double>(call, rewards, row_rewards, GDPO_TORCH_RETURNS_NAMES, f);
  }
  return with_returns_as<float>(call, rewards, row_rewards, GDPO_TORCH_RETURNS_NAMES, f);
}

}  // namespace detail

/// What an operator of this name declares.
inline constexpr const char* token_advantages_schema =
    "token_advantages(str estimator, Tensor? rewards=None, Tensor? "
    "row_rewards=None, " GDPO_TORCH_RETURNS_SCHEMA ") -> (Tensor, Tensor)";
/// Advantages and returns of tokens (value/advantages_and_returns.hpp) by the estimator of that
/// line (runtime::configured_token_advantage). The other arguments are the members of ReturnBatch.
///
/// Returns both in the shape of the tokens: float64 where one of the arrays of tokens is, else
/// float32. Errors: those of advantages_and_returns_into, and `invalid_input` where no array has
/// the shape of the tokens.
inline std::tuple<Tensor, Tensor> token_advantages(const std::string& estimator,
                                                   const Array& rewards, const Array& row_rewards,
                                                   GDPO_TORCH_RETURNS_PARAMETERS) {
  const detail::Call call("gdpo::token_advantages");
  const auto& chosen = detail::remembered(estimator, [&call](const std::string& line) {
    return runtime::detail::configured(call.function, line, &runtime::token_advantage).value;
  });
  return detail::with_returns(
      call,
      detail::returns_are_double(rewards, values, logp, ref_logp, detail::is_double(row_rewards)),
      rewards, row_rewards, GDPO_TORCH_RETURNS_NAMES,
      [&](const auto& batch, const auto& advantages, const auto& returns) {
        thread_local ReturnsWorkspace<typename std::decay_t<decltype(batch)>::Scalar> workspace;
        std::visit(
            [&](const auto& e) {
              advantages_and_returns_into(gdpo::parallel(Threads{}), batch, e, advantages, returns,
                                          workspace);
            },
            chosen);
      });
}

/// What an operator of this name declares.
inline constexpr const char* outcome_advantages_schema =
    "outcome_advantages(Tensor rewards, str estimator, " GDPO_TORCH_GROUPS_SCHEMA
    ", float[]? weights=None, float[]? gates=None, Tensor? tokens=None, Tensor? valid=None, "
    "Tensor? baseline=None, Tensor? row_weights=None, Tensor? penalty=None, "
    "Tensor? token_rewards=None, " GDPO_TORCH_RETURNS_SCHEMA
    ", bool report=True) -> (Tensor, Tensor, Tensor)";
/// Advantages and returns of tokens from the rewards of rows (value/outcome_call.hpp) by the
/// estimator of that line (runtime::configured_outcome_advantage).
///
/// The arguments up to `penalty` are those of `advantages`; `token_rewards` is
/// ReturnBatch::rewards, and the others are its members.
///
/// Returns both in the shape of the tokens, float64 where one of their arrays is, and without one
/// where `advantages` has float64, else float32; and with `report` the numbers of the report of the
/// rows, else none. Errors: those of advantages_and_returns_into, and `invalid_input` for tensors
/// and lists that do not fit.
inline std::tuple<Tensor, Tensor, Tensor> outcome_advantages(
    const Tensor& rewards, const std::string& estimator, GDPO_TORCH_GROUPS_PARAMETERS,
    const std::optional<std::vector<double>>& weights,
    const std::optional<std::vector<double>>& gates, const Array& tokens, const Array& valid,
    const Array& baseline, const Array& row_weights, const Array& penalty,
    const Array& token_rewards, GDPO_TORCH_RETURNS_PARAMETERS, bool report) {
  const detail::Call call("gdpo::outcome_advantages");
  detail::check_advantages(call, GDPO_TORCH_GROUPS_NAMES, weights);
  auto chosen = detail::remembered(estimator, [&call](const std::string& line) {
    return runtime::detail::configured(call.function, line, &runtime::outcome_advantage).value;
  });
  const detail::RewardTensor table(call, rewards);
  GroupReport of_rows;
  const auto run = [&](const auto& batch, const auto& advantages, const auto& returns) {
    thread_local OutcomeWorkspace<typename std::decay_t<decltype(batch)>::Scalar> workspace;
    std::visit(
        [&](auto& e) {
          if (weights) e.rows.weights = *weights;
          if (gates) e.rows.gates = detail::gates_of(*gates);
          detail::with_batch(call.function, table, rewards, GDPO_TORCH_GROUPS_NAMES, tokens, valid,
                             baseline, row_weights, penalty, [&](const auto& rows) {
                               advantages_and_returns_into(gdpo::parallel(Threads{}), rows, batch,
                                                           e, advantages, returns, workspace,
                                                           report ? &of_rows : nullptr);
                             });
        },
        chosen);
  };
  const bool doubles =
      detail::returns_are_double(token_rewards, values, logp, ref_logp, !table.narrow);
  auto [advantages, returns] =
      detail::with_returns(call, doubles, token_rewards, Array{}, GDPO_TORCH_RETURNS_NAMES, run);
  return {advantages, returns, report ? detail::numbers_of(of_rows) : detail::doubles({0})};
}

/// What an operator of this name declares.
inline constexpr const char* step_advantages_schema =
    "step_advantages(Tensor rewards, str estimator, Tensor episode_ids, Tensor "
    "state_ids, " GDPO_TORCH_GROUPS_SCHEMA
    ", float[]? weights=None, float[]? gates=None, Tensor? tokens=None, Tensor? valid=None, "
    "Tensor? baseline=None, Tensor? row_weights=None, Tensor? penalty=None) -> Tensor";
/// Advantages of the steps of agents (advantage/gigpo.hpp) by the estimator of that line
/// (runtime::configured_step_advantage). `episode_ids` and `state_ids` are (N) integers, the others
/// are the arguments of `advantages`.
///
/// Returns the advantages (N), float64 for rewards of float64 and integers, else float32. Errors:
/// those of gdpo::gigpo_into, and `invalid_input` for tensors and lists that do not fit.
inline Tensor step_advantages(const Tensor& rewards, const std::string& estimator,
                              const Tensor& episode_ids, const Tensor& state_ids,
                              GDPO_TORCH_GROUPS_PARAMETERS,
                              const std::optional<std::vector<double>>& weights,
                              const std::optional<std::vector<double>>& gates, const Array& tokens,
                              const Array& valid, const Array& baseline, const Array& row_weights,
                              const Array& penalty) {
  const detail::Call call("gdpo::step_advantages");
  detail::check_advantages(call, GDPO_TORCH_GROUPS_NAMES, weights);
  auto chosen = detail::remembered(estimator, [&call](const std::string& line) {
    return runtime::detail::configured(call.function, line, &runtime::step_advantage).value;
  });
  const detail::RewardTensor table(call, rewards);
  const std::vector<index_t> episodes = detail::indices(call, "episode_ids", episode_ids),
                             states = detail::indices(call, "state_ids", state_ids);
  std::vector<double> a(static_cast<std::size_t>(table.rows));
  std::visit(
      [&](auto& e) {
        if (weights) e.episode.weights = e.step.weights = *weights;
        if (gates) e.episode.gates = e.step.gates = detail::gates_of(*gates);
        detail::with_batch(call.function, table, rewards, GDPO_TORCH_GROUPS_NAMES, tokens, valid,
                           baseline, row_weights, penalty, [&](const auto& given) {
                             detail::with_own_groups(given, [&](const auto& batch) {
                               using Groups = std::decay_t<decltype(batch.groups)>;
                               thread_local GigpoWorkspace<double, Groups> workspace;
                               gigpo_into(gdpo::parallel(Threads{}), batch, view(episodes),
                                          view(states), e, view(a), workspace);
                             });
                           });
      },
      chosen);
  Tensor out = detail::new_tensor(call, {rewards.size(0)}, detail::advantages_type(table));
  detail::write_advantages(view(std::as_const(a)), table, out);
  return out;
}

/// What an operator of this name declares.
inline constexpr const char* optimal_token_baseline_schema =
    "optimal_token_baseline(Tensor returns, Tensor logp, Tensor sum_pi_squared, str "
    "name, " GDPO_TORCH_GROUPS_SCHEMA
    ", Tensor? weights=None, Tensor? mask=None, Tensor? offsets=None) -> Tensor";
/// Returns of tokens minus the baseline of that line (runtime::configured_token_baseline), as
/// optimal_token_baseline_into. The other arguments are the groups of the rows and the members of
/// TokenBaselineBatch.
///
/// Returns the advantages in the shape of the returns, float64 where one of the arrays of numbers
/// is, else float32. Errors: those of optimal_token_baseline_into.
inline Tensor optimal_token_baseline(const Tensor& returns, const Tensor& logp,
                                     const Tensor& sum_pi_squared, const std::string& name,
                                     GDPO_TORCH_GROUPS_PARAMETERS, const Array& weights,
                                     const Array& mask, const Array& offsets) {
  const detail::Call call("gdpo::optimal_token_baseline");
  detail::check_groups(call, GDPO_TORCH_GROUPS_NAMES);
  const OptimalTokenBaseline& settings = detail::remembered(name, [&call](const std::string& line) {
    return runtime::detail::configured(call.function, line, &runtime::token_baseline).value;
  });
  const auto run = [&](auto element) {
    using S = decltype(element);
    TokenBaselineBatch<S> batch;
    batch.returns = detail::tokens<S>(call, "batch.returns", returns);
    batch.logp = detail::tokens<S>(call, "batch.logp", logp);
    batch.sum_pi_squared = detail::tokens<S>(call, "batch.sum_pi_squared", sum_pi_squared);
    batch.weights = detail::tokens<S>(call, "batch.weights", weights);
    batch.mask = detail::tokens<unsigned char>(call, "batch.mask", mask);
    batch.offsets = detail::index_column(call, "batch.offsets", offsets);
    constexpr ScalarType type =
        sizeof(S) == sizeof(double) ? ScalarType::Double : ScalarType::Float;
    Tensor out = detail::new_like(call, returns, 0, type);
    detail::with_groups(call, GDPO_TORCH_GROUPS_NAMES, [&](const auto& groups) {
      thread_local TokenBaselineWorkspace<S> workspace;
      optimal_token_baseline_into(gdpo::parallel(Threads{}), batch, groups, settings,
                                  detail::tokens_out<S>(out), workspace);
    });
    return out;
  };
  const bool doubles = detail::is_double(returns) || detail::is_double(logp) ||
                       detail::is_double(sum_pi_squared) || detail::is_double(weights);
  return doubles ? run(double{}) : run(float{});
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
