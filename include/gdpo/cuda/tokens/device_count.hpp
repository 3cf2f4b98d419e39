#pragma once
// The counts of a batch on a device.
#include <gdpo/cuda/device/scratch.hpp>
#include <gdpo/cuda/tokens/device_rows.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// Valid tokens, and rows that have at least one, of a unit or of several.
struct Counts {
  long long tokens = 0, rows = 0;
  GDPO_INLINE void add(const Counts& o) { tokens += o.tokens, rows += o.rows; }
};
/// The counts of each unit. SumCounts adds them.
template <class S>
struct CountKernel {
  static constexpr int largest_block = loss_threads;
  static constexpr bool has_teams = true;
  DeviceBatch<S> batch;
  RowUnits units;
  int team_threads;  ///< RowThreads::of_team
  Counts* counts;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    Counts* const of_run = block.template shared<Counts>();
    const int unit = static_cast<int>(block.index());
    block.teams(team_threads, [&](auto& team, int i, int teams) {
      for (int run = i; run < units.runs(); run += teams) {
        Counts total;
        for (int row = units.begin(unit, run); row < units.end(unit, run); ++row) {
          const RowLengths one = count_row(team, batch, batch.span(row));
          total.add({one.tokens, one.tokens > 0});
        }
        team.each([&](int thread) {
          if (thread == 0) of_run[run] = total;
        });
      }
    });
    block.each([&](int thread) {
      if (thread != 0) return;
      Counts total;
      for (int run = 0; run < units.runs(); ++run) total.add(of_run[run]);
      counts[unit] = total;
    });
  }
};
/// Adds the counts of the units into a Normalizer.
struct SumCounts {
  const Counts* counts;
  int units;
  index_t rows;
  Normalizer* out;
  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const Counts total = block.template reduce<Counts>([&](int thread) {
      Counts mine;
      for (int u = thread; u < units; u += block.threads()) mine.add(counts[u]);
      return mine;
    });
    block.each([&](int thread) {
      if (thread != 0) return;
      Normalizer n;
      n.tokens = static_cast<double>(total.tokens);
      n.rows = static_cast<double>(rows);
      n.non_empty_rows = static_cast<double>(total.rows);
      *out = n;
    });
  }
};

/// Scratch arrays of count_into().
struct CountMemory {
  Counts* units;
  CountMemory(ScratchCursor& cursor, const RowUnits& row_units)
      : units(cursor.take<Counts>(row_units.reserved())) {}
};
/// Launches the kernels of count_into().
template <class Device, class S>
void count_rows(const Device& device, const char* function, const DeviceBatch<S>& on,
                const gdpo::detail::TokenLayout& layout, Normalizer* on_device,
                const Scratch& scratch) {
  const RowUnits units(layout.rows);
  const auto memory = take_memory<CountMemory>(function, scratch, units);
  const RowThreads threads(units, layout, device.tuning());
  device.launch(units.count(), threads.of_block, RowUnits::most_runs * sizeof(Counts),
                CountKernel<S>{on, units, threads.of_team, memory.units});
  device.launch(1, loss_threads, 0, SumCounts{memory.units, units.count(), layout.rows, on_device});
}

}  // namespace detail

/// Bytes of Scratch that count_into(device, batch, ...) needs: never more than the loss of the same
/// batch needs. The number of rows decides; arrays are not read.
template <class S>
std::size_t scratch_bytes(const TokenBatch<S>& batch) {
  const auto layout =
      gdpo::detail::shape_of("gdpo::cuda::scratch_bytes", batch, gdpo::detail::NeedsLogp::No);
  return detail::bytes_of<detail::CountMemory>(detail::RowUnits(layout.rows));
}
/// The counts of a batch on the device, written to `on_device`: count(batch) without a copy to the
/// host.
///
/// Add them over micro-batches and ranks on the device, or copy them with to_host(). A loss call
/// takes the pointer as its normalizer. Two launches; nothing waits. Errors: invalid_input for
/// shapes that do not fit and a scratch that is too small; cuda::error where a launch fails.
template <class Device, class S, std::enable_if_t<gdpo::detail::is_device_v<Device>, int> = 0>
void count_into(const Device& device, const TokenBatch<S>& batch, Normalizer* on_device,
                const Scratch& scratch) {
  constexpr const char* function = "gdpo::cuda::count_into";
  const auto layout = gdpo::detail::shape_of(function, batch, gdpo::detail::NeedsLogp::No);
  const detail::DeviceBatch<S> on(function, batch, layout, gdpo::detail::TokenReads::none());
  detail::count_rows(device, function, on, layout, on_device, scratch);
}

}  // namespace cuda
GDPO_END_NAMESPACE
