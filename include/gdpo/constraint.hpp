#pragma once
/// \file
/// Constraints on rewards: some rewards are maximised, others are kept at a limit on average.
///
/// **What it computes.** Each constrained reward c has a multiplier lambda_c >= 0. The violation
/// v_ic of completion i is the signed distance of its reward to the limit, above 0 where it misses.
/// The advantages of the other, primary rewards, A_R, are reduced by the violations (the default
/// placement::FixedScale; the mean is over the group of i), and a controller moves the multipliers:
///
///     a_i      = (A_R,i - sum_c lambda_c (v_ic - mean v_c)) / (1 + sum_c lambda_c)
///     e_c      = (limit - mean reward) / scale       (AtLeast; AtMost has the opposite sign)
///     lambda_c = clamp(Kp p + I + Kd d, 0, lambda_max)
///
/// p is an average of e_c, I sums up Ki e_c, and d is the change of the mean reward.
///
/// Sources: Stooke, Achiam, Abbeel 2020 (arXiv 2007.03964), algorithm 2;
/// Recommendation-as-Generation (arXiv 2606.25496) for limits from a baseline run. OmniSafe, nuPI,
/// dual ascent and Safe RLHF are settings of the same controller (constraint/published.hpp).
/// AdaptiveKl is the KL controller of verl and OpenRLHF.
///
/// **Example.** Reward 0 is maximised; reward 1 shall exceed the baseline's mean by half a standard
/// deviation.
///
/// <!-- build: door_constraint run -->
/// ```cpp
/// const std::vector<double> baseline{0.2, 0.6, 0.4, 0.8};  // reward 1 of the policy at the start
/// const std::vector<double> step{1, 0.1, 0, 0.9, 1, 0.3, 1, 0.5, 0, 0.7, 1, 0.2, 0, 0.8, 1, 0.1};
/// const auto rewards = gdpo::view(step.data(), 8, 2);  // 8 completions, 4 for each prompt
///
/// const auto limit = gdpo::calibrate(gdpo::baseline_moments(gdpo::view(baseline)), 0.5);
/// gdpo::PidLagrangian pid(gdpo::PidGains{}, {limit});
/// // Every step: measure, move the multiplier, estimate under the constraint.
/// const auto metrics = gdpo::measure(gdpo::column(rewards, 1), limit);
/// pid.update({metrics.value()});  // on several ranks: merge() the metrics first
/// const gdpo::Constrained estimator{gdpo::Gdpo{}, gdpo::placement::FixedScale{},
///                                   pid.constraints({1})};
/// const auto a = gdpo::advantages(rewards, gdpo::groups_of(4), estimator);
/// std::printf("lambda %.3f, advantages %.2f %.2f %.2f %.2f\n", pid.lambda(0), a[0], a[1], a[2],
///             a[3]);  // prints lambda 1.422, advantages -0.57 0.35 -0.12 0.34
/// ```
///
/// **Inputs.** Rewards: (N, C) as in advantages.hpp, of float, double, integers or 16-bit floats. A
/// NaN is a missing reward and handled as the estimator says. Each constraint needs a column
/// (`Constraint::reward`), a limit and a scale in the reward's units, by hand (SetPoint) or from
/// `calibrate()`. The controller needs, once a step, the sum and count of each constrained reward
/// over all ranks (`ConstraintMetrics::value()`). A sum that is not finite or a count of 0 holds
/// that multiplier: it stays as it is. `move` gives a constraint another limit during a run, and
/// `restore` goes on from a checkpoint under the limits of this program; neither makes a multiplier
/// jump.
///
/// **Cost.** `measure`: one pass over a column, O(N), no allocation. `PidLagrangian::update`: O(m)
/// for m constraints, no allocation. A constrained estimator: one call of the estimator and one
/// call on a single column for each multiplier above 0; it allocates nothing with a Workspace after
/// the first call. Threads are those of the execution tag; the bits do not depend on it.
///
/// **Errors.** gdpo::invalid_input for settings and limits out of range, columns that do not exist,
/// shapes that do not fit, a baseline without a spread, and a checkpoint that is cut or altered.
/// Nothing is written then. Measurements never throw, whatever the data are.
///
/// **Read on.** constraint/set_point.hpp and calibration.hpp: limits; shortfall.hpp: measurements;
/// pid.hpp, pid_gains.hpp, pid_state.hpp: the controller, its settings, its checkpoint;
/// placement.hpp: where violations enter; include/gdpo/constraint/README.md; examples/constrained:
/// rules compared.
#include <gdpo/advantages.hpp>
#include <gdpo/constraint/adaptive_kl.hpp>
#include <gdpo/constraint/calibration.hpp>
#include <gdpo/constraint/constrained.hpp>
#include <gdpo/constraint/published.hpp>
