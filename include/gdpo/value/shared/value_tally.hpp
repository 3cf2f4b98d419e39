#pragma once
// The sums of a value loss over rows, on host and device.
#include <gdpo/value/value_result.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The metrics of tokens with a range that the loops keep, numbered.
enum ValueQuantity : int { value_of_loss, value_of_value, value_of_error, value_quantities };
GDPO_INLINE Metric& metric_of(ValueMetrics& m, int q) {
  return q == value_of_loss ? m.loss : q == value_of_value ? m.value : m.error;
}

/// Sums over the valid tokens of one row, before the row's weight.
struct ValueSums {
  double sum[value_quantities] = {};  ///< By ValueQuantity.
  double clipped = 0;                 ///< The number of clipped tokens.
};

/// What a unit of rows or a whole call adds up to. Rows are added in their order, then the tallies
/// of consecutive units in theirs.
struct ValueTally {
  double loss = 0, tokens = 0;
  ValueMetrics metrics;

  /// Adds a row of n valid tokens to quantity q.
  GDPO_INLINE void add_quantity(int q, const ValueSums& row, index_t n) {
    add_to(metric_of(metrics, q), row.sum[q], n);
  }
  /// Adds the range of quantity q over some tokens. Adding 0 makes 0 of -0: which of the two was
  /// met first depends on the lanes.
  GDPO_INLINE void add_range(int q, double low, double high) {
    Metric& m = metric_of(metrics, q);
    m.min = (math::min)(m.min, low) + 0.0, m.max = (math::max)(m.max, high) + 0.0;
  }
  /// Adds the share of the tokens of a row that are clipped.
  GDPO_INLINE void add_clipped(const ValueSums& row, index_t n) {
    Metric& share = metrics.clip_fraction;
    add_to(share, row.clipped, n);
    if (n == 0) return;
    share.min = (math::min)(share.min, row.clipped < static_cast<double>(n) ? 0.0 : 1.0);
    share.max = (math::max)(share.max, row.clipped > 0 ? 1.0 : 0.0);
  }
  /// Counts a row of n valid tokens.
  GDPO_INLINE void add_row(index_t n) {
    tokens += static_cast<double>(n);
    ++metrics.rows, metrics.empty_rows += n == 0;
  }

  /// Adds the tally of the rows that come next.
  void add(const ValueTally& o) {
    for (int part = 0; part < parts; ++part) add_part(part, o);
  }
  /// The same in parts, so that the threads of a device can add them side by side.
  static constexpr int parts = 11;
  GDPO_INLINE void add_part(int part, const ValueTally& o) {
    ValueMetrics& m = metrics;
    const ValueMetrics& from = o.metrics;
    // clang-format off
    switch (part) {
      case 0: m.loss = merge(m.loss, from.loss); break;
      case 1: m.value = merge(m.value, from.value); break;
      case 2: m.error = merge(m.error, from.error); break;
      case 3: m.clip_fraction = merge(m.clip_fraction, from.clip_fraction); break;
      case 4: m.returns = merge(m.returns, from.returns); break;
      case 5: m.residuals = merge(m.residuals, from.residuals); break;
      case 6: add(m.non_finite.values, from.non_finite.values); break;
      case 7: add(m.non_finite.old_values, from.non_finite.old_values); break;
      case 8: add(m.non_finite.returns, from.non_finite.returns); break;
      case 9: add(m.non_finite.weights, from.non_finite.weights); break;
      default:
        loss += o.loss, tokens += o.tokens, m.rows += from.rows, m.empty_rows += from.empty_rows;
    }
    // clang-format on
  }

 private:
  GDPO_INLINE static void add(NonFinite& to, const NonFinite& o) { to = merge(to, o); }
  GDPO_INLINE static void add_to(Metric& m, double sum, index_t n) {
    const double tokens = static_cast<double>(n), mean = n > 0 ? sum / tokens : 0.0;
    m.sum += sum, m.count += tokens, m.row_sum += mean, m.rows += 1;
    m.row_min = (math::min)(m.row_min, mean), m.row_max = (math::max)(m.row_max, mean);
  }
};

}  // namespace detail
GDPO_END_NAMESPACE
