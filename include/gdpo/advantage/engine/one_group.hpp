#pragma once
// The general path of the estimator: one group after the other, with loops over columns and
// members. The formulas are in the policies; rules.hpp says when they are asked. side_by_side.hpp
// is the fast path for groups that need nothing special.
#include <algorithm>
#include <gdpo/advantage/engine/rules.hpp>
#include <gdpo/advantage/engine/side_by_side.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

template <class Call>
class OneGroup;

/// Takes groups one by one, in the scratch memory of one worker.
/// A column is what is centred and scaled by itself: each reward with a weight other than 0
/// (NormalizeThenSum), or their weighted sum (SumThenNormalize).
template <class T, class Groups, class Baseline, class Scale, bool sums_first>
class OneGroup<GroupCall<T, Groups, Baseline, Scale, sums_first>> {
  using Call = GroupCall<T, Groups, Baseline, Scale, sums_first>;
  using Order = typename Groups::Order;
  static constexpr bool in_lanes = takes_lanes_v<Baseline> && takes_lanes_v<Scale>;

 public:
  /// Whether the combined values of a group sum to 0, except in groups with a raw singleton.
  static constexpr bool zero_sum = values_sum_to_zero_v<Baseline, Scale>;

  OneGroup(const Call& call, GroupScratch& scratch) : call_(call), work_(scratch) {}

  /// Fills in row_sums and row_state for the groups first .. last - 1. side_by_side: groups that
  /// need nothing special may be taken in lanes.
  GDPO_NOINLINE void combine(index_t first, index_t last, bool side_by_side) {
    if constexpr (zero_sum && in_lanes) {
      using Lanes = SideBySide<T, Groups, Baseline, Scale, sums_first>;
      Lanes lanes(call_, work_, last);
      Taken taken[Lanes::most_groups];
      for (index_t g = first, n = 1; side_by_side && g < last; g += n) {
        n = lanes.combine(g, taken);
        for (index_t p = 0; p < n; ++p) {
          if (taken[p] == Taken::No) {
            combine_group(g + p);
          } else if (call_.report) {
            call_.report->degenerate[at(g + p)] = taken[p] == Taken::Equal;
          }
        }
      }
      if (side_by_side) return;
    }
    for (index_t g = first; g < last; ++g) combine_group(g);
  }

  /// Calls visit(args, rule) for every used value of column c in group g.
  template <class Visit>
  void visit_used(index_t g, index_t c, const Visit& visit) {
    begin_group(g);
    visit_members(c, [&](index_t, const MemberArgs& args, Rule rule) {
      if (args.own >= 0) visit(args, rule);
    });
  }

  /// The value of a member minus its baseline. A baseline with one value a group is computed
  /// once.
  double centred(Rule rule, const MemberArgs& args) {
    if (!has_base_ || !one_a_group_v<Baseline>) {
      base_ = detail::base_of(call_.baseline, rule, args, work_.policies.data());
      has_base_ = true;
    }
    return centre(args.value, base_);
  }

 private:
  // ---- one group --------------------------------------------------------------------------------

  index_t row(index_t k) const { return call_.batch.groups.row(group_, k); }
  bool used(index_t k) const { return work_.used[at(k)] != 0; }
  /// Whether the row has no reward and is to be excluded. Known once all columns have been read.
  bool excluded(index_t k) const { return call_.reader.excludes() && !work_.present[at(k)]; }
  bool missing(index_t k) const {
    return call_.reader.skips() && math::is_nan(work_.column[at(k)]);
  }

  void begin_group(index_t g) {
    group_ = g;
    members_ = call_.batch.groups.length(g);
    std::fill_n(work_.scores.data(), members_, 0.0);
    std::fill_n(work_.magnitudes.data(), members_, 0.0);
    std::fill_n(work_.present.data(), members_, static_cast<unsigned char>(0));
    for (index_t k = 0; call_.batch.valid && k < members_; ++k)
      work_.used[at(k)] = call_.batch.valid(row(k)) != 0;
    raw_in_group_ = false;
  }

  /// The combined values of group g: score_k = sum over the columns of w (x_k - baseline)
  /// multiplier. The columns go in blocks of 8, and the terms of a block are added as a tree.
  void combine_group(index_t g) {
    begin_group(g);
    if (members_ == 0) return;
    if constexpr (sums_first) {
      add_terms(0, 1.0, work_.scores.data(), 1);
    } else {
      for (index_t first = 0; first < call_.columns; first += 8) {
        std::fill_n(work_.terms.data(), members_ * 8, 0.0);
        const index_t lanes = (std::min<index_t>)(8, call_.columns - first);
        for (index_t j = 0; j < lanes; ++j) {
          add_terms(first + j, call_.work.channel_weights[at(first + j)], work_.terms.data() + j,
                    8);
        }
        for (index_t k = 0; k < members_; ++k) {
          work_.scores[at(k)] += tree_of(work_.terms.data() + k * 8);
        }
      }
    }
    end_group();
  }

  /// Decides whether the combined values are equal, and writes them and the row states to the
  /// scratch of the call.
  void end_group() {
    CombinedRange range;
    for (index_t k = 0; k < members_; ++k) {
      if (used(k) && !excluded(k)) range.add(work_.scores[at(k)], work_.magnitudes[at(k)]);
    }
    const bool equal = range.equal(sums_first, call_.columns);
    if (call_.report) call_.report->degenerate[at(group_)] = equal;
    for (index_t k = 0; k < members_; ++k) {
      const std::size_t i = at(row(k));
      const RowState state = excluded(k) ? RowState::Excluded
                             : used(k)   ? RowState::Counted
                                         : RowState::Unused;
      call_.work.row_sums[i] =
          zero_sum && equal && !raw_in_group_ && used(k) ? 0.0 : work_.scores[at(k)];
      call_.work.row_state[i] = static_cast<unsigned char>(state);
      if (state != RowState::Counted) work_.seen.row_that_does_not_count = true;
    }
  }

  // ---- one column of one group ------------------------------------------------------------------

  /// The rule of the column at hand. Notes raw singletons; throws for Rule::Refused.
  Rule rule_of(const GroupStat& stat) {
    const Rule rule = detail::rule_of<Baseline>(stat, call_.singleton);
    if (rule == Rule::Raw) work_.seen.raw_singleton = raw_in_group_ = true;
    if (rule == Rule::Refused) {
      contract::fail(call_.function, "groups", "one used row in group " + contract::text(group_),
                     "two or more, because singleton is Error");
    }
    return rule;
  }

  /// Reads the values of column c of all members, NaN where they are missing.
  void read_column(index_t c) {
    double* x = work_.column.data();
    if constexpr (sums_first) {
      double* lanes = call_.lanes ? work_.lanes.data() : nullptr;
      call_.reader.weighted_sums([this](index_t k) { return row(k); }, members_, lanes, x,
                                 work_.magnitudes.data());
    } else {
      for (index_t k = 0; k < members_; ++k)
        x[k] = call_.reader(row(k), call_.work.channels[at(c)]);
    }
  }

  /// Writes the numbers read(k) of the used members that have a value to `to`, and returns how
  /// many.
  template <class Read>
  index_t gather(std::vector<double>& to, const Read& read) const {
    index_t n = 0;
    for (index_t k = 0; k < members_; ++k) {
      if (used(k) && !missing(k)) to[at(n++)] = read(k);
    }
    return n;
  }
  static View<const double, 1> view_of(const std::vector<double>& values, index_t n) {
    return gdpo::view(values.data(), n);
  }

  /// What the policies see of a column, without the member, and the rule of the column.
  struct ReadColumn {
    MemberArgs args;
    Rule rule;
  };

  /// Reads column c and computes its statistics. Not inlined, because each visitor of
  /// visit_members would have a copy.
  GDPO_NOINLINE ReadColumn begin_column(index_t c) {
    read_column(c);
    const double* x = work_.column.data();
    for (index_t k = 0; k < members_; ++k) {
      if (!missing(k)) work_.present[at(k)] = 1;
    }
    const index_t n = gather(work_.values, [x](index_t k) { return x[k]; });
    stat_ = group_stat(Order{}, work_.values.data(), n);
    if constexpr (!in_lanes)
      order_statistics(stat_, work_.values.data(), n);  // GroupLanes has none for policies in lanes
    if constexpr (sums_first) {
      double magnitude = 0;
      for (index_t k = 0; k < members_; ++k) {
        if (used(k)) magnitude = (math::max)(magnitude, work_.magnitudes[at(k)]);
      }
      equate_sums(stat_, call_.reader.terms(), magnitude);
    }
    ReadColumn column_at_hand{{{stat_, call_.work.batch_stats[at(c)]}}, rule_of(stat_)};
    MemberArgs& args = column_at_hand.args;
    args.values = view_of(work_.values, n);
    for (std::size_t j = 0; j < reward_column_count; ++j) {
      const auto& entry = reward_columns<RewardBatch<T, Groups>>[j];
      const Column& column = call_.batch.*entry.of_batch;
      if (!entry.of_members || !column) continue;
      gather(work_.columns[j], [&](index_t k) { return column(row(k)); });
      args.*entry.of_members = view_of(work_.columns[j], n);
    }
    has_base_ = false;
    return column_at_hand;
  }

  /// Reads column c and calls visit(k, args, rule) for every member that has a value. Unused
  /// members have args.own = -1.
  template <class Visit>
  void visit_members(index_t c, const Visit& visit) {
    auto [args, rule] = begin_column(c);
    index_t own = 0;
    for (index_t k = 0; k < members_; ++k) {
      if (missing(k)) continue;
      args.own = used(k) ? own++ : -1;
      args.value = work_.column[at(k)];
      visit(k, args, rule);
    }
  }

  /// Writes the terms of column c, times `weight`, to terms[k stride]. Where the entry is
  /// missing, nothing is written.
  void add_terms(index_t c, double weight, double* terms, index_t stride) {
    double factor = 0;
    bool known = false;
    visit_members(c, [&](index_t k, const MemberArgs& args, Rule rule) {
      const double above = centred(rule, args);
      if (!known || !one_a_group_v<Scale>) {
        factor =
            math::mul(weight, factor_of(call_.scale, rule, args, above, work_.policies.data()));
      }
      known = true;
      const double term = term_of(above, factor);
      terms[k * stride] = term;
      if (!sums_first) work_.magnitudes[at(k)] += math::abs(term);
    });
  }

  const Call& call_;
  GroupScratch& work_;
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
