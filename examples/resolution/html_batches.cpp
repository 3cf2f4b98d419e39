#include <algorithm>
#include <cmath>

#include "batch_series.hpp"
#include "charts.hpp"
#include "html.hpp"
#include "html_sections.hpp"
#include "statistics.hpp"
#include "words.hpp"

namespace resolution {
namespace {

using charts::Tone;

/// How many batches one point of a curve stands for: the curve of a long log would be a hedge.
std::size_t batches_per_point(std::size_t batches) {
  constexpr std::size_t most_points = 60;
  return (batches + most_points - 1) / most_points;
}

/// The means of runs of neighbours; values that are not finite are left out.
std::vector<double> means_of_runs(const std::vector<double>& values, std::size_t run) {
  std::vector<double> means;
  std::vector<double> finite;
  for (std::size_t from = 0; from < values.size(); from += run) {
    finite.clear();
    for (std::size_t i = from; i < std::min(from + run, values.size()); ++i) {
      if (std::isfinite(values[i])) finite.push_back(values[i]);
    }
    means.push_back(mean(finite));
  }
  return means;
}

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
    curves.push_back(
        {line.name, means_of_runs(line.values, batches_per_point(line.values.size())), tone});
    const std::vector<double>& values = curves.back().values;
    for (const double value : values) {
      if (!std::isfinite(value)) continue;
      y.least = std::min(y.least, value);
      y.most = std::max(y.most, value);
    }
    const auto text = [&](double value) {
      return series.is_share ? percent(value) : compact(value);
    };
    summary += line.name + ": from " + text(values.front()) + " to " + text(values.back()) + ". ";
  }
  if (!(y.most > y.least)) y.most = y.least + 1;
  const charts::Axis x{"batch", 1, static_cast<double>(c.rollouts.batches())};
  return html::figure(series.title, charts::curves(curves, x, y, summary), series.caption);
}

}  // namespace

std::string batches_section(const Comparison& c) {
  const Rollouts& log = c.rollouts;
  if (log.batches() == 1) return "";
  const std::size_t run = batches_per_point(log.batches());
  std::string figures;
  for (const BatchSeries& series : batch_series(c)) figures += chart(c, series);
  return html::heading("Over the batches") +
         html::paragraph(
             counted(log.batches(), "batch", "batches") + " by " + list(log.batch_columns) +
             ", in the order of the log: the first is " + log.batch_names.front() + ", the last " +
             log.batch_names.back() + "." +
             (run == 1 ? "" : " Each point is the mean of " + std::to_string(run) + " batches.")) +
         html::division("charts three", figures);
}

}  // namespace resolution
