#pragma once
/// \file
/// One step over many ranks: rows gathered, records merged, errors thrown by all ranks or by none.
///
/// **What it does.** Two things go wrong where a trainer outgrows one process: a group is split
/// over ranks and normalised in parts, and a loss is divided by a local count. Here
///
///     gather_rows    rewards, groups and columns of all ranks: every rank computes all advantages
///                    and keeps its own, so that every estimator is that of one process
///     all_merge      counts, losses, metrics, reports, measurements: one record from each rank,
///                    added on every rank in the order of the ranks
///     gather_tokens  rows whose tokens are on several ranks (context parallelism)
///     agree          runs work that may throw: a rank that refuses its input makes all ranks throw
///                    its message, instead of waiting for it for ever
///     agree_on       settings that must be the same on all ranks: losses, estimators, numbers
///     grad_scale     what DDP, FSDP, Megatron, DeepSpeed and Hugging Face divide gradients by
///
/// A rank speaks to the others through a communicator: `rank()`, `size()` and `all_gather` of bytes
/// (dist/communicator.hpp). gdpo/with/mpi.hpp, gdpo/with/nccl.hpp and
/// gdpo/with/torch_distributed.hpp make one of what a trainer runs already. `dist::Single` is one
/// process by itself.
///
/// **Example.** The same lines on one rank and on a thousand:
///
/// <!-- build: door_dist run -->
/// ```cpp
/// const gdpo::dist::Single comm;  // gdpo::dist::Mpi comm(MPI_COMM_WORLD); and so on
/// const std::vector<float> rewards{1, 0, 0, 1};  // of the completions on this rank
/// const std::vector<int> prompts{7, 7, 3, 3};    // ids: a prompt may be on several ranks
/// const std::vector<int> numbers{0, 1, 2, 3};    // of the completions in the sampler
/// const gdpo::RewardBatch batch{gdpo::view(rewards.data(), 4, 1), gdpo::by_id(prompts)};
/// const auto all = gdpo::dist::gather_rows(comm, batch, gdpo::view(numbers));
/// const auto a = all.own(gdpo::advantages(gdpo::simd, all.batch(), gdpo::Grpo{}));
/// std::printf("%.2f %.2f %.2f %.2f\n", a[0], a[1], a[2], a[3]);
/// // prints 0.71 -0.71 -0.71 0.71
///
/// std::vector<float> logp(4 * 2, -1.0f), dlogp(4 * 2);
/// gdpo::TokenBatch<float> tokens;
/// tokens.logp = tokens.old_logp = gdpo::view(logp.data(), 4, 2);
/// tokens.advantages = gdpo::view(a);
/// // The counts of all ranks, before the first loss.
/// const auto step = gdpo::dist::all_merge(comm, [&] { return gdpo::count(tokens); });
/// const auto own = gdpo::dist::agree(comm, [&] {
///   return gdpo::dapo_loss(tokens, step, gdpo::view(dlogp.data(), 4, 2));
/// });
/// const gdpo::LossResult result = gdpo::dist::all_merge(comm, own);
/// std::printf("%g tokens in the step, loss %.2f\n", step.tokens, std::fabs(result.loss));
/// // prints 8 tokens in the step, loss 0.00
/// ```
///
/// **What is the same.** Every rank has the same bits of whatever is gathered and merged.
/// Gradients, counts and ranges do not depend on how rows are spread over ranks; nor do advantages,
/// with keys.
/// Sums of losses and metrics are within 1e-12 relative of those of one process, in double.
///
/// **Cost.** Two messages a call, one where only a status is told: 64 bytes from each rank, then
/// the data. A row takes sizeof(T) for each reward, and 8 bytes each for id, key and every column.
///
/// **Errors.** invalid_input on all ranks, with one message that names the rank: a batch or work
/// that was refused, another call, other settings, another version of the library. The ranks are in
/// step again afterwards. What may throw outside of these calls, such as count(), by_id() or a
/// loss, belongs into the function that all_merge() or agree() takes. communication_error where a
/// rank does not answer: the adapters have deadlines.
///
/// **Read on.** include/gdpo/dist/README.md: what to gather and what to merge, code for MPI and
/// torch.distributed, bytes and times, what happens when a rank dies. examples/mpi_trainer.cpp: a
/// policy trained on several processes.
#include <gdpo/advantages.hpp>
#include <gdpo/dist/grad_scale.hpp>
#include <gdpo/dist/merge.hpp>
#include <gdpo/dist/rows.hpp>
#include <gdpo/dist/tokens.hpp>
#include <gdpo/loss.hpp>
