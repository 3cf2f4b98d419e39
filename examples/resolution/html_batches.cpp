#include <algorithm>
#include <cmath>
#include <limits>

#include "batch_series.hpp"
#include "charts.hpp"
#include "html.hpp"
#include "html_sections.hpp"
#include "words.hpp"

namespace resolution {
namespace {

using charts::Tone;

std::string chart(const Comparison& c, const BatchSeries& series) {
  charts::Axis y{"", 0, 0};
  std::vector<charts::Curve> curves;
  std::string summary = series.title + " over " + batches_text(c.rollouts) + ". ";
  for (const BatchSeries::Line& line : series.lines) {
    const Tone tone = line.estimator != nullptr
                          ? (line.estimator->family == Family::SumFirst ? Tone::Sum : Tone::Norm)
                      : curves.empty() ? Tone::Own
                                       : Tone::Idle;
    curves.push_back({line.name, line.values, tone});
    double first = std::numeric_limits<double>::quiet_NaN();
    double last = first;
    for (const double value : line.values) {
      if (!std::isfinite(value)) continue;
      if (std::isnan(first)) first = value;
      last = value;
      y.least = std::min(y.least, value);
      y.most = std::max(y.most, value);
    }
    const auto text = [&](double value) {
      return series.is_share ? percent(value) : compact(value);
    };
    summary += line.name + ": from " + text(first) + " to " + text(last) + ". ";
  }
  if (!(y.most > y.least)) y.most = y.least + 1;
  const charts::Axis x{"batch", 1, static_cast<double>(c.rollouts.batches())};
  return html::figure(series.title, charts::curves(curves, x, y, summary), series.caption);
}

}  // namespace

std::string batches_section(const Comparison& c) {
  const Rollouts& log = c.rollouts;
  if (log.batches() == 1) return "";
  std::string figures;
  for (const BatchSeries& series : batch_series(c)) figures += chart(c, series);
  return html::heading("Over the batches") +
         html::paragraph(counted(log.batches(), "batch", "batches") + " by " +
                         list(log.batch_columns) + ", in the order of the log: the first is " +
                         log.batch_names.front() + ", the last " + log.batch_names.back() + ".") +
         html::division("charts three", figures);
}

}  // namespace resolution
