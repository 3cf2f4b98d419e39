#pragma once
#include <gdpo/core/errors.hpp>

namespace gdpo {

/// What a reward that is NaN means: its reward function abstained.
enum class MissingEntry {
  Skip,  ///< It is left out of its reward's statistics and adds 0 to its row (TRL, ms-swift).
  Zero,  ///< It counts as reward 0 in everything that follows the gates (NVlabs' TRL fork).
  /// It flows through the formulas as NaN (verl, open-instruct): a used row with NaN makes its
  /// whole group NaN, an unused row only itself. Exactly 0 stays 0: where a group has no spread to
  /// divide by (one used row under Singleton::Zero, equal rewards), the advantage of an unused row
  /// is 0 too, whatever its reward is.
  Propagate,
  Reject  ///< It throws invalid_input, which names the row and the reward.
};

/// What a row without any reward gets. Such rows exist only under MissingEntry::Skip.
enum class MissingRow {
  Exclude,  ///< Advantage 0; the row enters no statistic and no renormalisation (TRL).
  Keep      ///< Its weighted sum or combined value is 0 and counts like any other (ms-swift).
};

/// What happens to missing rewards; the default is TRL's.
struct Missing {
  MissingEntry entry = MissingEntry::Skip;  ///< A single reward.
  MissingRow row = MissingRow::Exclude;     ///< A row without any.
};

/// What a group with one used member gets, for every baseline except `None` and `External`, which
/// compare no member with others.
/// With NormalizeThenSum and MissingEntry::Skip, the members that have a reward are counted for
/// each reward by itself.
enum class Singleton {
  Zero,   ///< 0, as there is nothing to compare with (TRL, ms-swift, open-instruct).
  Raw,    ///< The value times the scale, for which its variance is 1 (verl: R / (1 + eps)).
  Error,  ///< It throws invalid_input, which names the group.
  Nan     ///< NaN, as torch's sample std of one number gives; for presets whose name says so.
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// Penalties inside the reward.
namespace penalty {
/// KL inside the reward of a row: x_i - coef k_i, before the baseline (ms-swift, kl_in_reward).
/// k_i is `RewardBatch::penalty`, in nats, which the caller sums over the row.
struct Row {
  double coef = 0;  ///< In units of the reward per nat, finite; 0: off, and the column is not read.
  /// What carries the penalty. With SumThenNormalize it must be -1, the weighted sum. With
  /// NormalizeThenSum it is the column of one reward, since each is standardised by itself.
  index_t reward = -1;
};
}  // namespace penalty

GDPO_END_NAMESPACE
