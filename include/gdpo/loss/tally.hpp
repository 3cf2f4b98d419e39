#pragma once
#include <gdpo/lanes/lanes.hpp>
#include <gdpo/loss/metrics.hpp>
#include <gdpo/loss/term.hpp>

GDPO_BEGIN_NAMESPACE

/// What a loss call measures besides the loss; a parameter of PolicyLoss (with_metrics). What is not kept has count 0.
namespace metrics {
/// Everything in LossMetrics.
struct All {
  static constexpr bool means = true, everything = true;
};
/// Means and fractions of surrogate, kl, clip_fraction (_low, _high), approx_kl_k1, approx_kl_k3, ratio, entropy, loss; no ranges
/// over tokens (those of rows stay).
struct Means {
  static constexpr bool means = true, everything = false;
};
/// Rows, lengths, advantages and inputs that are not finite only.
struct None {
  static constexpr bool means = false, everything = false;
};
}  // namespace metrics

namespace detail {

/// The metrics of tokens, by number: rows and batches add them side by side, in lanes.
enum Quantity {
  of_surrogate,
  of_kl,
  of_k1,
  of_k3,
  of_ratio,
  of_entropy,
  of_loss,
  of_low,  // from here on counts
  of_high,
  of_clipped,
  of_outside,
  of_dual,
  of_bounded,
  of_kl_bounded,
  quantities = math::logical_lanes,
  measured = of_low,
  counted = of_kl_bounded + 1 - of_low
};

/// Sums over the valid tokens of one row, before the row's weight.
struct RowSums {
  double of[quantities] = {};
  double kl_loss = 0;      // beta times kl, of all terms
  bool advantage = false;  // one of them is not 0
};

/// What rows add up to. Rows are added in their order, then tallies of consecutive rows in theirs.
struct Tally {
  double policy_loss = 0, kl_loss = 0;
  double sum[quantities] = {}, row_sum[quantities] = {}, row_min[quantities], row_max[quantities];
  double min[measured], max[measured];  // over tokens
  double tokens = 0;
  Metric completion_length, clipped_completions;
  Moments advantage;
  NonFiniteInputs non_finite;
  index_t rows = 0, empty_rows = 0, degenerate_rows = 0;

  GDPO_DEVICE Tally() {
    for (int q = 0; q < quantities; ++q) row_min[q] = math::infinity, row_max[q] = -math::infinity;
    for (int q = 0; q < measured; ++q) min[q] = math::infinity, max[q] = -math::infinity;
  }

  /// n: tokens of the row. completion: those before pre-passes; truncated: NaN where not known.
  void add(const RowSums& row, index_t n, index_t completion, double truncated, bool means) {
    using Lanes = math::Pack<quantities>;
    tokens += static_cast<double>(n);
    if (means) {
      const Lanes x = Lanes::load(row.of), mean = x / Lanes::all(n > 0 ? static_cast<double>(n) : 1.0);
      (Lanes::load(sum) + x).store(sum);
      (Lanes::load(row_sum) + mean).store(row_sum);
      (math::min)(Lanes::load(row_min), mean).store(row_min);
      (math::max)(Lanes::load(row_max), mean).store(row_max);
    }
    add_row(row, n, completion, truncated);
  }
  /// The same by parts, for threads that each have one: quantity q, and what is no quantity.
  GDPO_INLINE void add_quantity(int q, const RowSums& row, index_t n) {
    const double x = row.of[q], mean = x / (n > 0 ? static_cast<double>(n) : 1.0);
    sum[q] += x, row_sum[q] += mean;
    row_min[q] = (math::min)(row_min[q], mean), row_max[q] = (math::max)(row_max[q], mean);
  }
  GDPO_INLINE void add_row(const RowSums& row, index_t n, index_t completion, double truncated) {
    add_row_value(completion_length, static_cast<double>(completion));
    if (!math::is_nan(truncated)) add_row_value(clipped_completions, math::is_zero(truncated) ? 0.0 : 1.0);
    ++rows;
    empty_rows += n == 0;
    degenerate_rows += n > 0 && !row.advantage;
  }

  void add(const Tally& o) {
    using Lanes = math::Pack<quantities>;
    (Lanes::load(sum) + Lanes::load(o.sum)).store(sum);
    (Lanes::load(row_sum) + Lanes::load(o.row_sum)).store(row_sum);
    (math::min)(Lanes::load(row_min), Lanes::load(o.row_min)).store(row_min);
    (math::max)(Lanes::load(row_max), Lanes::load(o.row_max)).store(row_max);
    for (int q = 0; q < measured; ++q) min[q] = (math::min)(min[q], o.min[q]), max[q] = (math::max)(max[q], o.max[q]);
    add_others(o);
  }
  GDPO_INLINE void add_quantity(int q, const Tally& o) {
    sum[q] += o.sum[q], row_sum[q] += o.row_sum[q];
    row_min[q] = (math::min)(row_min[q], o.row_min[q]), row_max[q] = (math::max)(row_max[q], o.row_max[q]);
    if (q < measured) min[q] = (math::min)(min[q], o.min[q]), max[q] = (math::max)(max[q], o.max[q]);
  }
  GDPO_INLINE void add_others(const Tally& o) {
    policy_loss += o.policy_loss, kl_loss += o.kl_loss;
    tokens += o.tokens;
    completion_length = merge(completion_length, o.completion_length);
    clipped_completions = merge(clipped_completions, o.clipped_completions);
    advantage = merge(advantage, o.advantage);
    for_each_non_finite(non_finite, o.non_finite,
                        [](NonFinite& into, const NonFinite& other) { into = merge(into, other); });
    rows += o.rows, empty_rows += o.empty_rows, degenerate_rows += o.degenerate_rows;
  }

  /// has_kl, has_entropy: those were measured.
  GDPO_DEVICE LossMetrics result(bool means, bool everything, bool has_kl, bool has_entropy) const {
    LossMetrics m;
    const auto put = [&](Metric& to, int q, bool kept) {
      if (!kept) return;
      to = {sum[q],     tokens,    math::infinity, -math::infinity, row_sum[q], static_cast<double>(rows),
            row_min[q], row_max[q]};
      if (tokens == 0) return;
      if (q < measured && everything)
        to.min = min[q] + 0.0, to.max = max[q] + 0.0;  // 0 and -0: which came first is by lane
      if (q >= measured) to.min = sum[q] < tokens ? 0 : 1, to.max = sum[q] > 0 ? 1 : 0;
    };
    put(m.loss, of_loss, means);
    put(m.surrogate, of_surrogate, means);
    put(m.kl, of_kl, means && has_kl);
    put(m.approx_kl_k1, of_k1, means);
    put(m.approx_kl_k3, of_k3, means);
    put(m.ratio, of_ratio, means);
    put(m.entropy, of_entropy, means && has_entropy);
    put(m.clip_fraction, of_clipped, means);
    put(m.clip_fraction_low, of_low, means);
    put(m.clip_fraction_high, of_high, means);
    put(m.clip_fraction_any, of_outside, everything);
    put(m.dual_clip_fraction, of_dual, everything);
    put(m.log_ratio_bounded, of_bounded, everything);
    put(m.kl_bounded, of_kl_bounded, everything && has_kl);
    m.completion_length = completion_length;
    m.clipped_completions = clipped_completions;
    m.advantage = advantage;
    m.non_finite = non_finite;
    m.rows = rows, m.empty_rows = empty_rows, m.degenerate_rows = degenerate_rows;
    return m;
  }

 private:
  GDPO_DEVICE static void add_row_value(Metric& m, double value) {
    m.row_sum += value, m.rows += 1;
    m.row_min = (math::min)(m.row_min, value), m.row_max = (math::max)(m.row_max, value);
  }
};

/// Smallest and largest of what is measured, in lanes.
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
  GDPO_INLINE void add(Quantity q, const Mask& valid, const V& x) {
    using math::select;
#if defined(__CUDA_ARCH__)  // whose fmin and fmax leave NaN out
    const V counted = select(valid, x, math::nan<V>());
    min[q] = fmin(min[q], counted), max[q] = fmax(max[q], counted);
#else
    min[q] = (math::min)(min[q], select(valid, x, math::constant<V>(math::infinity)));
    max[q] = (math::max)(max[q], select(valid, x, math::constant<V>(-math::infinity)));
#endif
  }
  /// Those quantities only: a copy of the whole would keep the others from staying in registers.
  GDPO_INLINE void take(const LaneRanges& o, std::initializer_list<Quantity> some) {
    for (const Quantity q : some) min[q] = o.min[q], max[q] = o.max[q];
  }
  void add_to(Tally& tally) const {
    typename L::Scalar lanes[L::width];
    for (int q = 0; q < measured; ++q) {
      L::store(lanes, min[q]);
      for (const auto x : lanes) tally.min[q] = (math::min)(tally.min[q], static_cast<double>(x));
      L::store(lanes, max[q]);
      for (const auto x : lanes) tally.max[q] = (math::max)(tally.max[q], static_cast<double>(x));
    }
  }
};
struct NoRanges {
  void take(const NoRanges&, std::initializer_list<Quantity>) {}
};

}  // namespace detail
GDPO_END_NAMESPACE
