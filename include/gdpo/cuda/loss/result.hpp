#pragma once
// The kernel that writes the result of a call from the tallies of the spans, and kernels that count
// a batch.
#include <gdpo/cuda/loss/spans.hpp>
#include <gdpo/loss/engine/write_result.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

using gdpo::detail::Tally;

/// Adds the tallies of the spans and writes the LossResult, in one block. Each warp writes one
/// metric at a time.
template <class Metrics>
struct FinishLoss {
  using Sum = SumOfSpans<Tally>;
  static constexpr int largest_block = Sum::threads;
  Tally* tallies;
  Spans spans;
  DeviceNormaliser normaliser;
  gdpo::detail::ResultTraits traits;
  LossResult* result;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const Tally& total = Sum::of(block, tallies, spans);
    block.each([&](int thread) {
      for (int q = thread / warp; thread % warp == 0 && q < gdpo::detail::metrics_of_tokens;
           q += block.threads() / warp)
        gdpo::detail::write_metric<Metrics>(*result, q, gdpo::detail::written_metric(q), total,
                                            traits);
      if (thread == block.threads() - 1)
        gdpo::detail::write_others(*result, total, normaliser(), traits);
    });
  }
};

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
/// Adds the counts of the units into a Normaliser.
struct SumCounts {
  const Counts* counts;
  int units;
  index_t rows;
  Normaliser* out;
  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const Counts total = block.template reduce<Counts>([&](int thread) {
      Counts mine;
      for (int u = thread; u < units; u += block.threads()) mine.add(counts[u]);
      return mine;
    });
    block.each([&](int thread) {
      if (thread != 0) return;
      Normaliser n;
      n.tokens = static_cast<double>(total.tokens);
      n.rows = static_cast<double>(rows);
      n.non_empty_rows = static_cast<double>(total.rows);
      *out = n;
    });
  }
};

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
