#pragma once
// The calls of the front door gdpo/diagnose.hpp, and the rule behind each finding.
#include <cmath>
#include <cstdio>
#include <gdpo/advantage/report.hpp>
#include <gdpo/diagnose/causes.hpp>
#include <gdpo/diagnose/diagnose_settings.hpp>
#include <gdpo/diagnose/finding.hpp>
#include <gdpo/loss/loss_result.hpp>
#include <gdpo/mismatch/report.hpp>
#include <gdpo/value/value_result.hpp>
#include <utility>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Collects findings, one rule after the other. Each rule is silent about what was not measured.
class Diagnosis {
 public:
  GDPO_COLD explicit Diagnosis(const DiagnoseSettings& settings) : settings_(settings) {
    check_fields("gdpo::diagnose", "settings", settings);
  }
  GDPO_COLD std::vector<Finding> findings() && { return std::move(findings_); }

  /// `report`: that of the rewards of these metrics; null: not known.
  GDPO_COLD void rules_of(const LossMetrics& m, const GroupReport* report = nullptr) {
    inputs(m, report);
    positive_logp(m);
    first_step_ratio(m);
    ratio_one(m);
    swapped_logp(m);
    clip_fraction(m);
    kl_zero(m);
    no_effect(m);
    all_truncated(m);
    entropy_collapse(m);
  }
  GDPO_COLD void rules_of(const GroupReport& r) {
    check_reward_names("gdpo::diagnose", "settings.reward_names", settings_.reward_names,
                       r.rewards.size());
    infinite_rewards(r);
    dead_groups(r);
    silent_rewards(r);
  }

  /// Of a critic, whose advantages are those of `policy`.
  GDPO_COLD void rules_of(const ValueMetrics& m, const LossMetrics& policy) {
    const Causes causes{nullptr};
    input("values", m.non_finite.values, causes.values());
    input("old_values", m.non_finite.old_values, causes.old_values());
    input("returns", m.non_finite.returns, causes.returns());
    input("weights", m.non_finite.weights, causes.row_weights());
    returns_are_advantages(m, policy);
  }
  /// Of sampling engine and trainer.
  GDPO_COLD void rules_of(const MismatchReport& r) {
    missing_rollout(r);
    rollout_mismatch(r);
    sample_size(r);
    dropped(r);
    no_effect(r);
  }
  /// Compares the counts `n`, which a result was divided by, with those of its loss.
  GDPO_COLD void counts(index_t over, const Normalizer& n, const Normalizer& loss_counts) {
    for (const StepCount& c : step_counts) {
      const double divisor = n.*c.count, loss_count = loss_counts.*c.count;
      const bool divides = static_cast<index_t>(c.over) == over;
      if (!divides || !(divisor > 0) || !(loss_count > 0)) continue;
      if (loss_count > divisor) {
        add("counts", c.name, loss_count / divisor, 1, count_words(c.name, loss_count, divisor),
            "The counts of one micro-batch, or of another one, in place of those of the step.");
      } else if (settings_.whole_step && loss_count < divisor) {
        add("counts", c.name, loss_count / divisor, 1, count_words(c.name, loss_count, divisor),
            "Counts that were added twice, or counts of another step.");
      }
    }
    if (static_cast<index_t>(Over::Given) == over && settings_.whole_step) given(n, loss_counts);
  }

  /// Without a report, rows whose advantages are 0 stand for the groups that have no spread.
  GDPO_COLD void dead_rows(const LossMetrics& m) {
    dead(m.degenerate_rows, m.rows - m.empty_rows,
         " of the completions have advantages that are all 0.",
         "Prompts that are too hard or too easy, so that all completions of a group get the same "
         "reward, or rewards that cancel each other: the report of the rewards tells which.");
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
                     const std::string& text, const std::string& cause) {
    Finding f;
    f.name = name, f.subject = subject, f.figure = figure, f.bound = bound, f.text = text;
    f.cause = cause;
    findings_.push_back(std::move(f));
  }

  GDPO_COLD void inputs(const LossMetrics& m, const GroupReport* report) {
#define GDPO_X(in_batch, in_row, ...) \
  input(#in_row, m.non_finite.in_row, \
        m.non_finite.in_row.count > 0 ? Causes{report}.in_row() : std::string());
    GDPO_COUNTED_INPUTS(GDPO_X)
#undef GDPO_X
  }
  GDPO_COLD void input(const char* name, const NonFinite& non_finite, const std::string& cause) {
    if (non_finite.count == 0) return;
    add("non_finite", name, static_cast<double>(non_finite.count), 0,
        std::string("Values of ") + name + " that are NaN or infinite: " +
            digits(non_finite.count) + ", the first in row " + digits(non_finite.row) +
            (non_finite.token < 0 ? "." : ", token " + digits(non_finite.token) + "."),
        cause);
  }
  GDPO_COLD void infinite_rewards(const GroupReport& r) {
    if (r.infinite_rewards == 0) return;
    add("non_finite", "rewards", static_cast<double>(r.infinite_rewards), 0,
        "Infinite rewards: " + digits(r.infinite_rewards) + ".",
        "A reward function that divides by 0 or takes the logarithm of 0.");
  }

  GDPO_COLD static std::string count_words(const char* name, double loss_count, double divisor) {
    return std::string("The loss holds ") + digits(loss_count) + " " + name +
           " and was divided by " + digits(divisor) + ".";
  }
  /// `given` is a number of the caller's own. Usual is the number of tokens, or less; twice that
  /// number or three times are of counts that were added up, `given` with them.
  GDPO_COLD void given(const Normalizer& n, const Normalizer& loss_counts) {
    const double times = loss_counts.tokens > 0 ? n.given / loss_counts.tokens : 0.0;
    if (!(times >= 2) || times != std::floor(times)) return;
    add("counts", "given", times, 1,
        "The loss holds " + digits(loss_counts.tokens) + " tokens and was divided by " +
            digits(n.given) + ", exactly " + digits(times) + " times as many.",
        "A count that was set on the counts of each micro-batch and then added up with them.");
  }
  GDPO_COLD void positive_logp(const LossMetrics& m) {
    const double share = m.positive_logp.row_mean();
    if (!(share > settings_.positive_logp)) return;
    add("positive_logp", "", share, settings_.positive_logp,
        percent(share) + " of the rows begin with a log-prob above 0, which none can be.",
        "Probabilities or logits in place of log-probs.");
  }
  GDPO_COLD void ratio_one(const LossMetrics& m) {
    const Metric& x = m.approx_kl_k1;
    const bool one = math::is_zero(x.sum) && math::is_zero(x.row_min) && math::is_zero(x.row_max) &&
                     math::is_zero(m.approx_kl_k3.sum);
    if (!settings_.later_step || x.count == 0 || !one) return;
    add("ratio_one", "", 0, 0,
        "The ratio is exactly 1 at " + digits(x.count) +
            " tokens, although the policy has been updated since the rollout.",
        "old_logp is absent, or filled anew in every step: it belongs to the rollout and stays.");
  }
  /// Over tokens that the old policy sampled, the mean of log r is minus a KL divergence, about
  /// -sigma^2 / 2 with sigma^2 the mean of its square; of swapped log-probs it is +sigma^2 / 2. An
  /// update on these very tokens moves it as well, by at most sigma mean A / std A, towards the
  /// sign of the advantages. The rule asks for more than that and four standard errors explain, and
  /// for a third of what is expected of swapped log-probs, k3 or sigma^2 / 2.
  GDPO_COLD void swapped_logp(const LossMetrics& m) {
    const double n = m.approx_kl_k1.count, k3 = m.approx_kl_k3.mean(), sigma = std::sqrt(2 * k3);
    if (settings_.first_step || n == 0 || !(typical_distance(m) > settings_.near_ratio)) return;
    const double mean = -m.approx_kl_k1.mean(), spread = stddev(m.advantage);
    const double pulled = !(m.advantage.mean > 0) ? 0 : sigma * m.advantage.mean / spread;
    const double left = mean - pulled - 4 * sigma / std::sqrt(n);
    if (math::not_finite(left) || !(left > 0) || !(mean > 0.3 * k3)) return;
    add("swapped_logp", "", mean, 0,
        "The mean of log(policy / old policy) is " + digits(mean) +
            " nats; over tokens of the old policy it is at most 0.",
        "logp and old_logp are swapped, or old_logp is not of the policy that sampled.");
  }
  GDPO_COLD void returns_are_advantages(const ValueMetrics& m, const LossMetrics& policy) {
    const Moments &r = m.returns, &a = policy.advantage;
    // The same numbers, but for the rounding of their sums.
    const double range = r.max - r.min, rounding = 1e-9;
    const bool same = r.n > 1 && r.n == a.n && r.min == a.min && r.max == a.max && range > 0 &&
                      std::fabs(r.mean - a.mean) <= rounding * range &&
                      std::fabs(r.m2 - a.m2) <= rounding * r.m2;
    // With values of 0 everywhere, as of a critic that begins, the two are the same.
    if (!same || (math::is_zero(m.value.min) && math::is_zero(m.value.max))) return;
    add("returns_are_advantages", "", r.mean, a.mean,
        "Returns and advantages have the same mean, spread and range over " + digits(r.n) +
            " tokens.",
        "One array is bound as both.");
  }

  /// How far a token's own ratio is typically off 1: about the root mean square of log r.
  static double own_distance(const LossMetrics& m) {
    const double k3 = m.approx_kl_k3.mean();
    return k3 > 0 || math::is_nan(k3) ? std::sqrt(2 * k3) : 0.0;
  }
  /// The same, or the distance of the mean ratio from 1 if that is larger; "Diagnosis" in
  /// include/gdpo/loss/README.md derives both.
  static double typical_distance(const LossMetrics& m) {
    const double mean = std::fabs(m.ratio.mean() - 1), own = own_distance(m);
    return mean > own ? mean : own;
  }
  GDPO_COLD void first_step_ratio(const LossMetrics& m) {
    if (!settings_.first_step || m.ratio.count == 0) return;
    const double distance = typical_distance(m);
    if (math::is_nan(distance) || distance <= settings_.first_step_ratio) return;
    add("first_step_ratio", "", distance, settings_.first_step_ratio,
        "In the first step after the rollout, the ratio of a token is typically off 1 by " +
            digits(distance) + "; at most " + digits(settings_.first_step_ratio) + " is usual.",
        "Rollout and trainer differ in the temperature, a cut of the distribution (top-k, top-p), "
        "the dtype, or the alignment of the mask.");
  }

  GDPO_COLD void clip_fraction(const LossMetrics& m) {
    const Metric& clipped = m.clip_fraction_any.count > 0 ? m.clip_fraction_any : m.clip_fraction;
    if (clipped.count == 0) return;
    const double share = clipped.mean();
    // k3 is 0 at a ratio of 1 and positive elsewhere.
    const bool on_policy = settings_.first_step || math::is_zero(m.approx_kl_k3.sum);
    // A narrow range, or a ratio that is the product of a row's, as at levels of sequences: few are
    // inside even of a policy that is near.
    const bool far_off = !(own_distance(m) <= settings_.near_ratio);
    const bool many = share > settings_.clip_fraction_max && far_off,
               few = share < settings_.clip_fraction_min && !on_policy;
    if (!many && !few) return;
    const double bound = many ? settings_.clip_fraction_max : settings_.clip_fraction_min;
    add("clip_fraction", "", share, bound,
        percent(share) + " of the tokens have a ratio outside the clip range; " +
            (many ? "at most " : "at least ") + percent(bound) + " are usual.",
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
        "The reference is the policy itself: both names refer to the same tensors. A term against "
        "the old policy is 0 on samples of the policy itself.");
  }

  /// Whether all values of a metric are exactly 0.
  static bool all_zero(const Metric& x) {
    return x.count > 0 && math::is_zero(x.sum) && math::is_zero(x.row_min) &&
           math::is_zero(x.row_max) && !(x.min < 0) && !(x.max > 0);
  }
  /// A term that is on and changes nothing. The loss of a token is the surrogate plus the KL terms,
  /// so the two metrics have the same numbers only where all KL terms add 0.
  GDPO_COLD void no_effect(const LossMetrics& m) {
    const Metric &x = m.loss, &s = m.surrogate;
    const bool kl_on = m.kl.count > 0 && !all_zero(m.kl) && !math::not_finite(m.kl.sum);
    const bool same = x.sum == s.sum && x.row_sum == s.row_sum && x.row_min == s.row_min &&
                      x.row_max == s.row_max && !math::differ(x.min, s.min) &&
                      !math::differ(x.max, s.max);
    if (kl_on && same) {
      add("no_effect", "kl", 0, 0,
          "The KL term is " + digits(m.kl.mean()) + " in the mean of " +
              digits(static_cast<index_t>(m.kl.count)) +
              " tokens, and adds nothing to the loss of any.",
          "KL weights that are all 0, or a beta so small that it is lost in rounding.");
    }
    const bool may_be_zero = settings_.log_ratio_surrogate && all_zero(m.approx_kl_k1);
    if (settings_.whole_step && all_zero(s) && !may_be_zero &&
        (m.advantage.min < 0 || m.advantage.max > 0)) {
      add("no_effect", "surrogate", 0, 0,
          "The surrogate is exactly 0 at all " + digits(static_cast<index_t>(s.count)) +
              " tokens, although advantages are not.",
          "Weights that are all 0: a correction or a mask of weights that drops every token.");
    }
  }

  GDPO_COLD void missing_rollout(const MismatchReport& r) {
    if (r.missing == 0) return;
    const double share = r.missing_share();
    add("missing_rollout", "", share, 0,
        percent(share) + " of the valid tokens, " + digits(r.missing) +
            " of them, have no rollout_logp (NaN).",
        "Tokens that the engine did not sample, such as those of tools, inside the mask, or an "
        "engine that reports log-probs of a part only.");
  }
  GDPO_COLD void rollout_mismatch(const MismatchReport& r) {
    const double k1 = std::fabs(r.kl()), k3 = r.k3_kl(), kl = k3 > k1 ? k3 : k1;
    if (kl > settings_.rollout_kl) {
      add("rollout_mismatch", "kl", kl, settings_.rollout_kl,
          "The policy of the sampling engine is " + digits(kl) +
              " nats per token from the trainer's; at most " + digits(settings_.rollout_kl) +
              " are usual.",
          "Another temperature or a cut of the distribution (top-k, top-p) in one of the two, "
          "weights of the engine that are steps old, or tokens and log-probs that are shifted.");
    }
    const double factor = r.mult_prob_error();
    if (factor > settings_.mult_prob_error) {
      add("rollout_mismatch", "probability", factor, settings_.mult_prob_error,
          "The probabilities of engine and trainer differ by a factor of " + digits(factor) +
              " in the mean of the tokens; at most " + digits(settings_.mult_prob_error) +
              " is usual.",
          "Another precision in the engine (8 bits), other kernels, or what moves the KL as well.");
    }
  }
  GDPO_COLD void sample_size(const MismatchReport& r) {
    const bool weighed = r.weighed > 0;
    const double size = weighed ? r.weight_ess() : r.token_ess();
    if (r.scored == 0 || !(size < settings_.effective_sample_size)) return;
    add("effective_sample_size", weighed ? "weights" : "ratios", size,
        settings_.effective_sample_size,
        "The weights of " + digits(r.scored) + " tokens count like equal ones of " + percent(size) +
            " of them; " + percent(settings_.effective_sample_size) + " are the least expected.",
        "A few tokens or rows with large ratios of trainer and engine: cut their weights, or drop "
        "them.");
  }
  GDPO_COLD void dropped(const MismatchReport& r) {
    const double share = r.dropped_share();
    if (!(share > settings_.dropped)) return;
    add("dropped", "", share, settings_.dropped,
        percent(share) + " of the tokens are taken out by corrections; at most " +
            percent(settings_.dropped) + " are usual.",
        "Bounds that are too narrow for this engine, above all those of products over long rows.");
  }
  /// A correction that has changed nothing in a whole step. A gate may rightly let all of a
  /// micro-batch through, so only a whole step is judged.
  GDPO_COLD void no_effect(const MismatchReport& r) {
    if (!settings_.whole_step || r.scored == 0) return;
    if (r.abs_log_ratio_max.value == 0) {
      add("no_effect", "rollout_logp", 0, 0,
          "rollout_logp is exactly old_logp at all " + digits(r.scored) + " tokens.",
          "One array is bound as both, or the trainer takes the engine's log-probs for its own: "
          "no correction can do anything.");
    } else if (r.weighed == r.scored && r.changed == 0 && r.masked == 0) {
      add("no_effect", "weights", 0, 0,
          "All weights are exactly 1, at " + digits(r.weighed) +
              " tokens, although the log-probs of engine and trainer differ.",
          "Bounds of a gate that nothing reaches, or a correction whose result is not bound.");
    }
  }

  GDPO_COLD void dead_groups(const GroupReport& r) {
    // A group without any reward is degenerate, but not dead.
    index_t dead_ones = -r.empty_groups;
    for (const unsigned char flag : r.degenerate) dead_ones += flag != 0;
    const index_t all = static_cast<index_t>(r.degenerate.size()) - r.empty_groups,
                  canceled = canceled_groups(r), alone = r.singletons,
                  equal = dead_ones - canceled - alone;
    const char* const words = " of the groups have no spread, so their advantages are 0";
    if (canceled > equal && canceled > alone) {
      dead(dead_ones, all, words + (", although rewards differ within " + digits(canceled)) + ".",
           "Rewards that cancel each other in the weighted sum, or a reward that alone differs and "
           "has weight 0.");
    } else if (alone > equal) {
      dead(dead_ones, all, words + ("; of one completion are " + digits(alone)) + ".",
           "A wrong group size, or ids that differ between the completions of a prompt.");
    } else {
      dead(dead_ones, all, words + std::string("."),
           "Prompts that are too hard or too easy, so that all completions of a group get the same "
           "reward.");
    }
  }
  GDPO_COLD void dead(index_t dead_ones, index_t all, const std::string& words, const char* cause) {
    const double share = fraction_of(dead_ones, all);
    if (share <= settings_.dead_groups) return;
    add("dead_groups", "", share, settings_.dead_groups, percent(share) + words, cause);
  }

  GDPO_COLD void all_truncated(const LossMetrics& m) {
    const double share = m.clipped_completions.row_mean();
    if (!(m.clipped_completions.rows > 0) || share < settings_.truncated) return;
    add("all_truncated", "", share, settings_.truncated,
        percent(share) + " of the completions have reached the length limit.",
        "A length limit that is too short, or an end-of-sequence token that is not recognized.");
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
    const std::size_t rewards = r.rewards.size();
    for (std::size_t c = 0; c < rewards; ++c) {
      index_t live_groups = 0;
      for (std::size_t k = c; k < r.reward_degenerate.size(); k += rewards)
        live_groups += r.reward_degenerate[k] == 0;
      if (live_groups > 0) continue;
      const std::string name = reward_name(settings_.reward_names, c);
      const bool none = r.rewards[c].n == 0;
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
  diagnosis.rules_of(metrics, &report);
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

/// The same for a result and the report of its rewards: also what the result was divided by.
GDPO_COLD inline std::vector<Finding> diagnose(const LossResult& result, const GroupReport& report,
                                               const DiagnoseSettings& settings = {}) {
  detail::Diagnosis diagnosis(settings);
  diagnosis.counts(result.over, result.normalizer, detail::seen_by(result.metrics));
  diagnosis.rules_of(result.metrics, &report);
  diagnosis.rules_of(report);
  return std::move(diagnosis).findings();
}

/// The same for a result alone.
GDPO_COLD inline std::vector<Finding> diagnose(const LossResult& result,
                                               const DiagnoseSettings& settings = {}) {
  detail::Diagnosis diagnosis(settings);
  diagnosis.counts(result.over, result.normalizer, detail::seen_by(result.metrics));
  diagnosis.rules_of(result.metrics);
  diagnosis.dead_rows(result.metrics);
  return std::move(diagnosis).findings();
}

/// What a mismatch report says about the sampling engine and the corrections of its log-probs.
GDPO_COLD inline std::vector<Finding> diagnose(const MismatchReport& report,
                                               const DiagnoseSettings& settings = {}) {
  detail::Diagnosis diagnosis(settings);
  diagnosis.rules_of(report);
  return std::move(diagnosis).findings();
}

/// What the result of a critic says, beside the metrics of the policy loss of the same tokens.
GDPO_COLD inline std::vector<Finding> diagnose(const ValueLossResult& result,
                                               const LossMetrics& policy,
                                               const DiagnoseSettings& settings = {}) {
  detail::Diagnosis diagnosis(settings);
  diagnosis.counts(result.over, result.normalizer, detail::seen_by(result.metrics));
  diagnosis.rules_of(result.metrics, policy);
  return std::move(diagnosis).findings();
}

/// The same without the policy.
GDPO_COLD inline std::vector<Finding> diagnose(const ValueLossResult& result,
                                               const DiagnoseSettings& settings = {}) {
  return diagnose(result, LossMetrics{}, settings);
}

GDPO_END_NAMESPACE
