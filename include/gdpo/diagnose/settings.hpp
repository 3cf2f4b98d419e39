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

  /// How far a token's ratio may typically be off 1 in the first step; 0 or more. Default: the
  /// checklist that is named in gdpo/diagnose.hpp, which asks for less than 0.1.
  double first_step_ratio = 0.1;

  /// The least and the largest share of tokens whose ratio is outside the range, 0 to 1. Default:
  /// the checklist's "healthy range". The least is not for every run: the paper of GSPO
  /// (2507.18071) clips a hundred times as many tokens as the GRPO beside it. 0 switches it off,
  /// as a loss without a clip needs it (surrogate::Reinforce), and 1 the largest.
  double clip_fraction_min = 0.05,
         clip_fraction_max = 0.25;  ///< See clip_fraction_min.

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
  check("first_step_ratio", s.first_step_ratio, s.first_step_ratio >= 0, "0 or more");
  share("clip_fraction_min", s.clip_fraction_min);
  share("clip_fraction_max", s.clip_fraction_max);
  check("clip_fraction_min", s.clip_fraction_min, s.clip_fraction_min <= s.clip_fraction_max,
        "at most settings.clip_fraction_max");
  share("dead_groups", s.dead_groups);
  check("truncated", s.truncated, s.truncated > 0 && s.truncated <= 1, "above 0, to 1");
  nats("entropy_floor", s.entropy_floor);
  nats("first_entropy", s.first_entropy);
  share("entropy_share", s.entropy_share);
}

}  // namespace detail
GDPO_END_NAMESPACE
