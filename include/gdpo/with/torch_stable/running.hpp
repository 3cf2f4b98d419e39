#pragma once
// The operators that shape rewards, and those of what keeps a state over the steps of a run.
#include <gdpo/constraint/pid_state.hpp>
#include <gdpo/runtime.hpp>
#include <gdpo/with/torch_stable/groups.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

/// A count that a tensor holds as a double, which not every whole number above 2^53 is. One below 0
/// is left to who knows what counts.
inline index_t count_in(const Call& call, const char* name, double x) {
  constexpr double most = 9007199254740992;  // 2^53
  if (!(x >= -most && x <= most) || static_cast<double>(static_cast<index_t>(x)) != x)
    call.fail(name, contract::Text("a count of ") + contract::text(x), "a whole number");
  return static_cast<index_t>(x);
}
constexpr std::int64_t moments_size = 7;
/// Moments from seven numbers: n, weight, mean, mean_low, m2, min, max. Moves behind them.
inline Moments next_moments(const Call& call, const char* name, const double*& number) {
  Moments m;
  m.n = count_in(call, name, *number++);
  gdpo::detail::for_each_number(m, [&number](const char*, double& x) { x = *number++; });
  return m;
}
/// The moments of a tensor (1, 7) float64.
inline Moments moments_in(const Call& call, const char* name, const Tensor& tensor) {
  constexpr const char* needed = "(1, 7) float64: n, weight, mean, mean_low, m2, min, max";
  const double* number = doubles_in(call, name, tensor, 2, moments_size, needed);
  if (tensor.size(0) != 1) call.fail(name, "another tensor", needed);
  return next_moments(call, name, number);
}
inline double* write_moments(const Moments& m, double* out) {
  *out++ = static_cast<double>(m.n);
  gdpo::detail::for_each_number(m, [&out](const char*, double x) { *out++ = x; });
  return out;
}
inline Tensor moments_tensor(const Moments& m) {
  Tensor result = doubles({1, moments_size});
  write_moments(m, data_of(result));
  return result;
}
/// What a line describes, which must be of type T.
template <class T>
T running_as(const char* function, const std::string& line) {
  runtime::detail::Configured<runtime::Running> c =
      runtime::detail::configured(function, line, &runtime::running);
  if (const T* const settings = std::get_if<T>(&c.value)) return *settings;
  contract::fail(function, "line", "'" + c.words + "'", "the name of another kind of state");
}
/// The moments that go on, and the mean, the divisor and the bound of the rule that they give.
inline Tensor with_rule(const Moments& m, const update::shaping::Standardize& rule) {
  Tensor result = doubles({1, moments_size + 3});
  double* out = write_moments(m, data_of(result));
  *out++ = rule.mean, *out++ = rule.std, *out = rule.bound;
  return result;
}

}  // namespace detail

/// What an operator of this name declares.
inline constexpr const char* shape_rewards_schema =
    "shape_rewards(Tensor rewards, str rules, " GDPO_TORCH_GROUPS_SCHEMA
    ", Tensor? lengths=None, Tensor? valid=None, Tensor? input_lengths=None, Tensor? turns=None) "
    "-> Tensor";
/// Rewards as rules make them (update/shape_groups.hpp).
///
/// `rewards`: (rows), of any type. `rules`: lines of runtime::configured_shaping with "\n" between
/// them, applied in their order. Groups are needed where a rule sees them. The columns are those of
/// update::shaping::Columns. Returns (rows) float64. Errors: those of runtime::shape_rewards, and
/// `invalid_input` for a line that is none.
inline Tensor shape_rewards(const Tensor& rewards, const std::string& rules,
                            GDPO_TORCH_GROUPS_PARAMETERS, const Array& lengths, const Array& valid,
                            const Array& input_lengths, const Array& turns) {
  const detail::Call call("gdpo::shape_rewards");
  std::vector<runtime::Shaping> chosen;
  bool sees_groups = false;
  for (std::size_t begin = 0; begin < rules.size();) {
    const std::size_t end = (std::min)(rules.find('\n', begin), rules.size());
    chosen.push_back(runtime::detail::configured(call.function,
                                                 std::string_view(rules).substr(begin, end - begin),
                                                 &runtime::shaping)
                         .value);
    std::visit(
        [&](const auto& rule) {
          sees_groups = sees_groups || gdpo::detail::is_group_rule_v<std::decay_t<decltype(rule)>>;
        },
        chosen.back());
    begin = end + 1;
  }
  const bool given = group_size != 0 || group_ids || group_offsets;
  if (sees_groups || given) detail::check_groups(call, GDPO_TORCH_GROUPS_NAMES);
  const Column values = detail::column(call, "rewards", rewards);
  update::shaping::Columns columns;
  columns.lengths = detail::column(call, "lengths", lengths);
  columns.valid = detail::column(call, "valid", valid);
  columns.input_lengths = detail::column(call, "input_lengths", input_lengths);
  columns.turns = detail::column(call, "turns", turns);
  Tensor result = detail::doubles({static_cast<std::int64_t>(values.size())});
  double* const out = detail::data_of(result);
  for (index_t i = 0; i < values.size(); ++i) out[i] = values(i);
  detail::with_groups(
      call, given ? group_size : 1, group_ids, group_offsets, [&](const auto& groups) {
        return runtime::shape_rewards(gdpo::view(out, values.size()), groups, columns, chosen);
      });
  return result;
}

/// What an operator of this name declares.
inline constexpr const char* measure_schema =
    "measure(Tensor values, Tensor? valid=None) -> Tensor";
/// The moments of numbers (update::measure): (1, 7) float64. Errors: `invalid_input` for tensors
/// that do not fit.
inline Tensor measure(const Tensor& values, const Array& valid) {
  const detail::Call call("gdpo::measure");
  return detail::moments_tensor(update::measure(detail::column(call, "values", values),
                                                detail::column(call, "valid", valid)));
}

/// What an operator of this name declares.
inline constexpr const char* merge_moments_schema = "merge_moments(Tensor parts) -> Tensor";
/// The moments of the parts together, merged in their order: of (parts, 7) float64, (1, 7). Errors:
/// `invalid_input` for another tensor.
inline Tensor merge_moments(const Tensor& parts) {
  const detail::Call call("gdpo::merge_moments");
  const double* number =
      detail::doubles_in(call, "parts", parts, 2, detail::moments_size, "(parts, 7) float64");
  Moments all;
  for (std::int64_t p = 0; p < parts.size(0); ++p)
    all = merge(all, detail::next_moments(call, "parts", number));
  return detail::moments_tensor(all);
}

/// What an operator of this name declares.
inline constexpr const char* running_moments_schema =
    "running_moments(str line, Tensor state, Tensor step) -> Tensor";
/// A step of update::RunningMoments. `line`: "running_moments" with settings, as in
/// runtime::configured_running. `state`, `step`: (1, 7) float64, moments so far and of the step
/// over all ranks. Returns (1, 10): the next moments, and mean, divisor and bound of the rule.
/// Errors: those of update::RunningMoments, and `invalid_input` for tensors that do not fit.
inline Tensor running_moments(const std::string& line, const Tensor& state, const Tensor& step) {
  constexpr const char* function = "gdpo::RunningMoments";
  const auto running = detail::running_as<update::RunningMoments>(function, line);
  Moments m = detail::moments_in(function, "state", state);
  running.update(m, detail::moments_in(function, "step", step));
  return detail::with_rule(m, running.rule(m));
}

/// What an operator of this name declares.
inline constexpr const char* ema_baseline_schema =
    "ema_baseline(str line, Tensor state, Tensor rewards, Tensor roles, Tensor? valid=None) -> "
    "(Tensor, Tensor)";
/// A step of update::EmaBaseline. `line`: "ema_baseline" or another such name, with settings.
/// `state`: (roles, 2) float64, baseline and number of rewards of each role so far. `rewards`,
/// `roles`, `valid`: (rows). Returns the next state, and the baselines (rows) float64. Errors:
/// those of update::EmaBaseline, and `invalid_input` for tensors that do not fit.
inline std::tuple<Tensor, Tensor> ema_baseline(const std::string& line, const Tensor& state,
                                               const Tensor& rewards, const Tensor& roles,
                                               const Array& valid) {
  const detail::Call call("gdpo::EmaBaseline");
  const auto ema = detail::running_as<update::EmaBaseline>(call.function, line);
  const double* number = detail::doubles_in(call, "state", state, 2, 2, "(roles, 2) float64");
  EmaState s;
  for (std::int64_t r = 0; r < state.size(0); ++r) {
    s.baseline.push_back(*number++);
    s.updates.push_back(detail::count_in(call, "state.updates", *number++));
  }
  const Column values = detail::column(call, "rewards", rewards);
  Tensor baselines = detail::doubles({static_cast<std::int64_t>(values.size())});
  ema.baselines_into(s, values, detail::index_column(call, "roles", roles),
                     gdpo::view(detail::data_of(baselines), values.size()),
                     detail::column(call, "valid", valid));
  Tensor next = detail::doubles({static_cast<std::int64_t>(s.baseline.size()), 2});
  double* out = detail::data_of(next);
  for (std::size_t r = 0; r < s.baseline.size(); ++r)
    *out++ = s.baseline[r], *out++ = static_cast<double>(s.updates[r]);
  return {next, baselines};
}

/// What an operator of this name declares.
inline constexpr const char* observe_returns_schema =
    "observe_returns(str line, Tensor returns, Tensor rewards, Tensor? ended=None) -> (Tensor, "
    "Tensor)";
/// The first half of a step of update::ReturnScale. `line`: "return_scale" with settings.
/// `returns`: (episodes) float64, or without elements before the first step. `rewards`, `ended`:
/// (episodes). Returns the next returns, and the moments of this step, (1, 7). Errors: those of
/// update::ReturnScale, and `invalid_input` for tensors that do not fit.
inline std::tuple<Tensor, Tensor> observe_returns(const std::string& line, const Tensor& returns,
                                                  const Tensor& rewards, const Array& ended) {
  const detail::Call call("gdpo::ReturnScale");
  const auto scale = detail::running_as<update::ReturnScale>(call.function, line);
  ReturnScaleState s;
  const Column before = detail::column(call, "returns", returns);
  for (index_t i = 0; i < before.size(); ++i) s.returns.push_back(before(i));
  const Moments step = scale.observe(s, detail::column(call, "rewards", rewards),
                                     detail::column(call, "ended", ended));
  Tensor next = detail::doubles({static_cast<std::int64_t>(s.returns.size())});
  std::copy(s.returns.begin(), s.returns.end(), detail::data_of(next));
  return {next, detail::moments_tensor(step)};
}

/// What an operator of this name declares.
inline constexpr const char* return_scale_schema =
    "return_scale(str line, Tensor state, Tensor step) -> Tensor";
/// The second half: as running_moments, with "return_scale".
inline Tensor return_scale(const std::string& line, const Tensor& state, const Tensor& step) {
  constexpr const char* function = "gdpo::ReturnScale";
  const auto scale = detail::running_as<update::ReturnScale>(function, line);
  ReturnScaleState s;
  s.moments = detail::moments_in(function, "state", state);
  scale.update(s, detail::moments_in(function, "step", step));
  return detail::with_rule(s.moments, scale.rule(s));
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
