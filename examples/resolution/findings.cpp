#include "findings.hpp"

#include <algorithm>
#include <cmath>

#include "contrast.hpp"
#include "separated.hpp"
#include "words.hpp"

namespace resolution {
namespace {

/// Names columns that tell batches apart and were not given, as part of a sentence.
std::string unused_steps(const Rollouts& log) {
  return std::string(log.unused_step_columns.size() == 1 ? "a column " : "columns ") +
         list(log.unused_step_columns);
}

constexpr const char* how_to_group =
    "--group has to name what the completions of one prompt share; where no column does and they "
    "follow each other, --group-size says how many.";

/// What the log was divided into. Without --batch it may be several steps that were merged.
Finding batches_finding(const Comparison& c) {
  const Rollouts& log = c.rollouts;
  if (log.batch_columns.empty()) {
    std::string text =
        "The last step of GDPO normalizes over what one training step saw. Here that is the whole "
        "log" +
        std::string(log.group_size > 0
                        ? "."
                        : ", and rows with the same group are one group wherever they stand.");
    if (!log.unused_step_columns.empty()) {
      text += " The log has " + unused_steps(log) +
              ": name what tells its steps apart with --batch, and every step is a batch.";
    }
    return {"One batch: the whole log", text};
  }
  std::size_t alone = 0;
  for (std::size_t b = 0; b < log.batches(); ++b) {
    std::size_t groups = 0;
    for (std::size_t g = log.groups_of(b).begin; g < log.groups_of(b).end; ++g)
      groups += c.counted_rows(g).empty() ? 0 : 1;
    alone += groups == 1 ? 1 : 0;
  }
  std::string text = "Rows that agree in " + list(log.batch_columns) +
                     " are a batch. Estimators see one at a time, and a group lies inside its "
                     "batch.";
  if (alone > 0) {
    text += " In " + share(alone, log.batches()) +
            " of them there is only one group: the batch step of GDPO then normalizes inside this "
            "group.";
  }
  if (!log.unused_step_columns.empty()) {
    text += " The log also has " + unused_steps(log) +
            ", which --batch does not name: steps of several runs may be one batch here.";
  }
  return {counted(log.batches(), "batch", "batches"), text};
}

/// Says what was made of lists of numbers, which may be completions or rewards of one completion.
void lists(const Comparison& c, std::vector<Finding>& out) {
  const Rollouts& log = c.rollouts;
  if (log.list_column.empty()) return;
  out.push_back(
      {"Objects with several completions",
       "Where " + in_quotes(log.list_column) +
           " is a list, each of its elements was taken as a completion: " + grouped(log.rows()) +
           " in " + counted(log.records, "object") +
           ". If the elements are several rewards of one completion, name them " +
           in_quotes(log.list_column + ".0") + ", " + in_quotes(log.list_column + ".1") + "."});
}

Finding step_finding(const Comparison& c) {
  if (c.rewards.groups == 1) {
    return {"There is only one group",
            "The batch step of GDPO then normalizes inside this group, which loses the gain; it is "
            "meant to span many groups."};
  }
  std::vector<double> stds;
  for (const BatchStep& step : c.batch_steps) {
    if (step.std > 0) stds.push_back(step.std);
  }
  const bool one = c.rollouts.batches() == 1;
  return {"The batch step only rescales",
          "Every group is centered (sizes: " + group_sizes_text(c.rewards) + "), so the " +
              (one ? "batch mean" : "mean over a batch") +
              " of the summed, normalized rewards is 0 and GDPO's last step divides all of them " +
              (one ? "by one number, " : "by one number a batch, ") + range_text(stds, 4) +
              ". It changes the size of the advantages, not their order nor their zeros."};
}

Finding length_finding(const Comparison& c) {
  const LengthWeighting& l = *c.length;
  std::vector<double> means;
  std::vector<double> shifts;
  for (const LengthWeighting::Batch& batch : l.batches) {
    means.push_back(batch.weighted.mean);
    shifts.push_back(batch.value_given_to_zero);
  }
  std::string text = "With every completion weighted by " + in_quotes(c.rollouts.length_name) +
                     " the batch mean is " + range_text(means, 4) + " instead of 0: ";
  if (l.zero_share > 0) {
    text += "the " + percent(l.zero_share) + " of completions without a signal get " +
            range_text(shifts, 4) + ", and ";
  }
  const std::string others = l.zero_share > 0 ? " of the others" : " of the advantages";
  text += (l.sign_changed_share > 0 ? percent(l.sign_changed_share) : "none") + others +
          (l.sign_changed_share > 0 ? " change sign." : " changes sign.");
  return {"Weighting the batch step by length shifts", text};
}

/// One completion's rewards, those of `rewards`: `"accuracy" 1, "format" 0`.
std::string rewards_text(const Comparison& c, std::size_t row,
                         const std::vector<std::size_t>& rewards) {
  std::string text;
  for (const std::size_t k : rewards) {
    const double reward = c.gated[row * c.rollouts.reward_count() + k];
    text += (text.empty() ? "" : ", ") + in_quotes(c.rollouts.reward_names[k]) + " " +
            (std::isnan(reward) ? "missing" : compact(reward, 4));
  }
  return text;
}

/// The group in which normalizing first separates most of what summing first ties.
void separated_finding(const Comparison& c, std::vector<Finding>& out) {
  const std::vector<SeparatedGroup> groups = separated_groups(c);
  if (groups.empty()) return;
  const SeparatedGroup& most = groups.front();
  const EstimatorResult& sum = *c.sum_first();
  const EstimatorResult& normalized = *c.normalize_first();
  const std::size_t first = c.rollouts.rows_of(most.group).begin;
  std::vector<std::size_t> different;
  for (std::size_t k = 0; k < c.rollouts.reward_count(); ++k) {
    const double low = c.gated[most.low * c.rollouts.reward_count() + k];
    const double high = c.gated[most.high * c.rollouts.reward_count() + k];
    if (low != high && !(std::isnan(low) && std::isnan(high))) different.push_back(k);
  }
  const auto completion = [&](std::size_t row) {
    return std::to_string(row - first + 1) + " (" + rewards_text(c, row, different) + ")";
  };
  out.push_back(
      {"What " + normalized.info.label + " tells apart and " + sum.info.label + " does not",
       "This happens in " + counted(groups.size(), "group") + ", most in group " +
           c.rollouts.group_name(most.group) + ": completions " + completion(most.low) + " and " +
           completion(most.high) + " both get " + fixed(sum.advantages[most.low], 3) + " from " +
           sum.info.label + ", and " + fixed(normalized.advantages[most.low], 3) + " and " +
           fixed(normalized.advantages[most.high], 3) + " from " + normalized.info.label + "."});
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
  const std::vector<std::size_t> rows = comparison.counted_rows(group);
  return std::all_of(rows.begin(), rows.end(),
                     [&](std::size_t row) { return is_zero(result.advantages[row]); });
}

std::vector<std::size_t> canceled_groups(const Comparison& comparison) {
  const EstimatorResult* normalized = comparison.normalize_first();
  if (normalized == nullptr) return {};
  std::vector<std::size_t> groups = normalized->metrics.canceled_groups;
  if (const EstimatorResult* sum = comparison.sum_first()) {
    std::stable_partition(groups.begin(), groups.end(),
                          [&](std::size_t g) { return !is_zero(comparison, *sum, g); });
  }
  return groups;
}

std::vector<Finding> warnings(const Comparison& comparison) {
  const Rollouts& log = comparison.rollouts;
  std::vector<Finding> out;
  const auto [size, groups] = comparison.rewards.group_sizes.front();
  if (size == 1 && 2 * groups > log.groups() && groups < log.groups()) {
    out.push_back({"Most groups hold a single completion: " + grouped(groups) + " of " +
                       grouped(log.groups()),
                   std::string("There is nothing to compare it with. ") + how_to_group});
  }
  for (const auto& [file, first] : log.repeated_files) {
    out.push_back({file + " has the rows of " + first,
                   "All values that are read are the same, in the same order. If one is a copy of "
                   "the other, its completions count twice."});
  }
  if (log.shared_groups > 0) {
    out.push_back({"Groups that lie in several files: " + grouped(log.shared_groups) + " of " +
                       grouped(log.groups()),
                   "Files are one log, so their rows were taken together. Where the files are "
                   "different steps or runs, name the column that tells these apart with --batch, "
                   "or give --file-is-batch."});
  }
  return out;
}

Finding headline(const Comparison& comparison) {
  if (comparison.rewards.group_sizes.back().first == 1) {
    return {"Every group holds a single completion",
            std::string("There is nothing to compare it with. ") + how_to_group +
                " The columns given have another value in each of the " +
                counted(comparison.rollouts.rows(), "row") + "."};
  }
  const EstimatorResult* sum = comparison.sum_first();
  const EstimatorResult* normalized = comparison.normalize_first();
  if (sum != nullptr && normalized != nullptr) {
    Finding finding = tie_rate(comparison, *sum, *normalized);
    if (comparison.rollouts.batch_columns.empty() &&
        !comparison.rollouts.unused_step_columns.empty()) {
      finding.text += " All of it is taken as one batch, though the log has " +
                      unused_steps(comparison.rollouts) + ": see --batch.";
    }
    return finding;
  }
  const std::size_t pairs = comparison.rewards.pairs_with_different_vectors;
  const auto finest = std::min_element(
      comparison.results.begin(), comparison.results.end(), [](const auto& a, const auto& b) {
        return a.metrics.pairs_collapsed < b.metrics.pairs_collapsed;
      });
  return {"Ties inside a group",
          finest->info.label + " gives the same advantage to " +
              share(finest->metrics.pairs_collapsed, pairs) + " of the " + grouped(pairs) +
              " pairs of completions that share a group and have different rewards."};
}

std::vector<Finding> findings(const Comparison& comparison) {
  std::vector<Finding> out{batches_finding(comparison)};
  const EstimatorResult* sum = comparison.sum_first();
  const EstimatorResult* normalized = comparison.normalize_first();
  lists(comparison, out);
  if (sum != nullptr && normalized != nullptr) {
    if (comparison.rollouts.reward_count() == 1) {
      out.push_back({"One reward",
                     "With a single reward GDPO is GRPO divided by one number a batch: the same "
                     "ties, zeros and order. The two differ from two rewards on."});
    }
    separated_finding(comparison, out);
    contrast(comparison, *sum, *normalized, out);
  }
  const auto& steps = comparison.batch_steps;
  const bool any_signal =
      std::any_of(steps.begin(), steps.end(), [](const BatchStep& step) { return step.std > 0; });
  const bool centered = std::none_of(steps.begin(), steps.end(), [](const BatchStep& step) {
    return std::abs(step.mean) > advantage_tolerance;
  });
  if (comparison.gdpo() != nullptr && any_signal && centered)
    out.push_back(step_finding(comparison));
  if (comparison.length) out.push_back(length_finding(comparison));
  rounding(comparison, out);
  for (const EstimatorResult& r : comparison.results) {
    if (r.metrics.not_finite == 0) continue;
    out.push_back({r.info.label + " gives no number",
                   counted(r.metrics.not_finite, "advantage") + " of " +
                       grouped(r.advantages.size()) + (r.metrics.not_finite == 1 ? " is" : " are") +
                       " NaN or infinite."});
  }
  const RewardSummary& rewards = comparison.rewards;
  const std::size_t without = comparison.rollouts.groups() - rewards.groups;
  if (rewards.missing() > 0) {
    out.push_back(
        {"Missing rewards",
         counted(rewards.missing(), "reward") + " of " +
             grouped(comparison.rollouts.rewards.size()) +
             (rewards.missing() == 1 ? " is" : " are") + " missing" +
             (comparison.settings.given.empty() ? "" : ", some because their condition is,") +
             " and part of no statistic. Completions without any reward: " +
             grouped(rewards.excluded_rows) +
             (rewards.excluded_rows == 0 ? "." : "; they count in nothing.") +
             (without == 0 ? "" : " Groups without any: " + grouped(without) + "; nor do they.")});
  }
  if (rewards.single_groups > 0) {
    out.push_back({"Groups of one",
                   counted(rewards.single_groups, "group") +
                       (rewards.single_groups == 1 ? " holds" : " hold") + " a single completion" +
                       (rewards.excluded_rows == 0 ? "," : " with a reward,") +
                       " which gets advantage 0 from every estimator that "
                       "compares inside the group: there is nothing to compare it with."});
  }
  return out;
}

}  // namespace resolution
