#pragma once

#include <string>
#include <vector>

namespace resolution::charts {

// Charts are as wide as their place on the page, on a phone as on a screen, and their texts always
// have the size that the style sheet says. For this no picture is scaled: positions across are
// shares of the width, in percent, and heights are pixels. Bars are HTML; other charts are SVG
// without a viewBox. Only the curves of a chart lie in a layer that is stretched, without texts.
// What needs more room than a phone has moves: the label of a bar above it, and the names at the
// ends of lines into a key above the chart. The style sheet does that by the width of the chart.
//
// Screen readers read `summary` in place of the picture.

/// The color of a mark, by its name in the style sheet: summed first, normalized first, what the
/// page is about, and gray.
enum class Tone { Sum, Norm, Own, Idle };

/// A bar with its name on the left of it, or above it, and its value in words on the right.
struct Bar {
  std::string label;
  double value = 0;  ///< length of the bar; where it is not finite, no bar is drawn
  std::string text;
  Tone tone = Tone::Idle;
};

/// A dashed line across all bars.
struct Limit {
  double value = 0;
  std::string text;
};

/// A chart of horizontal bars that begin at 0. `most` is the value at the full width; negative
/// values, where there are any, grow to the left.
std::string bars(const std::vector<Bar>& bars, double most, const std::string& summary,
                 const Limit* limit = nullptr);

/// A histogram of values over [-most, most]. The outermost bins also hold what lies beyond. Values
/// within `tolerance` of 0 are counted apart and drawn gray.
struct Histogram {
  std::vector<double> shares;  ///< share of all values in each bin; the number of bins is odd
  double zero_share = 0;       ///< share of the values that count as 0
};
Histogram histogram_of(const std::vector<double>& values, double most, double tolerance);
/// `highest` is the share at the full height. A bar above it is cut, and shows that it is.
std::string histogram(const Histogram& data, double most, double highest, Tone tone,
                      const std::string& summary);

/// Lines over whole numbers, each with its own marker and with its name at the end or in the key.
struct Line {
  std::string label;
  std::vector<double> values;
  Tone tone = Tone::Idle;
};
std::string lines(const std::vector<std::size_t>& x, const std::vector<Line>& lines,
                  const std::string& x_name, const std::string& summary);

/// Curves of many points without markers. Where there are several, each has its name at the end or
/// in the key. The points are spread evenly over the x axis, which counts whole numbers (steps,
/// batches); `limit` is a dashed horizontal line. A curve of more than `most_points` points is
/// drawn by means of neighbors, so its highest peaks may be lower than in the data.
struct Curve {
  std::string label;
  std::vector<double> values;  ///< within the range of the y axis; where not finite, a gap
  Tone tone = Tone::Idle;
  bool broad = false;  ///< pale and broad, so that a curve that lies on it does not hide it
};
struct Axis {
  std::string name;
  double least = 0;
  double most = 1;
  bool whole = true;  ///< an x axis counts whole numbers, so that no tick is between them
};
/// A shaded part of an x axis.
struct Band {
  double least = 0;
  double most = 1;
};
std::string curves(const std::vector<Curve>& curves, const Axis& x, const Axis& y,
                   const std::string& summary, const Limit* limit = nullptr,
                   std::size_t most_points = 400);

/// Curves over an axis with shaded bands, whose name stands above the widest. Each curve has its
/// name at its end. Points that a straight line replaces are left out.
struct Panel {
  std::string title;
  std::vector<Curve> curves;
  Axis x, y;
  std::vector<Band> bands;
  std::string band_name;  ///< has room even where there are no bands; empty: none
};
std::string panel(const Panel& panel, const std::string& summary);
/// The panels side by side, as an SVG file. It has its own style sheet, for light and dark.
std::string picture(const std::vector<Panel>& panels, const std::string& summary);

/// The points that curves() draws: the values, or where there are more than `most_points`, the
/// means of runs of neighbors. Values that are not finite take part in no mean; where there is no
/// other, the mean is not finite.
std::vector<double> means_of_neighbors(const std::vector<double>& values, std::size_t most_points);

/// Up to about `count` round numbers from 0 to `most`.
std::vector<double> ticks(double most, int count);

}  // namespace resolution::charts
