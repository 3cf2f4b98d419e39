#pragma once
#include <gdpo/constraint/engine/check_pid_state.hpp>
#include <gdpo/core/list.hpp>
#include <gdpo/lanes/exp_parts.hpp>

namespace gdpo {  // plain data

/// What an update did to one constraint. The terms are in units of lambda.
struct PidStep {
  double p = 0, i = 0, d = 0;  ///< Kp p, I (Velocity, Adam, Log: the step of the rate), Kd d
  double raw = 0;     ///< the output before its bounds; lambda where held or waiting for its period
  double lambda = 0;  ///< the multiplier from here on
  std::int64_t saturated_steps =
      0;  ///< updates in a row at lambda_max: many say that the limit cannot be met
  bool saturated = false;  ///< lambda is at lambda_max
  bool held = false;       ///< nothing was measured, or nothing finite: the state is what it was
  bool waiting = false;    ///< warm-up, or between two updates of a period: lambda is kept
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// Multipliers of m constraints that keep mean values at their limits (Stooke, Achiam, Abbeel 2020, arXiv 2007.03964). In
/// double; where the same numbers come in the same bits come out (Log: in builds that have, or have not, fused multiply-add), so
/// each rank may run its own.
///   gdpo::PidLagrangian pid(gdpo::PidGains{}, {gdpo::calibrate(moments_a, 0.8), gdpo::calibrate(moments_q, 1.1)});
///   pid.update({metrics_a.value(), metrics_q.value()});   once a step, from (sum, count) over all ranks
///   pid.constraints({1, 2})                               for Constrained, where rewards 1 and 2 have those limits
///
/// One update with the measured mean x of a constraint, e = error_of(set point, x), above 0 where violated, and y = x / scale
/// (AtLeast: -x / scale), e without its limit:
///   p  = average of e (p_ema);   c = average of y (d_ema);   d = c - c of d_delay updates ago, >= 0 with Relu
///   Positional  I = clamp(I + Ki e, integral_min, integral_max), anti-windup;   raw = Kp p + I + Kd d
///   Velocity    raw = lambda + Ki e + ((Kp p + Kd d) - the same of the last update); before the first: 0, or with
///               EmaStart::FirstValue the first itself
///   Adam        raw = lambda + Ki m / (sqrt v + adam_eps), m and v the corrected moments of e
///   Log         raw = lambda exp(Ki lambda e)
///   lambda = clamp(raw, 0, lambda_max), at most `slew` from the last
/// Feed the signed error (or the value it comes from), never the mean hinge: that cannot decrease the integral.
/// A constraint whose input is not finite, whose count is 0, or whose new state would not be finite, is held: its state stays
/// as it is and the step says so. The others are updated. Allocates in the constructor only.
class PidLagrangian {
 public:
  /// m constraints with the same gains, fed with signed errors: above 0 where violated.
  explicit PidLagrangian(const PidGains& gains, index_t constraints = 1)
      : PidLagrangian(
            gains, std::vector<SetPoint>(number_of(constraints), SetPoint{0, 1, Bound::AtMost})) {
    takes_errors_ = true;
  }
  PidLagrangian() : PidLagrangian(PidGains{}) {}
  /// One for each set-point, fed with values in its units.
  PidLagrangian(const PidGains& gains, const std::vector<SetPoint>& set_points)
      : PidLagrangian(std::vector<PidGains>(set_points.size(), gains), set_points) {}
  /// Errors: invalid_input for settings out of range, for no constraint, or for unequal numbers.
  PidLagrangian(const std::vector<PidGains>& gains, const std::vector<SetPoint>& set_points)
      : gains_(gains) {
    constexpr const char* function = "gdpo::PidLagrangian";
    using contract::text;
    const std::size_t m = set_points.size();
    if (gains.size() != m || m == 0) {
      contract::fail(
          function, "gains, set_points",
          text(static_cast<index_t>(gains.size())) + " and " + text(static_cast<index_t>(m)),
          "one of each for every constraint, one at least");
    }
    for (std::size_t c = 0; c < m; ++c) {
      gains[c].check(function, "gains[" + text(static_cast<index_t>(c)) + "]");
      detail::check_set_point(function, c, set_points[c]);
    }
    state_.set_points = set_points;
    detail::for_each_field(state_, [m](const char*, auto& field) { field.assign(m, 0); });
    for (std::size_t c = 0; c < m; ++c) {
      state_.lambda[c] = gains[c].lambda_init;
      state_.integral[c] = gains[c].lambda_init;
      state_.p_weight[c] = state_.adam_m_weight[c] = state_.adam_v_weight[c] = 1;
    }
    place_histories();
    state_.history.assign(history_size_, 0.0);
    steps_.resize(m);
    for (std::size_t c = 0; c < m; ++c) steps_[c] = kept(c);
  }

  index_t size() const { return static_cast<index_t>(gains_.size()); }
  double lambda(index_t c) const {
    if (c < 0 || c >= size()) {
      contract::fail("gdpo::PidLagrangian::lambda", "c", contract::text(c),
                     "one of " + contract::text(size()) + " constraints");
    }
    return state_.lambda[static_cast<std::size_t>(c)];
  }
  View<const double, 1> lambda() const { return gdpo::view(state_.lambda); }
  const std::vector<PidGains>& gains() const { return gains_; }
  const std::vector<PidStep>& last() const { return steps_; }  ///< what the last update gave

  /// values: (m), the measured means of this step: over all ranks, so that all compute the same. Returns what was done; it
  /// stands until the next update.
  const std::vector<PidStep>& update(View<const double, 1> values) {
    check_size(values.extent[0]);
    for (index_t c = 0; c < size(); ++c) update_one(static_cast<std::size_t>(c), {values(c), 1.0});
    return steps_;
  }
  /// reduced: (m) sums and counts over all ranks; a count of 0 holds. Errors: invalid_input for a count below 0.
  const std::vector<PidStep>& update(View<const SumCount, 1> reduced) {
    check_size(reduced.extent[0]);
    for (index_t c = 0; c < size(); ++c) {
      if (reduced(c).count < 0) {
        contract::fail("gdpo::PidLagrangian::update", "reduced(" + contract::text(c) + ").count",
                       contract::text(reduced(c).count), "a count of at least 0");
      }
    }
    for (index_t c = 0; c < size(); ++c) update_one(static_cast<std::size_t>(c), reduced(c));
    return steps_;
  }
  const std::vector<PidStep>& update(const std::vector<double>& values) {
    return update(gdpo::view(values));
  }
  const std::vector<PidStep>& update(const std::vector<SumCount>& reduced) {
    return update(gdpo::view(reduced));
  }
  const std::vector<PidStep>& update(std::initializer_list<double> values) {
    return update(gdpo::view(values.begin(), static_cast<index_t>(values.size())));
  }
  const std::vector<PidStep>& update(std::initializer_list<SumCount> reduced) {
    return update(gdpo::view(reduced.begin(), static_cast<index_t>(reduced.size())));
  }

  /// The multipliers at work on rewards rewards[0], ..., one for each constraint, with the limits and scales of the set-points. Errors:
  /// invalid_input for another number of rewards, and where the controller is fed with errors: it knows no limits.
  List<Constraint, 16> constraints(const List<index_t, 16>& rewards,
                                   Signal signal = Signal::Linear) const {
    if (rewards.size() != size()) {
      contract::fail("gdpo::PidLagrangian::constraints", "rewards",
                     contract::text(rewards.size()) + " columns",
                     "one for each of the " + contract::text(size()) + " constraints");
    }
    if (takes_errors_) {
      contract::fail("gdpo::PidLagrangian::constraints", "set_points",
                     "none: this controller is fed with errors",
                     "a controller of set-points, which have the limits of rewards");
    }
    Constraint list[16];
    for (index_t c = 0; c < size(); ++c) {
      const SetPoint& s = state_.set_points[static_cast<std::size_t>(c)];
      list[c] = {rewards[c], lambda(c), s.limit, s.scale, s.bound, signal};
    }
    return {list, size()};
  }

  /// For a checkpoint: to_bytes(pid.state()), or as JSON (with/nlohmann_json.hpp). The gains are the program's.
  const PidState& state() const { return state_; }
  /// Goes on from a state, with its set-points. A lambda or an integral that these gains do not allow is brought within their
  /// bounds; under the gains that made it, the state stays as it is. Errors: invalid_input for a state of another version, of
  /// another number of constraints or length of histories, or with numbers no controller leaves; the controller is then as it was.
  void restore(const PidState& state) {
    detail::check_state("gdpo::PidLagrangian::restore", state, gains_, history_size_);
    state_ = state;
    for (std::size_t c = 0; c < gains_.size(); ++c) {
      const PidGains& g = gains_[c];
      double &lambda = state_.lambda[c], &integral = state_.integral[c];
      if (g.form == PidForm::Positional) {
        integral = clamp(integral, g.integral_min, g.integral_max);
        if (lambda > g.lambda_max && g.anti_windup != AntiWindup::None)
          integral = (math::min)(integral, g.lambda_max);
      }
      lambda = (math::min)(lambda, g.lambda_max);
      steps_[c] = kept(c);
    }
  }

 private:
  static std::size_t number_of(index_t constraints) {
    if (constraints < 1) {
      contract::fail("gdpo::PidLagrangian", "constraints", contract::text(constraints),
                     "at least 1");
    }
    return static_cast<std::size_t>(constraints);
  }
  void check_size(index_t given) const {
    if (given != size()) {
      contract::fail("gdpo::PidLagrangian::update", "values", contract::text(given),
                     "one for each of the " + contract::text(size()) + " constraints");
    }
  }
  void place_histories() {
    for (const PidGains& g : gains_) {
      history_at_.push_back(history_size_);
      history_size_ += static_cast<std::size_t>(g.d_delay);
    }
  }

  /// The step of a constraint whose multiplier is kept.
  PidStep kept(std::size_t c) const {
    PidStep step;
    step.i = state_.integral[c];
    step.raw = step.lambda = state_.lambda[c];
    step.saturated_steps = state_.saturated_steps[c];
    step.saturated = step.saturated_steps > 0;
    return step;
  }

  static double clamp(double x, double low, double high) {
    return (math::min)((math::max)(x, low), high);
  }
  static double beyond(double e, double band) {
    return e > band ? e - band : e < -band ? e + band : 0.0;
  }
  /// `share` of the old average stays.
  static double averaged(double share, double average, double x) {
    return math::mul(share, average) + math::mul(1.0 - share, x);
  }

  void update_one(std::size_t c, SumCount measured) {
    PidState& s = state_;
    PidStep& step = steps_[c];
    step = kept(c);
    const auto hold = [&] {
      ++s.held[c];
      step.held = true;
    };
    if (math::not_finite(measured.sum) || math::not_finite(measured.count) || !(measured.count > 0))
      return hold();
    const PidGains& g = gains_[c];
    const double sum = g.period > 1 ? s.pending_sum[c] + measured.sum : measured.sum;
    const double count = g.period > 1 ? s.pending_count[c] + measured.count : measured.count;
    if (math::not_finite(sum) || math::not_finite(count)) return hold();
    if (s.calls[c] + 1 < g.period) {
      ++s.calls[c];
      s.pending_sum[c] = sum;
      s.pending_count[c] = count;
      step.waiting = true;
      return;
    }

    // Everything new is computed first: an update that would leave a number that is not finite is turned away whole.
    const SetPoint& point = s.set_points[c];
    const double x = sum / count, y = (point.bound == Bound::AtMost ? x : -x) / point.scale;
    const double e = beyond(error_of(point, x), g.dead_band);
    const bool first = s.updates[c] == 0, warming_up = s.updates[c] < g.warm_up;

    double p_average = averaged(g.p_ema, s.p_average[c], e),
           p_weight = math::mul(s.p_weight[c], g.p_ema);
    if (first && g.p_start == EmaStart::FirstValue) p_average = e;
    if (first && g.p_start == EmaStart::AfterFirst) p_average = 0;
    const double p =
        g.p_start == EmaStart::BiasCorrected ? p_average / (1.0 - p_weight) : p_average;

    double* history = s.history.data() + history_at_[c];
    const bool seeds = first && g.d_start == EmaStart::FirstValue;
    const double d_average = seeds ? y : averaged(g.d_ema, s.d_average[c], y);
    const double change = seeds ? 0.0 : d_average - history[s.cursor[c]];
    const double d = g.derivative == PidDerivative::Relu ? (math::max)(change, 0.0) : change;

    step.p = math::mul(g.kp, p);
    step.d = math::mul(g.kd, d);
    double integral = s.integral[c], adam_m = s.adam_m[c], adam_v = s.adam_v[c];
    const double adam_m_weight = math::mul(s.adam_m_weight[c], g.beta1);
    const double adam_v_weight = math::mul(s.adam_v_weight[c], g.beta2);
    const double floor = (math::max)(0.0, s.lambda[c] - g.slew);
    const double ceiling = (math::min)(g.lambda_max, s.lambda[c] + g.slew);
    switch (g.form) {
      case PidForm::Positional:
        if (!warming_up) integral = next_integral(g, integral, e, floor, ceiling, step.p + step.d);
        step.i = integral;
        step.raw = step.p + step.i + step.d;
        break;
      case PidForm::Velocity: {
        const double now = step.p + step.d,
                     previous = first && g.p_start == EmaStart::FirstValue ? now : s.previous[c];
        step.i = math::mul(g.ki, e);
        step.raw = s.lambda[c] + (step.i + (now - previous));
        break;
      }
      case PidForm::Adam: {
        adam_m = averaged(g.beta1, adam_m, e);
        adam_v = averaged(g.beta2, adam_v, math::mul(e, e));
        const double spread = math::sqrt(adam_v) / math::sqrt(1.0 - adam_v_weight) + g.adam_eps;
        step.i = spread > 0 ? math::mul(g.ki / (1.0 - adam_m_weight), adam_m / spread) : 0.0;
        step.raw = s.lambda[c] + step.i;
        break;
      }
      case PidForm::Log: {
        const double rate = math::mul(math::mul(g.ki, s.lambda[c]), e);
        step.raw = math::mul(s.lambda[c], math::exp_parts(rate).exp);
        step.i = step.raw - s.lambda[c];
        break;
      }
    }
    const double lambda = warming_up ? s.lambda[c] : clamp(step.raw, floor, ceiling);
    if (g.form == PidForm::Positional && g.anti_windup == AntiWindup::BackCalculation &&
        !warming_up) {
      const double bounded = step.raw > ceiling              ? ceiling
                             : step.raw < floor && floor > 0 ? floor
                                                             : step.raw;
      integral =
          clamp(integral + math::mul(g.kt, bounded - step.raw), g.integral_min, g.integral_max);
    }
    for (const double number :
         {p_average, d_average, integral, adam_m, adam_v, step.p, step.d, step.raw, lambda}) {
      if (math::not_finite(number)) {
        step = kept(c);
        return hold();
      }
    }

    if (seeds) std::fill_n(history, g.d_delay, y);
    history[s.cursor[c]] = d_average;
    s.cursor[c] = s.cursor[c] + 1 < g.d_delay ? s.cursor[c] + 1 : 0;
    s.lambda[c] = step.lambda = lambda;
    s.integral[c] = integral;
    s.p_average[c] = p_average, s.p_weight[c] = p_weight;
    s.d_average[c] = d_average;
    s.previous[c] = step.p + step.d;
    s.adam_m[c] = adam_m, s.adam_v[c] = adam_v;
    s.adam_m_weight[c] = adam_m_weight, s.adam_v_weight[c] = adam_v_weight;
    s.pending_sum[c] = s.pending_count[c] = 0;
    s.calls[c] = 0;
    ++s.updates[c];
    step.waiting = warming_up;
    step.saturated = lambda >= g.lambda_max;
    s.saturated_steps[c] = step.saturated_steps = step.saturated ? s.saturated_steps[c] + 1 : 0;
  }

  /// Conditional: no further than to where the output, rest + integral, is at its bound. A floor of 0 is none: an inactive
  /// constraint with noise would drive the integral up, which integral_min bounds below.
  static double next_integral(const PidGains& g, double integral, double e, double floor,
                              double ceiling, double rest) {
    double next = clamp(integral + math::mul(g.ki, e), g.integral_min, g.integral_max);
    if (g.anti_windup != AntiWindup::Conditional) return next;
    if (next > integral) next = (math::min)(next, (math::max)(integral, ceiling - rest));
    if (next < integral && floor > 0) next = (math::max)(next, (math::min)(integral, floor - rest));
    return next;
  }

  std::vector<PidGains> gains_;
  PidState state_;
  std::vector<std::size_t> history_at_;
  std::size_t history_size_ = 0;
  std::vector<PidStep> steps_;
  bool takes_errors_ = false;
};

GDPO_END_NAMESPACE
