#pragma once
// Settings for rewards that are missing or infinite, gates, and the penalty of a row.
#include <gdpo/core/fields.hpp>

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
/// The enumerators of MissingEntry with their words.
GDPO_DATA_INLINE constexpr auto enumerators(MissingEntry) {
  using E = Enumerator<MissingEntry>;
  return std::array{E{"skip", MissingEntry::Skip}, E{"zero", MissingEntry::Zero},
                    E{"propagate", MissingEntry::Propagate}, E{"reject", MissingEntry::Reject}};
}

/// What a row gets whose rewards are all missing; rewards of weight 0 are not read. Such rows exist
/// only under MissingEntry::Skip.
enum class MissingRow {
  Exclude,  ///< Advantage 0; the row enters no statistic and no renormalization.
  /// The same, where the rewards of weight 0 are missing too; a row that has one of those is kept.
  /// In TRL a completion has a reward if any reward function gives one, whatever its weight.
  ExcludeUnscored,
  Keep  ///< Its weighted sum or combined value is 0 and counts like any other (ms-swift).
};
/// The enumerators of MissingRow with their words.
GDPO_DATA_INLINE constexpr auto enumerators(MissingRow) {
  using E = Enumerator<MissingRow>;
  return std::array{E{"exclude", MissingRow::Exclude},
                    E{"exclude_unscored", MissingRow::ExcludeUnscored},
                    E{"keep", MissingRow::Keep}};
}

/// What a reward that is infinite means.
enum class InfiniteEntry {
  /// It flows through the formulas: what is compared with it is NaN; where the mean of the group is
  /// subtracted (baseline::Mean, LeaveOneOut, ShiftedMean) and nothing scales the rest, the finite
  /// members get an infinity of the other sign (verl, ms-swift, Trinity-RFT). Under `reward_clip`
  /// it becomes a bound. Groups without a spread keep exactly 0.
  Propagate,
  Missing,  ///< It is a missing reward, as NaN is: MissingEntry says what that means.
  /// As Propagate; then a term that is NaN counts as 0, and an infinite combined value as the
  /// largest float of its sign. A sum of rewards that is inf - inf is a missing one. This is what
  /// torch.nan_to_num leaves in TRL, and in the gdpo of ms-swift.
  NanToNum,
  Reject  ///< It throws invalid_input, which names the row and the reward.
};
/// The enumerators of InfiniteEntry with their words.
GDPO_DATA_INLINE constexpr auto enumerators(InfiniteEntry) {
  using E = Enumerator<InfiniteEntry>;
  return std::array{E{"propagate", InfiniteEntry::Propagate}, E{"missing", InfiniteEntry::Missing},
                    E{"nan_to_num", InfiniteEntry::NanToNum}, E{"reject", InfiniteEntry::Reject}};
}

/// What a row gets that is not used (RewardBatch::valid is 0). It is in no statistic in any case.
enum class UnusedRow {
  /// The advantage that the statistics of the used rows give to its rewards; 0 where the rewards of
  /// the used rows are equal and get 0.
  Compare,
  Exclude  ///< Advantage 0: a placeholder, which counts in nothing.
};
/// The enumerators of UnusedRow with their words.
GDPO_DATA_INLINE constexpr auto enumerators(UnusedRow) {
  using E = Enumerator<UnusedRow>;
  return std::array{E{"compare", UnusedRow::Compare}, E{"exclude", UnusedRow::Exclude}};
}

/// What happens to rewards that are missing or infinite, and to rows that are not used.
struct Missing {
  MissingEntry entry = MissingEntry::Skip;            ///< A single reward.
  MissingRow row = MissingRow::Exclude;               ///< A row without any.
  InfiniteEntry infinite = InfiniteEntry::Propagate;  ///< A single reward that is infinite.
  UnusedRow unused = UnusedRow::Compare;              ///< A row that is not used.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("entry", s.entry, "a single reward that is missing");
    field("row", s.row, "a row without any reward");
    field("infinite", s.infinite, "a single reward that is infinite");
    field("unused", s.unused, "a row that is not used");
  }
};

/// What a group with one used member gets, for every baseline except `None`, `External` and
/// `BatchMean`, which compare no member with its group.
/// With NormalizeThenSum and MissingEntry::Skip, the members that have a reward are counted for
/// each reward by itself.
enum class Singleton {
  Zero,  ///< 0, as there is nothing to compare with (TRL, ms-swift, open-instruct).
  Raw,   ///< The value times the scale, for which its variance is 1 (verl: R / (1 + eps)).
  /// 0 as well; where it is the only used row of its group, it enters no renormalization (TRL's
  /// RLOO).
  Exclude,
  Error,  ///< It throws invalid_input, which names the group.
  Nan     ///< NaN, as torch's sample std of one number gives; for presets whose name says so.
};
/// The enumerators of Singleton with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Singleton) {
  using E = Enumerator<Singleton>;
  return std::array{E{"zero", Singleton::Zero}, E{"raw", Singleton::Raw},
                    E{"exclude", Singleton::Exclude}, E{"error", Singleton::Error},
                    E{"nan", Singleton::Nan}};
}

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// Penalties inside the reward.
namespace penalty {
/// KL inside the reward of a row: x_i - coef k_i, before the baseline (ms-swift, kl_in_reward).
/// k_i is `RewardBatch::penalty`, in nats, which the caller sums over the row.
struct Row {
  double coef = 0;  ///< In units of the reward per nat, finite; 0: off, and the column is not read.
  /// What carries the penalty. With SumThenNormalize it must be -1, the weighted sum. With
  /// NormalizeThenSum it is one reward, since each is standardized by itself.
  index_t reward = -1;
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("coef", s.coef, finite(), "in units of the reward per nat; 0: off");
    field("reward", s.reward, at_least(-1).with_note("-1: the sum"), "what carries the penalty");
  }
};
}  // namespace penalty

GDPO_END_NAMESPACE
