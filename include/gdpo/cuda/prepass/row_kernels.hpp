#pragma once
// The kernels of pre-passes that look at a row or the mean of the batch: Overlong,
// DegenerateGroups, MeanOne, FutureKl, TeacherRatio and TeacherPrefix; and the logs of weights with
// Reach::Level.
#include <gdpo/cuda/prepass/prepass_rows.hpp>
#include <gdpo/prepass/future_kl.hpp>
#include <gdpo/prepass/mean_one.hpp>
#include <gdpo/prepass/shared/teacher_gap.hpp>
#include <gdpo/prepass/teacher_prefix.hpp>
#include <gdpo/prepass/teacher_ratio.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// Drops the tokens of the rows that are marked.
template <class S>
struct DropRows {
  DeviceColumn<double> dropped;
  WeightsOut<S> out;
  GDPO_INLINE void operator()(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    if (batch.valid(span, t) && !math::is_zero(dropped(span.row))) out(span.begin + t, 0.0);
  }
};

/// The weights of a row, added in the order of its tokens, and the number of its valid tokens.
struct RowWeights {
  double sum = 0, tokens = 0;
};
template <class S>
struct SumWeights {
  static constexpr bool backward = false, writes = false;
  RowWeights* of_rows;

  using Row = RowWeights;
  struct Cell {
    double weight;
    bool valid;
  };
  GDPO_INLINE Row begin() const { return {}; }
  GDPO_INLINE Cell read(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    const bool valid = batch.valid(span, t);
    return {valid && batch.weights ? logp_at(batch.weights, span, t) : 1.0, valid};
  }
  GDPO_INLINE void step(Row& row, const Cell& cell, const RowSpan&, index_t) const {
    if (cell.valid) row.sum += cell.weight, row.tokens += 1;
  }
  GDPO_INLINE void write(const DeviceBatch<S>&, const RowSpan&, index_t, const Cell&) const {}
  GDPO_INLINE void end(const DeviceBatch<S>&, const RowSpan& span, const Row& row) const {
    of_rows[span.row] = row;
  }
};
/// The factor of MeanOne.
struct MeanFactor {
  using Of = RowWeights;
  using Total = RowWeights;
  prepass::MeanOne pass;
  double* factor;
  GDPO_INLINE void add(Total& total, index_t, const Of& row) const {
    if (row.tokens <= 0) return;
    const bool of_rows = pass.of == prepass::MeanOf::Rows;
    total.sum += of_rows ? row.sum / (row.tokens + pass.count_eps) : row.sum;
    total.tokens += of_rows ? 1.0 : row.tokens;
  }
  GDPO_INLINE void write(const Total& total) const {
    *factor = pass.factor_of(total.sum, total.tokens);
  }
};
template <class S>
struct MultiplyWeights {
  const double* factor;
  WeightsOut<S> out;
  GDPO_INLINE void operator()(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    if (batch.valid(span, t)) out(span.begin + t, *factor);
  }
};

/// Adds the logs of the weights with Reach::Level to those of the batch: at each valid token, or
/// where all of them share one number at the first valid token of each segment, which a scan finds.
template <class S>
struct AddLevelLogs {
  static constexpr bool backward = false, writes = true;
  const S* weights;
  S* logs;

  struct Row {
    std::int64_t segment = 0;
    bool has_segment = false;
  };
  struct Cell {
    std::int64_t segment;
    bool valid, first;
  };

  GDPO_INLINE void operator()(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    if (batch.valid(span, t)) add(span.begin + t);
  }
  GDPO_INLINE Row begin() const { return {}; }
  GDPO_INLINE Cell read(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    Cell cell{};
    cell.valid = batch.valid(span, t);
    if (cell.valid && batch.segments) cell.segment = DeviceBatch<S>::at(batch.segments, span, t);
    return cell;
  }
  GDPO_INLINE void step(Row& row, Cell& cell, const RowSpan&, index_t) const {
    cell.first = cell.valid && (!row.has_segment || cell.segment != row.segment);
    if (cell.first) row.segment = cell.segment, row.has_segment = true;
  }
  GDPO_INLINE void write(const DeviceBatch<S>&, const RowSpan& span, index_t t,
                         const Cell& cell) const {
    if (cell.first) add(span.begin + t);
  }
  GDPO_INLINE void end(const DeviceBatch<S>&, const RowSpan&, const Row&) const {}

 private:
  GDPO_INLINE void add(index_t k) const {
    logs[k] = gdpo::detail::with_level_log(logs[k], weights[k]);
  }
};

/// FutureKl, whose sums go from the end of a row to its beginning.
template <class S>
struct FutureKlScan {
  static constexpr bool backward = true, writes = true;
  prepass::FutureKl pass;
  WeightsOut<S> out;

  struct Row {
    double sum = 0;
  };
  struct Cell {
    double x;    ///< The log ratio, 0 at masked tokens.
    double sum;  ///< Before the step: what the token adds.
    bool valid;
  };
  GDPO_INLINE Row begin() const { return {}; }
  GDPO_INLINE Cell read(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    Cell cell{};
    cell.valid = batch.valid(span, t);
    if (cell.valid && batch.old_logp)
      cell.x = logp_at(batch.logp, span, t) - logp_at(batch.old_logp, span, t);
    cell.sum = pass.added(cell.x);
    return cell;
  }
  GDPO_INLINE void step(Row& row, Cell& cell, const RowSpan&, index_t) const {
    row.sum = math::fma(pass.gamma, row.sum, cell.sum);
    cell.sum = row.sum;
  }
  GDPO_INLINE void write(const DeviceBatch<S>& batch, const RowSpan& span, index_t t,
                         const Cell& cell) const {
    if (cell.valid)
      out(span.begin + t, pass.weight_of(cell.sum, cell.x, advantage_at(batch, span, t)));
  }
  GDPO_INLINE void end(const DeviceBatch<S>&, const RowSpan&, const Row&) const {}
};

/// The weight of TeacherRatio.
template <class S>
struct TeacherRatioWeights {
  prepass::TeacherRatio pass;
  WeightsOut<S> out;
  GDPO_INLINE void operator()(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    if (!batch.valid(span, t)) return;
    const double sampled = logp_at(batch.old_logp ? batch.old_logp : batch.logp, span, t),
                 x = gdpo::detail::teacher_gap(logp_at(batch.teacher_logp, span, t), sampled);
    out(span.begin + t, pass.weight_of(x, advantage_at(batch, span, t)));
  }
};

/// The sums of TeacherPrefix: over each row, and then over the tokens before each token.
template <class S, bool Weighs>
struct TeacherPrefixScan {
  static constexpr bool backward = false, writes = Weighs;
  prepass::TeacherPrefix pass;
  double* totals;  ///< Of rows.
  WeightsOut<S> out;

  struct Row {
    double sum = 0;
  };
  struct Cell {
    double size;    ///< What the token adds, 0 at masked tokens.
    double before;  ///< After the step: the sum before the token.
    bool valid;
  };
  GDPO_INLINE Row begin() const { return {}; }
  GDPO_INLINE Cell read(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    Cell cell{};
    cell.valid = batch.valid(span, t);
    if (!cell.valid) return cell;
    const auto& sampled = batch.rollout_logp ? batch.rollout_logp
                          : batch.old_logp   ? batch.old_logp
                                             : batch.logp;
    cell.size = prepass::TeacherPrefix::size_of(
        gdpo::detail::teacher_gap(logp_at(batch.teacher_logp, span, t), logp_at(sampled, span, t)));
    return cell;
  }
  GDPO_INLINE void step(Row& row, Cell& cell, const RowSpan&, index_t) const {
    cell.before = row.sum;
    row.sum += cell.size;
  }
  GDPO_INLINE void write(const DeviceBatch<S>&, const RowSpan& span, index_t t,
                         const Cell& cell) const {
    if (cell.valid) out(span.begin + t, pass.weight_of(cell.before, totals[span.row]));
  }
  GDPO_INLINE void end(const DeviceBatch<S>&, const RowSpan& span, const Row& row) const {
    if constexpr (!Weighs) totals[span.row] = row.sum;
  }
};

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
