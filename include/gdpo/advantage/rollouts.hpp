#pragma once
// rollouts: several rows of one rollout, such as its turns or its steps, counted as one row.
#include <array>
#include <gdpo/advantage/reward_batch.hpp>
#include <gdpo/group/by_id.hpp>
#include <gdpo/group/by_offsets.hpp>
#include <gdpo/stats/reduce.hpp>
#include <memory>
#include <utility>
#include <vector>

namespace gdpo {

/// Which of its rows stands for a rollout of several rows. Rows with `valid` 0 are passed over,
/// unless the rollout has no others; then it is unused as well.
enum class Take {
  Last,   ///< The last row, with its rewards and all its columns (ms-swift, verl, Trinity).
  First,  ///< The first row, likewise.
  /// The sum of each reward over the rows that have it (NaN: missing), and of every column. A
  /// reward that no row has is missing. inf - inf is inf, so that it shows as an infinite reward.
  Sum,
  /// The mean of each reward, over the rows that have it; baseline and weights likewise. Tokens and
  /// penalty are sums, because the rollout has the tokens of all its rows.
  Mean,
  /// The largest of each reward; baseline and weights likewise. Tokens and penalty are sums.
  Max
};
/// The enumerators of Take with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Take) {
  using E = Enumerator<Take>;
  return std::array{E{"last", Take::Last}, E{"first", Take::First}, E{"sum", Take::Sum},
                    E{"mean", Take::Mean}, E{"max", Take::Max}};
}

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Adds up the numbers that the rows of one rollout have.
class TakenNumber {
 public:
  /// Takes the number of one more row. A NaN makes all of them NaN.
  void add(double x) {
    sum_.add(x);
    if (count_ == 0 || math::is_nan(x) || x > largest_) largest_ = x;
    ++count_;
  }
  /// Whether nothing was added.
  bool empty() const { return count_ == 0; }
  /// The sum, mean or maximum of what was added; NaN if that is nothing.
  double value(Take take) const {
    if (count_ == 0) return math::nan();
    if (take == Take::Max) return largest_;
    // The rounding errors of an infinite sum are NaN.
    const double sum = math::not_finite(sum_.sum) ? sum_.sum : sum_.value();
    return take == Take::Mean ? sum / static_cast<double>(count_) : sum;
  }

 private:
  TwoSum<double> sum_;
  double largest_ = 0;
  index_t count_ = 0;
};

}  // namespace detail

/// The rollouts of a batch whose rows are parts of rollouts; made by `rollouts`.
/// batch() has one row a rollout, for advantages_into() and everything else that takes a
/// RewardBatch. spread() gives each row what its rollout got. Rollouts are numbered in the order of
/// their first rows.
///
/// It owns its memory and is moved, not copied. One that is new or has been moved from has no
/// rollouts and no batch(), until assign().
template <class T, class Groups>
class Rollouts {
  static_assert(std::is_same_v<Groups, ById> || std::is_same_v<Groups, GroupsOf> ||
                    detail::is_by_offsets_v<Groups>,
                "the groups of the batch are groups_of, by_offsets or by_id");

 public:
  /// What the rewards of a rollout are stored as.
  using Scalar = result_t<T>;
  /// Groups of rollouts: by id where those of the rows are, else by offsets. They have no expected
  /// size.
  using RolloutGroups = std::conditional_t<std::is_same_v<Groups, ById>, ById, ByOffsets<index_t>>;
  /// The batch of one row a rollout.
  using Batch = RewardBatch<Scalar, RolloutGroups>;

  /// No rollouts.
  Rollouts() = default;
  /// The rollouts of a batch, as assign() makes them.
  template <class Id>
  Rollouts(const RewardBatch<T, Groups>& batch, View<Id, 1> ids, Take take = Take::Last) {
    assign(batch, ids, take);
  }

  /// Takes the rollouts of another batch, in the memory of the ones before. A batch of the same
  /// shape allocates nothing. The batch is read here and not referred to later.
  ///
  /// Errors: invalid_input for a batch that does not fit, for another number of ids than rows, and
  /// for a rollout with rows in two groups. Then it has no rollouts.
  template <class Id>
  void assign(const RewardBatch<T, Groups>& batch, View<Id, 1> ids, Take take = Take::Last) {
    assign_as("gdpo::rollouts", "ids", batch, ids, take);
  }

  /// The batch of one row a rollout, with the columns that the batch of rows has. It refers to the
  /// memory of this object, which must outlive it. Columns that should say something else, such as
  /// tokens, may be bound to a copy.
  const Batch& batch() const& {
    if (!state_) {
      contract::fail("gdpo::Rollouts::batch", "object", "one that has no batch",
                     "one to which assign() has given a batch");
    }
    return state_->batch;
  }
  Batch batch() && = delete;  ///< Deleted: it would refer to freed memory.

  /// The number of rollouts.
  index_t count() const { return state_ ? state_->batch.rewards.extent[0] : 0; }
  /// The number of rows.
  index_t rows() const { return state_ ? static_cast<index_t>(state_->rollout_of.size()) : 0; }
  /// The id of each rollout, (rollouts), as a signed integer of 64 bits: keys for
  /// dist::gather_rows.
  View<const std::int64_t, 1> ids() const& {
    return state_ ? gdpo::view(std::as_const(state_->ids).data(), count())
                  : View<const std::int64_t, 1>{};
  }
  View<const std::int64_t, 1> ids() && = delete;  ///< Deleted, as above.
  /// The number of rows of each rollout, (rollouts), unused ones included.
  View<const index_t, 1> lengths() const& {
    return state_ ? gdpo::view(std::as_const(state_->lengths).data(), count())
                  : View<const index_t, 1>{};
  }
  View<const index_t, 1> lengths() && = delete;  ///< Deleted, as above.
  /// The rollout of each row, (rows), from 0 on.
  View<const index_t, 1> rollout_of() const& {
    return state_ ? gdpo::view(std::as_const(state_->rollout_of)) : View<const index_t, 1>{};
  }
  View<const index_t, 1> rollout_of() && = delete;  ///< Deleted, as above.

  /// Gives each row the entry of its rollout: entry i of the result, (rows), is
  /// values(rollout_of(i)). Rows with `valid` 0 get it too.
  template <class R>
  std::vector<R> spread(const std::vector<R>& values) const {
    std::vector<R> out(static_cast<std::size_t>(rows()));
    spread_into(gdpo::view(values), gdpo::view(out));
    return out;
  }
  /// The same into `out`, (rows). Allocates nothing.
  template <class A, class R>
  void spread_into(View<A, 1> values, View<R, 1> out) const {
    constexpr const char* function = "gdpo::Rollouts::spread_into";
    contract::check_array(function, "values", values);
    if (values.extent[0] != count()) {
      contract::fail(function, "values", contract::text(values.extent[0]) + " entries",
                     "one for each of the " + contract::text(count()) + " rollouts");
    }
    contract::check_written(function, "out", out);
    contract::check_entries(function, "out", out.extent[0], rows());
    for (index_t i = 0; i < rows(); ++i)
      out(i) = static_cast<R>(values(state_->rollout_of[index(i)]));
  }

 private:
  template <class TT, class G>
  friend class GigpoWorkspace;

  /// assign() for a function that calls the ids `name`.
  template <class Id>
  void assign_as(const char* function, const char* name, const RewardBatch<T, Groups>& batch,
                 View<Id, 1> ids, Take take) {
    static_assert(std::is_integral_v<std::remove_const_t<Id>>, "ids of rollouts are integers");
    if (!state_) state_ = std::make_unique<State>();
    State& s = *state_;
    s.batch.rewards = {}, s.rollout_of.clear();
    contract::check_array(function, "rewards", batch.rewards);
    const index_t rows = batch.rewards.extent[0];
    batch.groups.check(function, rows);
    detail::check_column_sizes(function, batch);
    contract::check_array(function, name, ids);
    contract::check_entries(function, name, ids.extent[0], rows);
    s.rows.assign(View<const std::remove_const_t<Id>, 1>(ids));
    find_groups(function, name, batch, ids);
    number(rows);
    take_rows(batch, take);
  }
  struct State {
    ById rows{View<const std::int64_t, 1>{}, 0};  // the rows of each rollout, by the user's ids
    std::vector<index_t> group_of, rollout_of;    // (N) of each row
    std::vector<Scalar> rewards;                  // (M, C)
    std::array<std::vector<double>, detail::reward_column_count> columns;  // (M)
    std::vector<std::int64_t> ids, group_ids;  // (M); group_ids: of ById
    std::vector<index_t> lengths;              // (M)
    std::vector<index_t> offsets;              // of ByOffsets
    Batch batch{{}, no_groups()};
  };
  static std::size_t index(index_t i) { return static_cast<std::size_t>(i); }
  static RolloutGroups no_groups() {
    if constexpr (std::is_same_v<Groups, ById>) {
      return ById(View<const std::int64_t, 1>{}, 0);
    } else {
      return {};
    }
  }

  /// Fills in the group of each row, which must be that of all rows of its rollout.
  template <class Id>
  void find_groups(const char* function, const char* name, const RewardBatch<T, Groups>& batch,
                   View<Id, 1> ids) {
    State& s = *state_;
    const index_t rows = batch.rewards.extent[0];
    s.group_of.resize(index(rows));
    for (index_t g = 0; g < batch.groups.count(rows); ++g) {
      for (index_t k = 0; k < batch.groups.length(g); ++k)
        s.group_of[index(batch.groups.row(g, k))] = g;
    }
    for (index_t j = 0; j < s.rows.count(rows); ++j) {
      for (index_t k = 1; k < s.rows.length(j); ++k) {
        const index_t first = s.rows.row(j, 0), row = s.rows.row(j, k);
        if (s.group_of[index(row)] == s.group_of[index(first)]) continue;
        contract::fail(function, name,
                       "rows " + contract::text(first) + " and " + contract::text(row) +
                           " of rollout " + std::to_string(ids(row)) + " in groups " +
                           contract::text(s.group_of[index(first)]) + " and " +
                           contract::text(s.group_of[index(row)]),
                       "the rows of a rollout in one group");
      }
    }
  }
  /// Numbers the rollouts in the order of their first rows.
  void number(index_t rows) {
    State& s = *state_;
    s.rollout_of.resize(index(rows));
    for (index_t j = 0; j < s.rows.count(rows); ++j) {
      for (index_t k = 0; k < s.rows.length(j); ++k)
        s.rollout_of[index(s.rows.row(j, k))] = s.rows.row(j, 0);
    }
    index_t count = 0;
    for (index_t i = 0; i < rows; ++i) {
      index_t& rollout = s.rollout_of[index(i)];
      rollout = rollout == i ? count++ : s.rollout_of[index(rollout)];
    }
  }
  /// Makes the batch of one row a rollout.
  void take_rows(const RewardBatch<T, Groups>& batch, Take take) {
    State& s = *state_;
    const index_t rows = batch.rewards.extent[0], rewards = batch.rewards.extent[1],
                  count = s.rows.count(rows);
    s.rewards.resize(index(count * rewards));
    for (std::size_t c = 0; c < s.columns.size(); ++c) {
      if (batch.*detail::reward_columns<RewardBatch<T, Groups>>[c].of_batch)
        s.columns[c].resize(index(count));
    }
    s.ids.resize(index(count)), s.group_ids.resize(index(count));
    s.lengths.resize(index(count));
    s.offsets.assign(index(batch.groups.count(rows)) + 1, 0);
    for (index_t j = 0; j < count; ++j) {
      take_rollout(batch, take, j);
      const index_t row = s.rows.row(j, 0), group = s.group_of[index(row)];
      const std::size_t m = index(s.rollout_of[index(row)]);
      s.ids[m] = s.rows.ids()(j), s.lengths[m] = s.rows.length(j);
      ++s.offsets[index(group) + 1];
      if constexpr (std::is_same_v<Groups, ById>) s.group_ids[m] = batch.groups.ids()(group);
    }
    if constexpr (std::is_same_v<Groups, ById>) {
      s.batch.groups.assign(gdpo::view(std::as_const(s.group_ids)));
    } else {
      for (std::size_t g = 1; g < s.offsets.size(); ++g) s.offsets[g] += s.offsets[g - 1];
      s.batch.groups = {gdpo::view(std::as_const(s.offsets)), 0};
    }
    s.batch.rewards = gdpo::view(std::as_const(s.rewards).data(), count, rewards);
    for (std::size_t c = 0; c < s.columns.size(); ++c) {
      const bool is_there = bool(batch.*detail::reward_columns<RewardBatch<T, Groups>>[c].of_batch);
      Column& column = s.batch.*detail::reward_columns<Batch>[c].of_batch;
      column = is_there ? Column(gdpo::view(std::as_const(s.columns[c]))) : Column();
    }
  }
  /// Writes the rewards and the columns of rollout j of `rows`.
  void take_rollout(const RewardBatch<T, Groups>& batch, Take take, index_t j) {
    State& s = *state_;
    const index_t members = s.rows.length(j), rewards = batch.rewards.extent[1],
                  m = s.rollout_of[index(s.rows.row(j, 0))];
    const auto is_used = [&](index_t row) { return !batch.valid || batch.valid(row) != 0; };
    index_t first = -1, last = -1;  // of the rows that count
    for (index_t k = 0; k < members; ++k) {
      const index_t row = s.rows.row(j, k);
      if (!is_used(row)) continue;
      if (first < 0) first = row;
      last = row;
    }
    const bool all = first < 0;  // there is no used one
    if (all) first = s.rows.row(j, 0), last = s.rows.row(j, members - 1);
    const index_t row = take == Take::First ? first : last;
    const bool one = take == Take::First || take == Take::Last;
    const auto taken = [&](Take rule, bool skips_nan, const auto& value) {
      detail::TakenNumber number;
      for (index_t k = 0; k < members; ++k) {
        const index_t i = s.rows.row(j, k);
        if (!all && !is_used(i)) continue;
        const double x = value(i);
        if (!skips_nan || !math::is_nan(x)) number.add(x);
      }
      const double value_of_all = number.value(rule);
      // A reward of inf - inf is not a missing one.
      const bool both = skips_nan && !number.empty() && math::is_nan(value_of_all);
      return both ? math::infinity : value_of_all;
    };
    for (index_t c = 0; c < rewards; ++c) {
      Scalar& reward = s.rewards[index(m * rewards + c)];
      reward =
          static_cast<Scalar>(one ? load(batch.rewards(row, c)) : taken(take, true, [&](index_t i) {
            return static_cast<double>(load(batch.rewards(i, c)));
          }));
    }
    for (std::size_t c = 0; c < s.columns.size(); ++c) {
      const auto& entry = detail::reward_columns<RewardBatch<T, Groups>>[c];
      const Column& column = batch.*entry.of_batch;
      if (!column) continue;
      s.columns[c][index(m)] = one || entry.of_batch == &RewardBatch<T, Groups>::valid
                                   ? column(row)
                                   : taken(entry.adds_up ? Take::Sum : take, false,
                                           [&](index_t i) { return column(i); });
    }
  }

  std::unique_ptr<State> state_;
};

/// The rollouts of a batch whose rows are parts of rollouts: turns, steps of an agent, requests
/// that were split. A rollout then counts once in every statistic, and its rows share its
/// advantage.
///
///     const auto episodes = gdpo::rollouts(batch, gdpo::view(episode_ids));
///     const std::vector<float> a = episodes.spread(
///         gdpo::advantages(gdpo::simd, episodes.batch(), estimator, &report));
///
/// batch: rewards (N, C), groups, and optional columns. ids: (N) integers; rows with the same id
/// are one rollout, wherever they are, and of one group. take: which row counts, or what is made of
/// all of them. The rewards of a rollout are float for float and narrower types, else double; sums
/// are compensated and rounded once, so that rows in another order give the same ones.
///
/// With one row a rollout, batch() has the numbers of the batch, and advantages have their bits.
/// This runs on the host, in O(N (C + log N)). For a device, copy batch() there.
///
/// In a loop, keep the object and call assign(). Errors: see Rollouts::assign.
template <class T, class Groups, class Id>
Rollouts<T, Groups> rollouts(const RewardBatch<T, Groups>& batch, View<Id, 1> ids,
                             Take take = Take::Last) {
  return {batch, ids, take};
}

GDPO_END_NAMESPACE
