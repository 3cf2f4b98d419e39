#include "json_report.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "findings.hpp"

namespace resolution {
namespace {

using Json = nlohmann::ordered_json;

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

/// The JSON as text. Column names may hold bytes that are not UTF-8, which JSON cannot; they are
/// replaced.
std::string text_of(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json numbers(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) list.push_back(number(value));
  return list;
}

Json to_object(const Metrics& m, const RewardSummary& rewards) {
  Json object;
  object["distinct_values"] = m.distinct_values;
  object["distinct_values_within_batches"] = m.distinct_values_within_batches;
  object["distinct_group_vectors_sorted"] = m.distinct_group_vectors_sorted;
  object["distinct_group_vectors_within_batches"] = m.distinct_group_vectors_within_batches;
  object["zero_groups"] = m.zero_groups;
  object["mean_levels_per_group"] = m.mean_levels_per_group;
  object["mean_distinct_reward_vectors_per_group"] = rewards.mean_vectors_per_group;
  object["pairs"] = rewards.pairs;
  object["pairs_with_different_reward_vectors"] = rewards.pairs_with_different_vectors;
  object["pairs_collapsed"] = m.pairs_collapsed;
  object["collapse_rate"] = m.collapse_rate;
  object["groups_with_reward_differences_but_all_zero_advantage"] = m.canceled_groups.size();
  object["distinct_reward_multisets"] = rewards.distinct_multisets;
  object["cross_group_collapse_rate"] = m.cross_group_collapse_rate;
  object["adv_std"] = number(m.adv_std);
  object["adv_absmax"] = number(m.adv_absmax);
  object["mean_corr_with_each_reward"] = numbers(m.mean_corr_with_each_reward);
  object["distinct_values_gap1e-9"] = m.clusters.count;
  object["min_gap_between_distinct"] = number(m.clusters.smallest_gap);
  object["max_rounding_noise_inside_cluster"] = m.clusters.largest_noise;
  return object;
}

/// What repeats an estimator. Numbers are numbers; infinity and NaN are words, as in a line.
Json to_object(const EstimatorInfo& info) {
  Json object;
  object["name"] = info.preset;
  for (const auto& [name, value] : info.settings) {
    const Json parsed = Json::parse(value, nullptr, false);
    object["settings"][name] = parsed.is_discarded() ? Json(value) : parsed;
  }
  return object;
}

/// What repeats every estimator of a comparison.
Json estimators_object(const Comparison& c) {
  const auto& names = c.rollouts.reward_names;
  Json conditions = Json::array();
  for (const Condition& g : c.settings.given)
    conditions.push_back(
        {{"reward", names[g.reward]}, {"given", names[g.given]}, {"at_least", g.at_least}});
  const auto& weights = c.settings.weights;
  Json all;
  for (const EstimatorResult& result : c.results) {
    Json object = to_object(result.info);
    object["weights"] = weights.empty() ? std::vector<double>(names.size(), 1.0) : weights;
    object["conditions"] = conditions;
    all[result.info.name] = object;
  }
  return all;
}

/// A step over a batch as one object: its values where there is one batch, else lists of them.
Json to_object(const LengthWeighting& length, const Comparison& c) {
  const auto each = [&](const auto& value) {
    if (c.rollouts.batches() == 1) return number(value(0));
    Json list = Json::array();
    for (std::size_t b = 0; b < c.rollouts.batches(); ++b) list.push_back(number(value(b)));
    return list;
  };
  Json object;
  object["length_column"] = c.rollouts.length_name;
  object["seq_mean"] = each([&](std::size_t b) { return c.batch_steps[b].mean; });
  object["seq_std"] = each([&](std::size_t b) { return c.batch_steps[b].std; });
  object["len_weighted_mean"] =
      each([&](std::size_t b) { return length.batches[b].weighted.mean; });
  object["len_weighted_std"] = each([&](std::size_t b) { return length.batches[b].weighted.std; });
  object["frac_completions_zero_advantage_seq"] = length.zero_share;
  object["value_given_to_zero_advantage_completions_by_len_weighted"] =
      each([&](std::size_t b) { return length.batches[b].value_given_to_zero; });
  object["frac_nonzero_completions_sign_changed"] = length.sign_changed_share;
  return object;
}

/// The curves over the batches.
Json batches_object(const Comparison& c) {
  const Rollouts& log = c.rollouts;
  Json completions = Json::array();
  Json groups = Json::array();
  std::vector<double> stds;
  for (std::size_t b = 0; b < log.batches(); ++b) {
    completions.push_back(log.rows_of_batch(b).size());
    groups.push_back(log.groups_of(b).size());
    stds.push_back(c.batch_steps[b].std);
  }
  Json means;
  Json deviations;
  for (std::size_t k = 0; k < log.reward_count(); ++k) {
    means[log.reward_names[k]] = numbers(c.curves.rewards[k].mean);
    deviations[log.reward_names[k]] = numbers(c.curves.rewards[k].std);
  }
  Json ties;
  for (const auto& result : c.results)
    ties[result.info.name] = numbers(result.metrics.collapse_rate_of_batch);
  Json object;
  object["name"] = log.batch_names;
  object["completions"] = completions;
  object["groups"] = groups;
  object["reward_mean"] = means;
  object["reward_std"] = deviations;
  object["zero_variance_groups_sum"] = numbers(c.curves.zero_variance_groups_sum);
  object["zero_variance_groups_all_rewards"] = numbers(c.curves.zero_variance_groups_all);
  object["collapse_rate"] = ties;
  object["bn_std"] = numbers(stds);
  if (!log.lengths.empty()) object["length_mean"] = numbers(c.curves.length);
  return object;
}

Json to_object(const CountTable& table, const char* fixed_name, std::size_t fixed) {
  Json object;
  object[fixed_name] = fixed;
  for (const auto& series : table.series) {
    Json counts;
    for (std::size_t i = 0; i < table.sizes.size(); ++i)
      counts[std::to_string(table.sizes[i])] = series.counts[i];
    object[series.estimator] = counts;
  }
  return object;
}

}  // namespace

std::string to_json(const Comparison& comparison) {
  const RewardSummary& rewards = comparison.rewards;
  Json sizes;
  for (const auto& [size, groups] : rewards.group_sizes) sizes[std::to_string(size)] = groups;
  Json per_reward;
  for (const auto& reward : rewards.per_reward) {
    Json object;
    object["min"] = number(reward.min);
    object["max"] = number(reward.max);
    object["mean"] = number(reward.mean);
    object["std"] = number(reward.std);
    object["distinct"] = reward.distinct;
    object["missing"] = reward.missing;
    object["zero_variance_groups"] = number(reward.zero_variance_groups);
    per_reward[reward.name] = object;
  }
  Json methods;
  for (const auto& result : comparison.results)
    methods[result.info.name] = to_object(result.metrics, rewards);

  Json object;
  object["file"] = comparison.rollouts.file;
  object["rewards"] = comparison.rollouts.reward_names;
  object["groups"] = comparison.rollouts.groups();
  object["completions"] = comparison.rollouts.rows();
  object["batches"] = comparison.rollouts.batches();
  object["batch_columns"] = comparison.rollouts.batch_columns;
  object["K"] = sizes;
  object["per_reward"] = per_reward;
  object["zero_variance_groups_sum"] = rewards.zero_variance_groups_sum;
  object["zero_variance_groups_all_rewards"] = rewards.zero_variance_groups_all;
  object["groups_equal_sum_but_some_reward_varies"] = rewards.equal_sum_groups.size();
  object["distinct_reward_vectors"] = rewards.distinct_vectors;
  object["completions_without_reward"] = rewards.excluded_rows;
  object["groups_without_reward"] = comparison.rollouts.groups() - rewards.groups;
  object["rows_left_out"] = comparison.rollouts.left_out;
  object["warnings"] = Json::array();
  for (const Finding& w : warnings(comparison))
    object["warnings"].push_back(w.title + ". " + w.text);
  object["distinct_reward_multisets_within_batches"] = rewards.distinct_multisets_within_batches;
  if (comparison.rollouts.batches() == 1) {
    const BatchStep& step = comparison.batch_steps.front();
    object["bn"] = {{"bn_mean", number(step.mean)}, {"bn_std", number(step.std)}};
  }
  object["estimators"] = estimators_object(comparison);
  object["methods"] = methods;
  if (comparison.length)
    object["bn_sequence_vs_length_weighted"] = to_object(*comparison.length, comparison);
  object["per_batch"] = batches_object(comparison);
  return text_of(object);
}

std::string to_json(const Counting& counting) {
  Json object;
  for (const auto& series : counting.by_group_size.series)
    object["estimators"][series.estimator] = to_object(describe(series.estimator));
  object["by_group_size"] = to_object(counting.by_group_size, "n", counting.rewards);
  object["by_rewards"] = to_object(counting.by_rewards, "G", counting.group_size);
  return text_of(object);
}

}  // namespace resolution
