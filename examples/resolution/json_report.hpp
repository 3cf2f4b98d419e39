#pragma once

#include <string>

#include "comparison.hpp"
#include "counting.hpp"

namespace resolution {

/// The numbers of a comparison. The keys are file, rewards, groups, completions, batches (their
/// number), batch_columns, K (group size -> number of groups), per_reward, the shares of groups
/// without variance, distinct_reward_vectors, methods (estimator -> metrics), per_batch (names and
/// curves: lists with an entry per batch) and, where the log has lengths,
/// bn_sequence_vs_length_weighted. Where the whole log is one batch, bn has the mean and std of the
/// batch step. A number that does not exist (a correlation where no group has one) is null.
std::string to_json(const Comparison& comparison);

/// The counts of the experiment:
///     {"by_group_size": {"n": 2, "grpo": {"2": 2, ...}, ...},
///      "by_rewards": {"G": 4, "grpo": {"2": 7, ...}, ...}}
std::string to_json(const Counting& counting);

}  // namespace resolution
