#pragma once
// Converts the state of a controller to another set-point.
#include <gdpo/constraint/engine/check_pid_state.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Turns errors against one set-point into errors against another of the same bound.
struct ErrorConversion {
  double ratio,  ///< Units of the first scale in one of the second.
      shift;     ///< The error of the first limit against the second.

  /// The error for an error.
  double operator()(double e) const { return math::mul(ratio, e) + shift; }
  /// The same of a sum of errors whose weights add up to `weight`, so of their mean.
  double sum(double sum, double weight) const {
    return weight > 0 ? math::mul(weight, (*this)(sum / weight)) : 0.0;
  }
};

/// What the weights of the errors in the average of constraint c add up to, after an update.
inline double weight_of_errors(const PidState& s, std::size_t c, const PidGains& g) {
  if (g.p_start == EmaStart::FirstValue) return 1;
  if (g.p_start != EmaStart::AfterFirst) return 1.0 - s.p_weight[c];
  if (s.updates[c] == 1) return 0;
  return g.p_ema > 0 ? (math::max)(1.0 - s.p_weight[c] / g.p_ema, 0.0) : 1.0;
}

/// Gives constraint c the set-point `target`, of the same bound. Its multiplier does not change;
/// `PidLagrangian::move` describes what the rest of the state becomes.
inline void move_set_point(const char* function, PidState& s, std::size_t c, double* history,
                           const PidGains& g, const SetPoint& target) {
  const SetPoint source = s.set_points[c];
  s.set_points[c] = target;
  const bool same = source.limit == target.limit && source.scale == target.scale;
  if (same || s.updates[c] == 0) return;

  // 0.0 is added so that no error becomes -0, as in an update.
  const ErrorConversion conversion{source.scale / target.scale,
                                   error_of(target, source.limit) + 0.0};
  const double weight = weight_of_errors(s, c, g), average = conversion.sum(s.p_average[c], weight);
  // The proportional term is of the mean error where the average is corrected.
  const double share = g.p_start == EmaStart::BiasCorrected ? weight : 1.0;
  const double p_change = (average - math::mul(conversion.ratio, s.p_average[c])) / share;
  const double rest = math::mul(conversion.ratio, s.previous[c]) + math::mul(g.kp, p_change);

  double& integral = s.integral[c];
  if (g.form == PidForm::Positional) {
    const double output = s.previous[c] + integral;
    integral = output <= 0              ? (math::min)(integral, -rest)
               : output >= g.lambda_max ? (math::max)(integral, g.lambda_max - rest)
                                        : output - rest;
    s.adam_m[c] = integral < 0 ? -1 : integral > g.integral_max ? 1 : 0;
  }
  if (g.form == PidForm::Adam || g.form == PidForm::RmsProp) {
    const double m_weight = 1.0 - s.adam_m_weight[c], v_weight = 1.0 - s.adam_v_weight[c];
    const bool adam = g.form == PidForm::Adam;
    const double mean = adam ? s.adam_m[c] / m_weight : weight > 0 ? s.p_average[c] / weight : 0.0;
    const double later = conversion(mean), spread = s.adam_v[c] - math::mul(v_weight, mean * mean);
    s.adam_v[c] = math::mul(conversion.ratio * conversion.ratio, (math::max)(spread, 0.0)) +
                  math::mul(v_weight, later * later);
    if (adam) s.adam_m[c] = math::mul(m_weight, later);
  }
  s.p_average[c] = average;
  s.previous[c] = rest;
  s.d_average[c] *= conversion.ratio;
  for (int i = 0; i < g.d_delay; ++i) history[i] *= conversion.ratio;

  bool finite = true;
  for (int i = 0; i < g.d_delay; ++i) finite = finite && !math::not_finite(history[i]);
  for (const double number : {average, rest, integral, s.d_average[c], s.adam_m[c], s.adam_v[c]})
    finite = finite && !math::not_finite(number);
  if (!finite) {
    contract::fail(
        function, "set_points[" + contract::text(static_cast<index_t>(c)) + "]",
        "limit " + contract::text(target.limit) + " and scale " + contract::text(target.scale),
        "numbers in whose units the errors so far are finite");
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
