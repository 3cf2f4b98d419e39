#pragma once
// RewardBatch: the rewards of a batch, its groups, and optional columns.
#include <gdpo/advantage/stat.hpp>
#include <gdpo/group/groups_of.hpp>
#include <gdpo/storage/column.hpp>
#include <iterator>

GDPO_BEGIN_NAMESPACE

/// The rewards of a batch: a view of (N, C), made from one of any strides, or from one of (N),
/// which is a single reward.
template <class T>
struct RewardView : View<const T, 2> {
  /// No rewards.
  constexpr RewardView() = default;
  /// Rewards (N, C).
  template <class U, std::enable_if_t<std::is_same_v<const U, const T>, int> = 0>
  GDPO_INLINE constexpr RewardView(const View<U, 2>& v) : RewardView(v.data, v.extent, v.stride) {}
  /// One reward (N): the only column.
  template <class U, std::enable_if_t<std::is_same_v<const U, const T>, int> = 0>
  GDPO_INLINE constexpr RewardView(const View<U, 1>& v)
      : RewardView(v.data, {v.extent[0], 1}, {v.stride[0], 1}) {}
  /// What View has: the first element, extents, strides.
  GDPO_INLINE constexpr RewardView(const T* first, const index_t (&extents)[2],
                                   const index_t (&strides)[2])
      : View<const T, 2>{first, {extents[0], extents[1]}, {strides[0], strides[1]}} {}
};

/// The rewards of one step and the groups of its rows: N rows (completions), C rewards.
///
///     gdpo::RewardBatch batch{gdpo::view(rewards, N, C), gdpo::groups_of(8)};
///     batch.tokens = gdpo::view(lengths);
///     gdpo::RewardBatch one{gdpo::view(scores), gdpo::groups_of(8)};  // a vector of one reward
///
/// It holds views only: the arrays must outlive the call. The scalars of `rewards` and of the
/// columns are any that `Storage` knows (float, double, 16-bit floats, integers). A NaN in
/// `rewards` is a missing reward (`GroupAdvantage::missing`). A NaN in `penalty` is not: it is as
/// an infinite reward.
template <class T, class Groups>
struct RewardBatch {
  static_assert(detail::is_grouping_v<Groups>,
                "who belongs together is said by gdpo::groups_of(8), gdpo::by_offsets(offsets) or "
                "gdpo::by_id(ids)");
  RewardView<T> rewards;  ///< (N, C) rewards, with any strides; (N) is one reward. Required.
  Groups groups;          ///< Which rows form a group: groups_of, by_offsets or by_id. Required.
  /// (N) completion lengths in tokens, finite and at least 0; required by RenormOver::Tokens and
  /// baseline::LengthWeighted.
  Column tokens{};
  /// (N) flags; absent: every row is used. A row with 0 is unused: it enters no statistic, but
  /// gets the advantage that the statistics of its group and of the batch give its rewards, or 0
  /// under UnusedRow::Exclude (a placeholder). Every other flag, also NaN, means used.
  Column valid{};
  /// (N) the caller's baseline of each row, in units of the reward; required by baseline::External.
  /// Policies see it as MemberArgs::external and own_external.
  Column baseline{};
  Column penalty{};  ///< (N) KL of the row in nats, summed over tokens; required by penalty::Row.
  Column weights{};  ///< (N) row weights, for policies that read MemberArgs::weights.
};
/// Deduces the scalar of the rewards and the grouping.
template <class T, class Groups>
RewardBatch(View<T, 2>, Groups, Column = {}, Column = {}, Column = {}, Column = {}, Column = {})
    -> RewardBatch<std::remove_const_t<T>, Groups>;
/// The same for a single reward, (N).
template <class T, class Groups>
RewardBatch(View<T, 1>, Groups, Column = {}, Column = {}, Column = {}, Column = {}, Column = {})
    -> RewardBatch<std::remove_const_t<T>, Groups>;

namespace detail {

template <class X>
constexpr bool is_reward_batch_v = false;
template <class T, class Groups>
constexpr bool is_reward_batch_v<RewardBatch<T, Groups>> = true;

// These pointers to members are named types because nvcc hands a bare declarator of one to g++ in
// parentheses, and g++ warns about those.
template <class Batch>
using BatchColumn = Column Batch::*;
using MemberValues = View<const double, 1> UsedMembers::*;

/// What the engine must know about an optional column.
template <class Batch>
struct RewardColumn {
  BatchColumn<Batch> of_batch;  ///< The column of the batch.
  const char* name;             ///< Its name in messages.
  MemberValues of_members;      ///< Its place in what policies see; null: they do not see it.
  bool counts;                  ///< Its numbers must be finite and at least 0.
  /// What a message asks for if a setting reads the column and it is absent; null: none does.
  const char* needed;
  bool adds_up;  ///< A rollout of several rows has the sum of theirs (advantage/rollouts.hpp).
};

/// The list of the optional columns. Checks, readers, kernels and constraints all go through it.
template <class Batch>
constexpr RewardColumn<Batch> reward_columns[] = {
    {&Batch::tokens, "batch.tokens", &UsedMembers::tokens, true,
     "token counts, because renorm.over is Tokens", true},
    {&Batch::valid, "batch.valid", nullptr, false, nullptr, false},
    {&Batch::baseline, "batch.baseline", &UsedMembers::external, false,
     "the caller's baseline of each row, because a policy reads it", false},
    {&Batch::penalty, "batch.penalty", nullptr, false,
     "the KL of each row, because penalty.coef is not 0", true},
    {&Batch::weights, "batch.weights", &UsedMembers::weights, false, nullptr, false}};
constexpr std::size_t reward_column_count =
    std::size(reward_columns<RewardBatch<double, GroupsOf>>);

/// The entry of a column that is in the list.
template <class Batch>
constexpr const RewardColumn<Batch>& listed(Column Batch::*column) {
  std::size_t j = 0;
  while (reward_columns<Batch>[j].of_batch != column) ++j;
  return reward_columns<Batch>[j];
}

/// Throws unless each column that is there has one entry for each row.
template <class T, class Groups>
void check_column_sizes(const char* function, const RewardBatch<T, Groups>& batch) {
  for (const auto& entry : reward_columns<RewardBatch<T, Groups>>) {
    const Column& column = batch.*entry.of_batch;
    if (column)
      contract::check_entries(function, entry.name, column.size(), batch.rewards.extent[0]);
  }
}

/// Copies all optional columns from one batch to another.
template <class Source, class Target>
void copy_columns(const Source& source, Target& target) {
  for (std::size_t j = 0; j < reward_column_count; ++j) {
    target.*reward_columns<Target>[j].of_batch = source.*reward_columns<Source>[j].of_batch;
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
