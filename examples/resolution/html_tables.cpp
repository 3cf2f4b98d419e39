#include <functional>

#include "html.hpp"
#include "html_sections.hpp"
#include "words.hpp"

namespace resolution {
namespace {

using html::element;
using html::escaped;
using html::number;

std::string term(const std::string& name, const std::string& meaning) {
  return element("dt", "", escaped(name)) + element("dd", "", escaped(meaning));
}

}  // namespace

std::string class_of(const EstimatorInfo& info) {
  return info.family == Family::SumFirst ? "sum" : "norm";
}

std::string colored_label(const EstimatorInfo& info) {
  return "<span class=\"" + class_of(info) + "\">" + escaped(info.label) + "</span>";
}

std::vector<const EstimatorResult*> compared_results(const Comparison& c) {
  std::vector<const EstimatorResult*> results;
  for (const EstimatorResult* r : {c.sum_first(), c.normalize_first()}) {
    if (r != nullptr) results.push_back(r);
  }
  return results;
}

std::string rewards_table(const Comparison& c) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t k = 0; k < c.rewards.per_reward.size(); ++k) {
    const auto& r = c.rewards.per_reward[k];
    const auto& weights = c.settings.weights;
    rows.push_back({escaped(r.name), number(fixed(r.mean, 4)), number(fixed(r.std, 4)),
                    number(compact(r.min)), number(compact(r.max)), grouped(r.distinct),
                    grouped(r.missing), number(percent(r.zero_variance_groups, 1)),
                    number(compact(weights.empty() ? 1 : weights[k]))});
  }
  return html::table("The rewards of this log",
                     {"reward", "mean", "std", "min", "max", "distinct values", "missing",
                      "constant in groups", "weight"},
                     rows);
}

std::string metrics_table(const Comparison& c) {
  std::vector<std::string> header{"measure"};
  for (const auto& r : c.results) header.push_back(colored_label(r.info));
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const std::string& name,
                       const std::function<std::string(const Metrics&)>& text) {
    std::vector<std::string> row{escaped(name)};
    for (const auto& r : c.results) row.push_back(number(text(r.metrics)));
    rows.push_back(row);
  };
  const bool one = c.rollouts.batches() == 1;
  if (!one) {
    add("distinct values inside batches",
        [](const Metrics& m) { return grouped(m.distinct_values_within_batches); });
    add("distinct group vectors inside batches",
        [](const Metrics& m) { return grouped(m.distinct_group_vectors_within_batches); });
    add("different groups of rewards inside batches",
        [&](const Metrics&) { return grouped(c.rewards.distinct_multisets_within_batches); });
  }
  const std::string where = one ? "" : " over all rows";
  add("distinct values" + where, [](const Metrics& m) { return grouped(m.distinct_values); });
  add("distinct values by gaps above 1e-9",
      [](const Metrics& m) { return grouped(m.clusters.count); });
  add("smallest gap between distinct values",
      [](const Metrics& m) { return compact(m.clusters.smallest_gap, 3); });
  add("largest rounding noise",
      [](const Metrics& m) { return compact(m.clusters.largest_noise, 3); });
  add("distinct group vectors" + where,
      [](const Metrics& m) { return grouped(m.distinct_group_vectors_sorted); });
  add("different groups of rewards" + where,
      [&](const Metrics&) { return grouped(c.rewards.distinct_multisets); });
  add("share of their pairs with one group vector",
      [](const Metrics& m) { return percent(m.cross_group_collapse_rate, 3); });
  add("different advantages per group, mean",
      [](const Metrics& m) { return fixed(m.mean_levels_per_group, 4); });
  add("different rewards per group, mean",
      [&](const Metrics&) { return fixed(c.rewards.mean_vectors_per_group, 4); });
  add("pairs inside groups", [&](const Metrics&) { return grouped(c.rewards.pairs); });
  add("of them with different rewards",
      [&](const Metrics&) { return grouped(c.rewards.pairs_with_different_vectors); });
  add("of them tied", [](const Metrics& m) { return grouped(m.pairs_collapsed); });
  add("tie rate", [](const Metrics& m) { return percent(m.collapse_rate, 3); });
  add("dead groups", [](const Metrics& m) { return grouped(m.zero_groups); });
  add("of them with different rewards",
      [](const Metrics& m) { return grouped(m.canceled_groups.size()); });
  add("standard deviation", [](const Metrics& m) { return fixed(m.adv_std, 4); });
  add("largest |advantage|", [](const Metrics& m) { return fixed(m.adv_absmax, 4); });
  for (std::size_t k = 0; k < c.rollouts.reward_count(); ++k) {
    add("correlation with " + c.rollouts.reward_names[k],
        [k](const Metrics& m) { return fixed(m.mean_corr_with_each_reward[k], 4); });
  }
  return html::table("All numbers, per estimator", header, rows);
}

std::string definitions(const Comparison& c) {
  std::string out;
  for (const auto& r : c.results)
    out += term(r.info.label, r.info.description + " In full: " + r.info.whole_line());
  std::string settings = "A group whose used rewards are all equal gets exactly 0.";
  for (const Condition& condition : c.settings.given) {
    settings += " " + in_quotes(c.rollouts.reward_names[condition.reward]) + " counts only where " +
                in_quotes(c.rollouts.reward_names[condition.given]) + " \u2265 " +
                compact(condition.at_least, 6) + ", else it is 0.";
  }
  if (c.length) {
    settings += " Lengths come from " + in_quotes(c.rollouts.length_name) + ", at least 1.";
  }
  out += term("Settings", settings);
  out +=
      term("Batch",
           c.rollouts.batch_columns.empty()
               ? "The whole log is one batch; --batch names the columns that tell training steps "
                 "apart."
               : "Rows that agree in " + list(c.rollouts.batch_columns) +
                     ". Every estimator sees one batch at a time, and a group lies inside its "
                     "batch. Counts inside batches are those of each batch, added up. Over all "
                     "rows the values of an estimator with a batch step are not comparable: "
                     "every batch has its own divisor.");
  out += term("Distinct values, group vectors",
              "Advantages are rounded to 1e-6. A group vector is the sorted list of a group's "
              "advantages. \u201CBy gaps\u201D sorts all values instead and starts a new one at "
              "every step above 1e-9, which no rounding grid can disturb.");
  out += term("Tied pair",
              "Two completions of one group whose rewards differ (rounded to 1e-9) and whose "
              "advantages differ by at most 1e-6.");
  out += term("Dead group", "Every |advantage| is below 1e-6.");
  out +=
      term("Completion without any reward",
           "Every reward that has a weight is missing. It counts in nothing: no pair, no value, no "
           "mean. A group of such completions is no dead group.");
  out += term("Correlation",
              "Mean over the groups in which both vary of the correlation between the advantage "
              "and the reward.");
  return element("dl", "class=\"terms\"", out);
}

}  // namespace resolution
