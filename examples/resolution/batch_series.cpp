#include "batch_series.hpp"

#include "words.hpp"

namespace resolution {

std::vector<BatchSeries> batch_series(const Comparison& comparison) {
  const BatchCurves& curves = comparison.curves;
  std::vector<BatchSeries> all;
  for (std::size_t k = 0; k < comparison.rollouts.reward_count(); ++k) {
    all.push_back({comparison.rollouts.reward_names[k],
                   "Mean and standard deviation over the completions of a batch.",
                   false,
                   {{"mean", curves.rewards[k].mean}, {"std", curves.rewards[k].std}}});
  }
  all.push_back({"groups without variance",
                 "Share of the groups of a batch in which the sum of the rewards, or every reward, "
                 "is the same for all completions.",
                 true,
                 {{"of the sum", curves.zero_variance_groups_sum},
                  {"of any reward", curves.zero_variance_groups_all}}});
  BatchSeries ties{"tie rate inside groups",
                   "Share of the pairs with different rewards that get the same advantage.",
                   true,
                   {}};
  for (const EstimatorResult* result : {comparison.sum_first(), comparison.normalize_first()}) {
    if (result == nullptr) continue;
    ties.lines.push_back(
        {result->info.label, result->metrics.collapse_rate_of_batch, &result->info});
  }
  all.push_back(ties);
  if (!curves.length.empty()) {
    all.push_back({comparison.rollouts.length_name,
                   "Mean length of the completions of a batch.",
                   false,
                   {{"mean", curves.length}}});
  }
  return all;
}

std::string value_text(const BatchSeries& series, double value) {
  return series.is_share ? percent(value) : compact(value);
}

std::string left_out_text(const Rollouts& rollouts) {
  if (rollouts.left_out == 0) return "";
  return " Left out by --valid: " + counted(rollouts.left_out, "row") + ".";
}

std::string batches_text(const Rollouts& rollouts) {
  if (rollouts.batch_columns.empty()) return "one batch: the whole log";
  std::string columns;
  for (const std::string& name : rollouts.batch_columns)
    columns += (columns.empty() ? "" : ", ") + printable(name, 48);
  return counted(rollouts.batches(), "batch", "batches") + " (" + columns + ")";
}

}  // namespace resolution
