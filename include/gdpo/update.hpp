#pragma once
/// \file
/// Everything that a policy update does around the loss: which rows go where, counts before the
/// first backward, the norm of the gradient, the reference policy.
///
/// In the order of a training step; each call works alone:
///
///     shape_rewards(rewards, lengths, rules...)   clips, scales, penalizes length; in place
///     shape_rewards(rewards, groups, columns, rules...)   the same by rules that see the group
///     RunningMoments, EmaBaseline, ReturnScale    running mean and std, baselines by role, reward
///                                                 normalization; their state is a value of yours
///     select_groups(batch, settings, attempt)     dynamic sampling: which groups to drop, how many
///                                                 prompts to sample again
///     plan(rows, settings)                        rows of each optimizer step, rank, micro-batch
///     plan(rows, groups, settings)                the same, with groups that stay whole
///     shard(lengths, ranks, cost)                 rows over ranks, balanced by tokens or by the
///                                                 cost of attention
///     pack(lengths, budget)                       rows of different lengths in few packs without
///                                                 padding between them
///     Step(comm, micro_batches, count)            counts of the step before the first loss,
///       .normalizer(), .add(k, result), .finish()   then the sum over micro-batches and ranks
///     clip_grad_norm(exec, comm, gradients, max_norm)   over all arrays and ranks
///     polyak(exec, reference, policy, tau)        a reference that follows the policy,
///     Refresh{every, tau}.due(step)                 and when
///
/// All are in gdpo::update. comm is a communicator (gdpo/dist.hpp); on one process leave it out.
/// AdaptiveKl (gdpo/constraint/adaptive_kl.hpp) moves the KL coefficient between steps. The
/// optimizer, its schedule, sampling and the forward pass are the trainer's.
///
/// A step of two micro-batches, packed, whose gradient is clipped:
///
/// <!-- build: door_update run -->
/// ```cpp
/// const std::vector<int> lengths{3, 1, 2, 2};         // tokens of four completions
/// const auto packs = gdpo::update::pack(lengths, 4);  // at most 4 tokens each
/// const std::vector<double> advantages{1, -1, 0.5, -0.5}, logp(4, -0.7);
/// const auto batch = [&](gdpo::index_t p) {
///   gdpo::TokenBatch<double> b;
///   b.offsets = packs.offsets(p);
///   b.logp = b.old_logp = gdpo::view(logp.data(), packs.tokens(p));
///   return b;
/// };
/// auto step = gdpo::update::Step(packs.packs(), [&](gdpo::index_t p) {
///   return gdpo::count(batch(p));
/// });
/// std::vector<double> gradient(8);  // by the log-probs; a trainer goes on to the parameters
/// for (gdpo::index_t p = 0; p < packs.packs(); ++p) {
///   std::vector<double> of_rows;
///   for (int i = 0; i < 2; ++i) of_rows.push_back(advantages[std::size_t(packs.rows(p)(i))]);
///   auto b = batch(p);
///   b.advantages = gdpo::view(of_rows);
///   step.add(p, gdpo::dapo_loss(b, step.normalizer(), gdpo::view(gradient.data() + 4 * p, 4)));
/// }
/// const gdpo::LossResult total = step.finish();
/// const auto clipped = gdpo::update::clip_grad_norm({gdpo::view(gradient)}, 0.1);
/// std::printf("loss %.3f, %.0f tokens, norm %.3f\n", total.loss, step.normalizer().tokens,
///             clipped.norm);
/// // prints loss -0.250, 8 tokens, norm 0.280
/// ```
///
/// **Shapes.** lengths: (rows), integers. rewards: (N), gradients and parameters: lists of arrays
/// of float, double or 16-bit floats, in any storage order. Plan, Packing and Sharding return views
/// of row numbers, into memory of their own.
///
/// **Ranks.** plan, pack, shard and select_groups depend on their arguments alone: ranks that pass
/// the same ones get the same answer, and nothing is sent. Step and clip_grad_norm are collectives.
///
/// **Cost.** plan and shape_rewards are linear; pack and shard take at most a fifth of a second for
/// a million lengths; clip_grad_norm and polyak are bounded by the memory.
///
/// **Errors.** Mistakes throw `gdpo::invalid_input` before anything is written. NaN rewards, groups
/// without variance and gradients that are not finite are data: each has a rule and a counter.
///
/// **Read on.** include/gdpo/update/README.md: a step over ranks, trainers' options, splits that
/// change nothing, measured speed. examples/update_step.cpp: the policy update of open-instruct,
/// whole, on several processes.
#include <gdpo/constraint/adaptive_kl.hpp>
#include <gdpo/group/by_id.hpp>
#include <gdpo/group/by_offsets.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/update/clip_grad_norm.hpp>
#include <gdpo/update/ema_baseline.hpp>
#include <gdpo/update/pack.hpp>
#include <gdpo/update/plan.hpp>
#include <gdpo/update/polyak.hpp>
#include <gdpo/update/return_scale.hpp>
#include <gdpo/update/running_moments.hpp>
#include <gdpo/update/select_groups.hpp>
#include <gdpo/update/shape_groups.hpp>
#include <gdpo/update/shape_rewards.hpp>
#include <gdpo/update/shard.hpp>
#include <gdpo/update/step.hpp>
