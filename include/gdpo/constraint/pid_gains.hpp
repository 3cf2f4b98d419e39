#pragma once
#include <gdpo/math/settings.hpp>
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

/// What keeps the integral from growing while lambda_max or the slew limit holds the multiplier.
/// Without it, the integral winds up during a long violation, and the multiplier stays at its bound
/// long after the violation has ended. At the lower end `PidGains::integral_min` bounds the
/// integral.
enum class AntiWindup {
  None,            ///< Nothing: only `integral_max` bounds the integral.
  Conditional,     ///< The integral grows only until the output reaches its bound.
  BackCalculation  ///< The integral is pulled back by `kt` times what the bound cut off.
};

/// Which changes of the measurement the derivative term sees.
enum class PidDerivative {
  Relu,   ///< Only changes towards a larger violation (Stooke 2020).
  Signed  ///< All changes: an improving measurement lowers the multiplier.
};

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
  PidDerivative derivative = PidDerivative::Relu;  ///< Which changes the derivative sees.

  double integral_min = 0,            ///< Lower bound of the integral. Positional only.
      integral_max = math::infinity;  ///< Upper bound of the integral. Positional only.
  AntiWindup anti_windup = AntiWindup::Conditional;  ///< Positional only.
  double kt = 0.05;  ///< BackCalculation only; 1 removes the whole excess in one update.

  /// Multiplier and integral before the first update. In Positional it may be below 0: the
  /// multiplier then begins at 0 and the integral at lambda_init. A negative lambda_init may also
  /// be below integral_min, which bounds the integral from its first step on; then it only makes
  /// that step smaller, as in OmniSafe.
  double lambda_init = 0;
  double lambda_max = 10;        ///< Upper bound of the multiplier; the lower bound is 0.
  double slew = math::infinity;  ///< Largest change of the multiplier in an update.
  /// Errors within +-dead_band count as 0; from a larger one dead_band is subtracted (in size). The
  /// derivative does not use it.
  double dead_band = 0;
  int warm_up = 0;  ///< First updates that fill averages and history but move no multiplier.
  int period = 1;   ///< Calls for each update. The measurements of a period are averaged.

  double beta1 = 0.9,   ///< Adam only: share of the old first moment.
      beta2 = 0.999,    ///< Adam and RmsProp: share of the old second moment (alpha in RMSprop).
      adam_eps = 1e-8;  ///< Adam and RmsProp: added to the root of the second moment.

  /// Throws `invalid_input` for a setting outside its range. name: what messages call this struct.
  void check(const char* function, const std::string& name) const {
    const auto number = [&](const char* member, double value, bool ok, const char* needed) {
      if (!ok) contract::fail(function, name + "." + member, contract::text(value), needed);
    };
    const auto finite = [&](const char* member, double value) {
      number(member, value, !math::not_finite(value), "a finite number");
    };
    const auto at_least_0 = [&](const char* member, double value) {
      number(member, value, value >= 0 && !math::is_nan(value), "a number of at least 0");
    };
    const auto share = [&](const char* member, double value) {
      number(member, value, value >= 0 && value < 1 && !math::is_nan(value),
             "at least 0 and below 1");
    };
    const auto whole = [&](const char* member, int value, int least) {
      if (value < least) {
        contract::fail(function, name + "." + member, contract::text(index_t{value}),
                       "at least " + contract::text(index_t{least}));
      }
    };
    finite("kp", kp), finite("ki", ki), finite("kd", kd), finite("kt", kt), at_least_0("kt", kt);
    share("p_ema", p_ema), share("d_ema", d_ema), share("beta1", beta1), share("beta2", beta2);
    at_least_0("lambda_max", lambda_max), at_least_0("slew", slew),
        at_least_0("dead_band", dead_band);
    at_least_0("adam_eps", adam_eps);
    whole("d_delay", d_delay, 1);
    if (d_delay > largest_d_delay) {
      contract::fail(function, name + ".d_delay", contract::text(index_t{d_delay}),
                     "at most " + contract::text(index_t{largest_d_delay}) +
                         ", because as many measurements are kept");
    }
    whole("warm_up", warm_up, 0), whole("period", period, 1);
    number("integral_min", integral_min,
           !math::is_nan(integral_min) && integral_min < math::infinity, "a number below infinity");
    number("integral_max", integral_max,
           integral_min <= integral_max && !math::is_nan(integral_max), "at least integral_min");
    const bool positional = form == PidForm::Positional, below_0 = lambda_init < 0;
    number("lambda_init", lambda_init,
           (positional || !below_0) && lambda_init <= lambda_max && !math::not_finite(lambda_init),
           positional ? "a finite number of at most lambda_max"
                      : "a finite number from 0 to lambda_max");
    if (positional) {
      number("lambda_init", lambda_init,
             (below_0 || integral_min <= lambda_init) && lambda_init <= integral_max,
             "a number from integral_min to integral_max, where the integral begins");
    }
    if (d_start != EmaStart::Zero && d_start != EmaStart::FirstValue) {
      contract::fail(function, name + ".d_start", "a start of averages of errors",
                     "EmaStart::Zero or FirstValue");
    }
    const bool rate_alone =
        form == PidForm::Adam || form == PidForm::RmsProp || form == PidForm::Log;
    if (rate_alone && (kp != 0 || kd != 0)) {
      contract::fail(function, name + ".kp, kd", contract::text(kp) + " and " + contract::text(kd),
                     "0: this form has a rate, ki, alone");
    }
    if (form == PidForm::Log && !(lambda_init > 0)) {
      contract::fail(function, name + ".lambda_init", contract::text(lambda_init),
                     "above 0: a multiplier of 0 stays 0 in this form");
    }
  }
};

GDPO_END_NAMESPACE
