#pragma once
// The sums of a policy loss over rows, on host and device.
#include <gdpo/lanes/lanes.hpp>
#include <gdpo/loss/metrics.hpp>
#include <gdpo/loss/term.hpp>

GDPO_BEGIN_NAMESPACE

namespace detail {

// The list of metrics cut by kind. A place in the list is also the lane in which rows and batches
// add a metric of tokens.
constexpr int token_sums = metric::before(metric::NumberAtEnd);  ///< Numbers that loops add.
constexpr int measured = metric::before(metric::Share);          ///< The first so many have ranges.
constexpr int token_counts = metric::before(metric::ShareAtEnd) - measured;
constexpr int metrics_of_tokens = metric::before(metric::OfRow);
constexpr int row_metrics = static_cast<int>(std::size(metric::list)) - metrics_of_tokens;
/// The size of arrays with an element for each metric of tokens: rounded up to whole sets of lanes.
/// The elements left over are 0.
constexpr int quantities =
    (metrics_of_tokens + math::logical_lanes - 1) / math::logical_lanes * math::logical_lanes;

/// The place of a metric in the list: of_metric<&LossMetrics::kl>.
template <MetricMember member>
constexpr int of_metric = metric::place_of(member);
/// The place of a share among the shares.
template <MetricMember member>
constexpr int of_share = of_metric<member> - measured;

/// A place in the list that is known at compile time.
template <int q>
struct Place {
  GDPO_INLINE constexpr operator int() const { return q; }
};
GDPO_CALLS_ANY
template <class F, int... q>
GDPO_INLINE void with_places(const F& f, std::integer_sequence<int, q...>) {
  f(Place<q>{}...);
}
/// Calls f(Place<0>{}, ..., Place<n - 1>{}). Loops over metrics in registers are written so: an
/// index that is a constant from the start lets each sum stay in a register.
GDPO_CALLS_ANY
template <int n, class F>
GDPO_INLINE void with_places(const F& f) {
  with_places(f, std::make_integer_sequence<int, n>{});
}

/// Whether the loops over tokens keep the smallest or the largest value of a quantity with a range.
///
/// The other ends follow from the range of approx_kl_k1, which is that of the log ratio x with the
/// sign changed. The ratio e^x rises with x, and k3 = e^x - 1 - x falls below x = 0 and rises above
/// it, so these ends belong to the smallest or the largest x (complete_range in
/// loss/shared/write_result.hpp). At levels of segments the ratio is known before the loops, and
/// SegmentRatio adds it to its range.
GDPO_INLINE constexpr bool keeps_min(int q) { return q != of_metric<&LossMetrics::ratio>; }
GDPO_INLINE constexpr bool keeps_max(int q) {
  return keeps_min(q) && q != of_metric<&LossMetrics::approx_kl_k3>;
}

/// e^x, the ratio of a log ratio x of a token, and what goes with it. It saturates at exp_limit of
/// S, the batch's scalar, also if V is wider.
template <class S, class V>
GDPO_INLINE math::ExpParts<V> parts_of_ratio(const V& x) {
  if constexpr (std::is_same_v<math::scalar_t<V>, S>) {
    return math::exp_parts(x);
  } else {
    return math::exp_parts(V((math::min)(x, math::constant<V>(math::exp_limit<S>))));
  }
}

/// Sums over the valid tokens of one row, before the row's weight.
struct RowSums {
  double sum[quantities] = {};  ///< By place; a share is the number of its tokens.
  double kl_loss = 0;           ///< The sum of beta * kl over all KL terms.
  bool advantage = false;       ///< Some token has an advantage that is not 0.
};

/// Sums over rows: those of one unit, or of a whole call.
///
/// Rows are added in their order, then the tallies of consecutive units in theirs. The arrays are
/// indexed by the place of the metric: `sum` is over tokens; `row_sum`, `row_min` and `row_max` are
/// over the means of rows, where a row without tokens has means of 0.
struct Tally {
  double policy_loss = 0, kl_loss = 0, entropy_loss = 0;
  double sum[quantities] = {}, row_sum[quantities] = {}, row_min[quantities], row_max[quantities];
  double min[measured], max[measured];  ///< Ranges over tokens.
  double tokens = 0;
  Metric of_row[row_metrics];
  Moments advantage;
  NonFiniteInputs non_finite;
  index_t rows = 0, empty_rows = 0, degenerate_rows = 0;

  GDPO_DEVICE GDPO_NOINLINE Tally() {
    for (int q = 0; q < quantities; ++q) row_min[q] = math::infinity, row_max[q] = -math::infinity;
    for (int q = 0; q < measured; ++q) min[q] = math::infinity, max[q] = -math::infinity;
  }

  /// Adds a row of n valid tokens. `completion` is its number of tokens before pre-passes masked
  /// some. `truncated` and `positive` are NaN if they are not known. Without `means` the metrics of
  /// tokens are left out.
  void add(const RowSums& row, index_t n, index_t completion, double truncated, double positive,
           bool means) {
    tokens += static_cast<double>(n);
    const Lanes count = Lanes::all(n > 0 ? static_cast<double>(n) : 1.0);
    for (int q = 0; means && q < quantities; q += lanes) {
      const Lanes x = Lanes::load(row.sum + q), mean = x / count;
      add(q, x, mean, mean, mean);
    }
    add_row(row, n, completion, truncated, positive);
  }
  // The same in parts, so that the threads of a device can each add one: quantity q of a row, and
  // what is no quantity.
  GDPO_INLINE void add_quantity(int q, const RowSums& row, index_t n) {
    const double x = row.sum[q], mean = x / (n > 0 ? static_cast<double>(n) : 1.0);
    sum[q] += x, row_sum[q] += mean;
    row_min[q] = (math::min)(row_min[q], mean), row_max[q] = (math::max)(row_max[q], mean);
  }
  GDPO_INLINE void add_row(const RowSums& row, index_t n, index_t completion, double truncated,
                           double positive) {
    add_row_value<&LossMetrics::completion_length>(static_cast<double>(completion));
    if (!math::is_nan(truncated))
      add_row_value<&LossMetrics::clipped_completions>(math::is_zero(truncated) ? 0.0 : 1.0);
    if (!math::is_nan(positive)) add_row_value<&LossMetrics::positive_logp>(positive);
    ++rows;
    empty_rows += n == 0;
    degenerate_rows += n > 0 && !row.advantage;
  }

  /// Adds the tally of the rows that come next.
  GDPO_NOINLINE void add(const Tally& o) {
    for (int q = 0; q < quantities; q += lanes) {
      add(q, Lanes::load(o.sum + q), Lanes::load(o.row_sum + q), Lanes::load(o.row_min + q),
          Lanes::load(o.row_max + q));
    }
    for (int q = 0; q < measured; ++q)
      min[q] = (math::min)(min[q], o.min[q]), max[q] = (math::max)(max[q], o.max[q]);
    for (int part = quantities; part < parts; ++part) add_part(part, o);
  }
  // The same in parts, so that the threads of a device can add them side by side.
  static constexpr int parts = quantities + 2 + row_metrics + counted_inputs;
  GDPO_INLINE void add_part(int part, const Tally& o) {
    const int q = part;
    if (q < quantities) {
      sum[q] += o.sum[q], row_sum[q] += o.row_sum[q];
      row_min[q] = (math::min)(row_min[q], o.row_min[q]),
      row_max[q] = (math::max)(row_max[q], o.row_max[q]);
      if (q < measured)
        min[q] = (math::min)(min[q], o.min[q]), max[q] = (math::max)(max[q], o.max[q]);
    } else if (part == quantities) {
      policy_loss += o.policy_loss, kl_loss += o.kl_loss, entropy_loss += o.entropy_loss;
      tokens += o.tokens;
      rows += o.rows, empty_rows += o.empty_rows, degenerate_rows += o.degenerate_rows;
    } else if (part == quantities + 1) {
      advantage = merge(advantage, o.advantage);
    } else {
      const int k = part - (quantities + 2);
      if (k < row_metrics) {
        of_row[k] = merge(of_row[k], o.of_row[k]);
      } else {
        const auto counter = input_counter(k - row_metrics);
        non_finite.*counter = merge(non_finite.*counter, o.non_finite.*counter);
      }
    }
  }

  /// Quantity q as a metric. `everything` says that the range over tokens was kept.
  GDPO_INLINE Metric metric(int q, bool everything) const {
    Metric m;
    m.sum = sum[q], m.count = tokens, m.row_sum = row_sum[q], m.rows = static_cast<double>(rows);
    m.row_min = row_min[q], m.row_max = row_max[q];
    if (tokens == 0) return m;
    if (q >= measured) {
      m.min = sum[q] < tokens ? 0 : 1, m.max = sum[q] > 0 ? 1 : 0;
    } else if (everything) {
      // + 0.0 makes 0 of -0: which of the two was met first depends on the lanes.
      m.min = min[q] + 0.0, m.max = max[q] + 0.0;
    }
    return m;
  }

 private:
  static constexpr int lanes = math::native_width<double>;
  using Lanes = math::Pack<lanes>;
  /// Adds to the quantities q to q + lanes - 1.
  GDPO_HOST_INLINE void add(int q, const Lanes& x, const Lanes& of_rows, const Lanes& low,
                            const Lanes& high) {
    (Lanes::load(sum + q) + x).store(sum + q);
    (Lanes::load(row_sum + q) + of_rows).store(row_sum + q);
    (math::min)(Lanes::load(row_min + q), low).store(row_min + q);
    (math::max)(Lanes::load(row_max + q), high).store(row_max + q);
  }
  template <MetricMember member>
  GDPO_DEVICE void add_row_value(double value) {
    Metric& m = of_row[of_metric<member> - metrics_of_tokens];
    m.row_sum += value, m.rows += 1;
    m.row_min = (math::min)(m.row_min, value), m.row_max = (math::max)(m.row_max, value);
  }
};

/// Whether metric q is added in one of the two loops over tokens.
template <metric::AddedIn Loop, int q>
constexpr bool is_added_in = metric::list[q].added_in == Loop;

/// The smallest and largest values of the quantities that have a range, in lanes, as far as the
/// loops keep them (keeps_min, keeps_max). NaN is left out.
template <class V>
struct LaneRanges {
  using L = math::Lanes<V>;
  using Mask = mask_t<V>;
  V min[measured], max[measured];
  GDPO_INLINE LaneRanges() {
    for (int q = 0; q < measured; ++q) {
      min[q] = math::constant<V>(math::infinity), max[q] = math::constant<V>(-math::infinity);
    }
  }
  /// Adds the values x of the valid tokens to those ends of the range that the loops keep.
  GDPO_INLINE void add(int q, const Mask& valid, const V& x) {
    using math::select;
#if defined(__CUDA_ARCH__)  // fmin and fmax of a device leave NaN out
    const V counted = select(valid, x, math::nan<V>());
    if (keeps_min(q)) min[q] = fmin(min[q], counted);
    if (keeps_max(q)) max[q] = fmax(max[q], counted);
#else
    if constexpr (std::is_arithmetic_v<V>) {
      if (keeps_min(q)) min[q] = select(valid, (math::min)(min[q], x), min[q]);
      if (keeps_max(q)) max[q] = select(valid, (math::max)(max[q], x), max[q]);
    } else {
      if (keeps_min(q)) min[q] = min_where(valid, min[q], x);
      if (keeps_max(q)) max[q] = max_where(valid, max[q], x);
    }
#endif
  }
  /// Copies the quantities of one of the two loops. A copy of the whole would keep the other
  /// quantities from staying in registers.
  template <metric::AddedIn Loop>
  GDPO_INLINE void take(const LaneRanges& o) {
    with_places<measured>([&](auto... q) GDPO_INLINE_LAMBDA {
      ((is_added_in<Loop, q> && keeps_min(q) ? void(min[q] = o.min[q]) : void()), ...);
      ((is_added_in<Loop, q> && keeps_max(q) ? void(max[q] = o.max[q]) : void()), ...);
    });
  }
  void add_to(Tally& tally) const {
    typename L::Scalar lanes[L::width];
    for (int q = 0; q < measured; ++q) {
      if (keeps_min(q)) {
        L::store(lanes, min[q]);
        for (const auto x : lanes) tally.min[q] = (math::min)(tally.min[q], static_cast<double>(x));
      }
      if (keeps_max(q)) {
        L::store(lanes, max[q]);
        for (const auto x : lanes) tally.max[q] = (math::max)(tally.max[q], static_cast<double>(x));
      }
    }
  }
};
/// Stands for LaneRanges if no ranges are kept. Its add() is never called, but CUDA 12.1
/// instantiates it in branches that a generic lambda discards.
struct NoRanges {
  template <class... Any>
  GDPO_INLINE void add(const Any&...) {}
  template <metric::AddedIn Loop>
  void take(const NoRanges&) {}
};

}  // namespace detail
GDPO_END_NAMESPACE
