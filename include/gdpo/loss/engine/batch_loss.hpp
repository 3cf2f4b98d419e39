#pragma once
// A call of a policy loss on the host: its rows in units, on any number of workers.
#include <gdpo/core/exec.hpp>
#include <gdpo/loss/engine/row_loss.hpp>
#include <gdpo/loss/shared/checked_loss.hpp>
#include <gdpo/loss/shared/positive_logp.hpp>
#include <gdpo/loss/shared/write_result.hpp>

GDPO_BEGIN_NAMESPACE

namespace detail {

/// Moments of the advantages at the row's valid tokens.
template <class S>
Moments advantages_of(const TokenRow<S>& row, index_t tokens, std::vector<double>& scratch) {
  Moments m;
  if (tokens == 0) return m;
  if (row.advantages) {
    index_t n = 0;
    // This packs the advantages of the valid tokens without a branch on the mask, because such a
    // branch would often be mispredicted.
    for (index_t t = 0; t < row.length; ++t) {
      scratch[static_cast<std::size_t>(n)] = static_cast<double>(row.advantages[t]);
      n += row.valid(t);
    }
    return moments_of(InRowOrder{}, scratch.data(), nullptr, n);
  }
  m.n = tokens;
  m.weight = static_cast<double>(tokens);
  m.mean = m.min = m.max = row.advantage;
  return m;
}

/// The V that formulas run on: lanes of S, or of double at levels of segments. With `seq` it is one
/// such number.
template <class Exec, class S, class Level>
using lanes_for =
    std::conditional_t<std::is_same_v<Exec, Seq>, std::conditional_t<Level::of_segment, double, S>,
                       math::Native<std::conditional_t<Level::of_segment, double, S>>>;

/// A loss call.
///
/// The rows are cut into units of consecutive rows, at most 128 and all of the same size but the
/// last, so the number of rows alone decides them. Workers run the units. Within a unit the rows
/// are added in their order, then the units in theirs, so the bits do not depend on the workers.
template <class Exec, class S, class Loss>
class BatchLoss : public CheckedLoss<S, Loss> {
 public:
  using Row = RowLoss<lanes_for<Exec, S, decltype(Loss::level)>, S, Loss>;
  using Metrics = typename Row::Metrics;
  using CheckedLoss<S, Loss>::CheckedLoss;

  Tally operator()(const Exec& exec, LossWorkspace<S>& workspace) const {
    constexpr index_t most_units = 128;
    const index_t rows = layout_.rows, rows_a_unit = (rows + most_units - 1) / most_units;
    const index_t units = rows > 0 ? (rows + rows_a_unit - 1) / rows_a_unit : 0;
    const index_t workers = workers_for(exec, units, layout_.tokens);
    if (static_cast<index_t>(workspace.workers.size()) < workers) {
      workspace.workers = std::vector<LossScratch<S>>(static_cast<std::size_t>(workers));
    }
    for (index_t w = 0; w < workers; ++w) reserve(workspace.workers[static_cast<std::size_t>(w)]);

    Tally total;
    if constexpr (!has_one_worker_v<Exec>) {
      if (workers > 1) {
        if (static_cast<index_t>(workspace.units.size()) < units) {
          workspace.units = std::vector<Tally>(static_cast<std::size_t>(units));
        }
        for_each_unit(exec, workers, units, [&](index_t worker, index_t unit) {
          const index_t first = unit * rows_a_unit;
          Tally& tally = workspace.units[static_cast<std::size_t>(unit)];
          tally = Tally{};
          run(first, (std::min)(first + rows_a_unit, rows),
              workspace.workers[static_cast<std::size_t>(worker)], tally);
        });
        for (index_t u = 0; u < units; ++u) total.add(workspace.units[static_cast<std::size_t>(u)]);
        return total;
      }
    }
    LossScratch<S>& scratch = workspace.workers[0];
    for (index_t first = 0; first < rows; first += rows_a_unit) {
      const index_t last = (std::min)(first + rows_a_unit, rows);
      if (rows_a_unit == 1) {  // no tally of its own is needed: adding it to 0 changes no bit
        run(first, last, scratch, total);
      } else {
        Tally unit;
        run(first, last, scratch, unit);
        total.add(unit);
      }
    }
    return total;
  }

 private:
  using Call = CheckedLoss<S, Loss>;
  using Call::batch_, Call::gradient_, Call::layout_, Call::loss_, Call::read, Call::reserve;

  void run(index_t first, index_t last, LossScratch<S>& scratch, Tally& tally) const {
    Row row_loss(loss_, tally);
    for (index_t i = first; i < last; ++i) {
      const RowSpan at = layout_(i);
      const auto [row, tokens, weight] = read(i, scratch, tally);
      if (i + 1 < last) prefetch_mask(layout_(i + 1));
      const View<S, 1> out = gradient_ ? gradient_.row(i, at.begin, at.length) : View<S, 1>{};
      const bool counts = weight != 0;  // otherwise the row adds nothing, even if its sums are NaN
      S* const to = out && gradient_.contiguous() ? out.data : scratch.gradient.data();
      const RowSums sums = row_loss(row, weight, to, scratch.tokens.data());
      if (counts) {
        tally.policy_loss += math::mul(weight, sums.of[of_metric<&LossMetrics::surrogate>]);
        tally.kl_loss += math::mul(weight, sums.kl_loss);
      }
      if (out && (!counts || to != out.data)) {
        for (index_t t = 0; t < at.length; ++t) out(t) = counts ? to[t] : S(0);
      }
      // tally.add() below loads the sums of this row as vectors. They were stored one by one, and a
      // vector load has to wait until such stores have reached the cache. The work in between gives
      // them time.
      tally.advantage = merge(tally.advantage, advantages_of(row, tokens, scratch.tokens));
      const index_t completion =
          batch_.completion_mask ? count_row(batch_.completion_mask, at, scratch.rows.mask.data())
                                 : tokens;
      tally.add(sums, tokens, completion, batch_.truncated ? batch_.truncated(i) : math::nan(),
                positive_logp(row, tokens), Metrics::means);
    }
  }

  /// Prefetches the mask of a row. The work on a row begins with counting its mask, which would
  /// otherwise have to wait for memory.
  void prefetch_mask(const RowSpan& at) const {
    if (!batch_.mask || !batch_.mask.in_place()) return;
    // In bytes. What the first-level cache would not hold is left to the processor's prefetching.
    constexpr index_t line = 64, most = 16384;
    const unsigned char* mask = batch_.mask.row(at.row, at.begin, at.length, nullptr);
    for (index_t t = 0; t < (std::min)(at.length, most); t += line) prefetch(mask + t);
  }
};

}  // namespace detail

GDPO_END_NAMESPACE
