#pragma once
// The frame of a loss over tokens on a device: each block computes a unit of rows, the tallies of
// the units are added, and one block writes the result. The policy loss and the value loss say what
// a row computes and tallies.
#include <gdpo/cuda/device/scratch.hpp>
#include <gdpo/cuda/tokens/add_tallies.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// Computes the unit of a block. rows(team, state, first, end) computes the rows of a run and
/// leaves what they add up to in state.tally. The runs go side by side, each by a warp, or one
/// after the other by the whole block; their tallies are then added in order.
template <class State, class Block, class Tally, class Rows>
GDPO_DEVICE void compute_unit(Block& block, const RowUnits& units, int team_threads, Tally* tallies,
                              const Rows& rows) {
  State* const runs = block.template shared<State>();
  const int unit = static_cast<int>(block.index());
  block.teams(team_threads, [&](auto& team, int i, int teams) {
    for (int run = i; run < units.runs(); run += teams)
      rows(team, runs[run], units.begin(unit, run), units.end(unit, run));
  });
  Tally& tally = runs[0].tally;
  if (units.runs() > 1) {
    block.each([&](int thread) {
      for (int part = thread; part < Tally::parts; part += block.threads()) {
        for (int run = 1; run < units.runs(); ++run) tally.add_part(part, runs[run].tally);
      }
    });
  }
  copy_tallies(block, tallies + unit, &tally, 1);
}

/// Adds the tallies of the spans and writes the result, in one block: every thread calls
/// write(total, normalizer, thread, threads).
template <class Tally, class Write>
struct FinishRows {
  using Sum = SumOfSpans<Tally>;
  static constexpr int largest_block = Sum::threads;
  Tally* tallies;
  Spans spans;
  DeviceNormalizer normalizer;
  Write write;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const Tally& total = Sum::of(block, tallies, spans);
    block.each([&](int thread) { write(total, normalizer, thread, block.threads()); });
  }
};

/// Scratch arrays of a loss over tokens.
template <class Tally>
struct TallyMemory {
  Tally* tallies;
  TallyMemory(ScratchCursor& cursor, const RowUnits& units)
      : tallies(cursor.take<Tally>(units.reserved())) {}
};

/// Launches the kernels of a loss. launch_units(units, threads, tallies) launches the one that
/// computes the units.
template <class Tally, class Device, class LaunchUnits, class Write>
void run_rows(const Device& device, const char* function, const gdpo::detail::TokenLayout& layout,
              const DeviceNormalizer& normalizer, const Scratch& scratch,
              const LaunchUnits& launch_units, const Write& write) {
  const RowUnits units(layout.rows);
  Tally* const tallies = take_memory<TallyMemory<Tally>>(function, scratch, units).tallies;
  launch_units(units, RowThreads(units, layout, device.tuning()), tallies);
  const Spans spans(units.count());
  add_spans(device, tallies, spans);
  using Finish = FinishRows<Tally, Write>;
  device.launch(1, Finish::Sum::threads, Finish::Sum::shared_bytes,
                Finish{tallies, spans, normalizer, write});
}

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
