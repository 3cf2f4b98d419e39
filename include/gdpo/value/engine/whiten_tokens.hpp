#pragma once
// The renormalization of the advantages of tokens, in the layout of a batch of tokens.
#include <gdpo/advantage/renorm.hpp>
#include <gdpo/core/exec.hpp>
#include <gdpo/lanes/lanes.hpp>
#include <gdpo/value/engine/return_rows.hpp>
#include <gdpo/value/engine/valid_runs.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Reads the advantages at the valid tokens of all rows as one sequence.
template <class S, class Estimator>
class ValidAdvantages {
 public:
  ValidAdvantages(const ReturnRows<S, Estimator>& rows, ReturnScratch<S>& scratch, index_t row)
      : rows_(rows), scratch_(scratch), row_(row) {}

  /// Calls f(advantages, how many, how many before) for the next n numbers, or as many as are left,
  /// in pieces of rows. Returns their number.
  template <class F>
  index_t take(index_t n, const F& f) {
    index_t taken = 0;
    for (; taken < n && row_ < rows_.layout().rows; ++row_, token_ = 0) {
      const RowSpan span = rows_.layout()(row_);
      const View<S, 1> advantages = rows_.advantages(span);
      for_each_run(
          rows_.mask(span, 0, scratch_), token_, span.length, [&](index_t begin, index_t end) {
            const index_t some = (std::min)(end - begin, n - taken);
            const View<S, 1> piece{
                advantages.data + begin * advantages.stride[0], {some}, {advantages.stride[0]}};
            f(piece, taken);
            taken += some, token_ = begin + some;
            return taken < n;
          });
      if (taken == n) break;
    }
    return taken;
  }
  /// Copies the next numbers to a block of doubles. Returns how many.
  index_t read(double (&block)[grid_block]) {
    return take(grid_block, [&](const View<S, 1>& piece, index_t first) {
      using V = math::Native<double>;
      using L = math::Lanes<V>;
      double* const to = block + first;
      index_t k = 0;
      if (piece.stride[0] == 1) {
        for (; k + L::width <= piece.extent[0]; k += L::width)
          L::store(to + k, L::load(piece.data + k));
      }
      for (; k < piece.extent[0]; ++k) to[k] = static_cast<double>(piece(k));
    });
  }

 private:
  const ReturnRows<S, Estimator>& rows_;
  ReturnScratch<S>& scratch_;
  index_t row_, token_ = 0;
};

/// Memory for the moments of a batch.
struct MomentsMemory {
  std::vector<index_t> before;  ///< (rows + 1) How many valid tokens stand before each row.
  std::vector<Moments> blocks;  ///< Of the blocks that sum_rows adds.
};

/// Moments of the advantages at the valid tokens, in the order of stats/masked.hpp: gathered row
/// after row into the blocks that sum_rows adds. for_each(n, f) calls f(k, scratch) for k below n.
template <class S, class Estimator, class ForEach>
Moments advantage_moments(const ReturnRows<S, Estimator>& rows, ReturnScratch<S>& scratch,
                          MomentsMemory& memory, const ForEach& for_each) {
  const index_t count = rows.layout().rows;
  memory.before.resize(static_cast<std::size_t>(count + 1));
  for (index_t i = 0; i < count; ++i) {
    const RowSpan span = rows.layout()(i);
    const auto place = static_cast<std::size_t>(i);
    memory.before[place + 1] =
        memory.before[place] + count_mask(rows.mask(span, 0, scratch), span.length);
  }
  // A unit of blocks begins with a walk to its first token: there are few, whatever the lengths.
  constexpr index_t most_units = 128;
  const index_t blocks = (memory.before.back() + grid_block - 1) / grid_block;
  const index_t a_unit = (blocks + most_units - 1) / most_units;
  memory.blocks.resize(static_cast<std::size_t>(blocks));
  if (blocks > 0) {
    for_each((blocks + a_unit - 1) / a_unit, [&](index_t unit, ReturnScratch<S>& of_worker) {
      const index_t first = unit * a_unit, token = first * grid_block;
      const auto row = std::upper_bound(memory.before.begin(), memory.before.end(), token) - 1;
      ValidAdvantages<S, Estimator> advantages(rows, of_worker, row - memory.before.begin());
      advantages.take(token - *row, [](const View<S, 1>&, index_t) {});
      double block[grid_block];
      for (index_t k = first; k < (std::min)(first + a_unit, blocks); ++k) {
        const index_t n = advantages.read(block);
        memory.blocks[static_cast<std::size_t>(k)] = moments_of(InRowOrder{}, block, nullptr, n);
      }
    });
  }
  Moments all;
  for (const Moments& block : memory.blocks) all = merge(all, block);
  return all;
}

/// Replaces the advantages of a row by what the renormalization makes of them.
template <class S, class Estimator>
void apply_to_row(const ReturnRows<S, Estimator>& rows, index_t i, const Affine& affine,
                  ReturnScratch<S>& scratch) {
  using L = math::Lanes<math::Native<double>>;
  const RowSpan span = rows.layout()(i);
  const View<S, 1> advantages = rows.advantages(span);
  const Affine of = affine;  // a copy, whatever the loop stores
  for_each_run(rows.mask(span, 0, scratch), 0, span.length, [&](index_t t, index_t end) {
    if (advantages.stride[0] == 1) {
      for (; t + L::width <= end; t += L::width) {
        S* const place = advantages.data + t;
        L::store(place, of(L::load(place)));
      }
    }
    for (; t < end; ++t) advantages(t) = static_cast<S>(of(static_cast<double>(advantages(t))));
    return true;
  });
}

}  // namespace detail
GDPO_END_NAMESPACE
