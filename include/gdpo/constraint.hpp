#pragma once
/// \file
/// Constraints on rewards: some rewards are maximized, others are kept at a limit on average.
///
/// Each constrained reward c has a multiplier lambda_c >= 0. The violation v_ic of completion i is
/// the signed distance of its reward from the limit, positive where it misses the limit. Violations
/// reduce A_R, the advantages of the other (primary) rewards, and a controller moves the
/// multipliers:
///
///     a_i      = (A_R,i - sum_c lambda_c (v_ic - mean v_c)) / (1 + sum_c lambda_c)
///     e_c      = (limit - mean reward) / scale       (AtLeast; AtMost has the opposite sign)
///     lambda_c = clamp(Kp p + I + Kd d, 0, lambda_max)
///
/// The first line is the default, placement::FixedScale; its mean is over the group. p is an
/// average of e_c, I sums up Ki e_c, d is the change of the mean reward. Sources: arXiv 2007.03964,
/// algorithm 2; arXiv 2606.25496 for limits from a baseline run.
///
/// Here reward 0 is maximized, and reward 1 must exceed the baseline's mean by half a standard
/// deviation:
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
/// **Calls.**
///
///     calibrate(baseline_moments(values), k)   limit = mean + k std of a baseline run, scale = std
///     measure(values, limit, valid)            sums of one constrained reward
///     merge(metrics, metrics)                  adds the sums of micro-batches or ranks
///     PidLagrangian pid(gains, {limits})       the controller: one multiplier for each limit
///     pid.update({sums and counts})            moves the multipliers, once a step
///     pid.constraints({rewards})               what an estimator needs
///     Constrained{estimator, placement, constraints}   an estimator under constraints
///     pid.move(c, limit)                       another limit during a run
///     pid.state(), pid.restore(state)          checkpoints; limits are this program's
///     AdaptiveKl{target, horizon}              the KL controller of verl and OpenRLHF
///     AdaptiveEntropy{target, delta}           the entropy controller of TRL
///
/// **Inputs.** rewards (N, C) as in gdpo/advantages.hpp; a NaN is a missing reward, handled as the
/// estimator says. A constraint has a reward, and a limit and a scale in the reward's units, by
/// `calibrate()` or by hand (SetPoint). On several ranks `update` needs the sums and counts of all.
/// A sum that is not finite or a count of 0 leaves that multiplier as it is.
///
/// **Cost.** `measure` is O(N), `update` O(m) for m constraints; neither allocates. A constrained
/// estimator costs one call of the estimator, and one on a single reward for each multiplier above
/// 0. With a workspace it allocates nothing after the first call. Every execution tag gives the
/// same bits.
///
/// **Errors.** gdpo::invalid_input, before anything is written, for settings and limits out of
/// range, rewards that do not exist, shapes that do not fit, a baseline without a spread, and a
/// checkpoint that is cut or altered. Measurements never throw because of their data.
///
/// **Read on.** include/gdpo/constraint/README.md: placements, published rules as settings, rules
/// compared. constraint/pid.hpp and pid_gains.hpp: the controller and its settings.
#include <gdpo/advantages.hpp>
#include <gdpo/constraint/adaptive_entropy.hpp>
#include <gdpo/constraint/adaptive_kl.hpp>
#include <gdpo/constraint/calibration.hpp>
#include <gdpo/constraint/constrained.hpp>
#include <gdpo/constraint/published.hpp>
