#pragma once
#include <gdpo/core/errors.hpp>

namespace gdpo {

/// A reward that is NaN: the reward function abstained.
enum class MissingEntry {
  Skip,       ///< left out of its reward's statistics, adds 0 to the row (TRL, ms-swift)
  Zero,       ///< is reward 0, before everything else (NVlabs' TRL fork)
  Propagate,  ///< flows through the formulas and shows
  Reject      ///< invalid_input, which names the row and the reward
};

/// A row without any reward; it exists only under MissingEntry::Skip.
enum class MissingRow {
  Exclude,  ///< advantage 0, in no statistic and no renormalisation (TRL)
  Keep      ///< its sum is 0 and counts everywhere (ms-swift)
};

struct Missing {
  MissingEntry entry = MissingEntry::Skip;
  MissingRow row = MissingRow::Exclude;
};

/// A group with one used member, for every baseline but None.
enum class Singleton {
  Zero,   ///< 0: nothing to compare with (TRL, ms-swift, open-instruct)
  Raw,    ///< the value itself, times the scale with variance 1 (verl: R / (1 + eps))
  Error,  ///< invalid_input, which names the group
  Nan     ///< what a sample std of one gives in torch; only for presets whose name says so
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// KL inside the reward: x_i -= coef k_i, before the baseline. k_i is RewardBatch::penalty (nats, summed over the row
/// by the caller), coef in reward units per nat; 0: off, and the column is not read. With NormalizeThenSum the penalty
/// belongs to one reward, which `reward` names; -1 (with SumThenNormalize): the sum. ms-swift kl_in_reward.
namespace penalty {
struct Row {
  double coef = 0;
  index_t reward = -1;
};
}  // namespace penalty

GDPO_END_NAMESPACE
