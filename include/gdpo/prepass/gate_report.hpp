#pragma once
// gate_report: the numbers that a gate compares with its bounds, or a weight with its clip.
#include <gdpo/prepass/engine/exact_lanes.hpp>
#include <gdpo/prepass/future_kl.hpp>
#include <gdpo/prepass/gate.hpp>
#include <gdpo/prepass/importance.hpp>
#include <gdpo/prepass/report_keys.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What a report keeps of a gate or a weight.
inline Bounds bounds_of(const prepass::Gate& gate) { return {gate.min, gate.max}; }
inline Bounds bounds_of(const prepass::Importance& weight) { return weight.clip; }
inline Bounds bounds_of(const prepass::FutureKl& pass) {
  const auto log = [](double x) {
    return math::is_inf(x) && x > 0 ? x : x > 0 ? log_of_quotient(x, 1.0) : -math::infinity;
  };
  return {log(pass.clip.lo), log(pass.clip.hi)};
}
inline bool is_ratio(const prepass::Gate& gate) {
  return gate.estimator == prepass::Estimator::Ratio;
}
inline bool is_ratio(const prepass::Importance&) { return true; }
inline bool is_ratio(const prepass::FutureKl&) { return false; }
inline bool judges_empty_rows(const prepass::Gate& gate) {
  return gate.statistic != prepass::Statistic::Token && gate.when == prepass::When::Always;
}
template <class Weight>
bool judges_empty_rows(const Weight&) {
  return false;
}

/// Adds a row to a report; w holds the statistics of its tokens, and then their numbers.
template <class V, class S, class Pass>
void add_gate_row(GateReport& r, const Pass& pass, const TokenRow<S>& row, double* w) {
  const auto of_row = pass.of_row(row);
  LaneCount<V> valid, finite, low, high, closed, closed_low, closed_high;
  V least = math::constant<V>(math::infinity), most = math::constant<V>(-math::infinity);
  double least_of_rest = math::infinity, most_of_rest = -math::infinity;
  for_each_lanes<V>(row.length, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
    using L = typename decltype(lanes)::type;
    const auto is_valid = valid_lanes<L>(row, t);
    const L s = math::Lanes<L>::load(w + t), y = pass.number_of(s), weight = of_row.weight(t, s);
    const auto is_low = math::both(is_valid, y < math::constant<L>(r.lower)),
               is_high = math::both(is_valid, y > math::constant<L>(r.upper)),
               closes = math::both(is_valid, math::is_zero(weight));
    valid.add(is_valid), closed.add(closes);
    closed_low.add(math::both(closes, is_low)), closed_high.add(math::both(closes, is_high));
    const L nan = math::constant<L>(math::nan());
    const L number = math::select(is_valid, L(math::select(math::not_finite(y), nan, y)), nan);
    const auto is_finite = math::both(number > math::constant<L>(-math::infinity),
                                      number < math::constant<L>(math::infinity));
    finite.add(is_finite), low.add(math::both(is_finite, is_low));
    high.add(math::both(is_finite, is_high));
    math::Lanes<L>::store(w + t, number);
    if constexpr (std::is_same_v<L, V>) {
      least = (math::min)(least, number), most = (math::max)(most, number);
    } else {
      least_of_rest = (math::min)(least_of_rest, number);
      most_of_rest = (math::max)(most_of_rest, number);
    }
  });
  const index_t n_valid = valid.total(), n_finite = finite.total(), closing = closed.total();
  r.low += low.total(), r.high += high.total();
  r.closed_low += closed_low.total(), r.closed_high += closed_high.total();
  ++r.rows, r.measured += n_finite, r.non_finite += n_valid - n_finite, r.closed += closing;

  double number = r.center;  // of the row
  if (n_finite > 0) {
    const double low_end = (math::min)(least_of_lanes(least), least_of_rest),
                 high_end = -(math::min)(least_of_lanes(V(-most)), -most_of_rest);
    // Of zeros that are equal the first stands in a report, whatever its sign.
    const auto first_zero = [&](double end) {
      for (index_t t = 0; math::is_zero(end) && t < row.length; ++t) {
        if (math::is_zero(w[t])) return w[t];
      }
      return end;
    };
    r.least = (math::min)(r.least, first_zero(low_end));
    r.most = (math::max)(r.most, first_zero(high_end));
    const double reach = (math::max)(math::abs(low_end - r.center), math::abs(high_end - r.center));
    const auto off = [&r](const auto& y) {
      return y - math::constant<std::decay_t<decltype(y)>>(r.center);
    };
    const auto cut = [&r](const auto& y) {
      using L = std::decay_t<decltype(y)>;
      return L((math::max)(L((math::min)(y, math::constant<L>(r.upper))),
                           math::constant<L>(r.lower))) -
             math::constant<L>(r.center);
    };
    const double cut_reach = (math::max)(math::abs(cut(low_end)), math::abs(cut(high_end)));
    const auto square = [](const auto& x) { return math::mul(x, x); };
    add_row_exactly<V>(r.distance, w, row.length, reach, off);
    add_row_exactly<V>(r.distance_square, w, row.length, square(reach),
                       [&](const auto& y) { return square(off(y)); });
    add_row_exactly<V>(r.bounded, w, row.length, cut_reach, cut);
    add_row_exactly<V>(r.bounded_square, w, row.length, square(cut_reach),
                       [&](const auto& y) { return square(cut(y)); });
    // Equal numbers have exactly their value as the mean.
    const auto n = static_cast<double>(n_finite);
    index_t first = 0;
    while (math::is_nan(w[first])) ++first;
    double sum = 0;
    for (index_t t = first; t < row.length; ++t) {
      if (!math::is_nan(w[t])) sum += r.shared ? w[t] - w[first] : w[t];
    }
    number = r.shared ? w[first] + sum / n : sum / (n + r.settings.count_eps);
  }
  const bool empty = n_valid == 0 && r.settings.empty_rows;
  if (n_finite == 0 && !empty) return;
  const bool is_low = number<r.lower, is_high = number> r.upper;
  const bool outside = empty && (is_low || is_high) && judges_empty_rows(pass);
  ++r.counted_rows;
  r.rows_low += is_low, r.rows_high += is_high;
  r.rows_closing += closing > 0 || outside;
  r.rows_closed += (n_valid > 0 && closing == n_valid) || outside;
  const double off = number - r.center;
  r.row_distance.add(off), r.row_distance_square.add(math::mul(off, off));
  r.row_least = (math::min)(r.row_least, number), r.row_most = (math::max)(r.row_most, number);
}

}  // namespace detail

/// Measures what a Gate compares with its bounds, or an Importance with its clip, for logs. Of a
/// FutureKl the numbers are the decayed sums F in nats, and the bounds the logs of its clip;
/// ms-swift's fipo/future_kl_mean is their token_mean().
///
/// `batch`: as for prepare(), before it: the mask is that of the tokens that the gate judges. Where
/// a trainer's gates follow one another, the report of the second is of the batch that the first
/// has prepared. `reach` is not looked at, so an off gate may be measured too. Of a weight
/// those tokens are closed whose weight is 0.
///
/// It runs on the calling thread and allocates room for a few rows. The numbers are double. Errors:
/// as prepare(), whose name the messages of missing arrays have. Data never throws: tokens
/// whose number is NaN or infinite are counted in `non_finite` and left out of all means.
template <class S, class Pass>
GateReport gate_report(const TokenBatch<S>& batch, const Pass& pass,
                       const GateReportSettings& settings = {}) {
  constexpr bool is_future = std::is_same_v<Pass, prepass::FutureKl>;
  static_assert(
      is_future || std::is_same_v<Pass, prepass::Gate> || std::is_same_v<Pass, prepass::Importance>,
      "gdpo::gate_report takes a prepass::Gate, Importance or FutureKl; of a chain give "
      "one part");
  constexpr const char* function = "gdpo::gate_report";
  const detail::TokenLayout layout = detail::layout_of(function, batch, detail::NeedsLogp::No);
  detail::check_fields(function, pass);
  detail::check_fields(function, "settings", settings);
  PrepassMemory<S> memory;
  memory.reserve(layout.longest);
  const PrepassRows<S> rows(batch, layout, memory);
  GateReport report;
  report.settings = settings;
  const Bounds bounds = detail::bounds_of(pass);
  report.lower = bounds.lo, report.upper = bounds.hi;
  report.center = detail::is_ratio(pass) ? 1 : 0;
  if constexpr (!is_future) report.shared = pass.statistic != prepass::Statistic::Token;
  using V = math::Native<double>;
  detail::BatchDecision of_batch;
  pass.template begin<V>(rows, of_batch);
  const index_t at_once = detail::prepass_rows_at_once(layout.longest);
  for (index_t first = 0; first < layout.rows; first += at_once) {
    const int n = static_cast<int>((std::min)(at_once, layout.rows - first));
    TokenRow<S> row[detail::most_prepass_rows];
    double* w[detail::most_prepass_rows];
    for (int r = 0; r < n; ++r) row[r] = rows.at_once(first + r, r), w[r] = rows.numbers(r);
    pass.template write_statistics<V>(of_batch, row, n, w);
    for (int r = 0; r < n; ++r) detail::add_gate_row<V>(report, pass, row[r], w[r]);
  }
  return report;
}

GDPO_END_NAMESPACE
