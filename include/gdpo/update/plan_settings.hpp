#pragma once
// The settings of plan.
#include <cstdint>
#include <gdpo/core/view.hpp>
#include <gdpo/math/check_fields.hpp>

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
/// The enumerators of Remainder with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Remainder) {
  using E = Enumerator<Remainder>;
  return std::array{E{"refuse", Remainder::Refuse}, E{"drop", Remainder::Drop},
                    E{"keep", Remainder::Keep}, E{"spread", Remainder::Spread}};
}

/// What has to stay together.
enum class Whole {
  Rows,         ///< Nothing: the rows of a group may go into several optimizer steps.
  InStep,       ///< A group stays within one optimizer step, over any ranks and micro-batches.
  InMicroBatch  ///< A group stays within one micro-batch, and so on one rank.
};
/// The enumerators of Whole with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Whole) {
  using E = Enumerator<Whole>;
  return std::array{E{"rows", Whole::Rows}, E{"in_step", Whole::InStep},
                    E{"in_micro_batch", Whole::InMicroBatch}};
}

/// When the rows, or the groups where these stay whole, get into a random order.
enum class Shuffle {
  Never,      ///< They are used in their own order.
  Once,       ///< They are shuffled once, and all epochs use this order.
  EveryEpoch  ///< Each epoch has a random order of its own.
};
/// The enumerators of Shuffle with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Shuffle) {
  using E = Enumerator<Shuffle>;
  return std::array{E{"never", Shuffle::Never}, E{"once", Shuffle::Once},
                    E{"every_epoch", Shuffle::EveryEpoch}};
}

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
  index_t mini_batches = 1;  ///< Optimizer steps of an epoch; 0: follows from the two below.
  /// Micro-batches of each rank in a step; 0: follows from micro_batch, or 1 if that is 0 as well.
  index_t accumulation = 0;
  index_t micro_batch = 0;  ///< Rows of a micro-batch, at most; 0: follows from accumulation.
  index_t ranks = 1;        ///< Data-parallel ranks, which have different rows.
  Remainder remainder = Remainder::Refuse;  ///< What happens to rows that do not come out even.
  Whole whole = Whole::Rows;                ///< What has to stay together.
  Shuffle shuffle = Shuffle::Never;         ///< When the order becomes a random one.
  std::uint64_t seed = 0;                   ///< The random orders follow from it alone.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    const Range or_follows = at_least(0).with_note("0: follows from the others");
    field("epochs", s.epochs, at_least(1), "how many times each row is used");
    field("mini_batches", s.mini_batches, or_follows, "optimizer steps of an epoch");
    field("accumulation", s.accumulation, or_follows, "micro-batches of each rank in a step");
    field("micro_batch", s.micro_batch, or_follows, "rows of a micro-batch, at most");
    field("ranks", s.ranks, at_least(1), "data-parallel ranks");
    field("remainder", s.remainder, "what happens to rows that do not come out even");
    field("whole", s.whole, "what has to stay together");
    field("shuffle", s.shuffle, "when the order becomes a random one");
    field("seed", s.seed, finite(), "the random orders follow from it");
  }
  /// Throws where mini_batches is to follow from numbers that are not given.
  void check_together(const char* function, const gdpo::detail::FieldPath& path) const {
    if (mini_batches > 0 || (accumulation > 0 && micro_batch > 0)) return;
    contract::fail(function, path.text("mini_batches"),
                   "0 with accumulation " + contract::text(accumulation) + " and micro_batch " +
                       contract::text(micro_batch),
                   "at least 1, or both others at least 1, from which it follows");
  }
};

}  // namespace update
GDPO_END_NAMESPACE
