#pragma once
// The settings of PidLagrangian.
#include <gdpo/math/check_fields.hpp>
#include <string>

namespace gdpo {

/// The form of the control law: how a multiplier lambda follows from the errors e.
/// The formulas stand at PidLagrangian. Settings that only another form uses are not read.
enum class PidForm {
  /// lambda = Kp p + I + Kd d. The integral I is the memory. Stooke 2020, OmniSafe, rlpyt.
  Positional,
  /// lambda += Ki e + the change of Kp p + Kd d, then projected onto its bounds. The multiplier is
  /// the memory. nuPI; dual ascent if Kp = Kd = 0.
  Velocity,
  /// Dual ascent by Adam with rate Ki: a step is about Ki, however large the violation. OmniSafe.
  Adam,
  /// Dual ascent by RMSprop with rate Ki: a step is about Ki for a violation of the usual size,
  /// however large that is. The first steps are larger. OmniSafe with RMSprop.
  RmsProp,
  /// log lambda += Ki lambda e: a small multiplier hardly moves. Safe RLHF.
  Log
};
/// The enumerators of PidForm with their words.
GDPO_DATA_INLINE constexpr auto enumerators(PidForm) {
  using E = Enumerator<PidForm>;
  return std::array{E{"positional", PidForm::Positional}, E{"velocity", PidForm::Velocity},
                    E{"adam", PidForm::Adam}, E{"rms_prop", PidForm::RmsProp},
                    E{"log", PidForm::Log}};
}

/// What an exponential average (share a of the old average, 1 - a of the new value) starts from.
enum class EmaStart {
  /// From 0. At a = 0.95 and a constant error the average is 5 % of the error after one update, 51
  /// % after 14 and 90 % after 45.
  Zero,
  /// From 0, and after t updates divided by 1 - a^t: a weighted mean of the values so far.
  BiasCorrected,
  /// From the first value.
  FirstValue,
  /// From 0 after the first value, which is left out: the first step of the multiplier is that of
  /// the integral alone (nuPI, init "SGD" in the code of Cooper).
  AfterFirst
};
/// The enumerators of EmaStart with their words.
GDPO_DATA_INLINE constexpr auto enumerators(EmaStart) {
  using E = Enumerator<EmaStart>;
  return std::array{E{"zero", EmaStart::Zero}, E{"bias_corrected", EmaStart::BiasCorrected},
                    E{"first_value", EmaStart::FirstValue}, E{"after_first", EmaStart::AfterFirst}};
}

/// What keeps the integral from growing while lambda_max holds the multiplier.
/// Without it, the integral winds up during a long violation, and the multiplier stays at its bound
/// long after the violation has ended.
enum class AntiWindup {
  None,        ///< Nothing: only `integral_max` bounds the integral.
  Conditional  ///< The integral grows only until the output reaches lambda_max.
};
/// The enumerators of AntiWindup with their words.
GDPO_DATA_INLINE constexpr auto enumerators(AntiWindup) {
  using E = Enumerator<AntiWindup>;
  return std::array{E{"none", AntiWindup::None}, E{"conditional", AntiWindup::Conditional}};
}

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// Settings of the controller of one constraint; its state is kept apart (PidState).
/// Errors are in units of `SetPoint::scale`, so a multiplier of 1 weighs one standard deviation of
/// the baseline, and the gains need no new search for another reward scale.
///
/// The defaults are a proportional and an integral term, without a kick at the start and without
/// windup. If the mean error of the policy moves by g - b lambda in an update (g: drift towards
/// violation, b: response to the multiplier), the damping is about Kp sqrt(b / Ki) / 2: 0.45 at
/// b = 0.01 and 1.4 at b = 0.1. Halve kp and ki if rollouts are stale and b is above 0.2. The
/// defaults have no derivative term because it brought no measurable gain. The published rules are
/// settings of this struct too (constraint/published.hpp).
struct PidGains {
  static constexpr int largest_d_delay = 65536;  ///< 2^16, above all published delays.

  PidForm form = PidForm::Positional;  ///< The control law.
  double kp = 2;                       ///< Proportional gain: lambda for one unit of error.
  double ki = 0.05;  ///< Integral gain: growth of lambda in an update for one unit of error.
  double kd = 0;     ///< Derivative gain: lambda for one unit of rise over d_delay updates.

  /// Average of the error for the proportional term: share of the old average, from 0 to below 1.
  /// An average adds lag, so a larger share damps less.
  double p_ema = 0.5;
  EmaStart p_start = EmaStart::BiasCorrected;  ///< What that average starts from.

  double d_ema = 0;  ///< Average of the measurement for the derivative: share of the old average.
  /// Updates over which the derivative takes the difference, from 1 to largest_d_delay. The
  /// measurements of as many updates are kept.
  int d_delay = 1;
  /// What that average starts from: FirstValue or Zero. With Zero the first updates look like a
  /// steep rise, even if the first cost is at its limit.
  EmaStart d_start = EmaStart::FirstValue;

  double integral_max = math::infinity;  ///< Upper bound of the integral. Positional only.
  AntiWindup anti_windup = AntiWindup::Conditional;  ///< Positional only.

  /// Multiplier and integral before the first update. In Positional it may be below 0: the
  /// multiplier then begins at 0 and the integral at lambda_init. The integral is at least 0 from
  /// its first step on, so a negative lambda_init only makes that step smaller, as in OmniSafe.
  double lambda_init = 0;
  double lambda_max = 10;  ///< Upper bound of the multiplier; the lower bound is 0.

  double beta1 = 0.9,   ///< Adam only: share of the old first moment.
      beta2 = 0.999,    ///< Adam and RmsProp: share of the old second moment (alpha in RMSprop).
      adam_eps = 1e-8;  ///< Adam and RmsProp: added to the root of the second moment.

  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    const Range share = at_least(0).below(1);
    field("form", s.form, "the control law");
    field("kp", s.kp, finite(), "proportional gain");
    field("ki", s.ki, finite(), "integral gain, or the rate of ascent");
    field("kd", s.kd, finite(), "derivative gain");
    field("p_ema", s.p_ema, share, "average of the error: share of the old average");
    field("p_start", s.p_start, "what that average starts from");
    field("d_ema", s.d_ema, share, "average of the measurement: share of the old average");
    field("d_delay", s.d_delay,
          at_least(1).at_most(largest_d_delay).with_note("as many measurements are kept"),
          "updates over which the derivative takes the difference");
    field("d_start", s.d_start, "what the average of the measurement starts from");
    field("integral_max", s.integral_max, at_least(0).or_infinity(), "upper bound of the integral");
    field("anti_windup", s.anti_windup, "what keeps the integral from growing at a bound");
    field("lambda_init", s.lambda_init, finite(), "multiplier before the first update");
    field("lambda_max", s.lambda_max, at_least(0).or_infinity(), "upper bound of the multiplier");
    field("beta1", s.beta1, share, "adam: share of the old first moment");
    field("beta2", s.beta2, share, "adam, rms_prop: share of the old second moment");
    field("adam_eps", s.adam_eps, at_least(0).or_infinity("no step"),
          "adam, rms_prop: added to the root of the second moment");
  }
  /// Throws for what several settings decide together.
  void check_together(const char* function, const detail::FieldPath& path) const {
    const auto number = [&](const char* member, double value, bool ok, const char* needed) {
      if (!ok) contract::fail(function, path.text(member), contract::text(value), needed);
    };
    const bool positional = form == PidForm::Positional;
    number("lambda_init", lambda_init,
           (positional || lambda_init >= 0) && lambda_init <= lambda_max,
           positional ? "at most lambda_max" : "0 to lambda_max");
    number("lambda_init", lambda_init, !positional || lambda_init <= integral_max,
           "at most integral_max, because the integral begins at lambda_init");
    if (d_start != EmaStart::Zero && d_start != EmaStart::FirstValue) {
      contract::fail(function, path.text("d_start"), "a start of averages of errors",
                     "zero or first_value");
    }
    const bool rate_alone =
        form == PidForm::Adam || form == PidForm::RmsProp || form == PidForm::Log;
    if (rate_alone && (kp != 0 || kd != 0)) {
      contract::fail(function, path.text("kp") + ", " + path.text("kd"),
                     contract::text(kp) + " and " + contract::text(kd),
                     "0: this form has a rate, ki, alone");
    }
    if (form == PidForm::Log)
      number("lambda_init", lambda_init, lambda_init > 0,
             "above 0: a multiplier of 0 stays 0 in this form");
  }
};

GDPO_END_NAMESPACE
