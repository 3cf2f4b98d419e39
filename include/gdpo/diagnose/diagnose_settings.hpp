#pragma once
// The thresholds of diagnose(), each with its source.
#include <gdpo/math/check_fields.hpp>
#include <string>
#include <vector>

GDPO_BEGIN_NAMESPACE

/// The thresholds of diagnose(), and facts that it cannot derive from the numbers.
///
/// Each threshold has a note on where its default is from. "Ours" means that no source states a
/// number. A threshold that is NaN or outside its range throws invalid_input.
struct DiagnoseSettings {
  /// The metrics are of the first step after a rollout: the policy is still the one that sampled.
  bool first_step = false;

  /// The metrics are of a later step on the same rollout: the policy has been updated since, and
  /// its ratios are off 1. Where neither this nor first_step is set, it is not known.
  bool later_step = false;

  /// The result is that of a whole optimizer step: of all its micro-batches, on all ranks. Then it
  /// holds as many tokens and rows as were counted.
  bool whole_step = false;

  /// The surrogate is one of the log ratio (surrogate::LogRatio), which is 0 where the ratio is 1.
  /// In an on-policy step it may then be 0 at all tokens without a fault.
  bool log_ratio_surrogate = false;

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

  /// The largest KL divergence of the sampling engine's policy from the trainer's, in nats per
  /// token; 0 or more. Compared is the larger of |MismatchReport::kl()| and k3_kl(), because k1 of
  /// log-probs that are off by one token cancels. Default: verl's guide "Rollout Correction", whose
  /// check of health warns above 0.1.
  double rollout_kl = 0.1;

  /// The largest mean of e^|old - rollout| over tokens, MismatchReport::mult_prob_error(); 1 or
  /// more. Default: NeMo-RL's guide "Add New Models", which investigates models above 1.05,
  /// of equal precision in engine and trainer.
  double mult_prob_error = 1.05;

  /// The least effective sample size, as a share of the tokens, 0 to 1: of the batch's weights, or
  /// of the ratios old / rollout where it has none. Default: the same check of verl's guide.
  double effective_sample_size = 0.3;

  /// The largest share of tokens that corrections may take out, by weight 0 or out of the mask, 0
  /// to 1. Default: one half, ours.
  double dropped = 0.5;

  /// Names of the C rewards, all different; empty: "0", "1" and so on.
  std::vector<std::string> reward_names;

  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    const Range share = at_least(0).at_most(1).with_note("a share");
    const Range distance = at_least(0).or_infinity();
    const Range nats = at_least(0).with_note("nats");
    field("first_step", s.first_step, "the policy is still the one that sampled");
    field("later_step", s.later_step, "the policy has been updated since");
    field("whole_step", s.whole_step, "the result is that of a whole optimizer step");
    field("log_ratio_surrogate", s.log_ratio_surrogate, "the surrogate is 0 where the ratio is 1");
    field("first_step_ratio", s.first_step_ratio, distance,
          "how far a ratio may typically be off 1 in the first step");
    field("clip_fraction_min", s.clip_fraction_min, share, "least share of clipped tokens");
    field("clip_fraction_max", s.clip_fraction_max, share, "largest share of clipped tokens");
    field("near_ratio", s.near_ratio, distance, "how far off 1 a large share of clips is judged");
    field("positive_logp", s.positive_logp, share,
          "largest share of rows that begin with a positive log-prob");
    field("dead_groups", s.dead_groups, share, "largest share of groups without a spread");
    field("truncated", s.truncated, more_than(0).at_most(1).with_note("a share"),
          "the share of truncated completions that counts as all");
    field("entropy_floor", s.entropy_floor, nats, "least mean entropy of a token");
    field("first_entropy", s.first_entropy, nats,
          "that of the first step of the run; 0: not known");
    field("entropy_share", s.entropy_share, share, "the least share of it that is left");
    field("rollout_kl", s.rollout_kl, distance,
          "largest KL of the sampling engine from the trainer");
    field("mult_prob_error", s.mult_prob_error, at_least(1).or_infinity(),
          "largest factor between the probabilities of engine and trainer");
    field("effective_sample_size", s.effective_sample_size, share,
          "least effective share of the tokens under the weights");
    field("dropped", s.dropped, share, "largest share of tokens that corrections take out");
    field("reward_names", s.reward_names, "names of the rewards");
  }
  /// Throws for what two settings decide together.
  GDPO_COLD void check_together(const char* function, const detail::FieldPath& path) const {
    if (first_step && later_step) {
      contract::fail(function, path.text("first_step") + ", " + path.text("later_step"), "both",
                     "at most one of them");
    }
    if (clip_fraction_min <= clip_fraction_max) return;
    contract::fail(function, path.text("clip_fraction_min"), contract::text(clip_fraction_min),
                   "at most " + path.text("clip_fraction_max"));
  }
};

GDPO_END_NAMESPACE
