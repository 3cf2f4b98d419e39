#pragma once
// The kernels of Importance and Gate: the statistic of a pair over segments, rows or groups, and
// the weight of each token.
#include <gdpo/cuda/prepass/prepass_rows.hpp>
#include <gdpo/prepass/gate.hpp>
#include <gdpo/prepass/importance.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

using gdpo::detail::Difference, gdpo::detail::Reduction, gdpo::detail::RunningStatistic,
    gdpo::detail::Share;

/// Importance or Gate, without the column of groups, and the arrays that it compares.
template <class S, class Pass>
struct RatioPass {
  Pass pass;
  gdpo::detail::PairOf<DeviceTokens<S>> pair;

  RatioPass(const Pass& of_host, const DeviceBatch<S>& b)
      : pass(of_host),
        pair(gdpo::detail::pair_of(pass.pair, pass.missing, b.logp, b.old_logp, b.rollout_logp)) {
    pass.groups = {};
  }
  GDPO_INLINE Difference difference(const RowSpan& span, index_t t) const {
    return pair.of(
        [&](const DeviceTokens<S>& tokens) { return DeviceBatch<S>::at(tokens, span, t); });
  }
  GDPO_INLINE double estimate(const RowSpan& span, index_t t) const {
    return pass.estimate_of(difference(span, t));
  }
};
GDPO_INLINE double weight_of(const prepass::Importance& pass, double y, const Difference&, double) {
  return pass.weight_of(y);
}
GDPO_INLINE double weight_of(const prepass::Gate& pass, double y, const Difference& d, double a) {
  return pass.weight_of(y, d, a);
}
/// Whether the gate looks at the mean advantage of rows.
inline bool reads_row_advantage(const prepass::Importance&) { return false; }
inline bool reads_row_advantage(const prepass::Gate& pass) {
  return pass.when != prepass::When::Always && pass.advantage == prepass::GateAdvantage::Row;
}

/// The statistic of each row, and its mean advantage. Of groups, what the rows add to it; of
/// segments, each at the segment's last valid token.
template <class S, class Pass>
struct StatisticScan {
  static constexpr bool backward = false, writes = false;
  RatioPass<S, Pass> ratio;
  bool with_advantages;
  double* values;              ///< By position, for segments.
  double* of_rows;             ///< The statistic of each row.
  double* advantages;          ///< The mean advantage of each row.
  RunningStatistic* to_merge;  ///< Of each row, for groups.

  struct Row {
    RunningStatistic running;
    double advantage = 0, n = 0;
    index_t last = -1;  ///< Position of the last valid token; -1: none yet.
    std::int64_t segment = 0;
  };
  struct Cell {
    double value, advantage;
    std::int64_t segment;
    bool valid;
  };

  GDPO_INLINE Row begin() const { return {}; }
  GDPO_INLINE Cell read(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    Cell cell{};
    cell.valid = batch.valid(span, t);
    if (!cell.valid) return cell;
    cell.value = ratio.estimate(span, t);
    if (with_advantages) cell.advantage = advantage_at(batch, span, t);
    if (share() == Share::Segment && batch.segments)
      cell.segment = DeviceBatch<S>::at(batch.segments, span, t);
    return cell;
  }
  GDPO_INLINE void step(Row& row, const Cell& cell, const RowSpan& span, index_t t) const {
    if (!cell.valid) return;
    if (share() == Share::Segment && row.last >= 0 && cell.segment != row.segment) {
      values[row.last] = value_of(row);
      row.running = {};
    }
    row.running.add(reduction(), cell.value);
    row.advantage += cell.advantage, row.n += 1;
    row.last = span.begin + t, row.segment = cell.segment;
  }
  GDPO_INLINE void write(const DeviceBatch<S>&, const RowSpan&, index_t, const Cell&) const {}
  GDPO_INLINE void end(const DeviceBatch<S>&, const RowSpan& span, const Row& row) const {
    if (share() == Share::Segment && row.last >= 0) values[row.last] = value_of(row);
    if (share() == Share::Sequence) of_rows[span.row] = value_of(row);
    if (share() == Share::Group) to_merge[span.row] = row.running;
    if (with_advantages) advantages[span.row] = row.n > 0 ? row.advantage / row.n : 0.0;
  }

 private:
  GDPO_INLINE Share share() const { return gdpo::detail::share_of(ratio.pass.statistic); }
  GDPO_INLINE Reduction reduction() const {
    return gdpo::detail::reduction_of(ratio.pass.statistic);
  }
  GDPO_INLINE double value_of(const Row& row) const {
    return row.running.value(reduction(), ratio.pass.count_eps);
  }
};

/// The weight of a token from the statistic that its row or group shares, or from its own.
template <class S, class Pass>
struct DecideToken {
  RatioPass<S, Pass> ratio;
  const double* of_rows;     ///< Null: the statistic is that of the token.
  const double* advantages;  ///< Null: the advantage is that of the token.
  WeightsOut<S> out;

  GDPO_INLINE void operator()(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    if (!batch.valid(span, t)) return;
    const Difference d = ratio.difference(span, t);
    const double y = of_rows ? of_rows[span.row] : ratio.pass.estimate_of(d);
    decide(batch, span, t, d, y);
  }
  GDPO_INLINE void decide(const DeviceBatch<S>& batch, const RowSpan& span, index_t t,
                          const Difference& d, double y) const {
    const double a = advantages ? advantages[span.row] : advantage_at(batch, span, t);
    out(span.begin + t, weight_of(ratio.pass, y, d, a));
  }
};

/// Carries the statistic of each segment from its last valid token to the others, and decides.
template <class S, class Pass>
struct DecideSegments {
  static constexpr bool backward = true, writes = true;
  DecideToken<S, Pass> token;
  const double* values;  ///< By position.

  struct Row {
    double value = 0;
    std::int64_t segment = 0;
    bool has_segment = false;
  };
  struct Cell {
    double value;
    std::int64_t segment;
    bool valid;
  };

  GDPO_INLINE Row begin() const { return {}; }
  GDPO_INLINE Cell read(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    Cell cell{};
    cell.valid = batch.valid(span, t);
    if (!cell.valid) return cell;
    cell.value = values[span.begin + t];
    if (batch.segments) cell.segment = DeviceBatch<S>::at(batch.segments, span, t);
    return cell;
  }
  GDPO_INLINE void step(Row& row, Cell& cell, const RowSpan&, index_t) const {
    if (!cell.valid) return;
    if (!row.has_segment || cell.segment != row.segment)
      row.value = cell.value, row.segment = cell.segment, row.has_segment = true;
    cell.value = row.value;
  }
  GDPO_INLINE void write(const DeviceBatch<S>& batch, const RowSpan& span, index_t t,
                         const Cell& cell) const {
    if (cell.valid) token.decide(batch, span, t, token.ratio.difference(span, t), cell.value);
  }
  GDPO_INLINE void end(const DeviceBatch<S>&, const RowSpan&, const Row&) const {}
};

/// The statistic of each row's group: its rows merged in their order. Each row looks at all rows,
/// which a warp reads together.
struct MergeGroups {
  static constexpr int largest_block = 128;
  DeviceColumn<double> groups;
  index_t rows;
  const RunningStatistic* to_merge;
  Reduction reduction;
  double count_eps;
  double* of_rows;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    block.each([&](int thread) {
      const index_t row = block.index() * block.threads() + thread;
      if (row >= rows) return;
      const double group = groups(row);
      RunningStatistic all;
      for (index_t other = 0; other < rows; ++other) {
        if (groups(other) == group) all.merge(reduction, to_merge[other]);
      }
      of_rows[row] = math::is_nan(group) ? math::nan() : all.value(reduction, count_eps);
    });
  }
};

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
