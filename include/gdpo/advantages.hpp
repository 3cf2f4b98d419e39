#pragma once
/// \file
/// Advantages from rewards: GDPO, GRPO, Dr.GRPO, RLOO. Needs no Eigen.
///
/// Completion i of group (prompt) g has rewards r_ic, c = 1 .. C, with weights w_c. mean_g and
/// std_g are taken over the group, mean and std over the batch; std is the sample std.
///
///     Gate     r_ic counts as 0 where another reward r_id < t             eq. 8
///     GDPO     z_ic = (r_ic - mean_g r_c) / std_g r_c                     eq. 4
///              s_i  = sum_c w_c z_ic                                      eq. 5, weighted eq. 7
///              a_i  = (s_i - mean s) / (std s + eps)                      eq. 6
///     GRPO     x_i = sum_c w_c r_ic,  a_i = (x_i - mean_g x) / std_g x    arXiv 2402.03300
///     Dr.GRPO  a_i = x_i - mean_g x                                       arXiv 2503.20783
///     RLOO     a_i = x_i - mean of x over the other members               arXiv 2402.14740
///
/// Equation numbers refer to arXiv 2601.05242. eps is a setting, 0 by default. A group of equal
/// rewards gets exactly 0; so do a group of one and a row without rewards, by default.
///
/// <!-- build: door_advantages run -->
/// ```cpp
/// const float none = NAN;  // the reward function abstained
/// const std::vector<float> rewards = {1, 1, 1, 0, 0, 1, 0, 0, 1, 1, 1, none, 0, 0, 1, 1};
/// gdpo::Gdpo estimator;  // the paper's defaults, for the rewards "correct" and "short"
/// estimator.weights = {1, 0.5};
/// estimator.gates = {{1, 0, 1.0}};  // "short" counts only where "correct" >= 1
/// gdpo::RewardBatch batch{gdpo::view(rewards.data(), 8, 2), gdpo::groups_of(4)};
/// std::vector<float> a(8);
/// gdpo::Workspace workspace;  // kept between steps
/// gdpo::GroupReport report;
/// gdpo::advantages_into(gdpo::simd, batch, estimator, gdpo::view(a), workspace, &report);
/// for (const float x : a) std::printf("%.2f ", x);
/// // prints 1.27 0.49 -0.88 -0.88 0.62 0.39 -1.64 0.62
/// std::printf("\nmissing %td, s_0 %.2f\n", report.excluded_rewards, workspace.sums()(0));
/// // prints missing 1, s_0 1.62
/// ```
///
/// **Calls.**
///
///     advantages(rewards, groups, estimator, &report)   the last two are optional
///     advantages(exec, batch, estimator, &report)       with optional columns
///     advantages_into(exec, batch, estimator, out, workspace, &report)
///                                                       allocates nothing after the first call
///     first_stage, finish                               two stages, for rows on several ranks
///     explain(rewards, groups, estimator, group)        one group stage by stage, as a table
///                                                       (gdpo/advantage/explain.hpp)
///     per_row(groups, N, values)                        gives each row the value of its group
///     rollouts(batch, ids, take)                        several rows of a rollout count as one
///     broadcast_into                                    gives each token the advantage of its row
///     whiten_into, masked_mean, masked_moments, ...     statistics over the tokens of a mask
///
/// exec is `seq`, `simd` or `parallel(executor)`; the short form uses `simd`. All give the same
/// bits.
///
/// **Inputs.** Views with any strides, of float, double, 16-bit floats or integers.
///
///     array      shape    needed
///     rewards    (N, C)   always; (N) is one reward. NaN is a missing reward
///     groups              always: groups_of, by_offsets or by_id
///     tokens     (N)      by RenormOver::Tokens and baseline::LengthWeighted: lengths
///     penalty    (N)      where estimator.penalty.coef is not 0: KL of the row, in nats
///     baseline   (N)      by baseline::External
///     valid      (N)      where some rows are no completions: those with 0 enter no statistic
///     weights    (N)      by policies of your own only (rewards are weighed by estimator.weights)
///
/// A flat array needs its shape: gdpo::view(r.data(), N, C). gdpo::view(vector) is one reward.
///
/// **Results.** A std::vector of N advantages: float for rewards of float and narrower, else
/// double; or `out`, of any scalar. `workspace.sums()` is s, the combined values before eq. 6.
/// GroupReport has counts, degenerate groups, mean and std of the rewards.
///
/// **Cost.** O(N C). The rewards are read once, again if a policy reads the whole batch, and again
/// for a report.
///
/// **Errors.** gdpo::invalid_input for shapes and settings that do not fit, before anything is
/// written. No values of rewards throw, except where MissingEntry::Reject, InfiniteEntry::Reject or
/// Singleton::Error asks for it, before `out` is written.
///
/// **Read on.** include/gdpo/advantage/README.md: groups, settings, policies and papers, missing
/// and infinite rewards, reports. presets/README.md: trainers. examples/custom_estimator.cpp: an
/// estimator of your own. gdpo/with/eigen.hpp, gdpo/with/eigen_tensor.hpp: Eigen.
#include <gdpo/advantage/advantages.hpp>
#include <gdpo/advantage/broadcast.hpp>
#include <gdpo/advantage/rollouts.hpp>
#include <gdpo/advantage/two_stages.hpp>
#include <gdpo/advantage/whiten.hpp>
#include <gdpo/group/by_id.hpp>
#include <gdpo/group/by_offsets.hpp>
#include <gdpo/group/groups_of.hpp>
#include <gdpo/group/per_row.hpp>
