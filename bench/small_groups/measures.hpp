#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "bandits.hpp"
#include "estimators.hpp"

namespace small_groups {

/// What is measured of an estimator. g is the estimate of one batch, E g its expectation over
/// batches of the same prompts, T a target (bandits.hpp), cos(x, y) = <x, y> / (|x| |y|), and 0
/// where x is 0. bench/small_groups/README.md has the targets, tables.md the formulas.
enum Measure : std::size_t {
  Cosine,              ///< E cos(g, T) for the objective
  CosineStandardized,  ///< the same for the standardized objective
  CosineEach,          ///< the same where each reward is standardized
  MeanCosine,        ///< cos(E g, T) for the objective: what is left of 1 is bias of the direction
  MeanStandardized,  ///< the same for the standardized objective
  MeanEach,          ///< the same where each reward is standardized
  Weighing,          ///< the factor of MeanCosine that is due to the prompts' weights
  Within,            ///< the factor of MeanCosine that is due to directions inside the prompts
  Slope,             ///< <E g, T> / |T|^2 for the objective: 1 where the estimate is unbiased
  RelativeVariance,  ///< E |g - E g|^2 / |E g|^2
  PromptCosine,      ///< the mean over prompts of E cos(g, T), each prompt by itself
  EffectiveShare,    ///< (sum A^2)^2 / sum A^4, as a share of the completions
  Peak,              ///< the largest |A| over the root mean square of A
  TopShare,          ///< share of sum A^2 in the hundredth of the groups with most, at least one
  Dead,              ///< share of groups in which all advantages are 0
  Tied,              ///< share of pairs with different rewards in a group that have the same A
  measures
};

/// Name and heading of a measure.
struct MeasureInfo {
  const char* name;     ///< in JSON
  const char* heading;  ///< in tables
};
extern const std::array<MeasureInfo, measures> measure_info;

/// The numbers of one estimator, by Measure. NaN where a number is not defined.
using Numbers = std::array<double, measures>;

/// What one set of prompts gave.
struct Measured {
  std::vector<Numbers> estimators;
  double flat = 0;  ///< share of groups whose completions all have the same rewards
};

/// Draws `batches` batches of K completions a prompt, from the streams (seed, parts..., 0, 1, ...)
/// of `random_of`, and measures the estimators on all of them.
Measured measure(const Bandits& bandits, const std::vector<Estimator>& estimators, std::size_t k,
                 std::size_t batches, const std::function<Random(std::size_t batch)>& random_of);

/// Advantages that differ by no more count as the same, as in gdpo-resolution.
constexpr double tie_tolerance = 1e-9;

}  // namespace small_groups
