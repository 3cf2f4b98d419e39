#pragma once
// The calls of the front door gdpo/diagnose.hpp, and the rule behind each finding.
#include <cmath>
#include <cstdio>
#include <gdpo/advantage/report.hpp>
#include <gdpo/diagnose/finding.hpp>
#include <gdpo/diagnose/settings.hpp>
#include <gdpo/loss/metrics.hpp>
#include <utility>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Collects findings, one rule after the other. Each rule is silent about what was not measured.
class Diagnosis {
 public:
  GDPO_COLD explicit Diagnosis(const DiagnoseSettings& settings) : settings_(settings) {
    check_diagnose_settings(settings);
  }
  GDPO_COLD std::vector<Finding> findings() && { return std::move(findings_); }

  GDPO_COLD void rules_of(const LossMetrics& m) {
    inputs(m);
    first_step_ratio(m);
    clip_fraction(m);
    kl_zero(m);
    all_truncated(m);
    entropy_collapse(m);
  }
  GDPO_COLD void rules_of(const GroupReport& r) {
    check_reward_names("gdpo::diagnose", "settings.reward_names", settings_.reward_names,
                       r.channels.size());
    infinite_rewards(r);
    dead_groups(r);
    silent_rewards(r);
  }

  /// Without a report, rows whose advantages are 0 stand for the groups that have no spread.
  GDPO_COLD void dead_rows(const LossMetrics& m) {
    dead(m.degenerate_rows, m.rows - m.empty_rows,
         " of the completions have advantages that are all 0.");
  }

 private:
  /// The number with four significant digits.
  GDPO_COLD static std::string digits(double number) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.4g", number);
    return buffer;
  }
  GDPO_COLD static std::string digits(index_t number) { return std::to_string(number); }
  GDPO_COLD static std::string percent(double share) { return digits(100 * share) + " %"; }

  GDPO_COLD void add(const char* name, const std::string& subject, double figure, double bound,
                     const std::string& text, const char* cause) {
    Finding f;
    f.name = name, f.subject = subject, f.figure = figure, f.bound = bound, f.text = text;
    f.cause = cause;
    findings_.push_back(std::move(f));
  }

  GDPO_COLD void inputs(const LossMetrics& m) {
#define GDPO_X(in_batch, in_row, ...) input(#in_row, m.non_finite.in_row);
    GDPO_COUNTED_INPUTS(GDPO_X)
#undef GDPO_X
  }
  GDPO_COLD void input(const char* name, const NonFinite& seen) {
    if (seen.count == 0) return;
    add("non_finite", name, static_cast<double>(seen.count), 0,
        std::string("Values of ") + name + " that are NaN or infinite: " + digits(seen.count) +
            ", the first in row " + digits(seen.row) +
            (seen.token < 0 ? "." : ", token " + digits(seen.token) + "."),
        "A token that the model gives probability 0, an overflow in 16 bits, or a mask that covers "
        "padding.");
  }
  GDPO_COLD void infinite_rewards(const GroupReport& r) {
    if (r.infinite_rewards == 0) return;
    add("non_finite", "rewards", static_cast<double>(r.infinite_rewards), 0,
        "Infinite rewards: " + digits(r.infinite_rewards) + ".",
        "A reward function that divides by 0 or takes the logarithm of 0.");
  }

  /// How far a ratio is typically off 1; gdpo/diagnose.hpp derives it.
  static double typical_distance(const LossMetrics& m) {
    const double mean = std::fabs(m.ratio.mean() - 1), k3 = m.approx_kl_k3.mean();
    const double spread = k3 > 0 ? std::sqrt(2 * k3) : 0.0;
    return mean > spread ? mean : spread;
  }
  GDPO_COLD void first_step_ratio(const LossMetrics& m) {
    if (!settings_.first_step || m.ratio.count == 0) return;
    const double distance = typical_distance(m);
    if (math::is_nan(distance) || distance <= settings_.first_step_ratio) return;
    add("first_step_ratio", "", distance, settings_.first_step_ratio,
        "In the first step after the rollout, the ratio of a token is typically off 1 by " +
            digits(distance) + "; at most " + digits(settings_.first_step_ratio) + " is usual.",
        "Rollout and trainer differ in the temperature, the dtype, or the alignment of the mask.");
  }

  GDPO_COLD void clip_fraction(const LossMetrics& m) {
    const Metric& clipped = m.clip_fraction_any.count > 0 ? m.clip_fraction_any : m.clip_fraction;
    if (clipped.count == 0) return;
    const double share = clipped.mean();
    // k3 is 0 at a ratio of 1 and positive elsewhere.
    const bool on_policy = settings_.first_step || math::is_zero(m.approx_kl_k3.sum);
    const bool many = share > settings_.clip_fraction_max,
               few = share < settings_.clip_fraction_min && !on_policy;
    if (!many && !few) return;
    add("clip_fraction", "", share,
        many ? settings_.clip_fraction_max : settings_.clip_fraction_min,
        percent(share) + " of the tokens have a ratio outside the clip range; usual are " +
            percent(settings_.clip_fraction_min) + " to " + percent(settings_.clip_fraction_max) +
            ".",
        many ? "Too many steps on one rollout, a learning rate that is too high, or log-probs of "
               "the sampling that are out of date."
             : "A policy that hardly moves: a learning rate that is too low, or advantages that "
               "are nearly all 0.");
  }

  GDPO_COLD void kl_zero(const LossMetrics& m) {
    // Terms of both signs might cancel in a sum, so the ranges are looked at as well. That over
    // tokens is empty with metrics::Means.
    const bool zero = math::is_zero(m.kl.sum) && math::is_zero(m.kl.row_min) &&
                      math::is_zero(m.kl.row_max) && !(m.kl.min < 0) && !(m.kl.max > 0);
    if (settings_.first_step || m.kl.count == 0 || !zero) return;
    add("kl_zero", "", 0, 0,
        "The KL term is exactly 0 over " + digits(static_cast<index_t>(m.kl.count)) + " tokens.",
        "The reference is the policy itself: both names refer to the same tensors.");
  }

  GDPO_COLD void dead_groups(const GroupReport& r) {
    // A group without any reward is degenerate, but not dead.
    index_t dead_ones = -r.empty_groups;
    for (const unsigned char flag : r.degenerate) dead_ones += flag != 0;
    dead(dead_ones, static_cast<index_t>(r.degenerate.size()) - r.empty_groups,
         " of the groups have no spread, so their advantages are 0.");
  }
  GDPO_COLD void dead(index_t dead_ones, index_t all, const char* words) {
    const double share = fraction_of(dead_ones, all);
    if (share <= settings_.dead_groups) return;
    add("dead_groups", "", share, settings_.dead_groups, percent(share) + words,
        "Prompts that are too hard or too easy, so that all completions of a group get the same "
        "reward.");
  }

  GDPO_COLD void all_truncated(const LossMetrics& m) {
    const double share = m.clipped_completions.row_mean();
    if (!(m.clipped_completions.rows > 0) || share < settings_.truncated) return;
    add("all_truncated", "", share, settings_.truncated,
        percent(share) + " of the completions have reached the length limit.",
        "A length limit that is too short, or an end-of-sequence token that is not recognised.");
  }

  GDPO_COLD void entropy_collapse(const LossMetrics& m) {
    if (m.entropy.count == 0) return;
    const double entropy = m.entropy.mean(),
                 left = math::mul(settings_.entropy_share, settings_.first_entropy),
                 bound = left > settings_.entropy_floor ? left : settings_.entropy_floor;
    if (math::is_nan(entropy) || !(entropy < bound)) return;
    add("entropy_collapse", "", entropy, bound,
        "The mean entropy of a token is " + digits(entropy) + " nats; " + digits(bound) +
            " is the least expected.",
        "The policy no longer explores, as with a symmetric clip range or too many steps on few "
        "prompts.");
  }

  GDPO_COLD void silent_rewards(const GroupReport& r) {
    if (r.groups == 0 || r.rows == r.unused_rows) return;
    const std::size_t rewards = r.channels.size();
    for (std::size_t c = 0; c < rewards; ++c) {
      index_t heard = 0;
      for (std::size_t at = c; at < r.channel_degenerate.size(); at += rewards)
        heard += r.channel_degenerate[at] == 0;
      if (heard > 0) continue;
      const std::string name = reward_name(settings_.reward_names, c);
      const bool none = r.channels[c].n == 0;
      add("silent_reward", name, 0, 1,
          (none ? "Groups in which reward " + name + " has a value: 0 of "
                : "Groups in which reward " + name + " has a spread: 0 of ") +
              digits(r.groups) + ".",
          none ? "A reward function that is not called, or that fails and abstains every time."
               : "A reward function that gives every completion of a prompt the same value.");
    }
  }

  const DiagnoseSettings& settings_;
  std::vector<Finding> findings_;
};

}  // namespace detail

/// What the metrics of a step and the report of its rewards say about mistakes.
///
/// Both may be merged over micro-batches and ranks, and should be. The result is empty where
/// nothing was found. gdpo/diagnose.hpp lists the findings.
GDPO_COLD inline std::vector<Finding> diagnose(const LossMetrics& metrics,
                                               const GroupReport& report,
                                               const DiagnoseSettings& settings = {}) {
  detail::Diagnosis diagnosis(settings);
  diagnosis.rules_of(metrics);
  diagnosis.rules_of(report);
  return std::move(diagnosis).findings();
}

/// The same for metrics alone. Rows without an advantage stand for the groups without a spread.
GDPO_COLD inline std::vector<Finding> diagnose(const LossMetrics& metrics,
                                               const DiagnoseSettings& settings = {}) {
  detail::Diagnosis diagnosis(settings);
  diagnosis.rules_of(metrics);
  diagnosis.dead_rows(metrics);
  return std::move(diagnosis).findings();
}

/// The same for the report alone.
GDPO_COLD inline std::vector<Finding> diagnose(const GroupReport& report,
                                               const DiagnoseSettings& settings = {}) {
  detail::Diagnosis diagnosis(settings);
  diagnosis.rules_of(report);
  return std::move(diagnosis).findings();
}

GDPO_END_NAMESPACE
