#pragma once
// gate_report: the numbers that a gate compares with its bounds, or a weight with its clip.
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
    return math::is_inf(x) && x > 0 ? x : x > 0 ? log_of_quotient(x, 1) : -math::infinity;
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

/// Adds a row to a report; w holds the statistics of its tokens.
template <class S, class Pass>
void add_gate_row(GateReport& r, const Pass& pass, const TokenRow<S>& row, const double* w) {
  index_t finite = 0, valid = 0, closing = 0;
  double first = 0, sum = 0, rest = 0;
  pass.for_each_weight(row, w, [&](index_t t, double weight) {
    const double y = pass.number_of(w[t]);
    const bool is_number = !math::is_nan(y);
    const bool low = is_number && y < r.lower;
    const bool high = is_number && y > r.upper;
    const bool closes = math::is_zero(weight);
    ++valid;
    closing += closes, r.closed_low += closes && low, r.closed_high += closes && high;
    if (math::not_finite(y)) return;
    if (finite++ == 0) first = y;
    sum += y, rest += y - first;
    r.low += low, r.high += high;
    const double off = y - r.center, cut = gate_list::cut(r, y) - r.center;
    r.distance.add(off), r.distance_square.add(math::mul(off, off));
    r.bounded.add(cut), r.bounded_square.add(math::mul(cut, cut));
    r.least = (math::min)(r.least, y), r.most = (math::max)(r.most, y);
  });
  ++r.rows, r.measured += finite, r.non_finite += valid - finite, r.closed += closing;
  const bool empty = valid == 0 && r.settings.empty_rows;
  if (finite == 0 && !empty) return;
  // Equal numbers have exactly their value as the mean.
  const double n = static_cast<double>(finite);
  const double number = empty      ? r.center
                        : r.shared ? first + rest / n
                                   : sum / (n + r.settings.count_eps);
  const bool low = number < r.lower;
  const bool high = number > r.upper;
  const bool outside = empty && (low || high) && judges_empty_rows(pass);
  ++r.counted_rows;
  r.rows_low += low, r.rows_high += high;
  r.rows_closing += closing > 0 || outside;
  r.rows_closed += (valid > 0 && closing == valid) || outside;
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
/// It runs on the calling thread and allocates room for the batch. The numbers are double. Errors:
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
  memory.rows.reserve(layout.longest);
  memory.pass.assign(static_cast<std::size_t>(layout.tokens), 1.0);
  const PrepassRows<S> rows(batch, layout, memory);
  GateReport report;
  report.settings = settings;
  const Bounds bounds = detail::bounds_of(pass);
  report.lower = bounds.lo, report.upper = bounds.hi;
  report.center = detail::is_ratio(pass) ? 1 : 0;
  const auto write = [&](const TokenRow<S>& row, double* w) {
    pass.write_estimates(row, rows.has_advantages(), w);
  };
  const auto add = [&](const TokenRow<S>& row, double* w) {
    detail::add_gate_row(report, pass, row, w);
  };
  const PrepassArgs<S> args{rows, memory.pass.data()};
  if constexpr (is_future) {
    detail::for_each_statistic(args, prepass::Statistic::Token, 0, {}, Pass::name, write, add);
  } else {
    report.shared = pass.statistic != prepass::Statistic::Token;
    detail::for_each_statistic(args, pass.statistic, pass.count_eps, pass.groups, Pass::name, write,
                               add);
  }
  return report;
}

GDPO_END_NAMESPACE
