#include <algorithm>
#include <cmath>

#include "batch_series.hpp"
#include "charts.hpp"
#include "html.hpp"
#include "html_sections.hpp"
#include "words.hpp"

namespace resolution {
namespace {

using charts::Tone;

// The curve of a long log would be a hedge: it is drawn by means of neighbors.
constexpr std::size_t most_points = 60;

std::string chart(const Comparison& c, const BatchSeries& series) {
  // Shares are drawn on a scale of at least 1 %.
  charts::Axis y{"", 0, series.is_share ? 0.01 : 0};
  std::vector<charts::Curve> curves;
  std::string summary = series.title + " over " + batches_text(c.rollouts) + ". ";
  for (const BatchSeries::Line& line : series.lines) {
    const Tone own = curves.empty() ? Tone::Own : Tone::Idle;
    const Tone tone = line.estimator == nullptr                    ? own
                      : line.estimator->family == Family::SumFirst ? Tone::Sum
                                                                   : Tone::Norm;
    curves.push_back({line.name, line.values, tone});
    for (const double value : charts::means_of_neighbors(line.values, most_points)) {
      if (!std::isfinite(value)) continue;
      y.least = std::min(y.least, value);
      y.most = std::max(y.most, value);
    }
    summary += line.name + ": from " + value_text(series, line.values.front()) + " to " +
               value_text(series, line.values.back()) + ". ";
  }
  if (!(y.most > y.least)) y.most = y.least + 1;
  const charts::Axis x{"batch", 1, static_cast<double>(c.rollouts.batches())};
  return html::figure(series.title, charts::curves(curves, x, y, summary, nullptr, most_points),
                      series.caption);
}

}  // namespace

std::string batches_section(const Comparison& c) {
  const Rollouts& log = c.rollouts;
  if (log.batches() == 1) return "";
  std::string figures;
  for (const BatchSeries& series : batch_series(c)) figures += chart(c, series);
  return html::heading("Over the batches") +
         html::paragraph(
             counted(log.batches(), "batch", "batches") + " by " + list(log.batch_columns) +
             ": the first is " + log.batch_names.front() + ", the last " + log.batch_names.back() +
             "." + (log.batches() > most_points ? " Each point is the mean of neighbors." : "")) +
         html::division("charts three", figures);
}

}  // namespace resolution
