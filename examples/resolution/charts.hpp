#pragma once

#include <string>
#include <vector>

namespace resolution::charts {

/// Names of the style sheet: the colour of a mark.
enum class Tone { Sum, Norm, Own, Idle };

/// A bar with its name on the left and its value in words on the right.
struct Bar {
  std::string label;
  double value = 0;  ///< not finite: no bar
  std::string text;
  Tone tone = Tone::Idle;
};

/// A dashed line across all bars.
struct Limit {
  double value = 0;
  std::string text;
};

/// Horizontal bars from 0; `most` is the value of the full width, negative values grow to the left where there are any.
/// `summary` is read out in place of the picture.
std::string bars(const std::vector<Bar>& bars, double most, const std::string& summary,
                 const Limit* limit = nullptr);

/// How values spread over [-most, most]: share of all values per bin, the outermost with all that lies beyond; values
/// within `tolerance` of 0 apart, drawn grey. `highest` is the share of the full height; a bar above it is cut and
/// shows that.
struct Histogram {
  std::vector<double> shares;  ///< per bin, an odd number
  double zero_share = 0;
};
Histogram histogram_of(const std::vector<double>& values, double most, double tolerance);
std::string histogram(const Histogram& data, double most, double highest, Tone tone,
                      const std::string& summary);

/// Lines over whole numbers, each with its own marker and its name at the end.
struct Line {
  std::string label;
  std::vector<double> values;
  Tone tone = Tone::Idle;
};
std::string lines(const std::vector<std::size_t>& x, const std::vector<Line>& lines,
                  const std::string& x_name, const std::string& summary);

/// Curves of many points without markers, each with its name at the end where there are several. Points are spread evenly
/// over the x axis; `limit` is a dashed line across.
struct Curve {
  std::string label;
  std::vector<double> values;  ///< within the y axis
  Tone tone = Tone::Idle;
};
struct Axis {
  std::string name;
  double least = 0;
  double most = 1;
};
std::string curves(const std::vector<Curve>& curves, const Axis& x, const Axis& y,
                   const std::string& summary, const Limit* limit = nullptr);

/// Up to about `count` round numbers from 0 to `most`.
std::vector<double> ticks(double most, int count);

}  // namespace resolution::charts
