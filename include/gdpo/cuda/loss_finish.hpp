#pragma once
// From the tallies of units to the result of a call; and the counts of a batch.
#include <gdpo/cuda/loss_rows.hpp>
#include <gdpo/loss/result.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

using gdpo::detail::Tally;

/// Adds the tallies of the units, and writes what a loss call gives.
template <class Metrics>
struct FinishLoss {
  static constexpr int runs = 32, lanes = gdpo::detail::quantities, largest_block = runs * lanes;
  const Tally* tallies;
  index_t units;
  DeviceNormaliser normaliser;
  gdpo::detail::ResultTraits traits;
  LossResult* result;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    Tally* const of_run = block.template shared<Tally>();
    const int number = static_cast<int>(units), each = (number + runs - 1) / runs;
    block.each([&](int thread) {
      if (thread < runs) of_run[thread] = Tally{};
    });
    block.each([&](int thread) {
      const int run = thread / lanes, q = thread % lanes;
      for (int u = run * each; u < number && u < (run + 1) * each; ++u) add(of_run[run], q, tallies[u]);
    });
    for (int by = 1; by < runs; by *= 2) {  // neighbours first: what stands first stays first
      block.each([&](int thread) {
        const int run = thread / lanes;
        if (run % (2 * by) == 0) add(of_run[run], thread % lanes, of_run[run + by]);
      });
    }
    block.each([&](int thread) {
      if (thread == 0) *result = gdpo::detail::loss_result<Metrics>(of_run[0], normaliser(), traits);
    });
  }

 private:
  GDPO_INLINE static void add(Tally& to, int q, const Tally& from) {
    to.add_quantity(q, from);
    if (q == lanes - 1) to.add_others(from);
  }
};

/// Counts of units, then their sum.
template <class S>
struct CountKernel {
  static constexpr int largest_block = loss_threads;
  DeviceBatch<S> batch;
  RowUnits units;
  Counts* counts;
  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const index_t unit = block.index();
    Counts total;
    for (index_t row = units.begin(unit); row < units.end(unit); ++row) {
      Counts one = count_row(block, batch, batch.span(row));
      one.rows = one.tokens > 0;
      total.add(one);
    }
    block.each([&](int thread) {
      if (thread == 0) counts[unit] = total;
    });
  }
};
struct SumCounts {
  const Counts* counts;
  index_t units, rows;
  Normaliser* out;
  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const Counts total = block.template reduce<Counts>([&](int thread) {
      Counts mine;
      for (index_t u = thread; u < units; u += block.threads()) mine.add(counts[u]);
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
