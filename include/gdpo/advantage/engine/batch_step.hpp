#pragma once
#include <algorithm>
#include <array>
#include <gdpo/advantage/engine/evaluate.hpp>

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
  order.partial.resize(at(blocks * N));
  double* partial = order.partial.data();
  for_each_unit(order.exec, order.workers, blocks, [&](index_t, index_t block) {
    const index_t begin = block * grid_block, rows = (std::min)(grid_block, n - begin);
    const std::array<double, N> sums =
        gdpo::sum_rows<N>(InRowOrder{}, x + begin, w ? w + begin : nullptr, rows, term);
    std::copy(sums.begin(), sums.end(), partial + block * N);
  });
  std::array<double, N> total{};
  for (index_t i = 0; i < blocks * N; ++i) total[at(i % N)] += partial[i];
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

/// What is known about the combined values.
struct CombinedValues {
  bool zero_sum = false;   ///< Those of each group sum to 0: their mean need not be subtracted.
  bool every_row = false;  ///< Every row is RowState::Counted.
};

/// The second normalisation: from the combined values in the scratch to the advantages in `out`.
/// Excluded rows get 0. units, workers: how the groups were handed out before.
template <class Exec, class T, class Groups, class Renorm, class R>
void batch_step(const Exec& exec, const GroupUnits& units, index_t workers,
                const RewardBatch<T, Groups>& batch, const Renorm& renorm, CombinedValues combined,
                EstimatorScratch& work, View<R, 1> out) {
  using Order = typename Groups::Order;
  const bool centred = combined.zero_sum, every_row = combined.every_row;
  const index_t rows = batch.rewards.extent[0];
  const RowBlocks<Exec> blocks(exec, rows);
  const double* sums = work.row_sums.data();
  const auto state = [&](index_t i) { return static_cast<RowState>(work.row_state[at(i)]); };
  const auto write = [&](index_t i, const Affine& affine) {
    out(i) = static_cast<R>(state(i) == RowState::Excluded ? 0.0 : affine(sums[i]));
  };
  if constexpr (std::is_same_v<Renorm, renorm::None>) {
    blocks.for_each([&](index_t begin, index_t end) {
      for (index_t i = begin; i < end; ++i) out(i) = static_cast<R>(sums[i]);
    });
  } else if constexpr (std::is_same_v<Renorm, renorm::PerGroup>) {
    for_each_unit(exec, workers, units.count(), [&](index_t worker, index_t unit) {
      double* values = work.workers[at(worker)].values.data();
      for (index_t g = units.begin(unit); g < units.end(unit); ++g) {
        const index_t members = batch.groups.length(g);
        index_t n = 0;
        for (index_t k = 0; k < members; ++k) {
          const index_t i = batch.groups.row(g, k);
          if (state(i) == RowState::Counted) values[n++] = sums[i];
        }
        const Affine affine = affine_of(renorm, group_stat(Order{}, values, n), centred);
        for (index_t k = 0; k < members; ++k) write(batch.groups.row(g, k), affine);
      }
    });
  } else {
    constexpr bool by_tokens = std::is_same_v<Renorm, renorm::TokenWeightedBatch>;
    const double* weights = by_tokens || !every_row ? work.row_weights.data() : nullptr;
    if (weights) {
      blocks.for_each([&](index_t begin, index_t end) {
        for (index_t i = begin; i < end; ++i) {
          work.row_weights[at(i)] = state(i) != RowState::Counted ? 0.0
                                    : by_tokens                   ? batch.tokens(i)
                                                                  : 1.0;
        }
      });
    }
    // Weighted by tokens, combined values that sum to 0 in each group need not have mean 0.
    const bool rescales = centred && !by_tokens;
    const Moments m = blocks.moments(Order{}, work.partial_sums, [&](const auto& order) {
      return rescales ? moments_about(order, sums, weights, rows, 0.0)
                      : moments_of(order, sums, weights, rows);
    });
    const Affine affine = affine_of(renorm, m, rescales);
    blocks.for_each([&](index_t begin, index_t end) {
      index_t i = begin;
      if constexpr (!std::is_same_v<Exec, Seq>) {
        if (every_row && out.stride[0] == 1)
          i += write_blocks(sums + begin, end - begin, affine, out.data + begin);
      }
      for (; i < end; ++i) write(i, affine);
    });
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
