#pragma once
#include <gdpo/math/settings.hpp>
#include <string>

namespace gdpo {

/// How a multiplier follows from the errors (pid.hpp has the formulas). Settings of another form are not read.
enum class PidForm {
  Positional,  ///< lambda = Kp p + I + Kd d: Stooke 2020, OmniSafe, rlpyt; the integral is the memory
  Velocity,  ///< lambda += Ki e + the change of Kp p + Kd d, then projected: nuPI; with Kp = Kd = 0 dual ascent
  Adam,  ///< dual ascent with Adam, rate Ki: the step is about Ki whatever the violation
  Log    ///< log lambda += Ki lambda e: Safe RLHF; a small lambda hardly moves
};

/// What an exponential average is before its first value.
enum class EmaStart {
  Zero,  ///< 0: at 0.95 it has seen 5 % of an error after one step, 51 % after 14, 90 % after 45
  BiasCorrected,  ///< 0, divided by 1 - a^t: a mean of what there was so far
  FirstValue,     ///< the first value
  AfterFirst  ///< 0, and the first value is left out (nuPI, init "SGD": its first step is the integral's alone)
};

/// What keeps the integral from growing while the multiplier cannot follow. The other side is bounded by integral_min.
enum class AntiWindup {
  None,
  Conditional,     ///< the integral grows no further than to where the output reaches its bound
  BackCalculation  ///< it is pulled back by kt times what the bound cut off
};

enum class PidDerivative {
  Relu,  ///< only what makes the violation worse (Stooke 2020)
  Signed
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// Settings of one constraint's controller, apart from its state. Errors are in units of SetPoint::scale, so a multiplier of 1
/// weighs one std of the baseline, and gains need no new search for another reward scale.
/// The defaults: proportional and integral, no kick at the start, no windup. On a policy whose mean error moves by g - b lambda in
/// an update the damping is about Kp sqrt(b / Ki) / 2: 0.45 at b = 0.01, 1.4 at 0.1; halve kp and ki where rollouts are stale and
/// b is above 0.2. A derivative gained nothing measurable. constraint/published.hpp has the published rules.
struct PidGains {
  PidForm form = PidForm::Positional;
  double kp = 2;     ///< lambda for one unit of error
  double ki = 0.05;  ///< lambda for one unit of error, in each update; inside the integral
  double kd = 0;     ///< lambda for one unit by which the measurement rose over d_delay updates

  double p_ema =
      0.5;  ///< of the error: average = p_ema average + (1 - p_ema) e; adds lag, so less damping
  EmaStart p_start = EmaStart::BiasCorrected;

  double d_ema = 0;  ///< of the measurement
  int d_delay = 1;   ///< updates
  EmaStart d_start =
      EmaStart::FirstValue;  ///< or Zero, which kicks: a first cost at the limit looks like a rise
  PidDerivative derivative = PidDerivative::Relu;

  double integral_min = 0, integral_max = math::infinity;
  AntiWindup anti_windup = AntiWindup::Conditional;
  double kt = 0.05;  ///< of BackCalculation; 1 forgets all of the excess in an update

  double lambda_init = 0;  ///< before the first update; what the integral goes on from
  double lambda_max = 10;
  double slew = math::infinity;  ///< most change of lambda in an update
  double dead_band = 0;  ///< errors within count as 0, beyond it as what exceeds it; P and I only
  int warm_up = 0;  ///< updates in which averages and history fill, and integral and lambda wait
  int period = 1;   ///< calls an update; what comes between is averaged into it

  double beta1 = 0.9, beta2 = 0.999, adam_eps = 1e-8;  ///< of Adam

  /// name: of the settings in the message.
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
    whole("d_delay", d_delay, 1), whole("warm_up", warm_up, 0), whole("period", period, 1);
    number("integral_min", integral_min,
           !math::is_nan(integral_min) && integral_min < math::infinity, "a number below infinity");
    number("integral_max", integral_max,
           integral_min <= integral_max && !math::is_nan(integral_max), "at least integral_min");
    number("lambda_init", lambda_init,
           lambda_init >= 0 && lambda_init <= lambda_max && !math::not_finite(lambda_init),
           "a finite number from 0 to lambda_max");
    if (form == PidForm::Positional) {
      number("lambda_init", lambda_init, integral_min <= lambda_init && lambda_init <= integral_max,
             "a number from integral_min to integral_max, where the integral begins");
    }
    if (d_start != EmaStart::Zero && d_start != EmaStart::FirstValue) {
      contract::fail(function, name + ".d_start", "a start of averages of errors",
                     "EmaStart::Zero or FirstValue");
    }
    if ((form == PidForm::Adam || form == PidForm::Log) && (kp != 0 || kd != 0)) {
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
