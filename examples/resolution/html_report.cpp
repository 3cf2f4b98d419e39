#include "html_report.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "batch_series.hpp"
#include "charts.hpp"
#include "findings.hpp"
#include "html.hpp"
#include "html_sections.hpp"
#include "words.hpp"

namespace resolution {
namespace {

using charts::Bar;
using charts::Tone;
using html::division;
using html::element;
using html::escaped;
using html::figure;
using html::heading;
using html::number;
using html::paragraph;

Tone tone_of(const EstimatorInfo& info) {
  return info.family == Family::SumFirst ? Tone::Sum : Tone::Norm;
}

// Shares are drawn on a scale of at least 1 %, so that one tie in a million is no long bar.
constexpr double least_share = 0.01;

/// A chart with one bar per estimator, after the bars in `before`. Its texts are also the
/// description for screen readers.
std::string estimator_bars(const Comparison& c, const std::string& what, double most,
                           const std::function<double(const EstimatorResult&)>& value,
                           const std::function<std::string(const EstimatorResult&)>& text,
                           std::vector<Bar> before = {}, const charts::Limit* limit = nullptr) {
  std::vector<Bar> bars = std::move(before);
  for (const EstimatorResult& r : c.results)
    bars.push_back({r.info.label, value(r), text(r), tone_of(r.info)});
  std::string summary = what + ": ";
  for (const Bar& bar : bars) {
    if (std::isfinite(bar.value) && most < bar.value) most = bar.value;
    summary += bar.label + " " + bar.text + "; ";
  }
  return charts::bars(bars, most, summary, limit);
}

std::string file_line(const Comparison& c) {
  return c.rollouts.file + " \u00B7 " + counted(c.rollouts.rows(), "completion") + " in " +
         counted(c.rollouts.groups(), "group") + " (" + group_sizes_text(c.rewards) + ") \u00B7 " +
         batches_text(c.rollouts) + " \u00B7 " + counted(c.rollouts.reward_count(), "reward") +
         (c.rollouts.left_out == 0 ? "" : " \u00B7" + left_out_text(c.rollouts));
}

/// A box with one number for each compared estimator.
std::string tile(const std::string& title,
                 const std::vector<std::pair<const EstimatorResult*, std::string>>& values,
                 const std::string& note) {
  std::string list;
  for (const auto& [result, value] : values) {
    list += element(
        "div", "",
        element("dt", "class=\"" + class_of(result->info) + "\"", escaped(result->info.label)) +
            element("dd", "", number(value)));
  }
  return division("tile", paragraph(title, "name") + element("dl", "", list) + paragraph(note));
}

std::string tiles(const Comparison& c) {
  const std::vector<const EstimatorResult*> shown = compared_results(c);
  const auto values = [&](const std::function<std::string(const Metrics&)>& text) {
    std::vector<std::pair<const EstimatorResult*, std::string>> pairs;
    pairs.reserve(shown.size());
    for (const EstimatorResult* r : shown) pairs.emplace_back(r, text(r->metrics));
    return pairs;
  };
  return division(
      "tiles",
      tile("Tie rate inside groups",
           values([](const Metrics& m) { return percent(m.collapse_rate); }),
           "of " + grouped(c.rewards.pairs_with_different_vectors) +
               " pairs with different rewards") +
          tile("Distinct values",
               values([](const Metrics& m) { return grouped(m.distinct_values_within_batches); }),
               c.rollouts.batches() == 1 ? "different advantages in the log"
                                         : "different advantages in a batch, over all " +
                                               counted(c.rollouts.batches(), "batch", "batches")) +
          tile("Distinct group vectors", values([](const Metrics& m) {
                 return grouped(m.distinct_group_vectors_within_batches);
               }),
               "from " +
                   counted(c.rewards.distinct_multisets_within_batches,
                           "different group of rewards", "different groups of rewards") +
                   (c.rollouts.batches() == 1 ? "" : ", inside batches")) +
          tile("Dead groups", values([](const Metrics& m) { return grouped(m.zero_groups); }),
               "of " + grouped(c.rewards.groups) + ": every advantage is 0"));
}

/// The legend of the two colors.
std::string keys() {
  return element(
      "p", "class=\"keys note\"",
      "<span class=\"sum\"><i class=\"key\"></i><b>rewards summed, then normalized</b></span>"
      "<span class=\"norm\"><i class=\"key\"></i><b>each reward normalized, then "
      "summed</b></span>");
}

std::string count_charts(const Comparison& c) {
  const auto most = static_cast<double>(c.rewards.distinct_multisets_within_batches);
  const charts::Limit possible{
      most, "different groups of rewards: " + grouped(c.rewards.distinct_multisets_within_batches)};
  const bool one = c.rollouts.batches() == 1;
  return figure(
             "Distinct values",
             estimator_bars(
                 c, "Distinct values", 0,
                 [](const auto& r) {
                   return static_cast<double>(r.metrics.distinct_values_within_batches);
                 },
                 [](const auto& r) { return grouped(r.metrics.distinct_values_within_batches); }),
             std::string("Different advantages, rounded to 1e-6") +
                 (one ? ", over the whole log as one batch."
                      : ", in each batch, added up over the batches.")) +
         figure("Distinct group vectors",
                estimator_bars(
                    c, "Distinct group vectors", possible.value,
                    [](const auto& r) {
                      return static_cast<double>(r.metrics.distinct_group_vectors_within_batches);
                    },
                    [](const auto& r) {
                      return grouped(r.metrics.distinct_group_vectors_within_batches);
                    },
                    {}, &possible),
                std::string("Different multisets of advantages that a group gets") +
                    (one ? "" : ", in each batch, added up") +
                    ": the count of the GDPO paper. No estimator that looks at one group can pass "
                    "the dashed line.");
}

std::string tie_chart(const Comparison& c) {
  return figure(
      "Tie rate inside groups",
      estimator_bars(
          c, "Tie rate inside groups", least_share,
          [](const auto& r) { return r.metrics.collapse_rate; },
          [](const auto& r) { return percent(r.metrics.collapse_rate); }),
      "Share of the pairs of completions in one group that have different rewards and the same "
      "advantage: differences that the policy cannot learn from. Shorter is finer.");
}

std::string dead_chart(const Comparison& c) {
  const RewardSummary& rewards = c.rewards;
  const auto groups = static_cast<double>(std::max<std::size_t>(rewards.groups, 1));
  return figure(
      "Dead groups",
      estimator_bars(
          c, "Dead groups", least_share,
          [&](const auto& r) { return static_cast<double>(r.metrics.zero_groups) / groups; },
          [&](const auto& r) {
            return percent(static_cast<double>(r.metrics.zero_groups) / groups, 1);
          },
          {{"sum of rewards constant", rewards.zero_variance_groups_sum,
            percent(rewards.zero_variance_groups_sum, 1), Tone::Idle},
           {"every reward constant", rewards.zero_variance_groups_all,
            percent(rewards.zero_variance_groups_all, 1), Tone::Idle}}),
      "Gray: groups that their rewards do not tell apart, by the sum and by every reward. Color: "
      "groups in which the estimator gives 0 to all.");
}

std::string histograms(const Comparison& c) {
  constexpr double most_deviations = 4;
  std::vector<charts::Histogram> data;
  std::vector<double> ranges;
  double highest = 0.01;
  for (const auto& r : c.results) {
    const double largest = r.metrics.adv_absmax;
    const double wide = most_deviations * r.metrics.adv_std;
    ranges.push_back(!(largest > 0) ? 1 : wide > 0 ? std::min(largest, wide) : largest);
    std::vector<double> counted;
    for (std::size_t row = 0; row < r.advantages.size(); ++row) {
      if (c.rewarded[row] != 0) counted.push_back(r.advantages[row]);
    }
    data.push_back(charts::histogram_of(counted, ranges.back(), advantage_tolerance));
    for (const double share : data.back().shares) highest = std::max(highest, 1.08 * share);
  }
  std::string out;
  for (std::size_t i = 0; i < c.results.size(); ++i) {
    const auto& r = c.results[i];
    const std::string caption = "standard deviation " + fixed(r.metrics.adv_std, 2) + ", largest " +
                                fixed(r.metrics.adv_absmax, 2);
    out += figure(r.info.label,
                  charts::histogram(data[i], ranges[i], highest, tone_of(r.info),
                                    "Histogram of the advantages of " + r.info.label + ": " +
                                        caption + ", " + percent(data[i].zero_share, 1) + " are 0"),
                  caption);
  }
  return division("charts three", out);
}

std::string balance_charts(const Comparison& c) {
  std::string out;
  for (std::size_t k = 0; k < c.rollouts.reward_count(); ++k) {
    out += figure(c.rollouts.reward_names[k],
                  estimator_bars(
                      c, "Mean correlation with " + c.rollouts.reward_names[k], 1,
                      [k](const auto& r) { return r.metrics.mean_corr_with_each_reward[k]; },
                      [k](const auto& r) {
                        const double value = r.metrics.mean_corr_with_each_reward[k];
                        return std::isfinite(value) ? fixed(value, 3) : std::string("no group");
                      }),
                  "");
  }
  return division("charts", out);
}

std::string findings_section(const Comparison& c) {
  std::string out;
  for (const Finding& f : findings(c)) {
    out += division("finding", element("h3", "", html::prose(f.title)) + paragraph(f.text));
  }
  return division("findings", out);
}

}  // namespace

std::string to_html(const Comparison& c) {
  const Finding first = headline(c);
  std::string doubts;
  for (const Finding& w : warnings(c))
    doubts += paragraph("Warning: " + w.title + ". " + w.text, "lead");
  std::string body = element("header", "",
                             paragraph("Advantage resolution", "eyebrow") +
                                 element("h1", "", html::prose(first.title)) + doubts +
                                 paragraph(first.text, "lead") + paragraph(file_line(c), "note"));
  body += tiles(c);
  body += heading("How fine each estimator is");
  body += keys();
  body += division("charts", tie_chart(c) + dead_chart(c) + count_charts(c));
  body += heading("What this means for this log");
  body += findings_section(c);
  body += heading("How large the advantages are");
  body += paragraph(
      "Share of completions per advantage, each estimator on its own axis: at most 4 standard "
      "deviations, the outermost bars hold what lies beyond. Gray: the advantage is 0.");
  body += histograms(c);
  body += heading("Which rewards the advantage follows");
  body += paragraph(
      "Mean correlation inside groups between the advantage and each reward. Bars of similar "
      "length: the rewards are heard alike. A short bar: the policy hardly sees that reward, "
      "because "
      "its weight is small or because the others drown it.");
  body += balance_charts(c);
  body += batches_section(c);
  body += separated_section(c);
  body += canceled_section(c);
  body += heading("The numbers");
  body += rewards_table(c);
  body += metrics_table(c);
  body += heading("How it is counted");
  body += definitions(c);
  body += element("footer", "",
                  "Made by gdpo-resolution. This page is complete in itself and loads nothing.");
  return html::page("Advantage resolution: " + c.rollouts.file, body);
}

}  // namespace resolution
