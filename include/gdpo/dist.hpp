#pragma once
/// \file
/// One step over many ranks: rows gathered, records merged, errors thrown by all ranks or by none.
///
/// Every rank computes the advantages of all rows and keeps its own: every estimator is exact, and
/// a group may be split over ranks. Counts are summed before the first loss. The same lines run on
/// one rank and on a thousand:
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
/// **Calls.**
///
///     gather_rows(comm, batch, keys)  rewards, groups and columns of all ranks
///     all_merge(comm, record)         counts, losses, metrics, reports, measurements: the sum over
///                                     all ranks, in their order; record may be a function
///     gather_tokens(comm, batch)      rows whose tokens are on several ranks (context parallelism)
///     agree(comm, work)               runs work: if it throws on one rank, all throw that error,
///                                     and none waits forever
///     agree_on(comm, settings...)     throws unless losses, estimators, numbers agree on all ranks
///     grad_scale(world, accumulation, engine)    undoes the division of gradients by DDP, FSDP,
///                                     Megatron, DeepSpeed, Hugging Face
///
/// **Inputs.** comm has `rank()`, `size()` and `all_gather` of bytes (dist/communicator.hpp):
/// `dist::Single` is one process; gdpo/with/mpi.hpp, gdpo/with/nccl.hpp and
/// gdpo/with/torch_distributed.hpp wrap what a trainer already runs. A rank has any number of rows,
/// also none. keys (rows): optional, only with by_id; the number of a row in the sampler.
///
/// **Results.** The same bits on every rank. Gradients, counts and ranges do not depend on how rows
/// are spread over ranks; with keys, advantages do not either. Losses and sums of metrics, in
/// double, are within 1e-12 relative of those of one process.
///
/// **Cost.** Two messages a call, or one where only a status is exchanged: 64 bytes from each rank,
/// then the data. A row takes sizeof(T) for each reward, and 8 bytes each for id, key and every
/// column.
///
/// **Errors.** gdpo::invalid_input on all ranks, with one message that names the rank: refused
/// input or work, a different call, different settings, another version of the library. The ranks
/// are in step again afterwards. Put other calls that may throw, such as count(), by_id() or a
/// loss, into the function that all_merge() or agree() takes. communication_error if a rank does
/// not answer: the adapters have deadlines.
///
/// **Read on.** include/gdpo/dist/README.md: MPI, torch.distributed, bytes and times, failures,
/// what engines divide by. examples/mpi_trainer.cpp: a policy trained on several processes.
#include <gdpo/advantages.hpp>
#include <gdpo/dist/gather_rows.hpp>
#include <gdpo/dist/gather_tokens.hpp>
#include <gdpo/dist/grad_scale.hpp>
#include <gdpo/dist/merge.hpp>
#include <gdpo/loss.hpp>
