#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace resolution {

/// The mean. All statistics of this file describe data in the reports; advantages come from the
/// library. They are computed in two passes, and NaN where a sample is too small.
inline double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return values.empty() ? std::numeric_limits<double>::quiet_NaN()
                        : sum / static_cast<double>(values.size());
}

/// Standard deviation with the divisor n - ddof.
inline double standard_deviation(const std::vector<double>& values, std::size_t ddof) {
  if (values.size() <= ddof) return std::numeric_limits<double>::quiet_NaN();
  const double center = mean(values);
  double squares = 0;
  for (const double v : values) squares += (v - center) * (v - center);
  return std::sqrt(squares / static_cast<double>(values.size() - ddof));
}

/// The Pearson correlation of two samples of the same length, both of which vary.
inline double correlation(const std::vector<double>& x, const std::vector<double>& y) {
  const double mean_x = mean(x);
  const double mean_y = mean(y);
  double xx = 0;
  double yy = 0;
  double xy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mean_x) * (x[i] - mean_x);
    yy += (y[i] - mean_y) * (y[i] - mean_y);
    xy += (x[i] - mean_x) * (y[i] - mean_y);
  }
  return std::clamp(xy / std::sqrt(xx * yy), -1.0, 1.0);
}

/// A sample with a smaller standard deviation (divisor n) counts as constant.
constexpr double no_variation = 1e-9;
/// Whether a sample varies. An empty one does not.
inline bool varies(const std::vector<double>& values) {
  return standard_deviation(values, 0) >= no_variation;
}

/// `value` rounded to a multiple of 1 / per_unit, halves to even. The result is never -0.
inline double rounded(double value, double per_unit) {
  return std::rint(value * per_unit) / per_unit + 0.0;
}

}  // namespace resolution
