#pragma once
#include <gdpo/core/errors.hpp>
#include <gdpo/math/scalar.hpp>
#include <string>
#include <vector>

GDPO_BEGIN_NAMESPACE

/// The thresholds of diagnose(), and what it cannot see by itself.
///
/// Each threshold says where its default is from. "Ours" means that no source states a number. A
/// threshold that is NaN or outside its range throws invalid_input.
struct DiagnoseSettings {
  /// The metrics are of the first step after a rollout: the policy is still the one that sampled.
  bool first_step = false;

  /// The metrics are of a later step on the same rollout: the policy has been updated since, and
  /// its ratios are off 1. Where neither this nor first_step is set, it is not known.
  bool later_step = false;

  /// The result is that of a whole optimizer step: of all its micro-batches, on all ranks. Then it
  /// holds as many tokens and rows as were counted.
  bool whole_step = false;

  /// How far a token's ratio may typically be off 1 in the first step; 0 or more. Default: the
  /// checklist of "Implementing GRPO from Scratch" (presets/textbook.hpp) asks for less than 0.1.
  double first_step_ratio = 0.1;

  /// The least and the largest share of tokens whose ratio is outside the range, 0 to 1. The
  /// default of the least is off, 0: healthy runs at the level of tokens clip far less than 1 % of
  /// them, and any number may be right. That of the largest is the end of the checklist's "healthy
  /// range".
  double clip_fraction_min = 0,
         clip_fraction_max = 0.25;  ///< See clip_fraction_min.

  /// How far a token's own ratio has to be off 1, typically, before a share above clip_fraction_max
  /// and the sign of the log ratios are judged; 0 or more. Default: ours, that of first_step_ratio.
  /// At levels of sequences the range is so narrow that a policy which is near may be outside
  /// everywhere: the paper of GSPO (2507.18071) clips a hundred times as many tokens as the GRPO
  /// beside it. And near 1 a ratio and its inverse are the same to first order.
  double near_ratio = 0.1;

  /// The largest share of rows that begin with a positive log-prob, LossMetrics::positive_logp, 0
  /// to 1. Log-probs are at most 0, and what rounding to 16 bits adds is not counted. Default:
  /// ours.
  double positive_logp = 0.05;

  /// The largest share of groups without a spread, 0 to 1. Default: one half, ours, for the
  /// checklist's groups that "dominate the batch".
  double dead_groups = 0.5;

  /// The share of truncated completions that counts as all of them, above 0, to 1. Default: every
  /// completion, ours.
  double truncated = 1;

  /// The least mean entropy of a token, in nats; 0 or more. Default: ours. It is far below the
  /// entropies at which trainers report healthy runs, and depends on the temperature.
  double entropy_floor = 0.05;

  /// The mean entropy in the first step of the run, in nats; 0: not known.
  double first_entropy = 0;

  /// The least share of first_entropy that is left, 0 to 1. Default: 2505.22617 finds that 94 % of
  /// the entropy is used up, and 93 % of the gain made, in the first third of its runs.
  double entropy_share = 0.06;

  /// Names of the C rewards, all different; empty: "0", "1" and so on.
  std::vector<std::string> reward_names;
};

namespace detail {

GDPO_COLD inline void check_diagnose_settings(const DiagnoseSettings& s) {
  const auto check = [](const char* name, double value, bool fits, const char* needed) {
    if (fits && !math::is_nan(value)) return;
    contract::fail("gdpo::diagnose", contract::Text("settings.") + name, contract::text(value),
                   needed);
  };
  const auto share = [&check](const char* name, double value) {
    check(name, value, value >= 0 && value <= 1, "a share, 0 to 1");
  };
  const auto nats = [&check](const char* name, double value) {
    check(name, value, value >= 0 && !math::is_inf(value), "a finite number of at least 0, nats");
  };
  if (s.first_step && s.later_step) {
    contract::fail("gdpo::diagnose", "settings.first_step, settings.later_step", "both",
                   "at most one of them");
  }
  check("first_step_ratio", s.first_step_ratio, s.first_step_ratio >= 0, "0 or more");
  share("clip_fraction_min", s.clip_fraction_min);
  share("clip_fraction_max", s.clip_fraction_max);
  check("clip_fraction_min", s.clip_fraction_min, s.clip_fraction_min <= s.clip_fraction_max,
        "at most settings.clip_fraction_max");
  check("near_ratio", s.near_ratio, s.near_ratio >= 0, "0 or more");
  share("positive_logp", s.positive_logp);
  share("dead_groups", s.dead_groups);
  check("truncated", s.truncated, s.truncated > 0 && s.truncated <= 1, "above 0, to 1");
  nats("entropy_floor", s.entropy_floor);
  nats("first_entropy", s.first_entropy);
  share("entropy_share", s.entropy_share);
}

}  // namespace detail
GDPO_END_NAMESPACE
