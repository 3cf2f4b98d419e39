#include "metrics.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "statistics.hpp"
#include "words.hpp"

namespace resolution {
namespace {

// Rewards are rounded to multiples of 1e-9 and advantages to multiples of 1e-6 before they are
// compared.
constexpr double reward_grid = 1e9;
constexpr double advantage_grid = 1 / advantage_tolerance;

/// A value rounded for comparison. A missing one (NaN) becomes minus infinity, which no data has,
/// so that missing values are equal to each other and to nothing else.
double comparable(double value, double grid) {
  return std::isnan(value) ? -std::numeric_limits<double>::infinity() : rounded(value, grid);
}

/// n (n - 1) / 2, as double because the number of pairs of groups may be large.
double pairs_of(std::size_t n) {
  return 0.5 * static_cast<double>(n) * static_cast<double>(n == 0 ? 0 : n - 1);
}
std::size_t count_pairs(std::size_t n) { return n == 0 ? 0 : n * (n - 1) / 2; }

double ratio(std::size_t part, std::size_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

/// The number of pairs in a group whose advantages agree although their reward vectors differ.
/// Sorting by advantage brings ties together. For each completion, a window holds the earlier ones
/// that tie with it; those with the same reward vector are not counted.
std::size_t collapsed_pairs(const std::vector<std::size_t>& rows,
                            const std::vector<double>& advantages,
                            const std::vector<std::size_t>& vector_of) {
  std::vector<std::size_t> order;
  for (const std::size_t row : rows) {
    if (!std::isnan(advantages[row])) order.push_back(row);
  }
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return advantages[a] < advantages[b]; });
  std::map<std::size_t, std::size_t> in_window;
  std::size_t first = 0;
  std::size_t collapsed = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    while (advantages[order[i]] - advantages[order[first]] > advantage_tolerance)
      --in_window[vector_of[order[first++]]];
    std::size_t& same = in_window[vector_of[order[i]]];
    collapsed += (i - first) - same;
    ++same;
  }
  return collapsed;
}

}  // namespace

std::size_t RewardSummary::missing() const {
  std::size_t count = 0;
  for (const Channel& channel : channels) count += channel.missing;
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

Measure::Measure(const Rollouts& rollouts, const Settings& settings) : rollouts_(rollouts) {
  gate(settings);
  number_reward_vectors();
  summarise(settings);
}

/// Applies the conditions as the estimators do: a reward whose condition fails is 0, and one whose
/// condition is unknown because the other reward is missing is missing.
void Measure::gate(const Settings& settings) {
  gated_ = rollouts_.rewards;
  for (std::size_t row = 0; row < rollouts_.rows(); ++row) {
    for (const Condition& condition : settings.given) {
      double& reward = gated_[row * rollouts_.channels() + condition.reward];
      const double given = rollouts_.reward(row, condition.given);
      if (given < condition.at_least) reward = 0;
    }
    for (const Condition& condition : settings.given) {
      const double given = rollouts_.reward(row, condition.given);
      if (std::isnan(given)) gated_[row * rollouts_.channels() + condition.reward] = given;
    }
  }
}

void Measure::number_reward_vectors() {
  const std::size_t channels = rollouts_.channels();
  std::map<std::vector<double>, std::size_t> numbers;
  std::vector<double> key(channels);
  for (std::size_t row = 0; row < rollouts_.rows(); ++row) {
    for (std::size_t k = 0; k < channels; ++k)
      key[k] = comparable(gated_[row * channels + k], reward_grid);
    vector_of_.push_back(numbers.try_emplace(key, numbers.size()).first->second);
  }
  summary_.distinct_vectors = numbers.size();

  std::map<std::vector<std::size_t>, std::size_t> multisets;
  for (const auto& rows : rollouts_.members) {
    std::vector<std::size_t> vectors(rows.size());
    std::transform(rows.begin(), rows.end(), vectors.begin(),
                   [this](std::size_t row) { return vector_of_[row]; });
    std::sort(vectors.begin(), vectors.end());
    levels_.push_back(std::set<std::size_t>(vectors.begin(), vectors.end()).size());
    summary_.uniform_groups += levels_.back() == 1 ? 1 : 0;
    multiset_of_.push_back(
        multisets.try_emplace(std::move(vectors), multisets.size()).first->second);
  }
  multisets_ = multisets.size();
}

std::vector<double> Measure::present(std::size_t group, std::size_t channel) const {
  std::vector<double> values;
  for (const std::size_t row : rollouts_.members[group]) {
    const double value = gated_[row * rollouts_.channels() + channel];
    if (!std::isnan(value)) values.push_back(value);
  }
  return values;
}

void Measure::summarise(const Settings& settings) {
  const std::size_t channels = rollouts_.channels();
  const std::size_t groups = rollouts_.members.size();

  varying_.assign(groups, std::vector<bool>(channels));
  for (std::size_t g = 0; g < groups; ++g) {
    for (std::size_t k = 0; k < channels; ++k) varying_[g][k] = varies(present(g, k));
  }
  for (std::size_t k = 0; k < channels; ++k) {
    std::vector<double> values;
    std::vector<double> on_grid;
    for (std::size_t row = 0; row < rollouts_.rows(); ++row) {
      const double value = gated_[row * channels + k];
      if (std::isnan(value)) continue;
      values.push_back(value);
      on_grid.push_back(rounded(value, reward_grid));
    }
    const auto constant =
        std::count_if(varying_.begin(), varying_.end(), [k](const auto& v) { return !v[k]; });
    RewardSummary::Channel channel{};
    channel.name = rollouts_.reward_names[k];
    channel.min = channel.max = std::numeric_limits<double>::quiet_NaN();
    if (!values.empty()) {
      const auto [min, max] = std::minmax_element(values.begin(), values.end());
      channel.min = *min;
      channel.max = *max;
    }
    channel.mean = mean(values);
    channel.std = standard_deviation(values, 1);
    channel.distinct = count_distinct(std::move(on_grid));
    channel.missing = rollouts_.rows() - values.size();
    channel.zero_variance_groups = ratio(static_cast<std::size_t>(constant), groups);
    summary_.channels.push_back(channel);
  }

  std::map<std::size_t, std::size_t> sizes;
  std::size_t constant_sums = 0;
  std::size_t constant_groups = 0;
  for (std::size_t g = 0; g < groups; ++g) {
    ++sizes[rollouts_.members[g].size()];
    std::vector<double> sums;
    for (const std::size_t row : rollouts_.members[g]) {
      double sum = 0;
      bool any = false;
      for (std::size_t k = 0; k < channels; ++k) {
        const double value = gated_[row * channels + k];
        if (std::isnan(value)) continue;
        any = true;
        sum += settings.weights.empty() ? value : settings.weights[k] * value;
      }
      if (any) sums.push_back(sum);
      summary_.excluded_rows += any ? 0 : 1;
    }
    const bool some_reward =
        std::find(varying_[g].begin(), varying_[g].end(), true) != varying_[g].end();
    const bool sum_varies = varies(sums);
    constant_sums += sum_varies ? 0 : 1;
    constant_groups += some_reward ? 0 : 1;
    if (!sum_varies && some_reward) summary_.equal_sum_groups.push_back(g);
  }
  summary_.group_sizes.assign(sizes.begin(), sizes.end());
  summary_.zero_variance_groups_sum = ratio(constant_sums, groups);
  summary_.zero_variance_groups_all = ratio(constant_groups, groups);
}

Metrics Measure::of(const std::vector<double>& advantages) const {
  const std::size_t groups = rollouts_.members.size();
  Metrics metrics;
  std::vector<double> all;
  std::size_t levels = 0;
  std::size_t reward_levels = 0;
  std::map<std::vector<double>, std::set<std::size_t>> multisets_by_vector;

  for (std::size_t g = 0; g < groups; ++g) {
    const auto& rows = rollouts_.members[g];
    std::vector<double> vector;
    std::map<std::size_t, std::size_t> same_rewards;
    bool zero = true;
    for (const std::size_t row : rows) {
      vector.push_back(comparable(advantages[row], advantage_grid));
      zero = zero && std::abs(advantages[row]) < advantage_tolerance;
      ++same_rewards[vector_of_[row]];
    }
    all.insert(all.end(), vector.begin(), vector.end());
    std::sort(vector.begin(), vector.end());
    levels += count_distinct(vector);
    reward_levels += levels_[g];
    metrics.zero_groups += zero ? 1 : 0;
    if (zero && levels_[g] > 1) metrics.cancelled_groups.push_back(g);

    std::size_t different = count_pairs(rows.size());
    metrics.pairs += different;
    for (const auto& [vector_number, count] : same_rewards) different -= count_pairs(count);
    metrics.pairs_with_different_reward_vectors += different;
    metrics.pairs_collapsed += collapsed_pairs(rows, advantages, vector_of_);
    multisets_by_vector[std::move(vector)].insert(multiset_of_[g]);
  }

  metrics.distinct_values = count_distinct(std::move(all));
  metrics.distinct_group_vectors_sorted = multisets_by_vector.size();
  metrics.mean_levels_per_group = ratio(levels, groups);
  metrics.mean_distinct_reward_vectors_per_group = ratio(reward_levels, groups);
  metrics.collapse_rate =
      ratio(metrics.pairs_collapsed, metrics.pairs_with_different_reward_vectors);
  metrics.distinct_reward_multisets = multisets_;
  double collisions = 0;
  for (const auto& [vector, multisets] : multisets_by_vector)
    collisions += pairs_of(multisets.size());
  metrics.cross_group_collapse_rate = multisets_ > 1 ? collisions / pairs_of(multisets_) : 0;

  std::vector<double> finite;
  for (const double a : advantages) {
    if (std::isfinite(a)) finite.push_back(a);
    metrics.adv_absmax = std::fmax(metrics.adv_absmax, std::abs(a));
  }
  metrics.not_finite = advantages.size() - finite.size();
  metrics.adv_std = standard_deviation(advantages, 1);
  metrics.clusters = find_clusters(std::move(finite));

  for (std::size_t k = 0; k < rollouts_.channels(); ++k) {
    std::vector<double> correlations;
    for (std::size_t g = 0; g < groups; ++g) {
      if (!varying_[g][k]) continue;
      std::vector<double> a;
      for (const std::size_t row : rollouts_.members[g]) {
        if (!std::isnan(gated_[row * rollouts_.channels() + k])) a.push_back(advantages[row]);
      }
      if (varies(a)) correlations.push_back(correlation(a, present(g, k)));
    }
    metrics.mean_corr_with_each_reward.push_back(mean(correlations));
  }
  return metrics;
}

}  // namespace resolution
