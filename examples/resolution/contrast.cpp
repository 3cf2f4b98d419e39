#include "contrast.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "words.hpp"

namespace resolution {
namespace {

/// Whether one count is so much smaller than another that it is worth a word: by more than 1 %.
bool is_fewer(std::size_t a, std::size_t b) { return b > a && (b - a) * 100 > b; }

const char* compared(std::size_t a, std::size_t b) {
  return is_fewer(a, b) ? "fewer" : is_fewer(b, a) ? "more" : a == b ? "as many" : "about as many";
}

// A share of ties below one in this many is no difference worth a headline.
constexpr std::size_t rarely = 1000;

std::string cases(std::size_t n) { return n == 0 ? "no case" : counted(n, "case"); }

/// The range, max - min, of a reward in a group; missing rewards are left out.
double span(const Comparison& c, std::size_t group, std::size_t k) {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  const Range rows = c.rollouts.rows_of(group);
  for (std::size_t row = rows.begin; row < rows.end; ++row) {
    const double value = c.gated[row * c.rollouts.reward_count() + k];
    low = std::fmin(low, value);
    high = std::fmax(high, value);
  }
  return high > low ? high - low : 0;
}

/// Writes the findings of a comparison that has estimators of both kinds.
class Writer {
 public:
  Writer(const Comparison& comparison, const EstimatorResult& sum,
         const EstimatorResult& normalized)
      : c_(comparison), s_(sum), n_(normalized), groups_(comparison.rewards.groups) {}

  /// Titles name counts, never a ratio of two small counts: "half as many" says nothing where it
  /// means 1 instead of 2 of a million.
  Finding tie_rate() const {
    const std::size_t pairs = c_.rewards.pairs_with_different_vectors;
    const std::size_t s = s_.metrics.pairs_collapsed;
    const std::size_t n = n_.metrics.pairs_collapsed;
    if (pairs == 0) {
      return {"Nothing to tell apart",
              "No group has two completions with different rewards, so no estimator can learn from "
              "this log."};
    }
    const std::string whole = counted(pairs, "pair");
    if (s == 0 && n == 0) {
      return {
          "No ties inside groups, with " + s_.info.label + " or with " + n_.info.label,
          "Neither gives two completions of a group with different rewards the same advantage (" +
              whole + ")." + values()};
    }
    const std::string text = "Of the " + whole +
                             " of completions that share a group and have different rewards, " +
                             s_.info.label + " gives " + share(s, pairs) + " the same advantage, " +
                             n_.info.label + " " + share(n, pairs) + ".";
    if (std::max(s, n) * rarely < pairs) {
      return {"Hardly any ties inside groups: " + grouped(s) + " with " + s_.info.label + ", " +
                  grouped(n) + " with " + n_.info.label + ", of " + whole,
              text + " On this log the two hardly differ in what they tell apart." + values()};
    }
    if (n < s) {
      return {"Inside groups " + s_.info.label + " ties " + grouped(s) + " of " + whole +
                  " that differ, " + n_.info.label + (n == 0 ? " none" : " " + grouped(n)),
              text + values()};
    }
    if (n > s) {
      return {n_.info.label + " is not finer than " + s_.info.label + " on this log",
              text +
                  " Normalizing each reward first gives small and large differences the same "
                  "weight, and here some of them cancel that the plain sum keeps." +
                  values()};
    }
    return {"Inside groups " + n_.info.label + " and " + s_.info.label +
                " tie equally many: " + grouped(n) + " of " + whole,
            text + " " + equal_reason() + values()};
  }

  /// The counts of distinct values inside batches, as a sentence.
  std::string values() const {
    const std::size_t s = s_.metrics.distinct_values_within_batches;
    const std::size_t n = n_.metrics.distinct_values_within_batches;
    return (c_.rollouts.batches() == 1 ? " In the log, taken as one batch, " : " Inside batches ") +
           n_.info.label + " has " +
           (n == s ? "as many distinct values as " + s_.info.label + ": " + grouped(n) + "."
                   : grouped(n) + " distinct values, " + s_.info.label + " " + grouped(s) + ".");
  }

  /// Appends the counts of distinct values and of group vectors, if they differ.
  void counts(std::vector<Finding>& out) const {
    const Metrics& s = s_.metrics;
    const Metrics& n = n_.metrics;
    if (n.distinct_values_within_batches == s.distinct_values_within_batches &&
        n.distinct_group_vectors_within_batches == s.distinct_group_vectors_within_batches) {
      return;
    }
    const bool one = c_.rollouts.batches() == 1;
    const bool fewer_values =
        is_fewer(n.distinct_values_within_batches, s.distinct_values_within_batches);
    const bool fewer_vectors =
        is_fewer(n.distinct_group_vectors_within_batches, s.distinct_group_vectors_within_batches);
    std::string text =
        std::string(one ? "Over the whole log, taken as one batch, " : "Inside its batches ") +
        n_.info.label + " has " +
        compared(n.distinct_values_within_batches, s.distinct_values_within_batches) +
        " distinct values (" + grouped(n.distinct_values_within_batches) + ", " + s_.info.label +
        " " + grouped(s.distinct_values_within_batches) + ") and " +
        compared(n.distinct_group_vectors_within_batches, s.distinct_group_vectors_within_batches) +
        " distinct group vectors (" + grouped(n.distinct_group_vectors_within_batches) +
        " against " + grouped(s.distinct_group_vectors_within_batches) + ", from " +
        counted(c_.rewards.distinct_multisets_within_batches, "different group of rewards",
                "different groups of rewards") +
        "). The two counts are different things: the first counts "
        "numbers, the second, the paper's, whole groups.";
    const bool new_values = n.distinct_values != n.distinct_values_within_batches ||
                            s.distinct_values != s.distinct_values_within_batches;
    if (!one && new_values) {
      text += " Over all rows there are " + counted(n.distinct_values, "value") + ", " +
              s_.info.label + " " + grouped(s.distinct_values) +
              "; do not compare those: an estimator with a batch step has another divisor in every "
              "batch, so that equal groups of two batches get different values.";
    }
    if (!fewer_values && !fewer_vectors) {
      out.push_back({one ? "Counts over the whole log" : "Counts inside batches", text});
      return;
    }
    text +=
        " They compare groups with each other, and a smaller count is no loss inside a group: a "
        "reward that takes two values in a group gets the same two normalized values whether they "
        "are 0.1 or 0.9 apart, while a sum keeps the distance.";
    const auto& rewards = c_.rewards.per_reward;
    const auto richest =
        std::max_element(rewards.begin(), rewards.end(),
                         [](const auto& a, const auto& b) { return a.distinct < b.distinct; });
    if (richest->distinct > 20) {
      text += " A reward with many values, here " + in_quotes(richest->name) + " with " +
              grouped(richest->distinct) + ", therefore makes the sums of " + s_.info.label +
              " look rich. The tie rate is the figure to trust.";
    }
    out.push_back({std::string(fewer_values && fewer_vectors ? "By count" : "By one count") +
                       (one ? " over the whole log " : " inside batches ") + n_.info.label +
                       " is not finer",
                   text});
  }

  Finding dead_groups() const {
    std::string text =
        c_.rewards.uniform_groups == 0
            ? "In every group some completions have different rewards. "
            : "In " + share(c_.rewards.uniform_groups, groups_) + " of " +
                  counted(groups_, "group") +
                  " all completions have the same rewards, and no estimator that compares inside "
                  "the group can use those. ";
    if (c_.rewards.uniform_groups == groups_) return {"Dead groups", text};
    if (s_.metrics.canceled_groups.empty() && n_.metrics.canceled_groups.empty()) {
      text += std::string(c_.rewards.uniform_groups == 0 ? "Every group" : "Every other group") +
              " gets an advantage from both " + s_.info.label + " and " + n_.info.label + ".";
    } else {
      text += "Where rewards do differ, " + s_.info.label +
              " still gives 0 to the whole group in " + cases(s_.metrics.canceled_groups.size()) +
              " and " + n_.info.label + " in " + cases(n_.metrics.canceled_groups.size()) + ".";
    }
    const auto& equal_sum = c_.rewards.equal_sum_groups;
    if (!equal_sum.empty()) {
      const auto used = std::count_if(equal_sum.begin(), equal_sum.end(),
                                      [&](std::size_t g) { return !is_zero(c_, n_, g); });
      text += " A filter that drops groups in which the sum does not vary removes " +
              counted(equal_sum.size(), "group") + " in which a reward does vary; " +
              n_.info.label + " would use " +
              (used == 0 ? "none" : grouped(static_cast<std::size_t>(used))) + " of them.";
    }
    return {"Dead groups", text};
  }

  /// Appends the finding about groups that cancel, if there is one.
  void cancellation(std::vector<Finding>& out) const {
    const std::vector<std::size_t> groups = canceled_groups(c_);
    if (groups.empty()) return;
    const auto told_apart = std::count_if(groups.begin(), groups.end(),
                                          [&](std::size_t g) { return !is_zero(c_, s_, g); });
    std::string text =
        "In " + counted(groups.size(), "group") +
        " the normalized rewards cancel: they disagree, and after " +
        "normalization every disagreement has the same size, so all completions get 0.";
    if (told_apart > 0) {
      const std::size_t g = groups.front();
      std::string spans;
      for (std::size_t k = 0; k < c_.rollouts.reward_count(); ++k) {
        if (span(c_, g, k) == 0) continue;
        spans += (spans.empty() ? "" : " and ") + in_quotes(c_.rollouts.reward_names[k]) +
                 " spans " + compact(span(c_, g, k), 3);
      }
      text += " " + s_.info.label + " does tell the completions apart in " +
              grouped(static_cast<std::size_t>(told_apart)) + " of them. For example group " +
              c_.rollouts.group_name(g) + ": " + spans +
              "; after normalization these differences count alike, however small one of them was.";
    }
    out.push_back({"Groups that " + n_.info.label + " cancels", text});
  }

  void group_norm(std::vector<Finding>& out) const {
    const EstimatorResult* again = c_.normalize_first("group");
    const EstimatorResult* batch = c_.normalize_first("batch");
    if (batch == nullptr) batch = c_.normalize_first("none");
    if (again == nullptr || batch == nullptr || groups_ == 1) return;
    const std::size_t after = again->metrics.distinct_group_vectors_within_batches;
    const std::size_t before = batch->metrics.distinct_group_vectors_within_batches;
    const std::size_t reference = s_.metrics.distinct_group_vectors_within_batches;
    if (after >= before) return;
    std::string text =
        "Normalizing the sum a second time inside the group, instead of over the batch, divides "
        "every group by its own spread, so how strongly the rewards agree in a group is lost. ";
    text += "Of " + grouped(before) + " distinct group vectors " + grouped(after) + " remain";
    if (after == reference) {
      text += ", as many as " + s_.info.label + " has";
    } else {
      text += after < reference ? ", fewer than the " : ", against the ";
      text += grouped(reference) + " of " + s_.info.label;
    }
    out.push_back({before > reference
                       ? "A second normalization inside the group undoes part of the gain"
                       : "A second normalization inside the group loses detail",
                   text + ". Ties inside a group stay as they are."});
  }

  void balance(std::vector<Finding>& out) const {
    const std::vector<double> s = heard(s_);
    const std::vector<double> n = heard(n_);
    const Extent s_range = range(s);
    const Extent n_range = range(n);
    // All rewards are heard about alike, or there are no correlations.
    if (!(std::max(s_range.high - s_range.low, n_range.high - n_range.low) >= 0.1)) return;
    const auto quiet =
        static_cast<std::size_t>(std::find(s.begin(), s.end(), s_range.low) - s.begin());
    out.push_back({"Which reward is heard",
                   "Within a group, the advantage of " + s_.info.label + " follows " +
                       in_quotes(c_.rollouts.reward_names[quiet]) + " least: mean correlation " +
                       fixed(s[quiet], 2) + ", with " + n_.info.label + " " + fixed(n[quiet], 2) +
                       ". Over all rewards the correlations are " + range_text(s, 2) + " with " +
                       s_.info.label + " and " + range_text(n, 2) + " with " + n_.info.label +
                       "."});
  }

 private:
  /// How strongly the advantage follows each reward in the direction of its weight: the correlation
  /// with the sign of the weight; NaN for a reward of weight 0, which it is not meant to follow.
  std::vector<double> heard(const EstimatorResult& result) const {
    std::vector<double> values = result.metrics.mean_corr_with_each_reward;
    const std::vector<double>& weights = c_.settings.weights;
    for (std::size_t k = 0; k < weights.size(); ++k) {
      if (weights[k] == 0) values[k] = std::numeric_limits<double>::quiet_NaN();
      if (weights[k] < 0) values[k] = -values[k];
    }
    return values;
  }

  std::string equal_reason() const {
    if (c_.rewards.group_sizes.back().first == 2) {
      return "With two completions in a group every reward that differs is normalized to the same "
             "two values, so opposite differences cancel whatever their size.";
    }
    return "Normalizing each reward first removes no tie here.";
  }

  /// Least and largest of the values that are not NaN.
  struct Extent {
    double low, high;
  };
  static Extent range(const std::vector<double>& values) {
    Extent r{std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
    for (const double v : values) r = {std::fmin(r.low, v), std::fmax(r.high, v)};
    return r;
  }

  const Comparison& c_;
  const EstimatorResult& s_;
  const EstimatorResult& n_;
  std::size_t groups_;
};

}  // namespace

Finding tie_rate(const Comparison& comparison, const EstimatorResult& sum,
                 const EstimatorResult& normalized) {
  return Writer(comparison, sum, normalized).tie_rate();
}

void contrast(const Comparison& comparison, const EstimatorResult& sum,
              const EstimatorResult& normalized, std::vector<Finding>& out) {
  const Writer writer(comparison, sum, normalized);
  writer.counts(out);
  out.push_back(writer.dead_groups());
  writer.cancellation(out);
  writer.balance(out);
  writer.group_norm(out);
}

}  // namespace resolution
