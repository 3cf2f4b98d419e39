#pragma once
// PidLagrangian: a PID controller for the multipliers of constraints.
#include <gdpo/constraint/engine/move_set_point.hpp>
#include <gdpo/core/list.hpp>
#include <gdpo/lanes/exp_parts.hpp>

namespace gdpo {  // plain data, outside the inline namespace

/// What one call of `PidLagrangian::update` did to one constraint.
/// p, i, d, raw and lambda are in units of the multiplier. If the constraint was held, the step
/// shows what was kept: p and d are 0, i is the stored integral, and raw is lambda.
struct PidStep {
  double p = 0,       ///< The proportional term: Kp times the average error.
      i = 0,          ///< Positional: the integral I. Other forms: the step that Ki makes.
      d = 0;          ///< The derivative term: Kd times the rise of the measurement.
  double raw = 0;     ///< What the form gives for lambda, before the bounds of lambda.
  double lambda = 0;  ///< The multiplier after the call.
  /// Number of updates in a row that left lambda at lambda_max. If it is large, the limit cannot be
  /// met.
  std::int64_t saturated_steps = 0;
  bool saturated = false;  ///< lambda is at lambda_max.
  bool held = false;       ///< The measurement was refused; multiplier and state are as before.
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// A controller of m Lagrange multipliers that keeps mean values at their limits.
/// It follows Stooke, Achiam, Abbeel 2020 (arXiv 2007.03964) and the rules in published.hpp.
///
///     gdpo::PidLagrangian pid(gdpo::PidGains{}, {gdpo::calibrate(moments_a, 0.8),
///                                                gdpo::calibrate(moments_q, 1.1)});
///     pid.update({metrics_a.value(), metrics_q.value()});  // once a step, sums over all ranks
///     const auto constraints = pid.constraints({1, 2});    // for Constrained: rewards 1 and 2
///
/// One update moves the multiplier of a constraint by its measured mean x. e is the signed error of
/// x (SetPoint), above 0 where x violates the constraint. y is x in the same unit and direction,
/// without the limit: x / scale for AtMost, -x / scale for AtLeast. The derivative is taken of y,
/// so that a new limit causes no jump, and sees only a rise. The names in parentheses are settings
/// of PidGains:
///
///     p = average of e (p_ema)
///     c = average of y (d_ema),   d = max(c - (c of d_delay updates ago), 0)
///     Positional   I = clamp(I + Ki e, 0, integral_max), with anti-windup
///                  raw = Kp p + I + Kd d
///     Velocity     u = Kp p + Kd d,   raw = lambda + Ki e + (u - u of the last update)
///     Adam         raw = lambda + Ki m / (sqrt(v) + adam_eps)
///     RmsProp      raw = lambda + Ki e / (sqrt(s) + adam_eps)
///     Log          raw = lambda exp(Ki lambda e)
///     lambda = clamp(raw, 0, lambda_max)
///
/// In Velocity, the first update takes 0 for the u of the last update, or with p_start FirstValue
/// its own u. In Adam, m and v are the bias-corrected moments of e. In RmsProp,
/// s = beta2 s + (1 - beta2) e^2, which starts from 0 and is not corrected.
///
/// Feed the measured values or their signed errors, never the mean of max(0, e) over samples: that
/// is never negative, so the integral could not fall.
///
/// An update holds a constraint if its input is not finite, its count is 0, or its new state would
/// not be finite. Multiplier and state of that constraint then stay as they are, `PidState::held`
/// counts the call, and `PidStep::held` says so. The other constraints are updated.
///
/// All arithmetic is in double. Without -ffast-math, equal inputs give equal bits in every build,
/// so each rank may run its own controller. Only the form Log can differ, between builds with and
/// without fused multiply-add. An update takes O(m) time and allocates nothing. A controller serves
/// one call at a time.
class PidLagrangian {
 public:
  /// A controller of m constraints with the same gains. It is fed with signed errors, above 0 where
  /// a constraint is violated, and knows no limits.
  /// Errors: `invalid_input` for settings out of range and for a number of constraints that is not
  /// from 1 to 2^20.
  explicit PidLagrangian(const PidGains& gains, index_t constraints = 1)
      : PidLagrangian(
            gains, std::vector<SetPoint>(number_of(constraints), SetPoint{0, 1, Bound::AtMost})) {
    takes_errors_ = true;
  }
  /// One constraint with the default gains, fed with signed errors.
  PidLagrangian() : PidLagrangian(PidGains{}) {}
  /// One constraint for each set-point, all with the same gains. It is fed with values in the units
  /// of the set-points.
  PidLagrangian(const PidGains& gains, const std::vector<SetPoint>& set_points)
      : PidLagrangian(std::vector<PidGains>(set_points.size(), gains), set_points) {}
  /// One constraint for each set-point, with gains of its own.
  /// Errors: `invalid_input` for settings out of range, for no constraint, or if the two vectors
  /// differ in length.
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
      const std::string name = "gains[" + text(static_cast<index_t>(c)) + "]";
      detail::check_fields(function, name.c_str(), gains[c]);
      detail::check_set_point(function, c, set_points[c]);
    }
    state_.set_points = set_points;
    detail::for_each_field(state_, [m](const char*, auto& field) { field.assign(m, 0); });
    for (std::size_t c = 0; c < m; ++c) {
      state_.lambda[c] = (math::max)(gains[c].lambda_init, 0.0) + 0.0;
      state_.integral[c] = gains[c].lambda_init;
      state_.p_weight[c] = state_.adam_m_weight[c] = state_.adam_v_weight[c] = 1;
    }
    place_histories();
    state_.history.assign(history_size_, 0.0);
    steps_.resize(m);
    for (std::size_t c = 0; c < m; ++c) steps_[c] = kept(c);
  }

  /// Number m of constraints.
  index_t size() const { return static_cast<index_t>(gains_.size()); }
  /// The multiplier of constraint c. Errors: `invalid_input` for a c outside 0 .. m - 1.
  double lambda(index_t c) const {
    if (c < 0 || c >= size()) {
      contract::fail("gdpo::PidLagrangian::lambda", "c", contract::text(c),
                     "one of " + contract::text(size()) + " constraints");
    }
    return state_.lambda[static_cast<std::size_t>(c)];
  }
  /// All multipliers: (m), a view that is valid while the controller lives.
  View<const double, 1> lambda() const { return gdpo::view(state_.lambda); }
  /// The gains: (m).
  const std::vector<PidGains>& gains() const { return gains_; }
  /// What the last update did: (m). Before the first update, and after `restore`, it shows the
  /// current multipliers and integrals.
  const std::vector<PidStep>& last() const { return steps_; }

  /// Updates from the measured means of this step. values: (m), the means over all ranks, so that
  /// every rank computes the same.
  /// Returns what was done to each constraint; the reference shows the newest update.
  /// Errors: `invalid_input` for another number of values. Nothing has changed then.
  const std::vector<PidStep>& update(View<const double, 1> values) {
    check_size(values.extent[0]);
    contract::check_array("gdpo::PidLagrangian::update", "values", values);
    for (index_t c = 0; c < size(); ++c) update_one(static_cast<std::size_t>(c), {values(c), 1.0});
    return steps_;
  }
  /// Updates from sums and counts. reduced: (m), each added over all ranks. A constraint with count
  /// 0 is held.
  /// Errors: `invalid_input` for another number of entries or a count below 0. Nothing has changed
  /// then, in any constraint.
  const std::vector<PidStep>& update(View<const SumCount, 1> reduced) {
    check_size(reduced.extent[0]);
    contract::check_array("gdpo::PidLagrangian::update", "reduced", reduced);
    for (index_t c = 0; c < size(); ++c) {
      if (reduced(c).count < 0) {
        contract::fail("gdpo::PidLagrangian::update", "reduced(" + contract::text(c) + ").count",
                       contract::text(reduced(c).count), "a count of at least 0");
      }
    }
    for (index_t c = 0; c < size(); ++c) update_one(static_cast<std::size_t>(c), reduced(c));
    return steps_;
  }
  /// The same from a vector of means.
  const std::vector<PidStep>& update(const std::vector<double>& values) {
    return update(gdpo::view(values));
  }
  /// The same from a vector of sums and counts.
  const std::vector<PidStep>& update(const std::vector<SumCount>& reduced) {
    return update(gdpo::view(reduced));
  }
  /// The same from means in braces.
  const std::vector<PidStep>& update(std::initializer_list<double> values) {
    return update(gdpo::view(values.begin(), static_cast<index_t>(values.size())));
  }
  /// The same from sums and counts in braces.
  const std::vector<PidStep>& update(std::initializer_list<SumCount> reduced) {
    return update(gdpo::view(reduced.begin(), static_cast<index_t>(reduced.size())));
  }

  /// The constraints as the estimator Constrained takes them: the current multipliers, with the
  /// limits and scales of the set-points.
  /// rewards: (m); entry c is the reward that constraint c limits.
  /// signal: what counts as the violation of one sample.
  /// Errors: `invalid_input` for another number of rewards, and for a controller that is fed with
  /// errors, because it has no limits.
  List<Constraint, 16> constraints(const List<index_t, 16>& rewards,
                                   Signal signal = Signal::Linear) const {
    if (rewards.size() != size()) {
      contract::fail("gdpo::PidLagrangian::constraints", "rewards",
                     contract::text(rewards.size()) + " rewards",
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

  /// Gives constraint c another limit or scale during a run: `pid.move(0, {0.95, 0.3})`. `target`
  /// is in units of the reward, and its bound is that of the constraint.
  ///
  /// The multiplier stays and goes on from there: the limit makes it neither jump now nor in the
  /// next update, in which it moves as if it had been there under the new limit all along. The
  /// averages of errors and of measurements become those that the new set-point would have given.
  /// In Positional the integral takes over what the proportional and derivative terms lose or gain
  /// by this, also below 0 and above integral_max; it then comes back to its bound by its own steps
  /// and never goes further away. While the multiplier is at 0 or lambda_max the integral changes
  /// only where the multiplier would leave its bound. In Adam and RmsProp the moments change with
  /// the errors.
  ///
  /// Errors: `invalid_input` for a c outside 0 .. m - 1, a limit or scale out of range, another
  /// bound (the multiplier of a floor cannot serve a ceiling: make a new controller), a limit so
  /// far away that the errors so far are not finite, and for a controller that is fed with errors,
  /// because it has no limits. Nothing has changed then.
  void move(index_t c, const SetPoint& target) {
    constexpr const char* function = "gdpo::PidLagrangian::move";
    if (c < 0 || c >= size()) {
      contract::fail(function, "c", contract::text(c),
                     "one of " + contract::text(size()) + " constraints");
    }
    if (takes_errors_) {
      contract::fail(function, "c", "a constraint of a controller that is fed with errors",
                     "a controller of set-points, which have limits to be moved");
    }
    const std::size_t index = static_cast<std::size_t>(c);
    detail::check_set_point(function, index, target);
    detail::check_same_bound(function, index, target.bound, state_.set_points[index].bound);
    PidState moved = state_;
    detail::move_set_point(function, moved, index, moved.history.data() + history_begin_[index],
                           gains_[index], target);
    state_ = std::move(moved);
    steps_[index] = kept(index);
  }

  /// The state, for a checkpoint: `to_bytes(pid.state())`, or JSON (with/nlohmann_json.hpp). The
  /// gains are not part of it: the program that restores brings its own. The set-points are, so
  /// that `restore` knows against which limits its errors are.
  const PidState& state() const { return state_; }
  /// Goes on from a state, with the set-points and the gains of this controller. Multipliers are
  /// those of the state; where a limit or scale is another than there, the rest of the state
  /// changes as in `move`. A multiplier or an integral outside the bounds of these gains is moved
  /// to the bound, but an integral that is still at lambda_init stays, as one that `move` has put
  /// there. Where the multiplier is above lambda_max, anti-windup also lowers a positional integral
  /// to lambda_max. Under the gains and set-points that made the state, nothing moves.
  ///
  /// Errors: `invalid_input` for a state of another version, another number of constraints or
  /// another length of histories, with another bound, or with numbers that no controller leaves
  /// behind; for limits as in `move`; and for a state with limits where this controller is fed with
  /// errors. The controller is then as before.
  void restore(const PidState& state) {
    constexpr const char* function = "gdpo::PidLagrangian::restore";
    detail::check_state(function, state, gains_, history_size_);
    PidState restored = state;
    for (std::size_t c = 0; c < gains_.size(); ++c) {
      const SetPoint &current = state_.set_points[c], &saved = state.set_points[c];
      if (takes_errors_ && (saved.limit != 0 || saved.scale != 1 || saved.bound != current.bound)) {
        contract::fail(
            function, "state.set_points[" + contract::text(static_cast<index_t>(c)) + "]",
            "limit " + contract::text(saved.limit) + " and scale " + contract::text(saved.scale),
            "the state of a controller that is fed with errors, as this one is");
      }
      detail::check_same_bound(function, c, saved.bound, current.bound);
      const PidGains& g = gains_[c];
      double &lambda = restored.lambda[c], &integral = restored.integral[c];
      if (g.form == PidForm::Positional) {
        const bool is_initial = integral == g.lambda_init;  // it may begin below 0
        if (!is_initial)
          integral = clamp(integral, least_integral(integral, restored.adam_m[c]),
                           largest_integral(g, integral, restored.adam_m[c]));
        if (lambda > g.lambda_max && g.anti_windup != AntiWindup::None)
          integral = (math::min)(integral, g.lambda_max);
      }
      lambda = (math::min)(lambda, g.lambda_max);
      detail::move_set_point(function, restored, c, restored.history.data() + history_begin_[c], g,
                             current);
    }
    state_ = std::move(restored);
    for (std::size_t c = 0; c < gains_.size(); ++c) steps_[c] = kept(c);
  }

 private:
  static std::size_t number_of(index_t constraints) {
    constexpr const char* function = "gdpo::PidLagrangian";
    if (constraints < 1)
      contract::fail(function, "constraints", contract::text(constraints), "at least 1");
    if (constraints > index_t{1} << 20)
      contract::fail(function, "constraints", contract::text(constraints), "at most 2^20");
    return static_cast<std::size_t>(constraints);
  }
  void check_size(index_t given) const {
    if (given != size()) {
      contract::fail("gdpo::PidLagrangian::update", "values", contract::text(given),
                     "one for each of the " + contract::text(size()) + " constraints");
    }
  }
  /// Places the histories of all constraints in one array, in which that of constraint c begins at
  /// history_begin_[c].
  void place_histories() {
    for (const PidGains& g : gains_) {
      history_begin_.push_back(history_size_);
      history_size_ += static_cast<std::size_t>(g.d_delay);
    }
  }

  /// Returns the step of a constraint that was not updated.
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
  /// The bounds of the integral in its next step. Where a moved limit (`beyond`, PidState::adam_m)
  /// has put it below 0 or above integral_max, it may stay there and not go further.
  static double least_integral(double integral, double beyond) {
    return beyond < 0 ? (math::min)(0.0, integral) : 0.0;
  }
  static double largest_integral(const PidGains& g, double integral, double beyond) {
    return beyond > 0 ? (math::max)(g.integral_max, integral) : g.integral_max;
  }
  /// Returns the exponential average after x has entered it. `share` is the weight of the old
  /// average.
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

    // Everything new is computed before the state changes, so that an update with a number that is
    // not finite can be refused as a whole.
    const PidGains& g = gains_[c];
    const SetPoint& point = s.set_points[c];
    const double x = measured.sum / measured.count,
                 y = (point.bound == Bound::AtMost ? x : -x) / point.scale;
    // 0.0 is added so that no error is -0: equal errors have equal bits.
    const double e = error_of(point, x) + 0.0;
    const bool first = s.updates[c] == 0;

    double p_average = averaged(g.p_ema, s.p_average[c], e),
           p_weight = math::mul(s.p_weight[c], g.p_ema);
    if (first && g.p_start == EmaStart::FirstValue) p_average = e;
    if (first && g.p_start == EmaStart::AfterFirst) p_average = 0;
    const double p =
        g.p_start == EmaStart::BiasCorrected ? p_average / (1.0 - p_weight) : p_average;

    double* history = s.history.data() + history_begin_[c];
    const bool seeds = first && g.d_start == EmaStart::FirstValue;
    const double d_average = seeds ? y : averaged(g.d_ema, s.d_average[c], y);
    const double d = seeds ? 0.0 : (math::max)(d_average - history[s.cursor[c]], 0.0);

    step.p = math::mul(g.kp, p);
    step.d = math::mul(g.kd, d);
    double integral = s.integral[c], adam_m = s.adam_m[c], adam_v = s.adam_v[c];
    const double adam_m_weight = math::mul(s.adam_m_weight[c], g.beta1);
    const double adam_v_weight = math::mul(s.adam_v_weight[c], g.beta2);
    switch (g.form) {
      case PidForm::Positional:
        // adam_m says whether a moved limit has put the integral beyond its bounds.
        integral = next_integral(g, integral, adam_m, e, step.p + step.d);
        if (adam_m != 0) adam_m = integral < 0 ? -1 : integral > g.integral_max ? 1 : 0;
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
        // Divides as torch's Adam does: m / (1 - beta1^t) by sqrt(v / (1 - beta2^t)) + adam_eps.
        const double spread = math::sqrt(adam_v) / math::sqrt(1.0 - adam_v_weight) + g.adam_eps;
        step.i = spread > 0 ? math::mul(g.ki / (1.0 - adam_m_weight), adam_m / spread) : 0.0;
        step.raw = s.lambda[c] + step.i;
        break;
      }
      case PidForm::RmsProp: {
        // Multiplies and divides in the order of torch's RMSprop, so that it rounds as that does.
        adam_v = math::mul(g.beta2, adam_v) + math::mul(math::mul(1.0 - g.beta2, e), e);
        const double spread = math::sqrt(adam_v) + g.adam_eps;
        step.i = spread > 0 ? math::mul(g.ki, e) / spread : 0.0;
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
    const double lambda = clamp(step.raw, 0.0, g.lambda_max);
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
    ++s.updates[c];
    step.saturated = lambda >= g.lambda_max;
    s.saturated_steps[c] = step.saturated_steps = step.saturated ? s.saturated_steps[c] + 1 : 0;
  }

  /// Returns the integral after an error e. `beyond` is PidState::adam_m, and `rest` the output
  /// without the integral. Conditional anti-windup stops a rising integral where rest + integral
  /// reaches lambda_max. It never pushes the integral back: one that was above and would rise stays
  /// where it is.
  ///
  /// A falling integral stops at 0, and not where the output reaches 0. If it stopped there, the
  /// integral of an inactive constraint could not fall, but noise could still raise it, so noise
  /// alone would drive it up.
  ///
  /// An integral that began below 0 (a negative lambda_init) is at least 0 after its first step.
  static double next_integral(const PidGains& g, double integral, double beyond, double e,
                              double rest) {
    const double least = least_integral(integral, beyond);
    const double next =
        clamp(integral + math::mul(g.ki, e), least, largest_integral(g, integral, beyond));
    if (g.anti_windup == AntiWindup::None || next <= integral) return next;
    return (math::max)((math::min)(next, (math::max)(integral, g.lambda_max - rest)), least);
  }

  std::vector<PidGains> gains_;
  PidState state_;
  std::vector<std::size_t> history_begin_;
  std::size_t history_size_ = 0;
  std::vector<PidStep> steps_;
  bool takes_errors_ = false;  // fed with signed errors: the set-points are placeholders
};

GDPO_END_NAMESPACE
