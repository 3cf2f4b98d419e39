#include "metrics.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>

#include "statistics.hpp"
#include "words.hpp"

namespace resolution {
namespace {

// Rewards are rounded to multiples of 1e-9 and advantages to multiples of 1e-6 before they are
// compared.
constexpr double reward_grid = 1e9;
constexpr double advantage_grid = 1 / advantage_tolerance;
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// A value rounded for comparison. A missing one (NaN) becomes minus infinity, which no data has,
/// so that missing values are equal to each other and to nothing else.
double comparable(double value, double grid) {
  return std::isnan(value) ? -std::numeric_limits<double>::infinity() : rounded(value, grid);
}

std::size_t number_of_pairs(std::size_t n) { return n == 0 ? 0 : n * (n - 1) / 2; }

double ratio(std::size_t part, std::size_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

template <class T>
auto iterator(std::vector<T>& values, std::size_t at) {
  return values.begin() + static_cast<std::ptrdiff_t>(at);
}

/// Sorts part of a list and returns how many different values it has.
template <class T>
std::size_t sort_and_count(std::vector<T>& values, Range part) {
  std::sort(iterator(values, part.begin), iterator(values, part.end));
  std::size_t count = part.size() == 0 ? 0 : 1;
  for (std::size_t i = part.begin + 1; i < part.end; ++i) count += values[i] != values[i - 1];
  return count;
}

/// Counts the pairs in a group whose advantages agree although their reward vectors differ. Sorting
/// by advantage brings ties together. For each completion, a window holds the earlier ones that tie
/// with it; those with the same reward vector are not counted.
class TieCounter {
 public:
  TieCounter(const std::vector<double>& advantages, const std::vector<std::uint32_t>& vector_of)
      : advantages_(advantages), vector_of_(vector_of) {}

  /// The group has `vectors` different reward vectors, which are numbered from 0.
  std::size_t count(Range rows, std::size_t vectors) {
    order_.clear();
    for (std::size_t row = rows.begin; row < rows.end; ++row) {
      if (!std::isnan(advantages_[row])) order_.push_back(row);
    }
    std::sort(order_.begin(), order_.end(),
              [this](std::size_t a, std::size_t b) { return advantages_[a] < advantages_[b]; });
    in_window_.assign(vectors, 0);
    std::size_t first = 0;
    std::size_t ties = 0;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      while (advantages_[order_[i]] - advantages_[order_[first]] > advantage_tolerance)
        --in_window_[vector_of_[order_[first++]]];
      std::size_t& same = in_window_[vector_of_[order_[i]]];
      ties += (i - first) - same;
      ++same;
    }
    return ties;
  }

 private:
  const std::vector<double>& advantages_;
  const std::vector<std::uint32_t>& vector_of_;
  std::vector<std::size_t> order_;
  std::vector<std::size_t> in_window_;  ///< per reward vector, how many completions of the window
};

/// The number of different group numbers in each batch, added up.
std::size_t distinct_within_batches(const std::vector<std::uint32_t>& number_of_group,
                                    const Rollouts& rollouts) {
  std::vector<std::uint32_t> numbers = number_of_group;
  std::size_t count = 0;
  for (std::size_t b = 0; b < rollouts.batches(); ++b)
    count += sort_and_count(numbers, rollouts.groups_of(b));
  return count;
}

}  // namespace

bool is_zero(double advantage) { return std::abs(advantage) < advantage_tolerance; }

std::size_t RewardSummary::missing() const {
  std::size_t count = 0;
  for (const Reward& reward : per_reward) count += reward.missing;
  return count;
}

std::string group_sizes_text(const RewardSummary& rewards) {
  constexpr std::size_t most = 6;
  const auto& sizes = rewards.group_sizes;
  std::string text;
  for (std::size_t i = 0; i < sizes.size() && i < most; ++i) {
    text += (i == 0 ? "" : ", ") + grouped(sizes[i].second) + " of " + grouped(sizes[i].first);
  }
  return text + (sizes.size() > most ? ", ... up to " + grouped(sizes.back().first) : "");
}

Measure::Measure(const Rollouts& rollouts, const Settings& settings, const OnRows& on_rows)
    : rollouts_(rollouts), weights_(settings.weights) {
  if (weights_.empty()) weights_.assign(rollouts.reward_count(), 1);
  gate(settings);
  leave_out_unrewarded();
  number_reward_vectors();
  count_pairs();
  summarize_groups(on_rows);
  summarize();
}

/// Applies the conditions as the estimators do: a reward whose condition fails is 0, and one whose
/// condition is unknown because the other reward is missing is missing.
void Measure::gate(const Settings& settings) {
  if (settings.given.empty()) return;
  gated_ = rollouts_.rewards;
  for (std::size_t row = 0; row < rollouts_.rows(); ++row) {
    for (const Condition& condition : settings.given) {
      double& reward = gated_[row * rollouts_.reward_count() + condition.reward];
      const double given = rollouts_.reward(row, condition.given);
      if (given < condition.at_least) reward = 0;
    }
    for (const Condition& condition : settings.given) {
      const double given = rollouts_.reward(row, condition.given);
      if (std::isnan(given)) gated_[row * rollouts_.reward_count() + condition.reward] = given;
    }
  }
}

/// Finds the completions that have a reward with a weight, and where some have none, the log
/// without those: only the groups that have such completions, in the same batches.
void Measure::leave_out_unrewarded() {
  const std::size_t reward_count = rollouts_.reward_count();
  rewarded_.assign(rollouts_.rows(), 0);
  for (std::size_t row = 0; row < rollouts_.rows(); ++row) {
    for (std::size_t k = 0; k < reward_count; ++k) {
      if (weights_[k] != 0 && !std::isnan(gated()[row * reward_count + k])) rewarded_[row] = 1;
    }
    summary_.excluded_rows += rewarded_[row] == 0 ? 1 : 0;
  }
  if (summary_.excluded_rows == 0) return;
  Rollouts counted;
  counted.reward_names = rollouts_.reward_names;
  counted.batch_names = rollouts_.batch_names;
  for (std::size_t b = 0; b < rollouts_.batches(); ++b) {
    counted.batch_begin.push_back(counted.groups());
    const Range groups = rollouts_.groups_of(b);
    for (std::size_t g = groups.begin; g < groups.end; ++g) {
      const Range rows = rollouts_.rows_of(g);
      const std::size_t begin = counted.rewards.size() / reward_count;
      for (std::size_t row = rows.begin; row < rows.end; ++row) {
        if (rewarded_[row] == 0) continue;
        const auto at = gated().begin() + static_cast<std::ptrdiff_t>(row * reward_count);
        counted.rewards.insert(counted.rewards.end(), at,
                               at + static_cast<std::ptrdiff_t>(reward_count));
      }
      if (counted.rewards.size() / reward_count == begin) continue;
      counted.group_begin.push_back(begin);
      counted.group_names.push_back(rollouts_.group_names[g]);
      group_of_log_.push_back(g);
    }
  }
  counted.batch_begin.push_back(counted.groups());
  counted.group_begin.push_back(counted.rewards.size() / reward_count);
  counted_ = std::move(counted);
  if (!rollouts_.lengths.empty()) counted_->lengths = values_that_count(rollouts_.lengths);
}

std::vector<double> Measure::values_that_count(const std::vector<double>& values) const {
  std::vector<double> counted;
  counted.reserve(counted_->rows());
  for (std::size_t row = 0; row < values.size(); ++row) {
    if (rewarded_[row] != 0) counted.push_back(values[row]);
  }
  return counted;
}

/// Numbers the reward vectors of the log, then the multisets of them in groups, then the vectors
/// inside each group.
void Measure::number_reward_vectors() {
  const std::size_t reward_count = counted().reward_count();
  std::vector<std::uint32_t> vector_of;
  {
    std::vector<double> on_grid(counted_rewards().size(), 0);
    for (std::size_t i = 0; i < on_grid.size(); ++i) {
      if (weights_[i % reward_count] != 0)
        on_grid[i] = comparable(counted_rewards()[i], reward_grid);
    }
    std::vector<std::size_t> begin(counted().rows() + 1);
    for (std::size_t row = 0; row < begin.size(); ++row) begin[row] = row * reward_count;
    SliceNumbers vectors = number_slices(on_grid, begin);
    summary_.distinct_vectors = vectors.count;
    vector_of = std::move(vectors.of);
  }
  std::vector<std::uint32_t> sorted = vector_of;
  std::vector<std::uint32_t> different;
  std::size_t levels = 0;
  vector_in_group_.resize(counted().rows());
  for (std::size_t g = 0; g < counted().groups(); ++g) {
    const Range rows = counted().rows_of(g);
    levels_.push_back(sort_and_count(sorted, rows));
    levels += levels_.back();
    summary_.uniform_groups += levels_.back() == 1 ? 1 : 0;
    different.clear();
    std::unique_copy(iterator(sorted, rows.begin), iterator(sorted, rows.end),
                     std::back_inserter(different));
    for (std::size_t row = rows.begin; row < rows.end; ++row) {
      const auto at = std::lower_bound(different.begin(), different.end(), vector_of[row]);
      vector_in_group_[row] = static_cast<std::uint32_t>(at - different.begin());
    }
  }
  summary_.mean_vectors_per_group = ratio(levels, counted().groups());
  multisets_ = number_slices(sorted, counted().group_begin);
  summary_.distinct_multisets = multisets_.count;
  summary_.distinct_multisets_within_batches = distinct_within_batches(multisets_.of, counted());
}

void Measure::count_pairs() {
  std::vector<std::size_t> with_vector;
  for (std::size_t g = 0; g < counted().groups(); ++g) {
    const Range rows = counted().rows_of(g);
    with_vector.assign(levels_[g], 0);
    for (std::size_t row = rows.begin; row < rows.end; ++row) ++with_vector[vector_in_group_[row]];
    const std::size_t pairs = number_of_pairs(rows.size());
    std::size_t different = pairs;
    for (const std::size_t count : with_vector) different -= number_of_pairs(count);
    different_pairs_.push_back(different);
    summary_.pairs += pairs;
    summary_.pairs_with_different_vectors += different;
  }
}

void Measure::present(Range rows, std::size_t k, std::vector<double>& values) const {
  values.clear();
  for (std::size_t row = rows.begin; row < rows.end; ++row) {
    if (!std::isnan(reward(row, k))) values.push_back(reward(row, k));
  }
}

/// What the rewards do in each group.
void Measure::summarize_groups(const OnRows& on_rows) {
  const std::size_t reward_count = counted().reward_count();
  const std::size_t groups = counted().groups();
  varying_.assign(groups * reward_count, 0);
  sum_varies_.assign(groups, 0);
  std::map<std::size_t, std::size_t> sizes;
  for (std::size_t g = 0; g < rollouts_.groups(); ++g) ++sizes[rollouts_.rows_of(g).size()];
  std::size_t constant_sums = 0;
  std::size_t constant_groups = 0;
  std::vector<double> values;
  for (std::size_t g = 0; g < groups; ++g) {
    const Range rows = counted().rows_of(g);
    summary_.single_groups += rows.size() == 1 ? 1 : 0;
    bool some_reward = false;
    for (std::size_t k = 0; k < reward_count; ++k) {
      present(rows, k, values);
      const bool reward_varies = varies(values);
      varying_[g * reward_count + k] = reward_varies ? 1 : 0;
      some_reward = some_reward || (reward_varies && weights_[k] != 0);
    }
    values.clear();  // now the sums
    for (std::size_t row = rows.begin; row < rows.end; ++row) {
      double sum = 0;
      for (std::size_t k = 0; k < reward_count; ++k) {
        const double value = reward(row, k);
        if (!std::isnan(value) && weights_[k] != 0) sum += weights_[k] * value;
      }
      values.push_back(sum);
    }
    const bool sum_varies = varies(values);
    sum_varies_[g] = sum_varies ? 1 : 0;
    constant_sums += sum_varies ? 0 : 1;
    constant_groups += some_reward ? 0 : 1;
    if (!sum_varies && some_reward) summary_.equal_sum_groups.push_back(group_of_log(g));
    if (on_rows) on_rows(rows.end);
  }
  summary_.groups = groups;
  summary_.group_sizes.assign(sizes.begin(), sizes.end());
  summary_.zero_variance_groups_sum = ratio(constant_sums, groups);
  summary_.zero_variance_groups_all = ratio(constant_groups, groups);
}

/// What each reward does in the whole log.
void Measure::summarize() {
  const std::size_t groups = counted().groups();
  std::vector<double> values;
  for (std::size_t k = 0; k < counted().reward_count(); ++k) {
    std::size_t known = 0;
    std::size_t constant = 0;
    for (std::size_t g = 0; g < groups; ++g) {
      present(counted().rows_of(g), k, values);
      known += values.empty() ? 0 : 1;
      constant += values.empty() || varying(g, k) ? 0 : 1;
    }
    present({0, counted().rows()}, k, values);
    RewardSummary::Reward reward{};
    reward.name = counted().reward_names[k];
    reward.min = reward.max = nan;
    if (!values.empty()) {
      const auto [min, max] = std::minmax_element(values.begin(), values.end());
      reward.min = *min;
      reward.max = *max;
    }
    reward.mean = mean(values);
    reward.std = standard_deviation(values, 1);
    for (std::size_t row = 0; row < rollouts_.rows(); ++row)
      reward.missing += std::isnan(gated()[row * counted().reward_count() + k]) ? 1 : 0;
    reward.zero_variance_groups = known == 0 ? nan : ratio(constant, known);
    for (double& value : values) value = rounded(value, reward_grid);
    reward.distinct = sort_and_count(values, {0, values.size()});
    summary_.per_reward.push_back(reward);
  }
}

BatchCurves Measure::curves() const {
  BatchCurves curves;
  curves.rewards.resize(counted().reward_count());
  std::vector<double> values;
  for (std::size_t b = 0; b < counted().batches(); ++b) {
    const Range rows = counted().rows_of_batch(b);
    for (std::size_t k = 0; k < counted().reward_count(); ++k) {
      present(rows, k, values);
      curves.rewards[k].mean.push_back(mean(values));
      curves.rewards[k].std.push_back(standard_deviation(values, 1));
    }
    const Range groups = counted().groups_of(b);
    std::size_t constant_sums = 0;
    std::size_t constant_groups = 0;
    for (std::size_t g = groups.begin; g < groups.end; ++g) {
      bool any = false;
      for (std::size_t k = 0; k < counted().reward_count(); ++k)
        any = any || (varying(g, k) && weights_[k] != 0);
      constant_sums += sum_varies_[g] != 0 ? 0 : 1;
      constant_groups += any ? 0 : 1;
    }
    const bool none = groups.size() == 0;
    curves.zero_variance_groups_sum.push_back(none ? nan : ratio(constant_sums, groups.size()));
    curves.zero_variance_groups_all.push_back(none ? nan : ratio(constant_groups, groups.size()));
    if (counted().lengths.empty()) continue;
    const auto length = counted().lengths.begin();
    curves.length.push_back(std::accumulate(length + static_cast<std::ptrdiff_t>(rows.begin),
                                            length + static_cast<std::ptrdiff_t>(rows.end), 0.0) /
                            static_cast<double>(rows.size()));
  }
  return curves;
}

Metrics Measure::of(const std::vector<double>& all_advantages, const OnRows& on_rows) const {
  const std::vector<double> some =
      counted_ ? values_that_count(all_advantages) : std::vector<double>();
  const std::vector<double>& advantages = counted_ ? some : all_advantages;
  const std::size_t groups = counted().groups();
  Metrics metrics;
  std::vector<double> on_grid(advantages.size());
  std::transform(advantages.begin(), advantages.end(), on_grid.begin(),
                 [](double a) { return comparable(a, advantage_grid); });
  std::vector<std::size_t> ties_of_group(groups);
  std::size_t levels = 0;
  TieCounter ties(advantages, vector_in_group_);
  for (std::size_t g = 0; g < groups; ++g) {
    const Range rows = counted().rows_of(g);
    const bool zero =
        std::all_of(advantages.begin() + static_cast<std::ptrdiff_t>(rows.begin),
                    advantages.begin() + static_cast<std::ptrdiff_t>(rows.end), is_zero);
    metrics.zero_groups += zero ? 1 : 0;
    if (zero && levels_[g] > 1) metrics.canceled_groups.push_back(group_of_log(g));
    levels += sort_and_count(on_grid, rows);
    ties_of_group[g] = ties.count(rows, levels_[g]);
    metrics.pairs_collapsed += ties_of_group[g];
    if (on_rows) on_rows(rows.end);
  }
  metrics.mean_levels_per_group = ratio(levels, groups);
  metrics.collapse_rate = ratio(metrics.pairs_collapsed, summary_.pairs_with_different_vectors);
  for (std::size_t b = 0; b < counted().batches(); ++b) {
    std::size_t tied = 0;
    std::size_t different = 0;
    for (std::size_t g = counted().groups_of(b).begin; g < counted().groups_of(b).end; ++g) {
      tied += ties_of_group[g];
      different += different_pairs_[g];
    }
    metrics.collapse_rate_of_batch.push_back(different == 0 ? nan : ratio(tied, different));
  }

  // Each group's slice of on_grid is sorted now, so it is the group's vector.
  const SliceNumbers vectors = number_slices(on_grid, counted().group_begin);
  metrics.distinct_group_vectors_sorted = vectors.count;
  metrics.distinct_group_vectors_within_batches = distinct_within_batches(vectors.of, counted());
  std::vector<std::pair<std::uint32_t, std::uint32_t>> met(groups);
  for (std::size_t g = 0; g < groups; ++g) met[g] = {vectors.of[g], multisets_.of[g]};
  std::sort(met.begin(), met.end());
  met.erase(std::unique(met.begin(), met.end()), met.end());
  std::size_t collisions = 0;
  for (std::size_t first = 0, i = 1; i <= met.size(); ++i) {
    if (i < met.size() && met[i].first == met[first].first) continue;
    collisions += number_of_pairs(i - first);
    first = i;
  }
  metrics.cross_group_collapse_rate = ratio(collisions, number_of_pairs(multisets_.count));

  for (std::size_t b = 0; b < counted().batches(); ++b)
    metrics.distinct_values_within_batches += sort_and_count(on_grid, counted().rows_of_batch(b));
  metrics.distinct_values = sort_and_count(on_grid, {0, on_grid.size()});

  std::vector<double> finite;
  for (const double a : advantages) {
    if (std::isfinite(a)) finite.push_back(a);
    metrics.adv_absmax = std::fmax(metrics.adv_absmax, std::abs(a));
  }
  metrics.not_finite = static_cast<std::size_t>(std::count_if(
      all_advantages.begin(), all_advantages.end(), [](double x) { return !std::isfinite(x); }));
  metrics.adv_std = standard_deviation(advantages, 1);
  metrics.clusters = find_clusters(std::move(finite));

  std::vector<double> a;
  std::vector<double> r;
  for (std::size_t k = 0; k < counted().reward_count(); ++k) {
    std::vector<double> correlations;
    for (std::size_t g = 0; g < groups; ++g) {
      if (!varying(g, k)) continue;
      const Range rows = counted().rows_of(g);
      a.clear();
      r.clear();
      for (std::size_t row = rows.begin; row < rows.end; ++row) {
        if (std::isnan(reward(row, k))) continue;
        a.push_back(advantages[row]);
        r.push_back(reward(row, k));
      }
      if (varies(a)) correlations.push_back(correlation(a, r));
    }
    metrics.mean_corr_with_each_reward.push_back(mean(correlations));
  }
  return metrics;
}

}  // namespace resolution
