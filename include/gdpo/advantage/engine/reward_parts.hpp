#pragma once
// What a report says of several rewards in one group: how they vary together, and what each
// explains. Nothing here is a template, so that a program compiles it once. report_lanes.hpp says
// the same of several groups side by side.
#include <algorithm>
#include <gdpo/advantage/engine/one_group.hpp>
#include <gdpo/advantage/report.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Groups that a report describes side by side: two registers of lanes, so that one sum is added to
/// while the other waits.
constexpr int report_lanes = 2 * math::native_width<double>;
/// Longer groups are described one by one; side by side they would not stay in the cache.
constexpr index_t most_report_members = 1024;

/// Subtracts their mean from n numbers, and returns how many there are. NaN: the number does not
/// count. Equal numbers become exactly 0, and the order of the numbers does not matter.
GDPO_NOINLINE inline index_t center_numbers(double* x, index_t n) {
  double least = math::infinity;
  index_t count = 0;
  for (index_t k = 0; k < n; ++k) {
    if (!math::is_nan(x[k])) least = (math::min)(least, x[k]), ++count;
  }
  TwoSum<double> sum;
  for (index_t k = 0; k < n; ++k) {
    if (!math::is_nan(x[k])) sum.add(x[k] = x[k] - least);
  }
  const double mean = sum.value() / static_cast<double>(count);
  for (index_t k = 0; k < n; ++k) x[k] = x[k] - mean;
  return count;
}
/// The sum of the products of those that count in both.
GDPO_NOINLINE inline double sum_of_products(const double* x, const double* y, index_t n) {
  TwoSum<double> sum;
  for (index_t k = 0; k < n; ++k) {
    const double product = math::mul(x[k], y[k]);
    if (!math::is_nan(product)) sum.add(product);
  }
  return sum.value();
}

/// The memory of a report in EstimatorScratch::report.
///
///   (G, columns, 3)        what the engine keeps of each column: its factor, and its baseline in
///                          two doubles
///   (sums, 1 + lanes, 2)   sums over groups, each a TwoSum: those of groups one by one, and those
///                          of groups side by side
///   (notes, lanes)         a few numbers of each array of the groups at hand
///   (arrays, K, lanes)     the members of these groups; of one group by itself (arrays, K)
///
/// K: members of the longest group.
struct ReportMemory {
  index_t groups, columns, rewards, longest;

  /// How many groups of this call go side by side.
  index_t lanes() const { return longest <= most_report_members ? report_lanes : 1; }
  /// Numbers of the sums: three a pair of rewards, then those of fill_explained.
  std::size_t explained_sum(index_t j) const {
    return 3 * pair_count(as_size(rewards)) + as_size(j);
  }
  std::size_t sums() const { return explained_sum(rewards + 1); }
  std::size_t arrays() const { return as_size(3 * rewards + 5); }
  std::size_t notes() const { return as_size(8 * rewards + 8); }

  double* kept(EstimatorScratch& work, index_t g, index_t column) const {
    return work.report.data() + 3 * (g * columns + column);
  }
  double* sum(EstimatorScratch& work, std::size_t i) const { return kept(work, groups, 0) + 2 * i; }
  double* lane_sum(EstimatorScratch& work, std::size_t i) const {
    return sum(work, sums()) + 2 * i * as_size(lanes());
  }
  double* note(EstimatorScratch& work, std::size_t i) const {
    return lane_sum(work, sums()) + i * as_size(lanes());
  }
  /// The arrays begin at a cache line, which loads of whole registers should not cross.
  double* array(EstimatorScratch& work, std::size_t i) const {
    double* const first = note(work, notes());
    const auto misplaced = reinterpret_cast<std::uintptr_t>(first) / sizeof(double) % 8;
    return first + (misplaced == 0 ? 0 : 8 - misplaced) + i * as_size(longest * lanes());
  }
  std::size_t size() const {
    return as_size(3 * groups * columns) + 2 * sums() * as_size(1 + lanes()) +
           notes() * as_size(lanes()) + 8 + arrays() * as_size(longest * lanes());
  }

  void add(EstimatorScratch& work, std::size_t i, double x) const {
    double* const memory = sum(work, i);
    TwoSum<double> two{memory[0], memory[1]};
    two.add(x);
    memory[0] = two.sum, memory[1] = two.error;
  }
  /// The value of a sum. The order of the groups does not matter.
  double value(EstimatorScratch& work, std::size_t i) const {
    const double* const side_by_side = lane_sum(work, i);
    TwoSum<double> total{sum(work, i)[0], sum(work, i)[1]};
    for (index_t p = 0; p < lanes(); ++p) {
      total.add(side_by_side[p]);
      total.error = total.error + side_by_side[lanes() + p];
    }
    return total.value();
  }
};

/// Makes room for what the engine writes of each group for a report.
GDPO_COLD inline void prepare_report(GroupReport& report, EstimatorScratch& work,
                                     const ReportMemory& memory) {
  report.degenerate.assign(as_size(memory.groups), 1);  // an empty group stays degenerate
  work.report.resize(memory.size());
  std::fill(memory.sum(work, 0), memory.note(work, 0), 0.0);
}

/// One group of a report: arrays of its members.
struct GroupTable {
  const ReportMemory& memory;
  EstimatorScratch& work;
  index_t g, members;

  double* array(index_t i) const { return memory.array(work, 0) + i * members; }
  /// Reward c after gates; NaN where it is missing or infinite, and in rows that are not used.
  double* given(index_t c) const { return array(c); }
  /// Reward c as its statistics see it; NaN in rows that are not used.
  double* adjusted(index_t c) const { return array(memory.rewards + c); }
  /// Memory for a reward.
  double* centered(index_t c) const { return array(2 * memory.rewards + c); }
  /// The combined values; NaN in rows that do not count.
  double* combined() const { return array(3 * memory.rewards); }
  /// What the rewards add up to: the weighted sums, or the combined values.
  double* total() const { return array(3 * memory.rewards + 1); }
  /// More memory, twice.
  double* more(index_t i) const { return array(3 * memory.rewards + 2 + i); }
};

/// Adds a group to the sums of `pairs`: how the rewards vary together within groups.
GDPO_COLD inline void add_pairs(const GroupTable& table) {
  const ReportMemory& memory = table.memory;
  EstimatorScratch& work = table.work;
  const index_t rewards = memory.rewards, members = table.members;
  if (rewards < 2) return;
  double* const squares = memory.note(work, 0);  // NaN where a member has no value
  for (index_t a = 0; a < rewards; ++a) {
    double* const x = table.centered(a);
    std::copy_n(table.given(a), members, x);
    squares[a] =
        center_numbers(x, members) == members ? sum_of_products(x, x, members) : math::nan();
  }
  std::size_t pair = 0;
  for (index_t a = 0; a < rewards; ++a) {
    for (index_t b = a + 1; b < rewards; ++b, pair += 3) {
      const double *x = table.centered(a), *y = table.centered(b);
      double squares_a = squares[a], squares_b = squares[b];
      if (math::is_nan(squares_a) || math::is_nan(squares_b)) {
        x = table.given(a), y = table.given(b);
        double *of_a = table.more(0), *of_b = table.more(1);
        for (index_t k = 0; k < members; ++k) {
          const bool both = !math::is_nan(x[k]) && !math::is_nan(y[k]);
          of_a[k] = both ? x[k] : math::nan(), of_b[k] = both ? y[k] : math::nan();
        }
        center_numbers(of_a, members), center_numbers(of_b, members);
        x = of_a, y = of_b;
        squares_a = sum_of_products(x, x, members), squares_b = sum_of_products(y, y, members);
      }
      memory.add(work, pair, sum_of_products(x, y, members));
      memory.add(work, pair + 1, squares_a), memory.add(work, pair + 2, squares_b);
    }
  }
}

/// How an estimator makes combined values of rewards.
struct PartRules {
  bool sums_first,   ///< It sums them first.
      one_factor,    ///< Else: all members of a group have one baseline and one multiplier.
      skips,         ///< A missing reward adds 0.
      replaces_nan;  ///< InfiniteEntry::NanToNum.
  /// The terms of a group cannot be told from what the engine keeps of it.
  bool asks() const { return !sums_first && !one_factor; }
};
/// Shows the terms of a group once more.
struct GroupTerms {
  void* context;
  void (*show)(void* context, index_t g, TermObserver observer);
};
/// Adds a group to the sums of what each reward explains of the combined values. It overwrites the
/// table.
GDPO_COLD inline void add_explained(const GroupTable& table, const PartRules& rules,
                                    const GroupTerms& terms) {
  const ReportMemory& memory = table.memory;
  EstimatorScratch& work = table.work;
  const auto used = static_cast<index_t>(work.used_rewards.size()), members = table.members;
  const bool several = used > 1;
  double *s = table.combined(), *total = rules.sums_first ? table.total() : s;
  // Of a standardized reward of which no member lacks a value the differences are those of the
  // reward times one factor, which the engine has kept. Others are asked from it.
  bool by_factor = rules.one_factor, known = true;
  for (index_t j = 0; several && j < used; ++j) {
    double* part = table.adjusted(work.used_rewards[as_size(j)]);
    for (index_t k = 0; k < members; ++k) {
      if (math::is_nan(s[k])) {
        part[k] = math::nan();
      } else {
        by_factor = by_factor && !math::not_finite(part[k]);
        if (rules.skips && math::is_nan(part[k])) part[k] = 0;
        known = known && !math::not_finite(part[k]);
      }
    }
  }
  if (!known) return;
  const bool ask = several && !rules.sums_first && !by_factor;
  if (ask) {
    for (index_t j = 0; j < used; ++j) {
      double* part = table.adjusted(work.used_rewards[as_size(j)]);
      for (index_t k = 0; k < members; ++k) part[k] = math::is_nan(s[k]) ? s[k] : 0.0;
    }
    GroupTable place = table;
    terms.show(terms.context, table.g,
               {&place, [](void* context, const ObservedTerm& term) {
                  const auto& t = *static_cast<const GroupTable*>(context);
                  double& part = t.adjusted(t.work.used_rewards[as_size(term.column)])[term.member];
                  if (!math::is_nan(part)) part = term.term;
                }});
  }
  center_numbers(s, members);
  if (rules.sums_first) center_numbers(total, members);
  const double squares = sum_of_products(s, s, members),
               spread = rules.sums_first ? sum_of_products(total, total, members) : squares;
  if (!(squares > 0 && spread > 0) || math::not_finite(squares) || math::not_finite(spread)) return;
  memory.add(work, memory.explained_sum(used), squares);
  for (index_t j = 0; several && j < used; ++j) {
    double* part = table.adjusted(work.used_rewards[as_size(j)]);
    center_numbers(part, members);
    const double factor = ask                ? 1.0
                          : rules.sums_first ? work.reward_weights[as_size(j)]
                                             : *memory.kept(work, table.g, j);
    const double product = math::mul(factor, sum_of_products(part, total, members));
    memory.add(work, memory.explained_sum(j), math::mul(squares, product / spread));
  }
}

/// Fills in what the sums over groups say: `pairs`, and what each reward explains.
GDPO_COLD inline void take_sums(const ReportMemory& memory, EstimatorScratch& work,
                                GroupReport& r) {
  r.pairs.resize(3 * pair_count(as_size(memory.rewards)));
  for (std::size_t p = 0; p < r.pairs.size(); ++p) r.pairs[p] = memory.value(work, p);
  const auto used = static_cast<index_t>(work.used_rewards.size());
  r.within_squares = memory.value(work, memory.explained_sum(used));
  for (index_t j = 0; j < used; ++j) {  // a single reward explains all
    r.rewards[as_size(work.used_rewards[as_size(j)])].explained_squares =
        used > 1 ? memory.value(work, memory.explained_sum(j)) : r.within_squares;
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
