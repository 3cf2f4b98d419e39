// The value loss of PPO's critic by its definition, in long double and loops, without a line of the
// library.
#pragma once
#include <cmath>
#include <vector>

namespace naive_value {

using Number = long double;

/// Padded tokens (rows, width), row after row. An empty mask lets all in; empty weights are 1.
struct Data {
  int rows = 0, width = 0;
  std::vector<double> values, old_values, returns;
  std::vector<unsigned char> mask;
  std::vector<double> row_weights, group_tokens;

  std::size_t at(int row, int t) const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(width) +
           static_cast<std::size_t>(t);
  }
  bool valid(int row, int t) const { return mask.empty() || mask[at(row, t)] != 0; }
  int tokens(int row) const {
    int n = 0;
    for (int t = 0; t < width; ++t) n += valid(row, t);
    return n;
  }
};

enum class Aggregate { TokenMean, RowsTokenMean, NonEmptyRowsTokenMean, RowsTokenSum, TokenSum };

struct Settings {
  bool clips = false;
  double clip = 0;
  bool half = true;
  double delta = HUGE_VAL;  // from which distance on a square is its tangent
  Aggregate aggregate = Aggregate::TokenMean;
};

struct Counts {
  Number tokens = 0, rows = 0, non_empty_rows = 0;
};
inline Counts count(const Data& d) {
  Counts c;
  c.rows = d.rows;
  for (int i = 0; i < d.rows; ++i) {
    c.tokens += d.tokens(i);
    c.non_empty_rows += d.tokens(i) > 0;
  }
  return c;
}

/// Mean and sum of squared distances from it.
struct Spread {
  Number n = 0, mean = 0, m2 = 0, min = 0, max = 0;
};
inline Spread spread_of(const std::vector<Number>& x) {
  Spread s;
  s.n = static_cast<Number>(x.size());
  if (x.empty()) return s;
  s.min = s.max = x[0];
  for (const Number one : x) {
    s.mean += one / s.n;
    s.min = std::fmin(s.min, one), s.max = std::fmax(s.max, one);
  }
  for (const Number one : x) s.m2 += (one - s.mean) * (one - s.mean);
  return s;
}

struct Result {
  Number loss = 0;
  Number terms = 0;              ///< The sum of the absolute values of what the loss adds.
  std::vector<Number> gradient;  ///< (rows, width)
  /// The distance of |first square - second square| from 0 at each token: where it is small, a
  /// rounding decides the branch.
  std::vector<Number> distance;
  std::vector<Number> token_losses, values, errors;  ///< Of the valid tokens.
  Number clipped = 0;
  Spread returns, residuals;
};

inline Result loss(const Data& d, const Settings& s, const Counts& c) {
  Result r;
  r.gradient.assign(d.values.size(), 0), r.distance.assign(d.values.size(), 1);
  std::vector<Number> targets, residuals;
  const Number h = s.half ? 0.5L : 1.0L;
  for (int i = 0; i < d.rows; ++i) {
    const int n = d.tokens(i);
    if (n == 0) continue;
    Number w = 1;
    switch (s.aggregate) {
      case Aggregate::TokenMean:
        w = 1 / c.tokens;
        break;
      case Aggregate::RowsTokenMean:
        w = 1 / (c.rows * n);
        break;
      case Aggregate::NonEmptyRowsTokenMean:
        w = 1 / (c.non_empty_rows * n);
        break;
      case Aggregate::RowsTokenSum:
        w = 1 / c.rows;
        break;
      case Aggregate::TokenSum:
        break;
    }
    if (!d.row_weights.empty()) w *= d.row_weights[static_cast<std::size_t>(i)];
    for (int t = 0; t < d.width; ++t) {
      if (!d.valid(i, t)) continue;
      const std::size_t k = d.at(i, t);
      const Number v = d.values[k], target = d.returns[k];
      const auto square = [&](Number e) {
        return std::fabs(e) > s.delta ? s.delta * s.delta + 2 * s.delta * (std::fabs(e) - s.delta)
                                      : e * e;
      };
      Number of_token = square(v - target), slope = 2 * (v - target);
      if (std::fabs(v - target) > s.delta) slope = v > target ? 2 * s.delta : -2 * s.delta;
      if (s.clips) {
        const Number low = static_cast<Number>(d.old_values[k]) - s.clip,
                     high = static_cast<Number>(d.old_values[k]) + s.clip;
        const Number held = v < low ? low : v > high ? high : v;
        const Number second = square(held - target);
        r.distance[k] = held == v ? 1 : std::fabs(second - of_token);
        if (second > of_token) {
          of_token = second, slope = 0;
          r.clipped += 1;
        }
      }
      r.loss += w * h * of_token, r.terms += std::fabs(w * h * of_token);
      r.gradient[k] = w * h * slope;
      r.token_losses.push_back(h * of_token), r.values.push_back(v);
      r.errors.push_back(v - target);
      targets.push_back(target), residuals.push_back(target - v);
    }
  }
  r.returns = spread_of(targets), r.residuals = spread_of(residuals);
  return r;
}

}  // namespace naive_value
