#include "text_report.hpp"

#include <algorithm>
#include <cmath>

#include "batch_series.hpp"
#include "findings.hpp"
#include "statistics.hpp"
#include "text_table.hpp"
#include "words.hpp"

namespace resolution {
namespace {

constexpr std::size_t terminal_width = 100;
constexpr std::size_t name_width = 32;

/// The line of an estimator in the first column of a table.
std::string name_cell(const std::string& line) { return wrapped(line, name_width, 2); }

std::string paragraph(const std::string& text) { return wrapped(text, terminal_width, 0) + "\n"; }

std::string rewards_table(const Comparison& comparison) {
  TextTable table({"reward", "mean", "std", "min", "max", "distinct\nvalues", "missing",
                   "constant in\ngroups", "weight"});
  const auto& rewards = comparison.rewards.per_reward;
  for (std::size_t k = 0; k < rewards.size(); ++k) {
    const auto& c = rewards[k];
    const auto& weights = comparison.settings.weights;
    table.add({shortened(printable(c.name), name_width), fixed(c.mean, 4), fixed(c.std, 4),
               compact(c.min), compact(c.max), grouped(c.distinct), grouped(c.missing),
               percent(c.zero_variance_groups, 1), compact(weights.empty() ? 1 : weights[k])});
  }
  return table.text(terminal_width);
}

/// Counts of values and of group vectors are those inside batches, added up: between batches an
/// estimator with a batch step is not comparable.
std::string counts_table(const Comparison& comparison) {
  const bool one = comparison.rollouts.batches() == 1;
  TextTable table({"estimator", one ? "distinct\nvalues" : "distinct values\nin batches",
                   one ? "distinct\ngroup vec." : "group vec.\nin batches", "levels\nper group",
                   "tied\npairs", "tie rate\nin groups", "dead\ngroups", "of them\ncanceled"});
  for (const auto& result : comparison.results) {
    const Metrics& m = result.metrics;
    table.add({name_cell(result.info.name), grouped(m.distinct_values_within_batches),
               grouped(m.distinct_group_vectors_within_batches), fixed(m.mean_levels_per_group, 3),
               grouped(m.pairs_collapsed), percent(m.collapse_rate), grouped(m.zero_groups),
               grouped(m.canceled_groups.size())});
  }
  const RewardSummary& rewards = comparison.rewards;
  table.add({"(most possible)", "-", grouped(rewards.distinct_multisets_within_batches),
             fixed(rewards.mean_vectors_per_group, 3),
             grouped(rewards.pairs_with_different_vectors), "-", "-", "-"});
  return table.text(terminal_width);
}

/// How rewards and ties change over the batches: means over the first and last tenth of them, and
/// the extremes.
std::string batches_table(const Comparison& comparison) {
  const std::size_t batches = comparison.rollouts.batches();
  const std::size_t tenth = std::max<std::size_t>(1, batches / 10);
  const std::string some = tenth == 1 ? "" : " " + grouped(tenth);
  TextTable table({"over the batches", "first" + some, "last" + some, "least", "most"});
  for (const BatchSeries& series : batch_series(comparison)) {
    for (const auto& line : series.lines) {
      const auto part = [&](std::size_t from, std::size_t to) {
        std::vector<double> values;
        for (std::size_t b = from; b < to; ++b) {
          if (std::isfinite(line.values[b])) values.push_back(line.values[b]);
        }
        return values;
      };
      const auto text = [&](double value) { return value_text(series, value); };
      const std::vector<double> all = part(0, batches);
      if (all.empty()) continue;
      const auto [least, most] = std::minmax_element(all.begin(), all.end());
      table.add({wrapped(shortened(printable(series.title), name_width) + ", " + line.name, 60, 2),
                 text(mean(part(0, tenth))), text(mean(part(batches - tenth, batches))),
                 text(*least), text(*most)});
    }
  }
  return table.text(terminal_width);
}

std::string size_table(const Comparison& comparison) {
  std::vector<std::string> header{"estimator", "std", "largest\n|A|"};
  for (const auto& name : comparison.rollouts.reward_names)
    header.push_back("corr. with\n" + shortened(printable(name), 16));
  TextTable table(header);
  for (const auto& result : comparison.results) {
    std::vector<std::string> row{name_cell(result.info.name), fixed(result.metrics.adv_std, 4),
                                 fixed(result.metrics.adv_absmax, 4)};
    for (const double c : result.metrics.mean_corr_with_each_reward) row.push_back(fixed(c, 3));
    table.add(row);
  }
  return table.text(terminal_width);
}

std::string count_text(const CountTable& table, const std::string& heading,
                       const std::string& size_name) {
  std::vector<std::string> header{size_name};
  for (const std::size_t size : table.sizes) header.push_back(std::to_string(size));
  TextTable text(header);
  for (const auto& series : table.series) {
    std::vector<std::string> row{name_cell(series.estimator)};
    for (const std::size_t count : series.counts) row.push_back(std::to_string(count));
    text.add(row);
  }
  std::vector<std::string> possible{"(groups of rewards)"};
  for (const std::size_t count : table.reward_multisets) possible.push_back(std::to_string(count));
  text.add(possible);
  return heading + "\n\n" + text.text(terminal_width);
}

}  // namespace

std::string to_text(const Comparison& comparison) {
  const Rollouts& rollouts = comparison.rollouts;
  const RewardSummary& rewards = comparison.rewards;
  std::string out = rollouts.file + "\n";
  out +=
      paragraph(counted(rollouts.rows(), "completion") + " in " +
                counted(rollouts.groups(), "group") + " (" + group_sizes_text(rewards) + "), " +
                batches_text(rollouts) + ", " + counted(rollouts.reward_count(), "reward") + ", " +
                (rewards.missing() == 0 ? "none missing."
                                        : counted(rewards.missing(), "value") + " missing.") +
                left_out_text(rollouts));
  for (const Finding& w : warnings(comparison))
    out += "\n" + paragraph("Warning: " + w.title + ". " + w.text);
  for (const Condition& c : comparison.settings.given) {
    out += paragraph(in_quotes(rollouts.reward_names[c.reward]) + " counts only where " +
                     in_quotes(rollouts.reward_names[c.given]) + " >= " + compact(c.at_least, 6) +
                     ", else it is 0.");
  }
  const Finding first = headline(comparison);
  out += "\n" + paragraph(first.title + ". " + first.text);
  out += "\n" + rewards_table(comparison);
  out += paragraph(
      "Constant in groups: sum of rewards " + percent(rewards.zero_variance_groups_sum, 1) +
      ", all rewards " + percent(rewards.zero_variance_groups_all, 1) +
      "; equal sum though a reward varies: " + counted(rewards.equal_sum_groups.size(), "group") +
      ".");
  out += "\n" + counts_table(comparison);
  out += paragraph(
      "Values are rounded to 1e-6. Distinct group vectors: different multisets of advantages. Tied "
      "pair: two completions of a group with different rewards and the same advantage. Dead group: "
      "every advantage is 0; canceled: although rewards differ. Completions without any reward "
      "count "
      "in nothing.");
  out += "\n" + size_table(comparison);
  if (rollouts.batches() > 1) out += "\n" + batches_table(comparison);
  out += "\n";
  for (const Finding& finding : findings(comparison)) {
    out += wrapped("* " + finding.title + ". " + finding.text, terminal_width, 2) + "\n";
  }
  return out;
}

std::string to_text(const Counting& counting) {
  return paragraph(count_answer(counting) + " " + count_meaning) + "\n" +
         count_text(counting.by_group_size,
                    "n = " + std::to_string(counting.rewards) + " rewards, G rollouts", "G =") +
         "\n" +
         count_text(counting.by_rewards,
                    "G = " + std::to_string(counting.group_size) + " rollouts, n rewards", "n =") +
         "\n" + paragraph(count_definition);
}

}  // namespace resolution
