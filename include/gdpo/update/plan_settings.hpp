#pragma once
#include <cstdint>
#include <gdpo/core/view.hpp>

GDPO_BEGIN_NAMESPACE
namespace update {

/// What happens to rows that do not come out even, or to groups where these stay whole.
enum class Remainder {
  /// Anything uneven is an error: all micro-batches of the plan have the same number of rows.
  Refuse,
  /// The last rows of an epoch are left out, and Plan::dropped reports them, so that all
  /// micro-batches have the same number of rows. Under Whole::InMicroBatch they have the same
  /// number of groups. Under Whole::InStep the mini-batches have the same number of groups, and
  /// their rows are cut as evenly as possible.
  Drop,
  /// The last mini-batch of an epoch may be shorter than the others, which are as long as it takes.
  Keep,
  /// The mini-batches of an epoch differ by at most one row, or one group where groups stay whole.
  Spread
};

/// What has to stay together.
enum class Whole {
  Rows,         ///< Nothing: the rows of a group may go into several optimiser steps.
  InStep,       ///< A group stays within one optimiser step, over any ranks and micro-batches.
  InMicroBatch  ///< A group stays within one micro-batch, and so on one rank.
};

/// When the rows, or the groups where these stay whole, get into a random order.
enum class Shuffle {
  Never,      ///< They are used in their own order.
  Once,       ///< They are shuffled once, and all epochs use this order.
  EveryEpoch  ///< Each epoch has a random order of its own.
};

/// How plan() cuts a batch. Each of the three numbers that cut it, `mini_batches`, `accumulation`
/// and `micro_batch`, follows from the others where it is 0; mini_batches only from both others.
/// Numbers that are given must fit the rows, or plan() throws.
///
/// What trainers call these numbers, where M stands for mini_batches = 0, which follows:
///
///     trainer        epochs          mini_batches   accumulation, micro_batch, ranks
///     ms-swift, TRL  num_iterations  M              gradient_accumulation_steps,
///                                                   per_device_train_batch_size, num_processes
///     verl           ppo_epochs      M, Refuse      a mini-batch must be a multiple of the ranks
///     open-instruct  num_epochs      M, Drop        max(ceil(n / num_mini_batches - 1/2), 1), 1, 1
///     GSPO's paper                   4
///
/// ms-swift's example has 512 completions, 64 a prompt. With 8 processes, 4 completions a device
/// and 8 accumulation steps a mini-batch has 256 of them, so that there are 2. verl does not
/// shuffle unless told to; TRL shuffles the rows once for each generation (Shuffle::Once). The rows
/// of open-instruct's plan are the n micro-batches of packed sequences of one rank.
struct PlanSettings {
  index_t epochs = 1;        ///< How many times each row is used; "mu" in GRPO's paper.
  index_t mini_batches = 1;  ///< Optimiser steps of an epoch; 0: follows from the two below.
  /// Micro-batches of each rank in a step; 0: follows from micro_batch, or 1 if that is 0 as well.
  index_t accumulation = 0;
  index_t micro_batch = 0;  ///< Rows of a micro-batch, at most; 0: follows from accumulation.
  index_t ranks = 1;        ///< Data-parallel ranks, which have different rows.
  Remainder remainder = Remainder::Refuse;  ///< What happens to rows that do not come out even.
  Whole whole = Whole::Rows;                ///< What has to stay together.
  Shuffle shuffle = Shuffle::Never;         ///< When the order becomes a random one.
  std::uint64_t seed = 0;                   ///< The random orders follow from it alone.
};

}  // namespace update
GDPO_END_NAMESPACE
