#include "json_report.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

namespace resolution {
namespace {

using Json = nlohmann::ordered_json;

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

/// The JSON as text. Column names may hold bytes that are not UTF-8, which JSON cannot; they are
/// replaced.
std::string text_of(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json to_object(const Metrics& m) {
  Json correlations = Json::array();
  for (const double c : m.mean_corr_with_each_reward) correlations.push_back(number(c));
  Json object;
  object["distinct_values"] = m.distinct_values;
  object["distinct_group_vectors_sorted"] = m.distinct_group_vectors_sorted;
  object["zero_groups"] = m.zero_groups;
  object["mean_levels_per_group"] = m.mean_levels_per_group;
  object["mean_distinct_reward_vectors_per_group"] = m.mean_distinct_reward_vectors_per_group;
  object["pairs"] = m.pairs;
  object["pairs_with_different_reward_vectors"] = m.pairs_with_different_reward_vectors;
  object["pairs_collapsed"] = m.pairs_collapsed;
  object["collapse_rate"] = m.collapse_rate;
  object["groups_with_reward_differences_but_all_zero_advantage"] = m.cancelled_groups.size();
  object["distinct_reward_multisets"] = m.distinct_reward_multisets;
  object["cross_group_collapse_rate"] = m.cross_group_collapse_rate;
  object["adv_std"] = number(m.adv_std);
  object["adv_absmax"] = number(m.adv_absmax);
  object["mean_corr_with_each_reward"] = correlations;
  object["distinct_values_gap1e-9"] = m.clusters.count;
  object["min_gap_between_distinct"] = number(m.clusters.smallest_gap);
  object["max_rounding_noise_inside_cluster"] = m.clusters.largest_noise;
  return object;
}

Json to_object(const LengthWeighting& length, const std::string& column) {
  Json object;
  object["length_column"] = column;
  object["seq_mean"] = number(length.plain.mean);
  object["seq_std"] = number(length.plain.std);
  object["len_weighted_mean"] = number(length.weighted.mean);
  object["len_weighted_std"] = number(length.weighted.std);
  object["frac_completions_zero_advantage_seq"] = length.zero_share;
  object["value_given_to_zero_advantage_completions_by_len_weighted"] =
      number(length.value_given_to_zero);
  object["frac_nonzero_completions_sign_changed"] = length.sign_changed_share;
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
  Json channels;
  for (const auto& channel : rewards.channels) {
    Json object;
    object["min"] = number(channel.min);
    object["max"] = number(channel.max);
    object["mean"] = number(channel.mean);
    object["std"] = number(channel.std);
    object["distinct"] = channel.distinct;
    object["zero_variance_groups"] = channel.zero_variance_groups;
    channels[channel.name] = object;
  }
  Json methods;
  for (const auto& result : comparison.results)
    methods[result.info.name] = to_object(result.metrics);

  Json object;
  object["file"] = comparison.rollouts.file;
  object["rewards"] = comparison.rollouts.reward_names;
  object["groups"] = comparison.rollouts.members.size();
  object["completions"] = comparison.rollouts.rows();
  object["K"] = sizes;
  object["per_reward"] = channels;
  object["zero_variance_groups_sum"] = rewards.zero_variance_groups_sum;
  object["zero_variance_groups_all_rewards"] = rewards.zero_variance_groups_all;
  object["groups_equal_sum_but_some_reward_varies"] = rewards.equal_sum_groups.size();
  object["distinct_reward_vectors"] = rewards.distinct_vectors;
  object["bn"] = {{"bn_mean", number(comparison.batch.mean)},
                  {"bn_std", number(comparison.batch.std)}};
  object["methods"] = methods;
  if (comparison.length) {
    object["bn_sequence_vs_length_weighted"] =
        to_object(*comparison.length, comparison.rollouts.length_name);
  }
  return text_of(object);
}

std::string to_json(const Counting& counting) {
  Json object;
  object["by_group_size"] = to_object(counting.by_group_size, "n", counting.rewards);
  object["by_rewards"] = to_object(counting.by_rewards, "G", counting.group_size);
  return text_of(object);
}

}  // namespace resolution
