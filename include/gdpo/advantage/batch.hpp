#pragma once
#include <gdpo/advantage/stat.hpp>
#include <gdpo/core/storage.hpp>
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

/// Scratch memory of advantages_into, kept between calls: after a first call with the same shapes, nothing is
/// allocated. One Workspace serves one call at a time.
class Workspace {
 public:
  /// The combined values of the last call before renormalisation, (N), in double. 0 at excluded rows.
  View<const double, 1> sums() const { return view(row_sums); }

  // Scratch of detail::Evaluation; not part of the interface.
  std::vector<double> row_sums, row_weights;              // (N) combined values; weights in the renormalisation
  std::vector<unsigned char> row_state;                   // (N) detail::RowState
  std::vector<index_t> channels;                          // rewards whose weight is not 0 ...
  std::vector<double> channel_weights;                    // ... and their weights
  std::vector<double> column, terms, scores, magnitudes;  // one group: (K), (K, 8) and (K); sums of |terms|
  std::vector<unsigned char> used, present;               // (K) the row is used; it has a reward
  std::vector<double> values, tokens, weights, external;  // (K) used members, as a policy sees them
  std::vector<double> dense_block, dense_scores;          // some groups side by side
  std::vector<double> raw, centred;                       // (N) one column of the batch
  std::vector<BatchStat> batch_stats;                     // one a column
};

GDPO_END_NAMESPACE
