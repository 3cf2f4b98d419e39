#pragma once
// What a report says of several rewards. Nothing here is a template, so that a program compiles it
// once.
#include <algorithm>
#include <gdpo/advantage/engine/one_group.hpp>
#include <gdpo/advantage/report.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

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

/// The memory of a report: in EstimatorScratch::report the factors (G, columns) that the engine
/// keeps, the rewards of the batch in the order of its groups and what they become, and sums over
/// groups; in EstimatorScratch::group_sizes where each group begins, (G + 1).
struct RewardTable {
  index_t groups, columns, rewards, rows;

  std::size_t sums() const {
    const std::size_t pairs = 3 * pair_count(as_size(rewards)), used = as_size(rewards) + 1;
    return pairs > used ? pairs : used;
  }
  std::size_t size() const {
    return as_size(groups * columns + (2 * rewards + 2) * rows) + 2 * sums();
  }
  /// (N) reward c after gates; NaN where it is missing or infinite, and in rows that are not used.
  double* given(EstimatorScratch& work, index_t c) const {
    return work.report.data() + groups * columns + c * rows;
  }
  /// (N) reward c as its statistics see it; NaN in rows that are not used.
  double* adjusted(EstimatorScratch& work, index_t c) const { return given(work, rewards + c); }
  /// (N) the combined values; NaN in rows that do not count.
  double* combined(EstimatorScratch& work) const { return given(work, 2 * rewards); }
  /// (N) what the rewards add up to: the weighted sums, or the combined values.
  double* total(EstimatorScratch& work) const { return given(work, 2 * rewards + 1); }
  /// Sum number i, a TwoSum in two doubles, so that the order of the groups does not matter.
  double* sum(EstimatorScratch& work, std::size_t i) const {
    return given(work, 2 * rewards + 2) + 2 * i;
  }
  void add(EstimatorScratch& work, std::size_t i, double x) const {
    double* const memory = sum(work, i);
    TwoSum<double> two{memory[0], memory[1]};
    two.add(x);
    memory[0] = two.sum, memory[1] = two.error;
  }
  /// The value of a sum, which begins anew.
  double take(EstimatorScratch& work, std::size_t i) const {
    double* const memory = sum(work, i);
    const double value = memory[0] + memory[1];
    memory[0] = memory[1] = 0;
    return value;
  }
};

/// Makes room for what the engine writes of each group for a report.
GDPO_COLD inline void prepare_report(GroupReport& report, EstimatorScratch& work,
                                     const RewardTable& table) {
  report.degenerate.assign(as_size(table.groups), 1);  // an empty group stays degenerate
  work.report.resize(table.size());
  std::fill_n(work.report.data(), table.groups * table.columns, 0.0);
  std::fill_n(table.sum(work, 0), 2 * table.sums(), 0.0);
}

/// Fills in `pairs`: how the rewards vary together within groups.
GDPO_COLD inline void fill_pairs(const RewardTable& table, EstimatorScratch& work, GroupReport& r) {
  const index_t rewards = table.rewards;
  r.pairs.resize(3 * pair_count(as_size(rewards)));
  if (rewards < 2) return;
  work.raw.resize(as_size((rewards + 2) * r.largest_group));
  work.centered.resize(as_size(rewards));  // sums of squares; NaN where a member has no value
  for (index_t g = 0; g < r.groups; ++g) {
    const index_t first = work.group_sizes[as_size(g)],
                  members = work.group_sizes[as_size(g) + 1] - first;
    double* const centered = work.raw.data();
    for (index_t a = 0; a < rewards; ++a) {
      double* const x = centered + a * members;
      std::copy_n(table.given(work, a) + first, members, x);
      work.centered[as_size(a)] =
          center_numbers(x, members) == members ? sum_of_products(x, x, members) : math::nan();
    }
    std::size_t pair = 0;
    for (index_t a = 0; a < rewards; ++a) {
      for (index_t b = a + 1; b < rewards; ++b, pair += 3) {
        const double *x = centered + a * members, *y = centered + b * members;
        double squares_a = work.centered[as_size(a)], squares_b = work.centered[as_size(b)];
        if (math::is_nan(squares_a) || math::is_nan(squares_b)) {
          x = table.given(work, a) + first, y = table.given(work, b) + first;
          double *of_a = centered + rewards * members, *of_b = of_a + members;
          for (index_t k = 0; k < members; ++k) {
            const bool both = !math::is_nan(x[k]) && !math::is_nan(y[k]);
            of_a[k] = both ? x[k] : math::nan(), of_b[k] = both ? y[k] : math::nan();
          }
          center_numbers(of_a, members), center_numbers(of_b, members);
          x = of_a, y = of_b;
          squares_a = sum_of_products(x, x, members), squares_b = sum_of_products(y, y, members);
        }
        table.add(work, pair, sum_of_products(x, y, members));
        table.add(work, pair + 1, squares_a), table.add(work, pair + 2, squares_b);
      }
    }
  }
  for (std::size_t p = 0; p < r.pairs.size(); ++p) r.pairs[p] = table.take(work, p);
}

/// How an estimator makes combined values of rewards.
struct PartRules {
  bool sums_first,  ///< It sums them first.
      one_factor,   ///< Else: all members of a group have one baseline and one multiplier.
      skips;        ///< A missing reward adds 0.
};
/// Shows the terms of a group once more.
struct GroupTerms {
  void* context;
  void (*show)(void* context, index_t g, TermObserver observer);
};
/// Fills in what each reward explains of the combined values. It overwrites the table.
GDPO_COLD inline void fill_explained(const RewardTable& table, const PartRules& rules,
                                     const GroupTerms& terms, EstimatorScratch& work,
                                     GroupReport& r) {
  const auto used = static_cast<index_t>(work.used_rewards.size());
  const bool several = used > 1;
  for (index_t g = 0; used > 0 && g < r.groups; ++g) {
    if (r.degenerate[as_size(g)]) continue;
    const index_t first = work.group_sizes[as_size(g)],
                  members = work.group_sizes[as_size(g) + 1] - first;
    double *s = table.combined(work) + first,
           *total = rules.sums_first ? table.total(work) + first : s;
    // Of a standardized reward of which no member lacks a value the differences are those of the
    // reward times one factor, which the engine has kept. Others are asked from it.
    bool by_factor = rules.one_factor, known = true;
    for (index_t j = 0; several && j < used; ++j) {
      double* part = table.adjusted(work, work.used_rewards[as_size(j)]) + first;
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
    if (!known) continue;
    const bool ask = several && !rules.sums_first && !by_factor;
    if (ask) {
      struct Place {
        const RewardTable& table;
        EstimatorScratch& work;
        index_t first;
        double& of(const ObservedTerm& term) const {
          return table.adjusted(work, work.used_rewards[as_size(term.column)])[first + term.member];
        }
      } place{table, work, first};
      for (index_t j = 0; j < used; ++j) {
        double* part = table.adjusted(work, work.used_rewards[as_size(j)]) + first;
        for (index_t k = 0; k < members; ++k) part[k] = math::is_nan(s[k]) ? s[k] : 0.0;
      }
      terms.show(terms.context, g, {&place, [](void* context, const ObservedTerm& term) {
                                      double& part = static_cast<const Place*>(context)->of(term);
                                      if (!math::is_nan(part)) part = term.term;
                                    }});
    }
    center_numbers(s, members);
    if (rules.sums_first) center_numbers(total, members);
    const double squares = sum_of_products(s, s, members),
                 spread = rules.sums_first ? sum_of_products(total, total, members) : squares;
    if (!(squares > 0 && spread > 0) || math::not_finite(squares) || math::not_finite(spread))
      continue;
    table.add(work, as_size(used), squares);
    for (index_t j = 0; several && j < used; ++j) {
      double* part = table.adjusted(work, work.used_rewards[as_size(j)]) + first;
      center_numbers(part, members);
      const double factor = ask                ? 1.0
                            : rules.sums_first ? work.reward_weights[as_size(j)]
                                               : work.report[as_size(g * used + j)];
      const double product = math::mul(factor, sum_of_products(part, total, members));
      table.add(work, as_size(j), math::mul(squares, product / spread));
    }
  }
  r.within_squares = table.take(work, as_size(used));
  for (index_t j = 0; j < used; ++j) {
    const double squares = table.take(work, as_size(j));  // a single reward explains all
    r.rewards[as_size(work.used_rewards[as_size(j)])].explained_squares =
        several ? squares : r.within_squares;
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
