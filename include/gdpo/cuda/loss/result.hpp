#pragma once
// Kernels that add the tallies of all units into the result of a call, and kernels that count a
// batch.
#include <gdpo/cuda/loss/rows.hpp>
#include <gdpo/loss/engine/write_result.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

using gdpo::detail::Tally;

/// Adds the tallies of the units and writes the LossResult, in one block. Each warp adds one part
/// of the tallies (Tally::add_part); each of its lanes takes one span of units.
template <class Metrics>
struct FinishLoss {
  static constexpr int spans = warp, largest_block = spans * Tally::parts;
  static_assert(largest_block <= most_threads,
                "more metrics than a block has threads for: add parts in turns");
  const Tally* tallies;
  int units;
  DeviceNormaliser normaliser;
  gdpo::detail::ResultTraits traits;
  LossResult* result;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    Tally* const of_span = block.template shared<Tally>();
    const int each = (units + spans - 1) / spans;
    block.each([&](int thread) {
      if (thread < spans) of_span[thread] = Tally{};
    });
    block.each([&](int thread) {
      const int span = thread % spans, part = thread / spans, end = (span + 1) * each;
      for (int u = span * each; u < units && u < end; ++u) of_span[span].add_part(part, tallies[u]);
    });
    // Neighbouring spans first: a sum then always stands for consecutive units, so the first input
    // that is not finite stays the first.
    for (int by = 1; by < spans; by *= 2) {
      block.each([&](int thread) {
        const int span = thread % spans;
        if (span % (2 * by) == 0) of_span[span].add_part(thread / spans, of_span[span + by]);
      });
    }
    block.each([&](int thread) {
      const int q = thread % spans == 0 ? thread / spans : gdpo::detail::metrics_of_tokens;
      if (q < gdpo::detail::metrics_of_tokens)
        gdpo::detail::write_metric<Metrics>(*result, q, of_span[0], traits);
      if (thread == block.threads() - 1)
        gdpo::detail::write_others(*result, of_span[0], normaliser(), traits);
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
