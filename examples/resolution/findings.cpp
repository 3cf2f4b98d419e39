#include "findings.hpp"

#include <algorithm>
#include <cmath>

#include "contrast.hpp"
#include "words.hpp"

namespace resolution {
namespace {

Finding batch_finding(const Comparison& c) {
  if (c.rollouts.members.size() == 1) {
    return {"There is only one group",
            "The batch step of GDPO then normalises inside this group, which loses the gain; it is "
            "meant to span many groups."};
  }
  return {"The batch step only rescales",
          "Every group is centred (sizes: " + group_sizes_text(c.rewards) +
              "), so the batch mean of the summed, normalised rewards is 0 and GDPO's last step "
              "divides all of them by one number, " +
              fixed(c.batch.std, 4) +
              ". It changes the size of the advantages, not their order nor their zeros."};
}

Finding length_finding(const Comparison& c) {
  const LengthWeighting& l = *c.length;
  return {"Weighting the batch step by length shifts",
          "With every completion weighted by " + in_quotes(c.rollouts.length_name) +
              " the batch mean is " + fixed(l.weighted.mean, 4) + " instead of 0 and the divisor " +
              fixed(l.weighted.std, 4) + " instead of " + fixed(l.plain.std, 4) + ": the " +
              percent(l.zero_share) + " of completions without a signal all get " +
              fixed(l.value_given_to_zero, 4) +
              (l.sign_changed_share > 0
                   ? ", and " + percent(l.sign_changed_share) + " of the others change sign."
                   : "; none of the others changes sign.")};
}

/// A warning where values lie closer together than the rounding grid: then the count of distinct
/// values says more about the grid than about the estimator.
void rounding(const Comparison& c, std::vector<Finding>& out) {
  for (const EstimatorResult& r : c.results) {
    const auto by_grid = static_cast<double>(r.metrics.distinct_values);
    const auto by_gaps = static_cast<double>(r.metrics.clusters.count);
    // The two ways to count agree to 2 %.
    if (std::abs(by_gaps - by_grid) <= 0.02 * by_grid) continue;
    out.push_back(
        {"Distinct values are limited by rounding",
         "The advantages lie so close together that rounding to 1e-6 merges different ones: " +
             r.info.label + " has " + grouped(r.metrics.distinct_values) +
             " distinct values rounded and " + grouped(r.metrics.clusters.count) +
             " by gaps above 1e-9. Compare estimators on such a log by tie rate, not by this "
             "count."});
    return;
  }
}

}  // namespace

bool is_zero(const Comparison& comparison, const EstimatorResult& result, std::size_t group) {
  const auto& rows = comparison.rollouts.members[group];
  return std::all_of(rows.begin(), rows.end(), [&](std::size_t row) {
    return std::abs(result.advantages[row]) < advantage_tolerance;
  });
}

std::vector<std::size_t> cancelled_groups(const Comparison& comparison) {
  const EstimatorResult* normalised = comparison.normalise_first();
  if (normalised == nullptr) return {};
  std::vector<std::size_t> groups = normalised->metrics.cancelled_groups;
  if (const EstimatorResult* sum = comparison.sum_first()) {
    std::stable_partition(groups.begin(), groups.end(),
                          [&](std::size_t g) { return !is_zero(comparison, *sum, g); });
  }
  return groups;
}

Finding headline(const Comparison& comparison) {
  const EstimatorResult* sum = comparison.sum_first();
  const EstimatorResult* normalised = comparison.normalise_first();
  if (sum != nullptr && normalised != nullptr) return tie_rate(comparison, *sum, *normalised);
  const auto finest = std::min_element(
      comparison.results.begin(), comparison.results.end(), [](const auto& a, const auto& b) {
        return a.metrics.pairs_collapsed < b.metrics.pairs_collapsed;
      });
  return {"Ties inside a group",
          finest->info.label + " gives the same advantage to " +
              share(finest->metrics.pairs_collapsed,
                    finest->metrics.pairs_with_different_reward_vectors) +
              " of the " + grouped(finest->metrics.pairs_with_different_reward_vectors) +
              " pairs of completions that share a group and have different rewards."};
}

std::vector<Finding> findings(const Comparison& comparison) {
  std::vector<Finding> out;
  const EstimatorResult* sum = comparison.sum_first();
  const EstimatorResult* normalised = comparison.normalise_first();
  if (sum != nullptr && normalised != nullptr) out = contrast(comparison, *sum, *normalised);
  if (comparison.find("gdpo") != nullptr && comparison.batch.std > 0)
    out.push_back(batch_finding(comparison));
  if (comparison.length) out.push_back(length_finding(comparison));
  rounding(comparison, out);
  for (const EstimatorResult& r : comparison.results) {
    if (r.metrics.not_finite == 0) continue;
    out.push_back({r.info.label + " gives no number", counted(r.metrics.not_finite, "advantage") +
                                                          " of " + grouped(r.advantages.size()) +
                                                          " are NaN or infinite."});
  }
  const RewardSummary& rewards = comparison.rewards;
  if (rewards.missing() > 0) {
    out.push_back(
        {"Missing rewards",
         counted(rewards.missing(), "reward") + " of " +
             grouped(comparison.rollouts.rewards.size()) + " are missing and take part in no " +
             "statistic. Completions without any reward: " + grouped(rewards.excluded_rows) +
             "; they get advantage 0."});
  }
  if (rewards.group_sizes.front().first == 1) {
    out.push_back(
        {"Groups of one",
         counted(rewards.group_sizes.front().second, "group") +
             " hold a single completion: there is nothing to compare it with, so its advantage "
             "is 0 with every estimator that compares inside the group."});
  }
  return out;
}

}  // namespace resolution
