#pragma once
#include <gdpo/advantage/stat.hpp>
#include <gdpo/storage/column.hpp>
#include <vector>

GDPO_BEGIN_NAMESPACE

/// One step's rewards and who belongs together. N = rows (completions), C = rewards.
///   gdpo::RewardBatch batch{gdpo::view(rewards, N, C), gdpo::groups_of(8)};
///   batch.tokens = gdpo::view(lengths);
/// Views only: everything must outlive the call. NaN in `rewards` is a missing reward (GroupAdvantage::missing);
/// NaN in `penalty` is not: it makes the advantages of its group NaN, as an infinite reward does.
template <class T, class Groups>
struct RewardBatch {
  View<const T, 2> rewards;  ///< (N, C), any strides
  Groups groups;             ///< groups_of, by_offsets, by_id
  Column tokens{};           ///< (N) completion lengths in tokens; renorm::TokenWeightedBatch needs it
  Column valid{};     ///< (N) 0: the row is unused: in no statistic, but it gets the advantage its group's moments give
  Column baseline{};  ///< (N) an external baseline, for policies that read MemberArgs::external
  Column penalty{};   ///< (N) summed KL of the row in nats; penalty::Row needs it
  Column weights{};   ///< (N) row weights, for policies that read MemberArgs::weights
};
template <class T, class Groups>
RewardBatch(View<T, 2>, Groups, Column = {}, Column = {}, Column = {}, Column = {}, Column = {})
    -> RewardBatch<std::remove_const_t<T>, Groups>;

namespace detail {

/// Scratch of one worker, which has one group at hand, or a few side by side.
struct GroupScratch {
  std::vector<double> column, scores, magnitudes, terms;  // (K), (K), (K) sums of |terms|, (K, 8)
  std::vector<unsigned char> used, present;               // (K) the row is used; it has a reward
  std::vector<double> values, tokens, weights, external;  // (K) used members, as a policy sees them
  std::vector<double> lanes;                              // of LaneGroups
  bool raw_singleton = false, every_row_counts = true;    // of the groups so far
};

}  // namespace detail

/// Scratch memory of advantages_into, kept between calls: after a first call with the same shapes and executor, nothing is
/// allocated. One Workspace serves one call at a time.
class Workspace {
 public:
  /// The combined values of the last call before renormalisation, (N), in double. 0 at excluded rows. Of a constrained estimator:
  /// of the last call inside.
  View<const double, 1> sums() const { return gdpo::view(row_sums); }

  // Scratch of detail::Evaluation; not part of the interface.
  std::vector<double> row_sums, row_weights;  // (N) combined values; weights in the renormalisation
  std::vector<unsigned char> row_state;       // (N) detail::RowState
  std::vector<index_t> channels;              // rewards whose weight is not 0 ...
  std::vector<double> channel_weights;        // ... their weights ...
  std::vector<double> lane_weights;           // ... and these for every lane of rows side by side
  std::vector<detail::GroupScratch> workers;  // one a worker
  std::vector<double> raw, centred;           // (N) one column of the batch
  std::vector<BatchStat> batch_stats;         // one a column
  std::vector<double> partial_sums;           // of the blocks of the batch

  // Scratch of detail::ConstrainedCall.
  std::vector<double> mixed, channel, violations, magnitudes;  // (N)
  std::vector<unsigned char> states;                           // (N)
  std::vector<double> terms;                                   // (N, columns of a constrained sum)
};

GDPO_END_NAMESPACE
