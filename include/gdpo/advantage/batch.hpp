#pragma once
#include <gdpo/advantage/stat.hpp>
#include <gdpo/group/groups_of.hpp>
#include <gdpo/storage/column.hpp>
#include <iterator>

GDPO_BEGIN_NAMESPACE

/// One step's rewards and who belongs together. N = rows (completions), C = rewards.
///   gdpo::RewardBatch batch{gdpo::view(rewards, N, C), gdpo::groups_of(8)};
///   batch.tokens = gdpo::view(lengths);
/// Views only: everything must outlive the call. NaN in `rewards` is a missing reward (GroupAdvantage::missing);
/// NaN in `penalty` is not: it makes the advantages of its group NaN, as an infinite reward does.
template <class T, class Groups>
struct RewardBatch {
  static_assert(detail::is_grouping_v<Groups>,
                "who belongs together is said by gdpo::groups_of(8), gdpo::by_offsets(offsets) or "
                "gdpo::by_id(ids)");
  View<const T, 2> rewards;  ///< (N, C), any strides
  Groups groups;             ///< groups_of, by_offsets, by_id
  Column tokens{};  ///< (N) completion lengths in tokens; renorm::TokenWeightedBatch needs it
  Column
      valid{};  ///< (N) 0: the row is unused: in no statistic, but it gets the advantage its group's moments give
  Column baseline{};  ///< (N) an external baseline, for policies that read MemberArgs::external
  Column penalty{};   ///< (N) summed KL of the row in nats; penalty::Row needs it
  Column weights{};   ///< (N) row weights, for policies that read MemberArgs::weights
};
template <class T, class Groups>
RewardBatch(View<T, 2>, Groups, Column = {}, Column = {}, Column = {}, Column = {}, Column = {})
    -> RewardBatch<std::remove_const_t<T>, Groups>;

namespace detail {

template <class X>
constexpr bool is_reward_batch_v = false;
template <class T, class Groups>
constexpr bool is_reward_batch_v<RewardBatch<T, Groups>> = true;

/// Pointers to members have names here, because nvcc writes a declarator in parentheses, of which g++ warns.
template <class Batch>
using BatchColumn = Column Batch::*;
using MemberValues = View<const double, 1> UsedMembers::*;

/// What is to be known of an optional column.
template <class Batch>
struct RewardColumn {
  BatchColumn<Batch> of_batch;
  const char* name;         ///< in messages
  MemberValues of_members;  ///< as policies see it; null: they do not
  bool counts;              ///< its numbers are finite and at least 0
  const char*
      needed;  ///< what is said where a setting reads it and it is missing; null: it may always be missing
};

/// The optional columns, once: checks, readers, kernels and constraints go through this list.
template <class Batch>
constexpr RewardColumn<Batch> reward_columns[] = {
    {&Batch::tokens, "batch.tokens", &UsedMembers::tokens, true,
     "token counts, because renorm is TokenWeightedBatch"},
    {&Batch::valid, "batch.valid", nullptr, false, nullptr},
    {&Batch::baseline, "batch.baseline", &UsedMembers::external, false, nullptr},
    {&Batch::penalty, "batch.penalty", nullptr, false,
     "the KL of each row, because penalty.coef is not 0"},
    {&Batch::weights, "batch.weights", &UsedMembers::weights, false, nullptr}};
constexpr std::size_t reward_column_count =
    std::size(reward_columns<RewardBatch<double, GroupsOf>>);

/// The entry of a column, which the list has.
template <class Batch>
constexpr const RewardColumn<Batch>& listed(Column Batch::*column) {
  std::size_t j = 0;
  while (reward_columns<Batch>[j].of_batch != column) ++j;
  return reward_columns<Batch>[j];
}

template <class From, class To>
void copy_columns(const From& from, To& to) {
  for (std::size_t j = 0; j < reward_column_count; ++j) {
    to.*reward_columns<To>[j].of_batch = from.*reward_columns<From>[j].of_batch;
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
