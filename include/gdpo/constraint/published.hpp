#pragma once
// Published rules for multipliers, as settings of PidLagrangian.
#include <gdpo/constraint/pid.hpp>

GDPO_BEGIN_NAMESPACE
/// The published rules for multipliers, as settings of PidLagrangian. The default, `PidGains{}`, is
/// none of them: it has no kick at the start and no windup at the upper bound. With any settings,
/// PidLagrangian holds a constraint whose measurement is not finite; in the code of OmniSafe, one
/// NaN sets the multiplier to 0 for good.
namespace pid {

/// Algorithm 2 of Stooke, Achiam, Abbeel 2020 (arXiv 2007.03964).
/// The paper multiplies the integral by Ki, here Ki is inside it: the same up to rounding. The cost
/// before the first update counts as 0. No bound but 0; use it with `LambdaNorm::Sum`.
constexpr PidGains stooke(double kp, double ki, double kd) {
  PidGains g;
  g.kp = kp, g.ki = ki, g.kd = kd;
  g.p_ema = 0;
  g.d_start = EmaStart::Zero;
  g.anti_windup = AntiWindup::None;
  g.lambda_max = math::infinity;
  return g;
}

/// OmniSafe, common/pid_lagrange.py at commit 15603dd, bit for bit, with its default gains. That
/// file follows projects/safe/cppo_pid.py of rlpyt line by line. Averages start from 0, the history
/// of the derivative starts with one 0, and the integral starts from lambda_init. Bounds: with Sum
/// none; with Diff 1 for the integral and the output; with None penalty_max for the output alone.
///
/// lambda_init: its lagrangian_multiplier_init. A negative one is where the integral begins, as
/// there: the first update adds its step to it and cuts the sum off at 0. One above the bound of
/// the multiplier is refused; OmniSafe takes it and cuts it off in the first update.
constexpr PidGains omnisafe(LambdaNorm norm = LambdaNorm::Sum, double penalty_max = 100,
                            double lambda_init = 0.001) {
  PidGains g = stooke(0.1, 0.01, 0.01);
  g.p_ema = g.d_ema = 0.95;
  g.p_start = EmaStart::Zero;
  g.d_delay = 10;
  g.lambda_init = lambda_init;
  if (norm == LambdaNorm::Diff) g.integral_max = g.lambda_max = 1;
  if (norm == LambdaNorm::None) g.lambda_max = penalty_max;
  return g;
}

/// nuPI: Sohrabi et al. 2024 (arXiv 2406.04558), `nuPI` of the library Cooper with maximize.
///
///     lambda = max(0, lambda + Ki e + Kp (xi - last xi)),   xi = nu xi + (1 - nu) e
///
/// The gains include the learning rate. start is the init of Cooper: Zero is its "ZEROS";
/// FirstValue is "SGD" as documented there (xi starts from the first error); AfterFirst is "SGD" as
/// its code has it (xi starts from the second error). With Kp = Ki and nu = 0 it is the optimistic
/// gradient method, with Kp = 0 dual ascent.
constexpr PidGains nupi(double kp, double ki, double nu = 0, EmaStart start = EmaStart::Zero) {
  PidGains g;
  g.form = PidForm::Velocity;
  g.kp = kp, g.ki = ki, g.kd = 0;
  g.p_ema = nu;
  g.p_start = start;
  g.lambda_max = math::infinity;
  return g;
}

/// Gradient ascent on the multiplier: lambda = clamp(lambda + rate e, 0, lambda_max).
/// `Lagrange` of OmniSafe (common/lagrange.py at commit 15603dd) with SGD. A negative lambda_init
/// starts at 0, as there. One above lambda_max is refused; OmniSafe takes it and cuts off at the
/// bound after its first step.
constexpr PidGains dual_ascent(double rate, double lambda_init = 0,
                               double lambda_max = math::infinity) {
  PidGains g = nupi(0, rate);
  g.lambda_init = lambda_init < 0 ? 0 : lambda_init;
  g.lambda_max = lambda_max;
  return g;
}

/// Gradient ascent by torch's Adam: `Lagrange` of OmniSafe, with its defaults.
/// A violation of 1e-3 moves lambda as fast as one of 1.
constexpr PidGains dual_ascent_adam(double rate = 0.035, double lambda_init = 0.001,
                                    double lambda_max = math::infinity) {
  PidGains g = dual_ascent(rate, lambda_init, lambda_max);
  g.form = PidForm::Adam;
  return g;
}

/// Gradient ascent by torch's RMSprop with its default settings: alpha 0.99, eps 1e-8, no momentum,
/// not centered. `Lagrange` of OmniSafe with lambda_optimizer RMSprop and its other defaults, with
/// the bits of a torch built without fused multiply-add.
///
///     v = 0.99 v + 0.01 e^2,   lambda = clamp(lambda + rate e / (sqrt(v) + 1e-8), 0, lambda_max)
///
/// v starts from 0, so the first step is ten rates, whatever the violation, and one of 1e-3 moves
/// lambda as fast as one of 1. Of the other optimizers of torch, OmniSafe takes any; here are
/// `dual_ascent` (SGD without momentum), `dual_ascent_adam` and this one.
constexpr PidGains dual_ascent_rmsprop(double rate = 0.035, double lambda_init = 0.001,
                                       double lambda_max = math::infinity) {
  PidGains g = dual_ascent(rate, lambda_init, lambda_max);
  g.form = PidForm::RmsProp;
  g.beta2 = 0.99;
  g.adam_eps = 1e-8;
  return g;
}

/// `ppo_lag` of Safe RLHF: log lambda += rate lambda e, and lambda is at most lambda_max. Its error
/// is the mean cost of the last 128 episodes minus the threshold, so feed the sum and count of that
/// window. Small multipliers hardly move: from 1e-3 to 1 takes 9,994 updates under a constant
/// violation of 1. One outlier of -1e5 leaves a multiplier so small that nothing moves it any more.
constexpr PidGains safe_rlhf_log(double rate = 0.1, double lambda_init = 1, double lambda_max = 5) {
  PidGains g = dual_ascent(rate, lambda_init, lambda_max);
  g.form = PidForm::Log;
  g.lambda_init = lambda_init;  // a negative one is a mistake in this form, not 0
  return g;
}

}  // namespace pid
GDPO_END_NAMESPACE
