#pragma once
// OneGroup: the general path, one group after the other, with loops over its columns and members.
// The formulas are in the policies (baseline and scale); shared/group_rules.hpp decides in which
// groups they are called. side_by_side.hpp is the fast path, which takes several groups at once but
// leaves those that have a rule of their own to this one.
#include <algorithm>
#include <gdpo/advantage/engine/side_by_side.hpp>
#include <gdpo/advantage/shared/group_rules.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What one member goes through in one column, as an observer of OneGroup sees it.
struct ObservedTerm {
  index_t column, member;
  Rule rule;               ///< Of the column.
  const MemberArgs& args;  ///< The value and the statistics that the policies see.
  double baseline, centered, multiplier, term;
};
/// Who sees these terms: calls see(context, term). It is no template parameter, so that the path is
/// compiled once.
struct TermObserver {
  void* context = nullptr;
  void (*see)(void* context, const ObservedTerm& term) = nullptr;
};

/// Computes the combined values of groups one by one, in the scratch memory of one worker. A column
/// is what is centered and scaled by itself: with NormalizeThenSum each reward whose weight is not
/// 0, with SumThenNormalize the weighted sum of these rewards. A raw singleton is a group with one
/// used value in some column, to which Rule::Raw applies.
template <class T, class Groups, class Baseline, class Scale>
class OneGroup {
  using Call = GroupCall<T, Groups, Baseline, Scale>;
  using Order = typename Groups::Order;
  static constexpr bool takes_lanes = takes_lanes_v<Baseline> && takes_lanes_v<Scale>;

 public:
  /// Whether the combined values of a group sum to 0, except in groups with a raw singleton.
  static constexpr bool zero_sum = values_sum_to_zero_v<Baseline, Scale>;
  /// The fast path sorts the values of a group.
  static constexpr bool sorts = takes_lanes && need_scratch_v<Baseline, Scale>;

  OneGroup(const Call& call, GroupScratch& scratch, TermObserver observer = {})
      : call_(call), work_(scratch), observer_(observer) {}

  /// Writes row_sums for the groups first .. last - 1, and row_state where a group takes the
  /// general path. The fast path leaves row_state as it was prepared, Counted, because all its rows
  /// count. side_by_side: the fast path may be tried.
  GDPO_NOINLINE void combine(index_t first, index_t last, bool side_by_side) {
    if constexpr (takes_lanes) {
      if (side_by_side && first < last && !call_.work.used_rewards.empty()) {
        SideBySide<T, Groups, Baseline, Scale>(call_, work_)
            .combine(first, last, [this](index_t g) { combine_group(g); });
        return;
      }
    }
    for (index_t g = first; g < last; ++g) combine_group(g);
  }

  /// Computes the combined values of group g:
  ///
  ///     score_k = sum over the columns of w (x_k - baseline) multiplier
  ///
  /// where w is the weight of the column and the scale gives the multiplier. The columns are taken
  /// in blocks of 8, and the terms of a block are added as a tree. The observer sees the terms of
  /// every member that has a value, column by column.
  void combine_group(index_t g) {
    begin_group(g);
    if (members_ == 0) return;
    if (sums_first()) {
      add_terms(0, 1.0, work_.scores.data(), 1);
    } else {
      for (index_t first = 0; first < call_.columns; first += 8) {
        std::fill_n(work_.terms.data(), members_ * 8, 0.0);
        const index_t lanes = (std::min<index_t>)(8, call_.columns - first);
        for (index_t j = 0; j < lanes; ++j) {
          add_terms(first + j, call_.work.reward_weights[as_size(first + j)],
                    work_.terms.data() + j, 8);
        }
        for (index_t k = 0; k < members_; ++k) {
          work_.scores[as_size(k)] += tree_of(work_.terms.data() + k * 8);
        }
      }
    }
    end_group();
  }

  /// Reads column c of group g, and throws what its rewards and its size are refused for.
  void read(index_t g, index_t c) {
    begin_group(g);
    begin_column(c);
  }

  /// Writes the used values of column c of group g minus their baselines, without gaps.
  void center_values(index_t g, index_t c, double* centered) {
    begin_group(g);
    visit_members(c, [&](index_t, const MemberArgs& args, Rule rule) {
      if (args.own >= 0) centered[args.own] = rule == Rule::Zero ? 0.0 : this->centered(rule, args);
    });
  }

 private:
  /// Returns the value of a member minus its baseline. A baseline that is one number for the whole
  /// group is computed only for the first member.
  double centered(Rule rule, const MemberArgs& args) {
    if (!has_base_ || !one_a_group_v<Baseline>) {
      base_ = detail::base_of(call_.baseline, rule, args, work_.policies.data());
      has_base_ = true;
    }
    return center(args.value, base_);
  }

  bool sums_first() const { return call_.reader.sums_first(); }

  // ---- one group --------------------------------------------------------------------------------

  index_t row(index_t k) const { return call_.batch.groups.row(group_, k); }
  bool used(index_t k) const { return work_.used[as_size(k)] != 0; }
  /// Whether member k is excluded because its row has no reward, or is not used. This is known only
  /// once all columns have been read.
  bool excluded(index_t k) const {
    return (!work_.present[as_size(k)] && call_.reader.excludes(row(k))) ||
           (!used(k) && call_.reader.excludes_unused());
  }
  bool missing(index_t k) const {
    return call_.reader.skips() && math::is_nan(work_.column[as_size(k)]);
  }

  void begin_group(index_t g) {
    group_ = g;
    members_ = call_.batch.groups.length(g);
    std::fill_n(work_.scores.data(), members_, 0.0);
    std::fill_n(work_.magnitudes.data(), members_, 0.0);
    std::fill_n(work_.present.data(), members_, static_cast<unsigned char>(0));
    for (index_t k = 0; call_.batch.valid && k < members_; ++k)
      work_.used[as_size(k)] = call_.batch.valid(row(k)) != 0;
    raw_in_group_ = false;
  }

  /// Decides whether the combined values of the group are equal, and writes them and the row states
  /// to the scratch of the call. Equal values that sum to 0 are written as exactly 0.
  void end_group() {
    CombinedRange range;
    for (index_t k = 0; k < members_; ++k) {
      double& score = work_.scores[as_size(k)];
      score = combined_of(score, call_.reader.replaces_nan());
      if (used(k) && !excluded(k)) range.add(score, work_.magnitudes[as_size(k)]);
    }
    const bool equal = range.equal(sums_first(), call_.columns),
               lone = range.is_lone(call_.baseline, call_.singleton);
    if (call_.report) call_.report->degenerate[as_size(group_)] = equal;
    for (index_t k = 0; k < members_; ++k) {
      const std::size_t i = as_size(row(k));
      const RowState state = excluded(k) ? RowState::Excluded
                             : !used(k)  ? RowState::Unused
                             : lone      ? RowState::Lone
                                         : RowState::Counted;
      const bool zero = gets_zero(state) || (zero_sum && equal && !raw_in_group_ && used(k));
      call_.work.row_sums[i] = zero ? 0.0 : work_.scores[as_size(k)];
      call_.work.row_state[i] = static_cast<unsigned char>(state);
      if (state != RowState::Counted) work_.cases.uncounted_row = true;
    }
  }

  // ---- one column of one group ------------------------------------------------------------------

  /// Returns the rule of the column at hand. It also notes a raw singleton, and throws for
  /// Rule::Refused.
  Rule rule_of(const GroupStat& stat) {
    const Rule rule = detail::rule_of<Baseline>(stat, call_.singleton);
    if (rule == Rule::Raw) work_.cases.raw_singleton = raw_in_group_ = true;
    if (rule == Rule::Refused) {
      contract::fail(call_.function, "groups", "one used row in group " + contract::text(group_),
                     "two or more, because singleton is Error");
    }
    return rule;
  }

  /// Reads the values of all members in column c. A missing value is read as NaN.
  void read_column(index_t c) {
    double* x = work_.column.data();
    if (sums_first()) {
      double* lanes = call_.lanes ? work_.lanes.data() : nullptr;
      call_.reader.weighted_sums(group_, members_, lanes, x, work_.magnitudes.data());
    } else {
      for (index_t k = 0; k < members_; ++k)
        x[k] = call_.reader(row(k), call_.work.used_rewards[as_size(c)]);
    }
  }

  /// Writes read(k) to `values` for every used member k that has a value, without gaps, and returns
  /// how many there are.
  template <class Read>
  index_t gather(std::vector<double>& values, const Read& read) const {
    index_t n = 0;
    for (index_t k = 0; k < members_; ++k) {
      if (used(k) && !missing(k)) values[as_size(n++)] = read(k);
    }
    return n;
  }
  static View<const double, 1> view_of(const std::vector<double>& values, index_t n) {
    return gdpo::view(values.data(), n);
  }

  /// What the policies see of a column before a member is filled in, and the rule of the column.
  struct ReadColumn {
    MemberArgs args;
    Rule rule;
  };

  /// Reads column c and computes its statistics. It is not inlined, because visit_members is
  /// compiled for each visitor and would contain a copy each time.
  GDPO_NOINLINE ReadColumn begin_column(index_t c) {
    read_column(c);
    const double* x = work_.column.data();
    for (index_t k = 0; k < members_; ++k) {
      if (!missing(k)) work_.present[as_size(k)] = 1;
    }
    const index_t n = gather(work_.values, [x](index_t k) { return x[k]; });
    stat_ = group_stat(Order{}, work_.values.data(), n);
    if constexpr (reads_order_v<Baseline> || reads_order_v<Scale>)
      order_statistics(stat_, work_.values.data(), n);
    if (sums_first()) {
      double magnitude = 0;
      for (index_t k = 0; k < members_; ++k) {
        if (used(k)) magnitude = (math::max)(magnitude, work_.magnitudes[as_size(k)]);
      }
      equate_sums(stat_, call_.reader.terms(), magnitude);
    }
    ReadColumn column{{{stat_, call_.work.batch_stats[as_size(c)]}}, rule_of(stat_)};
    MemberArgs& args = column.args;
    args.values = view_of(work_.values, n);
    for (std::size_t j = 0; j < reward_column_count; ++j) {
      const auto& entry = reward_columns<RewardBatch<T, Groups>>[j];
      const Column& batch_column = call_.batch.*entry.of_batch;
      if (!entry.of_members || !batch_column) continue;
      gather(work_.columns[j], [&](index_t k) { return batch_column(row(k)); });
      args.*entry.of_members = view_of(work_.columns[j], n);
    }
    has_base_ = false;
    return column;
  }

  /// Reads column c and calls visit(k, args, rule) for every member k that has a value. args.own is
  /// -1 for members that are not used.
  template <class Visit>
  void visit_members(index_t c, const Visit& visit) {
    auto [args, rule] = begin_column(c);
    index_t position = 0;
    for (index_t k = 0; k < members_; ++k) {
      if (missing(k)) continue;
      args.own = used(k) ? position++ : -1;
      args.value = work_.column[as_size(k)];
      if constexpr (reads_external_v<Baseline> || reads_external_v<Scale>)
        args.own_external = call_.batch.baseline(row(k));
      visit(k, args, rule);
    }
  }

  /// Writes the term of each member k in column c, times `weight`, to terms[k * stride]. For a
  /// member whose value is missing nothing is written.
  void add_terms(index_t c, double weight, double* terms, index_t stride) {
    double multiplier = 0, factor = 0;
    bool known = false;
    visit_members(c, [&](index_t k, const MemberArgs& args, Rule rule) {
      const double above = centered(rule, args);
      if (!known || !one_a_group_v<Scale>) {
        multiplier = factor_of(call_.scale, rule, args, above, work_.policies.data());
        factor = math::mul(weight, multiplier);
      }
      known = true;
      if (call_.report && !sums_first()) {
        keep_for_report(call_.work, call_.columns, group_, c, factor, base_);
      }
      const double term = term_of(above, factor, call_.reader.replaces_nan());
      terms[k * stride] = term;
      if (!sums_first()) work_.magnitudes[as_size(k)] += math::abs(term);
      if (observer_.see) {
        observer_.see(observer_.context,
                      {c, k, rule, args, base_.high + base_.low, above, multiplier, term});
      }
    });
  }

  const Call& call_;
  GroupScratch& work_;
  const TermObserver observer_;
  // The group at hand.
  index_t group_ = 0, members_ = 0;
  bool raw_in_group_ = false;
  // The column at hand.
  GroupStat stat_;
  bool has_base_ = false;
  Split<double> base_{0.0, 0.0};
};

}  // namespace detail
GDPO_END_NAMESPACE
