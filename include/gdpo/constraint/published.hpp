#pragma once
#include <gdpo/constraint/pid.hpp>

GDPO_BEGIN_NAMESPACE
/// The published rules of multipliers, as settings of PidLagrangian. The default, PidGains{}, differs from all of them in what
/// it does at the start, at its bound, and with numbers that are not finite.
namespace pid {

/// Stooke, Achiam, Abbeel 2020 (arXiv 2007.03964), algorithm 2; its Ki is inside the integral here, which is the same. The cost
/// before the first is 0. Use placement's LambdaNorm::Sum.
constexpr PidGains stooke(double kp, double ki, double kd) {
  PidGains g;
  g.kp = kp, g.ki = ki, g.kd = kd;
  g.p_ema = 0;
  g.d_start = EmaStart::Zero;
  g.anti_windup = AntiWindup::None;
  g.lambda_max = math::infinity;
  return g;
}

/// OmniSafe common/pid_lagrange.py @15603dd (rlpyt projects/safe/cppo_pid.py line by line), defaults included, bit for bit:
/// averages from 0, a delay line that begins with one 0, the first integral 0.001. Sum: no bound; Diff: integral and output
/// within 1; None: the output within penalty_max, the integral without a bound.
constexpr PidGains omnisafe(LambdaNorm norm = LambdaNorm::Sum, double penalty_max = 100) {
  PidGains g = stooke(0.1, 0.01, 0.01);
  g.p_ema = g.d_ema = 0.95;
  g.p_start = EmaStart::Zero;
  g.d_delay = 10;
  g.lambda_init = 0.001;
  if (norm == LambdaNorm::Diff) g.integral_max = g.lambda_max = 1;
  if (norm == LambdaNorm::None) g.lambda_max = penalty_max;
  return g;
}

/// nuPI (Sohrabi et al. 2024, arXiv 2406.04558; Cooper's nuPI with maximize): lambda += Ki e + Kp (xi - the last xi), xi the
/// average of e with nu. Gains include the learning rate. start: Zero (its init "ZEROS"); FirstValue, the init "SGD" of its documentation
/// (xi begins with the first error); AfterFirst, that of its code (xi begins with the second). Kp = Ki, nu = 0: optimistic gradient.
constexpr PidGains nupi(double kp, double ki, double nu = 0, EmaStart start = EmaStart::Zero) {
  PidGains g;
  g.form = PidForm::Velocity;
  g.kp = kp, g.ki = ki, g.kd = 0;
  g.p_ema = nu;
  g.p_start = start;
  g.lambda_max = math::infinity;
  return g;
}

/// lambda = max(0, lambda + rate e): gradient ascent on the multiplier (OmniSafe Lagrange with SGD).
constexpr PidGains dual_ascent(double rate, double lambda_init = 0,
                               double lambda_max = math::infinity) {
  PidGains g = nupi(0, rate);
  g.lambda_init = lambda_init;
  g.lambda_max = lambda_max;
  return g;
}

/// The same by torch's Adam (OmniSafe Lagrange, its defaults): a violation of 1e-3 moves lambda as fast as one of 1.
constexpr PidGains dual_ascent_adam(double rate = 0.035, double lambda_init = 0.001,
                                    double lambda_max = math::infinity) {
  PidGains g = dual_ascent(rate, lambda_init, lambda_max);
  g.form = PidForm::Adam;
  return g;
}

/// Safe RLHF ppo_lag: log lambda += rate lambda e, lambda at most lambda_max. Its error is the mean cost of the last 128 episodes
/// minus the threshold: give the sum and count of that window. From 1e-3 to 1 under a violation of 1 it takes 9,994 updates. One
/// outlier of -1e5 leaves a multiplier that nothing moves any more: bound it by `slew`.
constexpr PidGains safe_rlhf_log(double rate = 0.1, double lambda_init = 1, double lambda_max = 5) {
  PidGains g = dual_ascent(rate, lambda_init, lambda_max);
  g.form = PidForm::Log;
  return g;
}

}  // namespace pid
GDPO_END_NAMESPACE
