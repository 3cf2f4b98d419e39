#pragma once
// The kernels here compute groups on a device up to the combined values. They do what
// advantage/engine/one_group.hpp does on the host, with the same formulas and the same sums. A team
// of threads computes a group: first each thread takes columns and computes their statistics, then
// each thread takes members and computes their terms.
//
// As on the host, a column is a reward or the weighted sum of all (sums_first). A *place* counts
// the members of all groups, group after group; groups.row(place) is its row in the batch.
#include <gdpo/advantage/reward_batch.hpp>
#include <gdpo/advantage/shared/check_rewards.hpp>
#include <gdpo/advantage/shared/group_rules.hpp>
#include <gdpo/advantage/shared/group_spreads.hpp>
#include <gdpo/cuda/advantage/groups.hpp>
#include <gdpo/cuda/advantage/reward_moments.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

using gdpo::detail::CombinedRange;
using gdpo::detail::RowState;
using gdpo::detail::Rule;

/// The rewards whose weight is not 0, with their weights. They are held by value, so that a kernel
/// argument can contain them. Without given weights, every reward has weight 1.
struct DeviceUsedRewards {
  index_t count = 0;
  bool all = true;  ///< no weights were given
  unsigned char reward[List<double>::capacity] = {};
  double weights[List<double>::capacity] = {};

  DeviceUsedRewards(const List<double>& given, index_t reward_count)
      : count(reward_count), all(given.empty()) {
    if (all) return;
    count = 0;
    for (index_t c = 0; c < reward_count; ++c) {
      if (given[c] == 0) continue;
      reward[count] = static_cast<unsigned char>(c);
      weights[count++] = given[c];
    }
  }
  GDPO_INLINE index_t size() const { return count; }
  GDPO_INLINE index_t operator()(index_t j) const { return all ? j : reward[j]; }
  GDPO_INLINE double weight(index_t j) const { return all ? 1.0 : weights[j]; }
};

/// Number of columns that are computed together, because the terms of 8 columns are added as one
/// tree.
constexpr int columns_at_once = 8;
/// Number of members whose values a thread loads before it uses the first of them.
constexpr int members_at_once = 8;

/// Eight numbers, aligned so that a thread reads them in accesses of up to 16 bytes.
template <class T>
struct alignas(8 * sizeof(T) < 16 ? 8 * sizeof(T) : 16) Eight {
  T value[columns_at_once];
};

using gdpo::detail::reward_column_count;

/// Scratch arrays of shape (columns, rows) for policies that read the members of a group. In each
/// column, the used members of a group that have a value stand without gaps from the group's first
/// place on.
struct MemberArrays {
  double* values = nullptr;   // their values
  double* scratch = nullptr;  // for policies with per_group_values, which overwrite it
  // The columns of the batch that policies see. Null: the batch does not have that column.
  double* columns[reward_column_count] = {};
  index_t* index = nullptr;  // at the place of a member: its number among those of its group
};

/// What the kernels of one call share: the batch, the settings of the estimator, and scratch
/// arrays.
template <class T, class Groups, class Baseline, class Scale, bool sums_first_>
struct DeviceCall {
  static constexpr bool sums_first = sums_first_;
  static constexpr bool once_a_group = gdpo::detail::once_a_group_v<Baseline, Scale>;
  static constexpr bool zero_sum = gdpo::detail::values_sum_to_zero_v<Baseline, Scale>;
  static constexpr bool in_lanes =
      gdpo::detail::per_group_v<Baseline> && gdpo::detail::takes_lanes_v<Baseline> &&
      gdpo::detail::per_group_v<Scale> && gdpo::detail::takes_lanes_v<Scale>;
  static constexpr bool consecutive = DeviceGroups<Groups>::consecutive;
  static constexpr bool base_needs_scratch = gdpo::detail::per_group_values_v<Baseline>;
  static constexpr bool scale_needs_scratch = gdpo::detail::per_group_values_v<Scale>;
  static constexpr bool needs_scratch = base_needs_scratch || scale_needs_scratch;
  template <class P>
  static constexpr bool reads_members =
      !gdpo::detail::per_group_v<P> && !gdpo::detail::own_value_v<P>;
  static constexpr bool has_members = reads_members<Baseline> || reads_members<Scale>;
  static constexpr bool reads_external =
      gdpo::detail::reads_external_v<Baseline> || gdpo::detail::reads_external_v<Scale>;
  using Order = typename Groups::Order;
  using Rules = gdpo::detail::RewardRules<T, DeviceColumn<double>, DeviceUsedRewards>;
  using Batch = RewardBatch<T, Groups>;

  Rules rules;
  DeviceGroups<Groups> groups;
  Baseline baseline;
  Scale scale;
  Singleton singleton;
  index_t rows, group_count, columns;
  bool plain;  // rules.plain(): rewards are used as they are stored
  // A row has eight rewards, used as they are stored and with weight 1, which can be read as one
  // Eight.
  bool in_vectors;
  DeviceColumn<double> valid, tokens, external;
  // The columns of the batch that policies can see among the members.
  DeviceColumn<double> member_columns[reward_column_count];

  // Scratch arrays.
  double* combined = nullptr;  // (rows) combined values
  // (rows) RowState; null: every row counts. Before the last block of columns: 1 if the row had a
  // reward so far.
  unsigned char* state = nullptr;
  // (places) sums of |terms| so far; null: there is only one block of columns
  double* magnitudes = nullptr;
  unsigned char* raw = nullptr;  // (groups) 1: has a raw singleton; null: nothing depends on it
  const BatchStat* batch_stats = nullptr;  // (columns) null: no policy reads the batch
  // (columns, rows) the values that the batch statistics are computed from. A value counts where
  // its state is 0. Null: no policy reads the batch.
  double* column_values = nullptr;
  unsigned char* column_states = nullptr;
  // (columns, groups) the sum of squares and the number of values of each group, which the spreads
  // inside the groups are computed from. Null: no scale reads the batch.
  double* group_squares = nullptr;
  index_t* group_sizes = nullptr;
  MemberArrays members;
  BatchStat no_batch{};

  template <class Given, class Estimator>
  DeviceCall(const char* function, const Given& batch, const Estimator& e)
      : rules(rewards_of(batch.rewards), column_of(function, batch, &Given::penalty),
              DeviceUsedRewards(e.weights, batch.rewards.extent[1]),
              gdpo::detail::reward_settings(e)),
        groups(batch.groups, batch.rewards.extent[0]),
        baseline(e.baseline),
        scale(e.scale),
        singleton(e.singleton),
        rows(batch.rewards.extent[0]),
        group_count(batch.groups.count(rows)),
        columns(sums_first ? 1 : rules.used_rewards.size()),
        plain(rules.plain()),
        in_vectors(plain && rules.used_rewards.all && is_in_vectors(rules.rewards)),
        valid(column_of(function, batch, &Given::valid)),
        tokens(column_of(function, batch, &Given::tokens)),
        external(column_of(function, batch, &Given::baseline)) {
    for (std::size_t j = 0; j < reward_column_count; ++j) {
      const auto& entry = gdpo::detail::reward_columns<Given>[j];
      if (entry.of_members) member_columns[j] = column_of(function, batch, entry.of_batch);
    }
  }

  template <class Given>
  static DeviceColumn<double> column_of(const char* function, const Given& batch,
                                        Column Given::*column) {
    return {function, gdpo::detail::listed(column).name, batch.*column};
  }
  static bool is_in_vectors(const View<const T, 2>& rewards) {
    const auto fits = [](std::uintptr_t bytes) { return bytes % alignof(Eight<T>) == 0; };
    return rewards.extent[1] == columns_at_once && rewards.stride[1] == 1 &&
           fits(reinterpret_cast<std::uintptr_t>(rewards.data)) &&
           fits(static_cast<std::uintptr_t>(rewards.stride[0]) * sizeof(T));
  }
  /// Returns the rewards as the plain type T that their elements have in memory (layout_t).
  template <class Rewards>
  static View<const T, 2> rewards_of(const Rewards& given) {
    View<const T, 2> rewards;
    rewards.data = reinterpret_cast<const T*>(given.data);
    for (int r = 0; r < 2; ++r)
      rewards.extent[r] = given.extent[r], rewards.stride[r] = given.stride[r];
    return rewards;
  }

  GDPO_INLINE bool used(index_t row) const { return !valid || valid(row) != 0; }
  /// Returns the stored reward of column c at a place, or with sums_first the weighted sum.
  GDPO_INLINE double stored(index_t place, index_t c) const {
    const index_t row = groups.row(place);
    if constexpr (sums_first) {
      return combined[row];
    } else {
      return load(rules.rewards(row, rules.used_rewards(c)));
    }
  }
  /// Returns reward j of a row after gates, penalty and the rule for missing rewards.
  GDPO_DEVICE double reward(index_t row, index_t j) const {
    const index_t c = rules.used_rewards(j);
    const double stored = load(rules.rewards(row, c));
    return plain ? stored : rules.adjusted(rules.gated(stored, row, c), row, c);
  }
  /// Writes the rewards first .. first + n - 1 of a row to x, then 0 up to eight. Rewards that are
  /// read as they are stored are all loaded before the first of them is used.
  GDPO_DEVICE void rewards_of_row(index_t row, index_t first, index_t n, double* x) const {
    if (in_vectors) {
      const Eight<T> stored = *reinterpret_cast<const Eight<T>*>(&rules.rewards(row, 0));
      for (int j = 0; j < columns_at_once; ++j) x[j] = load(stored.value[j]);
    } else if (plain) {
      for (int j = 0; j < columns_at_once; ++j)
        x[j] = j < n ? load(rules.rewards(row, rules.used_rewards(first + j))) : 0.0;
    } else {
      for (int j = 0; j < columns_at_once; ++j) x[j] = 0;
      GDPO_ROLLED for (int j = 0; j < n; ++j) {
        const double value = reward(row, first + j);
        // x[j] = value, with a j known only at run time, would need an address, and registers have
        // none.
        for (int i = 0; i < columns_at_once; ++i) x[i] = i == j ? value : x[i];
      }
    }
  }
  GDPO_DEVICE double weighted_sum(index_t row, double& magnitude) const {
    return rules.weighted_sum(
        row, [&](index_t first, index_t n, double* x) { rewards_of_row(row, first, n, x); },
        magnitude);
  }
  GDPO_INLINE bool missing(double x) const { return rules.skips() && math::is_nan(x); }
  GDPO_INLINE double column_weight(index_t c) const {
    return sums_first ? 1.0 : rules.used_rewards.weight(c);
  }

  /// Returns what the policies see of column c of the group that begins at place `begin`, before a
  /// member is filled in.
  GDPO_DEVICE MemberArgs args(const GroupStat& stat, index_t c, index_t begin) const {
    MemberArgs args{{stat, batch_stats ? batch_stats[c] : no_batch}};
    args.value = stat.mean;
    if constexpr (has_members) {
      args.values = members_of(members.values, stat, c, begin);
      add_columns(args, c, begin, std::make_index_sequence<reward_column_count>{});
    }
    return args;
  }
  /// Returns a view of the numbers in an array of MemberArrays, for column c of the group that
  /// begins at place `begin`.
  GDPO_INLINE View<const double, 1> members_of(const double* numbers, const GroupStat& stat,
                                               index_t c, index_t begin) const {
    View<const double, 1> v;
    v.data = numbers + c * rows + begin;
    v.extent[0] = stat.n;
    v.stride[0] = 1;
    return v;
  }
  template <std::size_t... J>
  GDPO_INLINE void add_columns(MemberArgs& args, index_t c, index_t begin,
                               std::index_sequence<J...>) const {
    (add_column<J>(args, c, begin), ...);
  }
  template <std::size_t J>
  GDPO_INLINE void add_column(MemberArgs& args, index_t c, index_t begin) const {
    constexpr gdpo::detail::RewardColumn<Batch> entry = gdpo::detail::reward_columns<Batch>[J];
    if constexpr (entry.of_members != nullptr) {
      if (members.columns[J])
        args.*entry.of_members = members_of(members.columns[J], args.group, c, begin);
    }
  }
  /// Returns scratch memory for a policy with per_group_values, or null if there is no such policy.
  GDPO_INLINE double* scratch_of(index_t c, index_t begin) const {
    return needs_scratch ? members.scratch + c * rows + begin : nullptr;
  }
};

/// What a team keeps of a column of its group. base and factor are the results of policies that are
/// called once a group; factor is already multiplied by the weight of the column. stat is kept for
/// policies that are called for each member.
template <bool once_a_group, bool needs_scratch>
struct ColumnOfGroup {
  Split<double> base;
  double factor;
};
template <>
struct ColumnOfGroup<false, true> {
  Split<double> base;
  double factor;
  GroupStat stat;
};
template <>
struct ColumnOfGroup<false, false> {
  GroupStat stat;
};
/// The columns of a team that are computed together. The padding shifts the columns of the next
/// team, so that two teams do not read from the same bank of the shared memory at once.
template <class Column>
struct ColumnsOfGroup {
  Column column[columns_at_once];
  double padding;
};
/// The rules of the columns of a ColumnsOfGroup. The bit `unclean` says that some value of the
/// column may be missing, unused or not finite; the terms of the other columns need no checks.
struct alignas(8) RulesOfGroup {
  static constexpr unsigned char unclean = 0x80;
  unsigned char byte[columns_at_once];
  GDPO_INLINE Rule rule(index_t j) const { return static_cast<Rule>(byte[j] & ~unclean); }
  /// Whether no column is unclean: one test for all eight bytes.
  GDPO_INLINE bool clean() const {
    std::uint64_t all;
    memcpy(&all, byte, sizeof all);
    return (all & 0x8080808080808080u) == 0;
  }
};

/// Loops over the values of one column of a group. If the values are used as they are stored, and
/// the group has at most members_at_once members, they are loaded once and stay in registers for
/// further loops.
template <class Call>
class ColumnValues {
 public:
  GDPO_INLINE ColumnValues(const Call& device_call, index_t first, index_t last, index_t c)
      : call(device_call), begin(first), end(last), column(c) {}

  /// Calls f(place, x) for every used member that has a value x. `again` says that an earlier loop
  /// has loaded the values. Where members are written for policies, f is too large to be copied for
  /// each register, so nothing is loaded ahead.
  template <class F>
  GDPO_DEVICE void each(bool again, const F& f) {
    if (!Call::has_members && !call.valid && (Call::sums_first || call.plain)) {
      each_in_flight(again, [&](index_t p, double x) {
        if (!call.missing(x)) f(p, x);
      });
    } else {
      GDPO_ROLLED for (index_t p = begin; p < end; ++p) {
        const index_t row = call.groups.row(p);
        if (!call.used(row)) continue;
        const double x = Call::sums_first ? call.combined[row] : call.reward(row, column);
        if (!call.missing(x)) f(p, x);
      }
    }
  }

  /// Computes the statistics, without the range, of a group of two or more members whose values are
  /// all used and finite. They have the bits of lane_stat (advantage/shared/group_stats.hpp).
  /// Returns false for any other group, and if the sum is not finite; stat is then of no use.
  GDPO_DEVICE bool finite_stat(GroupStat& stat) {
    if (call.valid || !call.plain || end - begin < 2) return false;
    using Sum = typename Call::Order::template Sum<double>;
    Sum sum{};
    const double one = call.stored(begin, column);
    std::uint64_t differences = 0;
    each_in_flight(false, [&](index_t, double x) {
      differences |= math::bits_of(x) ^ math::bits_of(one);
      sum.add(x);
    });
    const double total = sum.value();
    if (math::not_finite(total)) return false;
    stat.n = end - begin;
    stat.weight = static_cast<double>(stat.n);
    stat.degenerate = differences == 0;
    const double reciprocal = 1.0 / stat.weight;
    const double center = stat.degenerate ? one : math::mul(total, reciprocal);
    Sum rest{}, square{};
    each_in_flight(true, [&](index_t, double x) {
      const double d = x - center;
      rest.add(d);
      square.add(math::mul(d, d));
    });
    gdpo::detail::finish_moments(rest.value(), square.value(), center, reciprocal, stat.degenerate,
                                 stat);
    return true;
  }

 private:
  /// Calls f(place, x) for every member with its stored value x, which is loaded with those of
  /// further members before it is used. `again` is as in each().
  template <class F>
  GDPO_INLINE void each_in_flight(bool again, const F& f) {
    const bool few = end - begin <= members_at_once;
    for (index_t first = begin; first < end; first += members_at_once) {
      if (end - first >= members_at_once) {
        if (!again || !few) load_some(first, members_at_once);
        for (int i = 0; i < members_at_once; ++i) f(first + i, loaded[i]);
      } else {
        const int n = static_cast<int>(end - first);
        if (!again || !few) load_some(first, n);
        for (int i = 0; i < members_at_once; ++i) {
          if (i < n) f(first + i, loaded[i]);
        }
      }
    }
  }
  GDPO_INLINE void load_some(index_t first, int n) {
    if constexpr (Call::consecutive && !Call::sums_first) {
      const auto* reward = &call.rules.rewards(first, call.rules.used_rewards(column));
      const index_t step = call.rules.rewards.stride[0];
      for (int i = 0; i < members_at_once; ++i, reward += step)
        loaded[i] = i < n ? load(*reward) : 0.0;
    } else {
      for (int i = 0; i < members_at_once; ++i)
        loaded[i] = i < n ? call.stored(first + i, column) : 0.0;
    }
  }

  const Call& call;
  index_t begin, end, column;
  double loaded[members_at_once];
};

/// The groups first .. last - 1, which a block computes. Of their rows it writes only first_row ..
/// last_row - 1.
struct BlockOfGroups {
  index_t first, last, first_row, last_row;
};

/// A team writes the combined values to the scratch.
struct ScratchOutput {};
/// A team computes the centered values of every column instead, and writes them to the scratch for
/// the batch statistics, with the sum of squares of the group.
struct ColumnsOutput {};
/// A team writes the combined values to the caller's array: without a second normalization they are
/// the advantages.
template <class R>
struct CallerOutput {
  View<R, 1> out;
};
template <class Output>
constexpr bool is_caller_output = false;
template <class R>
constexpr bool is_caller_output<CallerOutput<R>> = true;

/// What the teams of a block do with groups. Kernels below share it.
template <class Call, class Output>
struct TeamOfGroup {
  static constexpr bool centered = std::is_same_v<Output, ColumnsOutput>;
  static constexpr bool once_a_group = Call::once_a_group, sums_first = Call::sums_first;
  /// Whether the baseline, and whether the scale, is called once for each column of a group rather
  /// than once for each member.
  static constexpr bool base_once = once_a_group || Call::base_needs_scratch;
  static constexpr bool factor_once = once_a_group || Call::scale_needs_scratch;
  using Column = ColumnOfGroup<once_a_group, Call::needs_scratch>;
  using Columns = ColumnsOfGroup<Column>;
  using Order = typename Call::Order;

  const Call& call;
  int shift, threads;  // a team has 1 << shift threads, the block has `threads`
  Output output;
  int size = 1 << shift;
  Columns* columns = nullptr;       // (teams)
  RulesOfGroup* rules = nullptr;    // (teams)
  CombinedRange* ranges = nullptr;  // (threads)
  unsigned char* raw = nullptr;     // (teams)
  // In a block that also adds its rows (CombineWindow), combined values and states are in these
  // arrays (window_rows) in shared memory, from row window_row of the batch on. Else they are null.
  double* window = nullptr;
  unsigned char* window_state = nullptr;
  index_t window_row = 0;

  template <bool in_window>
  static std::size_t shared_bytes(int threads, int shift) {
    return static_cast<std::size_t>(in_window ? window_bytes : 0) +
           sizeof(CombinedRange) * static_cast<std::size_t>(threads) +
           (sizeof(Columns) + sizeof(RulesOfGroup) + 1) *
               static_cast<std::size_t>(threads >> shift);
  }
  static constexpr index_t window_bytes = window_rows * static_cast<index_t>(sizeof(double) + 1);

  GDPO_INLINE double& combined(index_t row) const {
    return window ? window[row - window_row] : call.combined[row];
  }
  GDPO_INLINE void set_state(index_t row, RowState state) const {
    if (!call.state) return;
    (window ? window_state[row - window_row] : call.state[row]) = static_cast<unsigned char>(state);
  }
  /// Notes that a used row is the only one of its group, unless it is excluded.
  GDPO_INLINE void set_lone(index_t row) const {
    unsigned char& state = window ? window_state[row - window_row] : call.state[row];
    if (state == static_cast<unsigned char>(RowState::Counted))
      state = static_cast<unsigned char>(RowState::Lone);
  }
  GDPO_INLINE bool has_reward(index_t row) const { return !call.state || call.state[row] != 0; }

  /// Computes the groups. Each team of the block takes one group at a time.
  template <class Block>
  GDPO_DEVICE void run(Block& block, const BlockOfGroups& groups) const {
    const index_t teams = threads >> shift;
    for (index_t first_group = groups.first; first_group < groups.last; first_group += teams) {
      const auto run_thread = [&](int thread, const auto& f) {
        const index_t team = thread >> shift, g = first_group + team;
        if (g < groups.last)
          f(static_cast<int>(team), (thread & (size - 1)), g, call.groups.begin(g),
            call.groups.end(g));
      };
      if constexpr (sums_first) {
        block.each([&](int thread) {
          run_thread(thread, [&](int, int lane, index_t, index_t begin, index_t end) {
            double most = 0;
            for (index_t p = begin + lane; p < end; p += size) {
              const index_t row = call.groups.row(p);
              double magnitude;
              call.combined[row] = call.weighted_sum(row, magnitude);
              if (call.used(row)) most = (math::max)(most, magnitude);
            }
            ranges[thread].magnitude = most;
          });
        });
      }
      for (index_t first = 0; first < call.columns || first == 0; first += columns_at_once) {
        const index_t n = within(call.columns - first, 0, columns_at_once);
        block.each([&](int thread) {
          run_thread(thread, [&](int team, int lane, index_t g, index_t begin, index_t end) {
            for (index_t j = lane; j < columns_at_once; j += size) {
              Column& column = columns[team].column[j];
              rules[team].byte[j] =
                  j < n ? column_of(g, begin, end, first + j, ranges + team * size, column)
                        : no_column(column);
            }
          });
        });
        block.each([&](int thread) {
          run_thread(thread, [&](int team, int lane, index_t, index_t begin, index_t end) {
            if (lane == 0) {
              bool any = first > 0 && raw[team] != 0;
              for (index_t j = 0; call.raw && j < n; ++j)
                any = any || rules[team].rule(j) == Rule::Raw;
              raw[team] = any;
            }
            const bool complete = first + columns_at_once >= call.columns;
            CombinedRange range;
            for (index_t p = begin + lane; p < end; p += size) {
              member(p, begin, first, n, complete, columns[team].column, rules[team], groups,
                     range);
            }
            if (complete) ranges[thread] = range;
          });
        });
      }
      if constexpr (!centered) {
        block.each([&](int thread) {
          run_thread(thread, [&](int team, int lane, index_t g, index_t begin, index_t end) {
            if (call.raw && lane == 0) call.raw[g] = raw[team];
            CombinedRange range;
            bool equal = Call::zero_sum && raw[team] == 0;
            const bool may_be_lone = call.singleton == Singleton::Exclude;
            for (int i = 0; (equal || may_be_lone) && i < size; ++i)
              range.add(ranges[team * size + i]);
            equal = equal && range.equal(sums_first, call.columns);
            const bool lone = range.is_lone(call.baseline, call.singleton);
            if (!equal && !lone && !is_caller_output<Output>) return;
            for (index_t p = begin + lane; p < end; p += size) {
              const index_t row = call.groups.row(p);
              const bool is_zero = (equal || lone) && call.used(row);
              if (lone && is_zero && row >= groups.first_row && row < groups.last_row)
                set_lone(row);
              if constexpr (is_caller_output<Output>) {
                using R = std::decay_t<decltype(output.out(row))>;
                output.out(row) = is_zero ? R(0) : static_cast<R>(call.combined[row]);
              } else {
                if (is_zero && row >= groups.first_row && row < groups.last_row) combined(row) = 0;
              }
            }
          });
        });
      }
    }
  }

  /// Computes column c of group g at places begin .. end - 1. Returns its rule with the bit
  /// `unclean`, as RulesOfGroup keeps them. team_ranges: (size), the magnitudes that the threads of
  /// the team have computed, which sums_first needs.
  GDPO_DEVICE unsigned char column_of([[maybe_unused]] index_t g, index_t begin, index_t end,
                                      index_t c, const CombinedRange* team_ranges,
                                      Column& column) const {
    ColumnValues<Call> values(call, begin, end, c);
    GroupStat stat;
    bool clean = false;
    if constexpr (once_a_group && Call::in_lanes && !sums_first) clean = values.finite_stat(stat);
    if (!clean) stat = stat_of(values, begin, c, team_ranges);
    if constexpr (centered) {
      call.group_squares[c * call.group_count + g] = gdpo::detail::squares_of(stat);
      call.group_sizes[c * call.group_count + g] = stat.n;
    }
    const Rule rule =
        gdpo::detail::rule_of<std::decay_t<decltype(call.baseline)>>(stat, call.singleton);
    [[maybe_unused]] const MemberArgs args = call.args(stat, c, begin);
    if constexpr (base_once) {
      column.base = gdpo::detail::base_of(call.baseline, rule, args, call.scratch_of(c, begin));
    }
    if constexpr (factor_once && !centered) {
      const double factor =
          gdpo::detail::factor_of(call.scale, rule, args, 0.0, call.scratch_of(c, begin));
      column.factor = math::mul(call.column_weight(c), factor);
    }
    // term_of selects 0 where the factor is 0. The terms of clean columns are computed without this
    // select. The base is therefore set to 0 here: a finite value times the factor is then 0,
    // whatever base the policy gave.
    if constexpr (once_a_group && !centered) {
      if (clean && math::is_zero(column.factor)) column.base = {0.0, 0.0};
      // A multiplier of the batch may be NaN. Terms that are checked are 0 then.
      if (call.rules.replaces_nan() && math::is_nan(column.factor)) clean = false;
    }
    if constexpr (!once_a_group) column.stat = stat;
    return static_cast<unsigned char>(static_cast<unsigned char>(rule) |
                                      (clean ? 0 : RulesOfGroup::unclean));
  }
  GDPO_INLINE unsigned char no_column(Column& column) const {
    if constexpr (once_a_group) {
      column.base = {0.0, 0.0};
      column.factor = 0;
    }
    return 0;
  }
  GDPO_DEVICE GroupStat stat_of(ColumnValues<Call>& values, index_t begin, index_t c,
                                const CombinedRange* team_ranges) const {
    gdpo::detail::ValuesSum<Order> sum;
    values.each(false, [&](index_t p, double x) {
      if constexpr (Call::has_members) write_member(begin, c, p, x, sum.n);
      sum.add(x);
    });
    gdpo::detail::SquaresSum<Order> squares(sum);
    if (!sum.unknown) values.each(true, [&](index_t, double x) { squares.add(x); });
    GroupStat stat = squares.stat(sum);
    if constexpr (!Call::in_lanes) {
      gdpo::detail::OrderStatistics order(stat);
      values.each(true, [&](index_t, double x) { order.add(x); });
      order.write(stat);
    }
    if constexpr (sums_first) {
      double magnitude = 0;
      for (int i = 0; i < size; ++i) magnitude = (math::max)(magnitude, team_ranges[i].magnitude);
      gdpo::detail::equate_sums(stat, call.rules.terms(), magnitude);
    }
    return stat;
  }
  /// Writes the member at place p, with its value x, into MemberArrays, as number n of its group.
  GDPO_DEVICE void write_member(index_t begin, index_t c, index_t p, double x, index_t n) const {
    const index_t row = call.groups.row(p);
    const MemberArrays& arrays = call.members;
    const index_t index = c * call.rows + begin + n;
    arrays.index[c * call.rows + p] = n;
    arrays.values[index] = x;
    for (std::size_t j = 0; j < reward_column_count; ++j) {
      if (arrays.columns[j]) arrays.columns[j][index] = call.member_columns[j](row);
    }
  }

  /// Returns the value x of a member in column c minus its baseline, and sets `factor` to what this
  /// difference is multiplied by.
  GDPO_DEVICE double centered_of(const Column& column, Rule rule, index_t p, index_t begin,
                                 index_t c, bool is_used, double x, double& factor) const {
    if constexpr (once_a_group) {
      factor = centered ? 0.0 : column.factor;
      return gdpo::detail::center(x, column.base);
    } else {
      MemberArgs args = call.args(column.stat, c, begin);
      args.own = !is_used ? -1 : Call::has_members ? call.members.index[c * call.rows + p] : 0;
      args.value = x;
      if constexpr (Call::reads_external) args.own_external = call.external(call.groups.row(p));
      double d;
      if constexpr (base_once) {
        d = gdpo::detail::center(x, column.base);
      } else {
        d = gdpo::detail::center(x, gdpo::detail::base_of(call.baseline, rule, args, nullptr));
      }
      if constexpr (centered) {
        factor = 0.0;
      } else if constexpr (factor_once) {
        factor = column.factor;
      } else {
        factor = math::mul(call.column_weight(c),
                           gdpo::detail::factor_of(call.scale, rule, args, d, nullptr));
      }
      return d;
    }
  }

  /// Adds the terms of columns first .. first + n - 1 to the combined value of the member at place
  /// p. `complete`: these are the last columns.
  GDPO_DEVICE void member(index_t p, index_t begin, index_t first, index_t n, bool complete,
                          const Column* team_columns, const RulesOfGroup& team_rules,
                          const BlockOfGroups& groups, CombinedRange& range) const {
    const index_t row = call.groups.row(p);
    const bool is_used = call.used(row), writes = row >= groups.first_row && row < groups.last_row;
    bool present = !centered && first > 0 && has_reward(row);
    double magnitude = !centered && first > 0 ? call.magnitudes[p] : 0.0, sum;
    if constexpr (sums_first) {
      const double value = call.combined[row];
      present = !call.missing(value);
      sum = present ? term(team_columns[0], team_rules.rule(0), p, row, begin, 0, is_used, value)
                    : 0.0;
    } else {
      double x[columns_at_once];  // first the values, then their terms
      call.rewards_of_row(row, first, n, x);
      bool clean = false;
      if constexpr (once_a_group && !centered) clean = team_rules.clean();
      if (clean) {
        present = true;
        if constexpr (once_a_group) {
          for (int j = 0; j < columns_at_once; ++j)
            x[j] =
                math::mul(gdpo::detail::center(x[j], team_columns[j].base), team_columns[j].factor);
        }
        for (int j = 0; j < columns_at_once; ++j) magnitude += math::abs(x[j]);
      } else {
        GDPO_UNROLL for (int j = 0; j < columns_at_once; ++j) {
          const double value = x[j];
          x[j] = 0;
          if (j >= n || call.missing(value)) continue;
          present = true;
          x[j] =
              term(team_columns[j], team_rules.rule(j), p, row, begin, first + j, is_used, value);
          magnitude += math::abs(x[j]);
        }
      }
      sum = gdpo::detail::tree_of(x);
    }
    if constexpr (!centered) {
      finish_member(p, row, first, complete, present, is_used, writes, sum, magnitude, range);
    }
  }
  GDPO_DEVICE double term(const Column& column, Rule rule, index_t p, index_t row, index_t begin,
                          index_t c, bool is_used, double x) const {
    double factor;
    const double d = centered_of(column, rule, p, begin, c, is_used, x, factor);
    if constexpr (centered) {
      call.column_values[c * call.rows + row] = rule == Rule::Zero ? 0.0 : d;
      return 0.0;
    } else {
      return gdpo::detail::term_of(d, factor, call.rules.replaces_nan());
    }
  }
  GDPO_DEVICE void finish_member(index_t p, index_t row, index_t first, bool complete, bool present,
                                 bool is_used, bool writes, double sum, double magnitude,
                                 CombinedRange& range) const {
    double score = sums_first ? sum : (first > 0 ? call.combined[row] : 0.0) + sum;
    const bool excluded =
        (!present && call.rules.excludes(row)) || (!is_used && call.rules.excludes_unused());
    if (complete)
      score = excluded ? 0.0 : gdpo::detail::combined_of(score, call.rules.replaces_nan());
    if (writes) combined(row) = score;
    if (!complete) {
      call.magnitudes[p] = magnitude;
      if (call.state) call.state[row] = present;
      return;
    }
    if (writes) {
      set_state(row, excluded  ? RowState::Excluded
                     : is_used ? RowState::Counted
                               : RowState::Unused);
    }
    if (is_used && !excluded) range.add(score, magnitude);
  }
};

/// Computes the combined values of all groups. A block computes one group with each of its teams,
/// then goes on to further groups.
template <class Call, class Output>
struct CombineGroups {
  using Team = TeamOfGroup<Call, Output>;
  Call call;
  int shift;  // a team has 1 << shift threads
  Output output;
  static constexpr int threads = 256;

  std::size_t shared_bytes() const { return Team::template shared_bytes<false>(threads, shift); }

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const index_t teams = threads >> shift;
    auto* const ranges = block.template shared<CombinedRange>();
    auto* const columns = reinterpret_cast<typename Team::Columns*>(ranges + threads);
    auto* const rules = reinterpret_cast<RulesOfGroup*>(columns + teams);
    Team team{call, shift, threads, output};
    team.columns = columns, team.rules = rules, team.ranges = ranges;
    team.raw = reinterpret_cast<unsigned char*>(rules + teams);
    for (index_t first = block.index() * teams; first < call.group_count;
         first += block.count() * teams) {
      team.run(block, {first, within(first + teams, 0, call.group_count), 0, call.rows});
    }
  }
};

/// Computes the combined values of the rows in a window, and the sums of that window about 0. Block
/// i takes window i: it computes every group that has a row there, so a group whose rows reach into
/// several windows is computed by each of their blocks. reward_moments.hpp explains windows.
template <class Call>
struct CombineWindow {
  using Team = TeamOfGroup<Call, ScratchOutput>;
  using Order = typename Call::Order;
  Call call;
  int shift;                // a team has 1 << shift threads
  SecondSums<Order>* sums;  // (windows)
  // A block has as many threads as the registers of a multiprocessor allow.
  static constexpr int threads = Call::once_a_group ? 640 : 512, largest_block = threads;

  std::size_t shared_bytes() const { return Team::template shared_bytes<true>(threads, shift); }

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const index_t teams = threads >> shift;
    double* const values = block.template shared<double>();
    auto* const ranges = reinterpret_cast<CombinedRange*>(values + window_rows);
    auto* const columns = reinterpret_cast<typename Team::Columns*>(ranges + threads);
    auto* const rules = reinterpret_cast<RulesOfGroup*>(columns + teams);
    auto* const states = reinterpret_cast<unsigned char*>(rules + teams);
    const index_t first_row = block.index() * window_rows,
                  n = within(call.rows - first_row, 0, window_rows);
    const index_t first = call.groups.group_of(block, first_row, call.group_count);
    const index_t last = within(
        call.groups.group_of(block, first_row + n - 1, call.group_count) + 1, 0, call.group_count);
    const BlockOfGroups groups{first, last, first_row, first_row + n};
    Team team{call, shift, threads, {}};
    team.columns = columns, team.rules = rules, team.ranges = ranges,
    team.raw = states + window_rows;
    team.window = values, team.window_state = states, team.window_row = first_row;
    team.run(block, groups);
    const SecondSums<Order> total = sums_of_window<SecondSums<Order>>(
        block, n, 0.0, [&](int i) { return values[i]; },
        [&](int i) { return call.state && states[i] != 0 ? 0.0 : 1.0; });
    block.each([&](int thread) {
      if (thread == 0) sums[block.index()] = total;
      GDPO_ROLLED for (index_t i = thread; i < n; i += threads) {
        call.combined[first_row + i] = values[i];
        if (call.state) call.state[first_row + i] = states[i];
      }
    });
  }
};

/// Writes column_values and column_states: each column as the batch statistics see it.
template <class Call>
struct ReadColumns {
  Call call;
  static constexpr int threads = 256;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const index_t numbers = call.rows * call.columns;
    block.each([&](int thread) {
      for (index_t i = block.index() * threads + thread; i < numbers;
           i += block.count() * threads) {
        const index_t c = i / call.rows, row = i % call.rows;
        double magnitude;
        const double x = Call::sums_first ? call.weighted_sum(row, magnitude) : call.reward(row, c);
        call.column_values[i] = x;
        call.column_states[i] = call.missing(x) || !call.used(row);
      }
    });
  }
};

/// The sum of x(g) over the groups, with the bits of sum_rows, known to all threads. shared: memory
/// of the block for window_rows numbers.
template <class Order, class Block, class Value>
GDPO_DEVICE double sum_of_groups(Block& block, index_t groups, double* shared, const Value& x) {
  SumOfNumbers<Order> total;
  for (index_t first = 0; first < groups; first += window_rows) {
    const index_t n = within(groups - first, 0, window_rows);
    block.each([&](int thread) {
      for (index_t i = thread; i < n; i += block.threads()) shared[i] = x(first + i);
    });
    total.add(sums_of_window<SumOfNumbers<Order>>(
        block, n, 0.0, [&](int i) { return shared[i]; }, [](int) { return 1.0; }));
  }
  return total.sum.value();
}

/// Counts of GroupSpreads that threads add.
struct SpreadCounts {
  GroupSpreads spreads;
  GDPO_INLINE void add(const SpreadCounts& o) {
    spreads.all.add(o.spreads.all);
    spreads.unequal.add(o.spreads.unequal);
  }
};
/// The spreads inside the groups of one column, as spreads_of (advantage/shared/group_spreads.hpp)
/// computes them, known to all threads. squares and sizes: (groups). shared: memory of the block
/// for window_rows numbers.
template <class Order, class Block>
GDPO_DEVICE GroupSpreads spreads_of_groups(Block& block, const double* squares,
                                           const index_t* sizes, index_t groups, double* shared) {
  GroupSpreads spreads = block
                             .template reduce<SpreadCounts>([&](int thread) {
                               SpreadCounts counts;
                               for (index_t g = thread; g < groups; g += block.threads())
                                 gdpo::detail::count_group(counts.spreads, squares[g], sizes[g]);
                               return counts;
                             })
                             .spreads;
  spreads.squares =
      sum_of_groups<Order>(block, groups, shared, [&](index_t g) { return squares[g]; });
  if (!gdpo::detail::has_shares(spreads.squares)) return spreads;
  spreads.shares = sum_of_groups<Order>(block, groups, shared, [&](index_t g) {
    return gdpo::detail::share_of(squares[g], static_cast<double>(sizes[g]), spreads.squares);
  });
  return spreads;
}

/// Completes the batch statistics of a column from the sums of its windows. Block i takes column i.
/// With `centered` it writes BatchStat::centered and BatchStat::within, otherwise the other
/// members.
template <class Order>
struct FinishColumns {
  const FirstSums<Order>* first;  // (columns, windows)
  const SecondSums<Order>* second;
  index_t windows;
  bool centered;
  BatchStat* stats;
  const double* squares;  // (columns, groups) as in DeviceCall; read with `centered` only
  const index_t* sizes;
  index_t groups;
  static constexpr int threads = 256;

  static std::size_t shared_bytes() {
    return (std::max)(shared_for_windows<Order>(threads), sizeof(double) * window_rows);
  }

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    double* const room = block.template shared<double>();
    const index_t c = block.index();
    const FirstSums<Order> one = sums_of_windows(block, first + c * windows, windows, room);
    const SecondSums<Order> two = sums_of_windows(block, second + c * windows, windows, room);
    GroupSpreads spreads;
    if (centered) {
      spreads =
          spreads_of_groups<Order>(block, squares + c * groups, sizes + c * groups, groups, room);
    }
    block.each([&](int thread) {
      if (thread != 0) return;
      const Moments m = moments_of_windows(one, two);
      if (centered) {
        stats[c].centered = m;
        stats[c].within = spreads;
      } else {
        stats[c].raw = m;
        stats[c].used = one.n;
        stats[c].nonzero = one.nonzero;
      }
    });
  }
};

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
