#pragma once

#include <string>

#include "comparison.hpp"
#include "counting.hpp"

namespace resolution {

/// The numbers of a comparison. Keys: file, rewards, groups, completions, K (group size -> groups), per_reward, the
/// shares of groups without variance, distinct_reward_vectors, bn (moments of the batch step), methods (estimator ->
/// metrics) and, with lengths, bn_sequence_vs_length_weighted. A number that does not exist (a correlation without a
/// group) is null.
std::string to_json(const Comparison& comparison);

/// {"by_group_size": {"n": 2, "grpo": {"2": 2, ...}, ...}, "by_rewards": {"G": 4, "grpo": {"2": 7, ...}, ...}}
std::string to_json(const Counting& counting);

}  // namespace resolution
