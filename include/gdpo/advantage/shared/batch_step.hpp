#pragma once
// The second stage of an estimator: from combined values to advantages.
#include <algorithm>
#include <array>
#include <gdpo/advantage/shared/group_stats.hpp>
#include <gdpo/advantage/shared/group_units.hpp>
#include <gdpo/advantage/workspace.hpp>
#include <gdpo/core/exec.hpp>
#include <gdpo/math/bounds.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Writes the whole blocks of 8 among n values, in lanes, and returns how many values those are.
/// Not inlined: where the compiler sees that `out` is shorter than a block, it would warn of
/// stores that are never reached.
template <class R>
GDPO_NOINLINE index_t write_blocks(const double* sums, index_t n, const Affine& affine, R* out) {
  const index_t whole = n - n % 8;
  for (index_t i = 0; i < whole; i += 8) {
    double values[8];
    affine(math::Pack<8>::load(sums + i)).store(values);
    for (int j = 0; j < 8; ++j) out[i + j] = static_cast<R>(values[j]);
  }
  return whole;
}

/// InRowOrder on several workers: each block of the batch is summed by one worker, and the sums
/// of the blocks are added in the same order as on one.
template <class Exec>
struct BlocksInOrder {
  const Exec& exec;
  index_t workers;
  std::vector<double>& partial;
};

/// sum_rows (stats/reduce.hpp) in that order.
template <int N, class Exec, class Term>
std::array<double, N> sum_rows(const BlocksInOrder<Exec>& order, const double* x, const double* w,
                               index_t n, const Term& term) {
  const index_t blocks = (n + grid_block - 1) / grid_block;
  order.partial.resize(as_size(blocks * N));
  double* partial = order.partial.data();
  for_each_unit(order.exec, order.workers, blocks, [&](index_t, index_t block) {
    const index_t begin = block * grid_block, rows = (std::min)(grid_block, n - begin);
    const std::array<double, N> sums =
        gdpo::sum_rows<N>(InRowOrder{}, x + begin, w ? w + begin : nullptr, rows, term);
    std::copy(sums.begin(), sums.end(), partial + block * N);
  });
  std::array<double, N> total{};
  for (index_t i = 0; i < blocks * N; ++i) total[as_size(i % N)] += partial[i];
  return total;
}

/// The rows of a batch in the blocks of sum_rows, on as many workers as the work is worth.
template <class Exec>
class RowBlocks {
 public:
  RowBlocks(const Exec& exec, index_t rows)
      : exec_(exec),
        rows_(rows),
        blocks_((rows + grid_block - 1) / grid_block),
        workers_(workers_for(exec, blocks_, rows)) {}

  /// Calls f(begin, end) for every block of rows.
  template <class F>
  void for_each(const F& f) const {
    for_each_unit(exec_, workers_, blocks_, [&](index_t, index_t block) {
      f(block * grid_block, (std::min)(rows_, (block + 1) * grid_block));
    });
  }

  /// Calls f(order) with an order of summation that gives the bits of `order` on these workers.
  template <class Order, class F>
  Moments moments(Order order, std::vector<double>& partial, const F& f) const {
    if constexpr (std::is_same_v<Order, InRowOrder> && !has_one_worker_v<Exec>) {
      if (workers_ > 1) return f(BlocksInOrder<Exec>{exec_, workers_, partial});
    }
    return f(order);
  }

 private:
  const Exec& exec_;
  index_t rows_, blocks_, workers_;
};

/// The moments of the combined values over the batch, by which the renormalization of the batch
/// moves and scales them. Of values that it only rescales they have neither n nor a range.
template <class Exec, class Batch>
Moments batch_moments(const RowBlocks<Exec>& blocks, const Batch& batch, RenormOver over,
                      EstimatorScratch& work) {
  const bool token_weighted = over == RenormOver::Tokens;
  using Order = typename decltype(Batch::groups)::Order;
  const CombinedValues combined = work.combined;
  const index_t rows = batch.rewards.extent[0];
  const double* sums = work.row_sums.data();
  const double* weights = token_weighted || !combined.every_row ? work.row_weights.data() : nullptr;
  if (weights) {
    blocks.for_each([&](index_t begin, index_t end) {
      double* const weight = work.row_weights.data();
      if (token_weighted) {
        batch.tokens.copy_rows(begin, end - begin, weight + begin);
      } else {
        std::fill(weight + begin, weight + end, 1.0);
      }
      for (index_t i = begin; !combined.every_row && i < end; ++i)
        weight[i] = work.state(i) == RowState::Counted ? weight[i] : 0.0;
    });
  }
  return blocks.moments(Order{}, work.partial_sums, [&](const auto& order) {
    return rescales(over, combined.zero_sum) ? moments_about(order, sums, weights, rows, 0.0)
                                             : moments_of(order, sums, weights, rows);
  });
}

/// Writes the advantage of a row. Excluded and lone rows get 0.
template <class R>
GDPO_HOST_INLINE void write_row(const EstimatorScratch& work, const Affine& affine, index_t i,
                                View<R, 1> out) {
  out(i) = static_cast<R>(gets_zero(work.state(i)) ? 0.0 : affine(work.row_sums[as_size(i)]));
}

/// Writes the advantages of the batch, all by one affine map of the combined values.
template <class Exec, class R>
void write_batch(const RowBlocks<Exec>& blocks, const EstimatorScratch& work, const Affine& affine,
                 View<R, 1> out) {
  blocks.for_each([&](index_t begin, index_t end) {
    index_t i = begin;
    if constexpr (!std::is_same_v<Exec, Seq>) {
      if (work.combined.every_row && out.stride[0] == 1) {
        i += write_blocks(work.row_sums.data() + begin, end - begin, affine, out.data + begin);
      }
    }
    for (; i < end; ++i) write_row(work, affine, i, out);
  });
}

/// What the renormalization of group g is computed from. values: room for its members.
template <class T, class Groups>
RenormArgs group_args(const RewardBatch<T, Groups>& batch, index_t g, bool centered,
                      const EstimatorScratch& work, double* values) {
  index_t n = 0;
  for (index_t k = 0; k < batch.groups.length(g); ++k) {
    const index_t i = batch.groups.row(g, k);
    if (work.state(i) == RowState::Counted) values[n++] = work.row_sums[as_size(i)];
  }
  return {group_stat(typename Groups::Order{}, values, n), centered};
}

/// The moments of P groups from g on, of `members` members each, whose rows all count and sum to 0:
/// weight, mean and m2, by the steps of group_stat. scratch: (members, P). False: a value is not
/// finite.
template <int P, class Groups>
bool moments_side_by_side(const Groups& groups, index_t g, index_t members, const double* sums,
                          double* scratch, Moments* moments) {
  for (int p = 0; p < P; ++p) {
    for (index_t k = 0; k < members; ++k) scratch[k * P + p] = sums[groups.row(g + p, k)];
  }
  typename GroupLanes<P>::Stat stat;
  math::Mask<P> equal;
  if (!lane_stat<typename Groups::Order, P>({}, scratch, members, stat, equal)) return false;
  double mean[P], low[P], m2[P];
  stat.mean.store(mean), stat.mean_low.store(low), stat.m2.store(m2);
  for (int p = 0; p < P; ++p) {
    moments[p].n = members;
    moments[p].weight = static_cast<double>(members);
    moments[p].mean = mean[p], moments[p].mean_low = low[p], moments[p].m2 = m2[p];
  }
  return true;
}

/// Writes the advantages of group g, all by one affine map of the combined values.
template <class T, class Groups, class R>
void write_group(const RewardBatch<T, Groups>& batch, index_t g, const EstimatorScratch& work,
                 const Affine& affine, bool lanes, View<R, 1> out) {
  const index_t members = batch.groups.length(g);
  index_t k = 0;
  if (lanes && std::is_same_v<typename Groups::Order, InRowOrder> && members >= 8) {
    const index_t first = batch.groups.row(g, 0);
    bool run = true;
    for (index_t j = 1; j < members; ++j) run = run && batch.groups.row(g, j) == first + j;
    if (run) k = write_blocks(work.row_sums.data() + first, members, affine, out.data + first);
  }
  for (; k < members; ++k) write_row(work, affine, batch.groups.row(g, k), out);
}

/// Renormalizes each of the groups first .. last - 1 by itself, in the memory of a worker.
/// side_by_side: groups of equal size may go together in lanes.
template <class T, class Groups, class Renorm, class R>
void renormalize_groups(const RewardBatch<T, Groups>& batch, index_t first, index_t last,
                        const Renorm& renorm, bool centered, const EstimatorScratch& work,
                        GroupScratch& worker, bool side_by_side, View<R, 1> out) {
  constexpr int P = most_side_by_side;
  const bool lanes = side_by_side && work.combined.every_row && out.stride[0] == 1;
  Moments moments[P];
  for (index_t g = first; g < last;) {
    const index_t members = batch.groups.length(g);
    index_t n = 1;
    while (lanes && centered && n < P && g + n < last && batch.groups.length(g + n) == members) ++n;
    if (n == P && members > 0 && worker.lanes.size() >= as_size(members * P) &&
        moments_side_by_side<P>(batch.groups, g, members, work.row_sums.data(), worker.lanes.data(),
                                moments)) {
      for (int p = 0; p < P; ++p)
        write_group(batch, g + p, work, renorm(RenormArgs{moments[p], true}), lanes, out);
      g += P;
      continue;
    }
    for (; n > 0; --n, ++g) {
      const RenormArgs args = group_args(batch, g, centered, work, worker.values.data());
      write_group(batch, g, work, renorm(args), lanes, out);
    }
  }
}

/// The second normalization: from the combined values in the scratch to the advantages in `out`.
/// units, workers: how the groups were handed out before. `moments(blocks)` gives the moments of
/// the batch to a renormalization over it. centered: the values of each group sum to 0.
template <class Exec, class T, class Groups, class Renorm, class R, class BatchOf>
void batch_step(const Exec& exec, const GroupUnits& units, index_t workers,
                const RewardBatch<T, Groups>& batch, const Renorm& renorm, bool centered,
                EstimatorScratch& work, View<R, 1> out, const BatchOf& moments) {
  const RowBlocks<Exec> blocks(exec, batch.rewards.extent[0]);
  const double* sums = work.row_sums.data();
  if (renorm.over == RenormOver::None) {
    blocks.for_each([&](index_t begin, index_t end) {
      for (index_t i = begin; i < end; ++i) out(i) = static_cast<R>(sums[i]);
    });
  } else if (renorm.over == RenormOver::Group) {
    for_each_unit(exec, workers, units.count(), [&](index_t worker, index_t unit) {
      renormalize_groups(batch, units.begin(unit), units.end(unit), renorm, centered, work,
                         work.workers[as_size(worker)], !std::is_same_v<Exec, Seq>, out);
    });
  } else {
    write_batch(blocks, work, renorm(RenormArgs{moments(blocks), rescales(renorm.over, centered)}),
                out);
  }
}

/// The same by the moments of this batch alone.
template <class Exec, class T, class Groups, class Renorm, class R>
void batch_step(const Exec& exec, const GroupUnits& units, index_t workers,
                const RewardBatch<T, Groups>& batch, const Renorm& renorm, EstimatorScratch& work,
                View<R, 1> out) {
  batch_step(exec, units, workers, batch, renorm, work.combined.zero_sum, work, out,
             [&](const auto& blocks) { return batch_moments(blocks, batch, renorm.over, work); });
}

/// Clamps the advantages in `out`. It is a separate step, so that it costs nothing where it is off.
template <class Exec, class R>
void clip_advantages(const Exec& exec, const Bounds& bounds, View<R, 1> out) {
  if (is_off(bounds)) return;
  RowBlocks<Exec>(exec, out.extent[0]).for_each([&](index_t begin, index_t end) {
    for (index_t i = begin; i < end; ++i)
      out(i) = static_cast<R>(clamped(bounds, static_cast<double>(out(i))));
  });
}

}  // namespace detail
GDPO_END_NAMESPACE
