#pragma once

#include <string>
#include <vector>

#include "comparison.hpp"

namespace resolution {

/// What reports show over the batches: a title, and lines with a value per batch.
struct BatchSeries {
  struct Line {
    std::string name;
    std::vector<double> values;                ///< NaN where a batch has none
    const EstimatorInfo* estimator = nullptr;  ///< whose color the line has, if any
  };
  std::string title;
  std::string caption;
  bool is_share;  ///< values are shares of 1
  std::vector<Line> lines;
};

/// A value of the series in words.
std::string value_text(const BatchSeries& series, double value);

/// Mean and std of each reward, groups without variance, tie rates of the two estimators that stand
/// for their kind, and the length, in this order.
std::vector<BatchSeries> batch_series(const Comparison& comparison);

/// How many rows --valid left out, as a sentence that begins with a blank; empty: none.
std::string left_out_text(const Rollouts& rollouts);

/// What the batches are: "267 batches (run, step)" or "one batch: the whole log".
std::string batches_text(const Rollouts& rollouts);

}  // namespace resolution
