#pragma once
// The operator of the controller of Lagrange multipliers.
#include <gdpo/constraint.hpp>
#include <gdpo/runtime.hpp>
#include <gdpo/with/torch_stable/tensor.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {
namespace detail {

/// The set-points of a tensor: (m, 3) float64, the limit and scale of each constraint, and 1 for at
/// least, 0 for at most.
inline std::vector<SetPoint> set_points_of(const char* function, const char* name,
                                           const Tensor& tensor) {
  const double* point =
      doubles_in(function, name, tensor, 2, 3, "(m, 3) float64: limit, scale, bound");
  std::vector<SetPoint> points(static_cast<std::size_t>(tensor.size(0)));
  for (SetPoint& p : points) {
    p.limit = point[0], p.scale = point[1];
    p.bound = math::is_zero(point[2]) ? Bound::AtMost : Bound::AtLeast;
    point += 3;
  }
  return points;
}

}  // namespace detail

/// What an operator of this name declares.
inline constexpr const char* pid_schema =
    "pid(str gains, Tensor set_points, Tensor state, Tensor measured, Tensor? before=None) -> "
    "(Tensor, Tensor)";
/// A step of a controller of m Lagrange multipliers (constraint/pid.hpp).
///
/// `gains`: members of PidGains in one line, such as "kp=1 ki=0.1 form=velocity". `set_points`:
/// (m, 3) float64, the limit and scale of each constraint, and 1 for at least, 0 for at most.
/// `state`: what the last call returned; without elements: a new controller. `measured`: (m, 2)
/// float64, sum and count of each value over all ranks; (0, 2): nothing is updated. `before`: the
/// set-points under which the state was made, where these may be others; the limits then move.
///
/// Returns the new state, and (m, 8) the members of PidStep: p, i, d, raw, lambda, saturated_steps,
/// saturated, held. Errors: those of gdpo::PidLagrangian, and `invalid_input` for tensors that do
/// not fit.
inline std::tuple<Tensor, Tensor> pid(const std::string& gains, const Tensor& set_points,
                                      const Tensor& state, const Tensor& measured,
                                      const std::optional<Tensor>& before) {
  constexpr const char* function = "gdpo::PidLagrangian";
  PidGains settings;
  runtime::detail::Words next{gains};
  runtime::detail::apply_settings(function, settings, next(), next, {nullptr, "gains[0]"});
  PidLagrangian controller(settings, detail::set_points_of(function, "set_points", set_points));

  PidState s = controller.state();
  std::int64_t size = 0;
  gdpo::detail::for_each_field(s, [&size](const char*, const auto& field) {
    size += static_cast<std::int64_t>(field.size());
  });
  if (state.numel() > 0) {
    const double* source = detail::doubles_in(
        function, "state", state, 2, size, "the state of a controller with these gains and limits");
    gdpo::detail::for_each_field(s, [&source](const char*, auto& field) {
      for (auto& number : field) number = static_cast<std::decay_t<decltype(number)>>(*source++);
    });
    if (before) s.set_points = detail::set_points_of(function, "before", *before);
    controller.restore(s);
  }
  const double* source = detail::doubles_in(function, "measured", measured, 2, 2, "(m, 2) float64");
  if (measured.size(0) > 0) {
    std::vector<SumCount> sums(static_cast<std::size_t>(measured.size(0)));
    for (SumCount& sum : sums) sum = {source[0], source[1]}, source += 2;
    controller.update(sums);
  }

  Tensor next_state = detail::doubles({1, size});
  double* out = detail::data_of(next_state);
  gdpo::detail::for_each_field(controller.state(), [&out](const char*, const auto& field) {
    for (const auto number : field) *out++ = static_cast<double>(number);
  });
  Tensor steps = detail::doubles({set_points.size(0), 8});
  out = detail::data_of(steps);
  for (const PidStep& step : controller.last()) {
    for (const double number :
         {step.p, step.i, step.d, step.raw, step.lambda, static_cast<double>(step.saturated_steps),
          static_cast<double>(step.saturated), static_cast<double>(step.held)}) {
      *out++ = number;
    }
  }
  return {next_state, steps};
}

/// What an operator of this name declares.
inline constexpr const char* adaptive_entropy_schema =
    "adaptive_entropy(str settings, Tensor state, Tensor? entropy=None) -> Tensor";
/// A step of the controller of an entropy bonus (constraint/adaptive_entropy.hpp).
///
/// `settings`: members of AdaptiveEntropy in one line, such as "target=0.2 delta=0.005". `state`:
/// (1, 2) float64, the coefficient and the entropy of the last step. `entropy`: (1, 1) float64, the
/// mean of this step; absent: nothing moves. Returns (1, 3): the new state, and the coefficient
/// that it applies. Errors: those of gdpo::AdaptiveEntropy, and `invalid_input` for tensors that do
/// not fit.
inline Tensor adaptive_entropy(const std::string& settings, const Tensor& state,
                               const std::optional<Tensor>& entropy) {
  constexpr const char* function = "gdpo::AdaptiveEntropy";
  AdaptiveEntropy controller;
  runtime::detail::Words next{settings};
  runtime::detail::apply_settings(function, controller, next(), next, {nullptr, "settings"});
  const double* numbers =
      detail::doubles_in(function, "state", state, 2, 2, "(1, 2) float64: coef, last_entropy");
  EntropyState s{numbers[0], numbers[1]};
  if (entropy) {
    controller.update(s,
                      *detail::doubles_in(function, "entropy", *entropy, 2, 1, "(1, 1) float64"));
  }
  Tensor result = detail::doubles({1, 3});
  double* out = detail::data_of(result);
  out[0] = s.coef, out[1] = s.last_entropy, out[2] = controller.applied(s);
  return result;
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
