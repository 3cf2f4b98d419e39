#pragma once
/// \file
/// Advantages from rewards: GDPO, GRPO, Dr.GRPO, RLOO and the conventions of trainers; no Eigen.
///
/// **What it computes.** Completion i of group (prompt) g has rewards r_ic, c = 1 .. C, of weight
/// w_c. mean_g and std_g run over the group, mean and std over the batch; std is the sample std.
///
///     Gate     r_ic counts as 0 where r_id < t                            eq. 8
///     GDPO     z_ic = (r_ic - mean_g r_c) / std_g r_c                     eq. 4
///              s_i  = sum_c w_c z_ic                                      eq. 5, weighted eq. 7
///              a_i  = (s_i - mean s) / (std s + eps)                      eq. 6
///     GRPO     x_i = sum_c w_c r_ic,  a_i = (x_i - mean_g x) / std_g x
///     Dr.GRPO  a_i = x_i - mean_g x
///     RLOO     a_i = x_i - the mean of x over the other members of the group
///
/// The equations are those of arXiv 2601.05242; GRPO is 2402.03300, Dr.GRPO 2503.20783, RLOO
/// 2402.14740. eps is a setting, 0 by default. A group of equal rewards gets exactly 0 in every
/// scalar type, decided by max == min; so does one whose combined values differ by rounding alone.
/// The mean of s is 0, so eq. 6 only rescales and keeps these zeros. (They end where a second stage
/// subtracts a mean that is not 0: renorm::TokenWeightedBatch, or beside Singleton::Raw.)
///
/// A group of one gets 0 (`Singleton`). A NaN reward is missing: it enters no statistic and adds 0;
/// a row without any reward gets 0 (`Missing`). A reward of weight 0 takes no part, except as the
/// condition r_id of a gate.
///
/// **Example.** The short form is `gdpo::advantages(rewards, groups, estimator, &report)`; the
/// last two are optional. The long form has optional columns and a workspace:
///
/// <!-- build: door_advantages run -->
/// ```cpp
/// const float none = NAN;  // the reward function abstained; the rewards: correct, short
/// const std::vector<float> rewards = {1, 1, 1, 0, 0, 1, 0, 0, 1, 1, 1, none, 0, 0, 1, 1};
/// gdpo::Gdpo estimator;  // the paper's defaults
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
/// **Inputs.** Views with any strides, of float, double, 16-bit floats or integers.
///
/// - rewards (N, C), in the short form also (N); groups: `groups_of`, `by_offsets` or `by_id`.
///   Required.
/// - tokens (N), completion lengths. Required by `renorm::TokenWeightedBatch`, eq. 6 as in verl:
///   a row counts once for each of its tokens; and by `baseline::LengthWeighted`.
/// - penalty (N), KL of a row in nats. Required where `estimator.penalty.coef` is not 0.
/// - valid (N): rows with 0 enter no statistic. Absent: all rows do.
/// - baseline (N), the caller's. Required by `baseline::External`.
/// - weights (N): only for policies of your own.
///
/// **Results.** (N) advantages: float for rewards of float and narrower, else double, or the
/// scalar of `out`. `workspace.sums()`: the combined values before eq. 6, s for GDPO.
/// `GroupReport`: counts (missing, infinite, excluded, unused), degenerate groups, mean and std
/// of the rewards; `per_row` spreads its entries for groups over the rows.
///
/// **Tokens.** `broadcast_into` gives each token the advantage of its row.
/// `token_advantages_into` also subtracts a KL penalty at each token; `whiten_into` then
/// normalises over the tokens that a mask selects. `masked_mean`, `masked_mean_over`,
/// `masked_row_mean(s)`, `masked_moments` and `masked_variance` are the statistics of such tokens
/// by themselves.
///
/// **Cost.** Time O(N C). The rewards are read once, once more where a policy reads the batch, and
/// again for a report. With a workspace nothing is allocated after the first call. `seq` takes one
/// number at a time, `simd` (all short forms) vector lanes, `parallel(executor)` threads, if the
/// batch is worth it. All give the same bits, under g++ or clang and any flags but -ffast-math.
/// Statistics are in double, in the orders of stats/reduce.hpp; the result is rounded once. Rewards
/// and weights beyond about 1e-150 to 1e150, whose squares leave the range of a double, may give a
/// spread of 0.
///
/// **Errors.** `invalid_input` for shapes and settings that do not fit, before anything is
/// written. MissingEntry::Reject, InfiniteEntry::Reject and Singleton::Error throw it before `out`
/// is written. No other data throws: no rows, empty groups and one group have a defined result.
/// What an infinite reward gives to its group says GroupAdvantage::missing (advantage/missing.hpp);
/// by default NaN, which reaches all rows where the batch is renormalised.
///
/// **Ranks.** With rows on several ranks, gather them (gdpo/dist.hpp). Where the rewards cannot
/// leave their rank, `first_stage` and `finish` are the two stages of an estimator, between which
/// the moments of the combined values are merged.
///
/// **Read on.** Policies and settings: advantage/README.md and the headers beside it; trainers:
/// presets/README.md. An estimator of your own: advantage/stat.hpp, examples/custom_estimator.cpp.
/// Limits on rewards: gdpo/constraint.hpp. Eigen: gdpo/with/eigen.hpp, gdpo/with/eigen_tensor.hpp.
#include <gdpo/advantage/advantages.hpp>
#include <gdpo/advantage/tokens.hpp>
#include <gdpo/advantage/two_stages.hpp>
#include <gdpo/advantage/whiten.hpp>
#include <gdpo/group/by_id.hpp>
#include <gdpo/group/by_offsets.hpp>
#include <gdpo/group/groups_of.hpp>
#include <gdpo/group/per_row.hpp>
