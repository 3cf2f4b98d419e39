#include "batch_step.hpp"

#include <cmath>

#include "statistics.hpp"

namespace resolution {
namespace {

int sign(double x) { return (x > 0 ? 1 : 0) - (x < 0 ? 1 : 0); }

BatchStep weighted_moments(const std::vector<double>& values, const std::vector<double>& weights) {
  double total = 0;
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    total += weights[i];
    sum += weights[i] * values[i];
  }
  BatchStep moments;
  moments.mean = sum / total;
  double squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    squares += weights[i] * (values[i] - moments.mean) * (values[i] - moments.mean);
  }
  moments.std = std::sqrt(squares / (total - 1));
  return moments;
}

}  // namespace

BatchStep batch_step(const std::vector<double>& sums) {
  return {mean(sums), standard_deviation(sums, 1)};
}

LengthWeighting length_weighting(const Settings& settings, const Rollouts& rollouts,
                                 const std::vector<double>& sums,
                                 const std::vector<double>& plain) {
  const std::vector<double> over_tokens =
      length_weighted_gdpo(settings, rollouts, LengthWeighting::eps);
  LengthWeighting result;
  result.plain = batch_step(sums);
  result.weighted = weighted_moments(sums, rollouts.lengths);
  std::size_t zeros = 0;
  std::size_t changed = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (std::abs(sums[i]) < no_variation) {
      ++zeros;
    } else if (sign(plain[i]) != sign(over_tokens[i])) {
      ++changed;
    }
  }
  const std::size_t others = sums.size() - zeros;
  result.zero_share = static_cast<double>(zeros) / static_cast<double>(sums.size());
  result.value_given_to_zero =
      -result.weighted.mean /
      std::sqrt(result.weighted.std * result.weighted.std + LengthWeighting::eps);
  result.sign_changed_share =
      others == 0 ? 0 : static_cast<double>(changed) / static_cast<double>(others);
  return result;
}

}  // namespace resolution
