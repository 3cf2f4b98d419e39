#pragma once
// How advantages_and_returns_into runs the rows of a batch.
#include <gdpo/core/exec.hpp>
#include <gdpo/value/engine/return_lanes.hpp>
#include <gdpo/value/engine/whiten_tokens.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {
template <class Exec, class S, class Estimator>
class BatchReturns;
}  // namespace detail

/// Scratch memory of advantages_and_returns_into. After a first call, further calls of the same
/// shapes, storage types and executor allocate nothing. It serves one call at a time: threads that
/// call at the same time need one each.
template <class S>
class ReturnsWorkspace {
  template <class Exec, class T, class Estimator>
  friend class detail::BatchReturns;
  std::vector<detail::ReturnScratch<S>> workers;
  detail::MomentsMemory moments;
  std::vector<gdpo::index_t> order;
};

namespace detail {

/// A call whose arguments the constructor checks. Rows do not depend on each other before the
/// renormalization, so workers take units of consecutive rows.
template <class Exec, class S, class Estimator>
class BatchReturns {
 public:
  BatchReturns(const char* function, const ReturnBatch<S>& batch, const Estimator& estimator,
               const TokenOut<S>& advantages, const TokenOut<S>& returns)
      : rows_(function, batch, estimator, advantages, returns) {}

  void operator()(const Exec& exec, ReturnsWorkspace<S>& workspace) const {
    const index_t rows = rows_.layout().rows;
    if (rows == 0) return;
    const index_t a_unit = rows_a_unit(workers_for(exec, rows, rows_.layout().tokens));
    const index_t units = (rows + a_unit - 1) / a_unit;
    const index_t workers = workers_for(exec, units, rows_.layout().tokens);
    if (static_cast<index_t>(workspace.workers.size()) < workers)
      workspace.workers.resize(static_cast<std::size_t>(workers));
    for (index_t w = 0; w < workers; ++w) {
      ReturnScratch<S>& scratch = workspace.workers[static_cast<std::size_t>(w)];
      rows_.reserve(scratch, at_once);
      if (in_lanes) {
        constexpr auto tile = static_cast<std::size_t>(tile_tokens * rows_at_once);
        scratch.lines.resize(4 * tile), scratch.penalized.resize(tile);
        scratch.marks.resize(tile + tile_tokens, 1);
      }
    }
    const bool ordered = in_lanes && rows_.layout().offsets && rows > at_once;
    if (ordered) order_by_length(workspace.order);
    const index_t* const order = ordered ? workspace.order.data() : nullptr;
    const auto for_each = [&](index_t n, const auto& f) {  // f(k, scratch) for k below n
      for_each_unit(exec, (std::min)(workers, n), n, [&](index_t worker, index_t k) {
        f(k, workspace.workers[static_cast<std::size_t>(worker)]);
      });
    };
    const auto for_each_range = [&](const auto& f) {  // f(first row, end, scratch)
      if (workers == 1) return f(index_t{0}, rows, workspace.workers[0]);
      for_each(units, [&](index_t unit, ReturnScratch<S>& scratch) {
        const index_t first = unit * a_unit;
        f(first, (std::min)(first + a_unit, rows), scratch);
      });
    };
    for_each_range([&](index_t first, index_t last, ReturnScratch<S>& scratch) {
      scan(order, first, last, scratch);
    });
    const auto& renorm = rows_.estimator().renorm;
    if (renorm.over != RenormOver::None) {
      const Moments moments =
          advantage_moments(rows_, workspace.workers[0], workspace.moments, for_each);
      const Affine affine = renorm(RenormArgs{moments, false});
      for_each_range([&](index_t first, index_t last, ReturnScratch<S>& scratch) {
        for (index_t i = first; i < last; ++i) apply_to_row(rows_, i, affine, scratch);
      });
    }
  }

 private:
  static constexpr bool in_lanes = !std::is_same_v<Exec, Seq> && math::native_width<double> > 1;
  static constexpr index_t at_once = in_lanes ? rows_at_once : 1;

  /// Rows of a unit, which changes no bit. Units are whole tiles of rows side by side, at most 128
  /// of them; single rows where so many workers would have fewer of these tiles than they could
  /// scan rows: a tile takes about as long as three rows.
  index_t rows_a_unit(index_t workers) const {
    constexpr index_t most_units = 128, side = rows_at_once;
    const index_t rows = rows_.layout().rows, tiles = (rows + side - 1) / side;
    const auto turns = [&](index_t n) { return (n + workers - 1) / workers; };
    if (3 * turns(tiles) > turns(rows)) return 1;
    return (tiles + most_units - 1) / most_units * side;
  }
  void scan(const index_t* order, index_t first, index_t last, ReturnScratch<S>& scratch) const {
    if constexpr (in_lanes) {
      ReturnLanes<S, Estimator> lanes(rows_, scratch);
      for (index_t i = first; i < last; i += at_once) {
        const auto count = static_cast<int>((std::min)(at_once, last - i));
        lanes.scan(order ? order + i : nullptr, i, count);
      }
    } else {
      for (index_t i = first; i < last; ++i) rows_.scan(i, scratch);
    }
  }
  /// Orders packed rows by their lengths, those that differ by less than an eighth as they come:
  /// rows of about one length fill the lanes. Rows do not depend on each other.
  void order_by_length(std::vector<index_t>& order) const {
    const index_t rows = rows_.layout().rows;
    const auto bin_of = [&](index_t i) {  // exact up to 16, then eight bins from 2^k to 2^(k + 1)
      auto length = static_cast<std::uint64_t>(rows_.layout()(i).length);
      std::size_t octave = 0;
      for (; length >= 16; length /= 2) ++octave;
      return octave * 8 + static_cast<std::size_t>(length);
    };
    constexpr std::size_t bins = 64 * 8;
    index_t begins[bins + 1] = {};
    for (index_t i = 0; i < rows; ++i) ++begins[bin_of(i) + 1];
    for (std::size_t b = 0; b < bins; ++b) begins[b + 1] += begins[b];
    order.resize(static_cast<std::size_t>(rows));
    for (index_t i = 0; i < rows; ++i) order[static_cast<std::size_t>(begins[bin_of(i)]++)] = i;
  }

  ReturnRows<S, Estimator> rows_;
};

}  // namespace detail
GDPO_END_NAMESPACE
