#include "batch_step.hpp"

#include <cmath>

#include "statistics.hpp"

namespace resolution {
namespace {

int sign(double x) { return (x > 0 ? 1 : 0) - (x < 0 ? 1 : 0); }

BatchStep weighted_moments(const std::vector<double>& values, const std::vector<double>& weights,
                           const std::vector<char>& rewarded, Range rows) {
  double total = 0;
  double sum = 0;
  for (std::size_t i = rows.begin; i < rows.end; ++i) {
    if (rewarded[i] == 0) continue;
    total += weights[i];
    sum += weights[i] * values[i];
  }
  BatchStep moments;
  moments.mean = sum / total;
  double squares = 0;
  for (std::size_t i = rows.begin; i < rows.end; ++i) {
    if (rewarded[i] == 0) continue;
    squares += weights[i] * (values[i] - moments.mean) * (values[i] - moments.mean);
  }
  moments.std = std::sqrt(squares / (total - 1));
  return moments;
}

}  // namespace

std::vector<BatchStep> batch_steps(const Rollouts& rollouts, const std::vector<double>& sums,
                                   const std::vector<char>& rewarded) {
  std::vector<BatchStep> steps;
  std::vector<double> batch;
  for (std::size_t b = 0; b < rollouts.batches(); ++b) {
    const Range rows = rollouts.rows_of_batch(b);
    batch.clear();
    for (std::size_t i = rows.begin; i < rows.end; ++i) {
      if (rewarded[i] != 0) batch.push_back(sums[i]);
    }
    steps.push_back({mean(batch), standard_deviation(batch, 1)});
  }
  return steps;
}

LengthWeighting length_weighting(const Rollouts& rollouts, const std::vector<double>& sums,
                                 const std::vector<double>& plain,
                                 const std::vector<double>& over_tokens,
                                 const std::vector<char>& rewarded) {
  LengthWeighting result;
  for (std::size_t b = 0; b < rollouts.batches(); ++b) {
    LengthWeighting::Batch batch;
    batch.weighted = weighted_moments(sums, rollouts.lengths, rewarded, rollouts.rows_of_batch(b));
    batch.value_given_to_zero =
        -batch.weighted.mean /
        std::sqrt(batch.weighted.std * batch.weighted.std + LengthWeighting::eps);
    result.batches.push_back(batch);
  }
  std::size_t counted = 0;
  std::size_t zeros = 0;
  std::size_t changed = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (rewarded[i] == 0) continue;
    ++counted;
    if (std::abs(sums[i]) < no_variation) {
      ++zeros;
    } else if (sign(plain[i]) != sign(over_tokens[i])) {
      ++changed;
    }
  }
  const auto share = [](std::size_t part, std::size_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  result.zero_share = share(zeros, counted);
  result.sign_changed_share = share(changed, counted - zeros);
  return result;
}

}  // namespace resolution
