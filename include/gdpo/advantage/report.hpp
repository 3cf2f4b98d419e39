#pragma once
#include <gdpo/core/view.hpp>
#include <vector>

namespace gdpo {

/// One reward over the batch.
/// Its statistics are those of the values that are there: gates are applied, penalties are not;
/// unused rows are left out, and so are missing rewards, even where they count as 0
/// (MissingEntry::Zero). Rewards of weight 0 are described too.
struct ChannelReport {
  index_t n = 0;    ///< Number of values.
  double mean = 0,  ///< Their mean; NaN where there is none.
      std = 0;      ///< Their standard deviation, ddof 1; NaN where n < 2.
  double min = 0,   ///< The smallest; NaN where there is none.
      max = 0;      ///< The largest; NaN where there is none.
  /// Among the groups that have a value, the fraction in which all values are equal; 0 without
  /// such groups. Here missing rewards that count as 0 are values, and penalties are subtracted.
  double zero_std_groups = 0;
};

/// How `GroupReport::zero_std_rows` counts the rows whose reward sums have no spread.
enum class ZeroStd {
  /// The fraction of rows in groups of one row or whose reward sums have std <= 1e-8.
  Groups,
  /// 1 if the reward sums of the whole batch have std <= 1e-8, else 0 (TRL,
  /// scale_rewards="batch").
  Batch,
  /// 1 if the combined values before renorm have std <= 1e-8, else 0 (TRL, normalize_then_sum).
  Sum
};

/// What a call of `advantages` saw: counts, degenerate groups and statistics of the rewards.
/// Statistics of the *reward sum* are those of sum_c w_c r_ic over the rows that are neither
/// unused nor excluded; where the penalty is on the sum it is subtracted, and gates are applied.
/// A report may be used again: each call overwrites every field.
struct GroupReport {
  // These members are written out so that they are inlined. The report is plain data outside the
  // inline namespace, so objects compiled for different processors would otherwise share them.
  /// An empty report.
  GDPO_DATA_HOST_INLINE GroupReport() = default;
  GDPO_DATA_HOST_INLINE GroupReport(const GroupReport&) = default;             ///< A copy.
  GDPO_DATA_HOST_INLINE GroupReport(GroupReport&&) = default;                  ///< A move.
  GDPO_DATA_HOST_INLINE GroupReport& operator=(const GroupReport&) = default;  ///< A copy.
  GDPO_DATA_HOST_INLINE GroupReport& operator=(GroupReport&&) = default;       ///< A move.
  GDPO_DATA_HOST_INLINE ~GroupReport() = default;

  std::vector<ChannelReport> channels;  ///< (C) each reward by itself.
  index_t rows = 0,                     ///< N.
      groups = 0;                       ///< Groups of the grouping, empty ones included.
  index_t smallest_group = 0,           ///< Rows of the smallest group, unused rows included.
      largest_group = 0;                ///< Rows of the largest group, unused rows included.
  index_t singletons = 0;  ///< Groups with exactly one row that is used and not excluded.
  bool one_group = false;  ///< There is one group only: a batch renormalisation sees nothing else.
  /// Missing (NaN) entries, after gates, of rewards with a weight other than 0 in used rows.
  index_t excluded_rewards = 0;
  /// Infinite entries of rewards with a weight other than 0 in used rows. They make the
  /// advantages of their group NaN, and through a batch renormalisation all advantages.
  index_t infinite_rewards = 0;
  index_t excluded_rows = 0;  ///< Used rows without any reward, under MissingRow::Exclude.
  index_t unused_rows = 0;    ///< Rows with valid == 0.
  /// (groups) 1: all combined values of the group before renorm are equal, or it has none. With a
  /// constrained estimator (gdpo/constraint.hpp) its advantages are compared instead.
  std::vector<unsigned char> degenerate;
  /// (groups, C) row-major; 1: all values of the reward that its statistics use in the group are
  /// equal, or there is none.
  std::vector<unsigned char> channel_degenerate;
  /// (groups) std, ddof 1, of the reward sum in the group. 0 for a group of one row; NaN for
  /// other groups with fewer than two rows that count.
  std::vector<double> group_std;
  double reward_mean = 0;  ///< Mean of the reward sum; NaN where no row counts.
  double reward_std = 0;   ///< Std of the reward sum over all rows, ddof 1; NaN below two (TRL).
  /// Mean of the entries of group_std that are not NaN (ms-swift); NaN where all are.
  double reward_std_mean_of_groups = 0;
  double combined_std = 0;         ///< Std of the combined values before renorm, ddof 1.
  double zero_std_group_rows = 0;  ///< The answer of zero_std_rows(ZeroStd::Groups).

  /// The fraction of rows without a spread, from 0 to 1, counted as `by` says.
  GDPO_DATA_HOST_INLINE double zero_std_rows(ZeroStd by) const {
    if (by == ZeroStd::Groups) return zero_std_group_rows;
    return (by == ZeroStd::Batch ? reward_std : combined_std) <= 1e-8 ? 1.0 : 0.0;
  }
};

}  // namespace gdpo
