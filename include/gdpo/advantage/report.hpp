#pragma once
#include <gdpo/core/view.hpp>
#include <vector>

namespace gdpo {

/// One reward over the batch: the values that are there (gates applied; missing rewards and unused rows left out, also where
/// a missing reward counts as 0).
struct ChannelReport {
  index_t n = 0;
  double mean = 0, std = 0;  ///< std with ddof 1; NaN where n does not allow it
  double min = 0, max = 0;
  double zero_std_groups =
      0;  ///< fraction of the groups with at least one value whose values are all equal
};

/// How the fraction of rows without a spread is counted.
enum class ZeroStd {
  Groups,  ///< rows in groups whose reward sums have std <= 1e-8 (a group of one counts)
  Batch,  ///< 1 if all reward sums of the batch have std <= 1e-8, else 0 (TRL, scale_rewards="batch")
  Sum     ///< 1 if all combined values before renorm have, else 0 (TRL, normalize_then_sum)
};

/// What an advantages() call saw. Statistics of the reward sum are of sum_c w_c r_ic (minus the penalty where it is on
/// the sum) over rows that are neither unused nor excluded.
struct GroupReport {
  // Written out to be inlined: a function of plain data may stand in several objects, compiled for several processors.
  GDPO_DATA_HOST_INLINE GroupReport() = default;
  GDPO_DATA_HOST_INLINE GroupReport(const GroupReport&) = default;
  GDPO_DATA_HOST_INLINE GroupReport(GroupReport&&) = default;
  GDPO_DATA_HOST_INLINE GroupReport& operator=(const GroupReport&) = default;
  GDPO_DATA_HOST_INLINE GroupReport& operator=(GroupReport&&) = default;
  GDPO_DATA_HOST_INLINE ~GroupReport() = default;

  std::vector<ChannelReport> channels;  ///< (C)
  index_t rows = 0, groups = 0;         ///< groups: those of the grouping, empty ones included
  index_t smallest_group = 0, largest_group = 0;  ///< in rows
  index_t singletons = 0;                         ///< groups with one used row
  bool one_group = false;        ///< one group only: a batch renormalisation sees nothing but it
  index_t excluded_rewards = 0;  ///< missing (NaN) entries of rewards with a weight other than 0
  index_t infinite_rewards =
      0;  ///< +-inf: NaN for their group, and through a batch renormalisation for all
  index_t excluded_rows = 0;              ///< rows without any reward, under MissingRow::Exclude
  index_t unused_rows = 0;                ///< rows with valid == 0
  std::vector<unsigned char> degenerate;  ///< (groups) all combined values before renorm equal
  std::vector<unsigned char>
      channel_degenerate;  ///< (groups, C) row-major: all values its statistics used equal
  std::vector<double>
      group_std;  ///< (groups) std, ddof 1, of the reward sum; one row: 0; NaN: fewer than two used
  double reward_mean = 0;                ///< of the reward sum; NaN without rows
  double reward_std = 0;                 ///< of the reward sum over all rows, ddof 1 (TRL)
  double reward_std_mean_of_groups = 0;  ///< mean of the known group_std (ms-swift)
  double combined_std = 0;               ///< of the combined values before renorm, ddof 1
  double zero_std_group_rows = 0;        ///< what ZeroStd::Groups asks for

  GDPO_DATA_HOST_INLINE double zero_std_rows(ZeroStd by) const {
    if (by == ZeroStd::Groups) return zero_std_group_rows;
    return (by == ZeroStd::Batch ? reward_std : combined_std) <= 1e-8 ? 1.0 : 0.0;
  }
};

}  // namespace gdpo
