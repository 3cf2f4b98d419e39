#include "unlogged.hpp"

#include <algorithm>
#include <vector>

#include "conditions.hpp"

namespace conformance {
namespace {

// Whether the name is the pattern, in which a * at the end is any text.
bool matches(const std::string& pattern, const std::string& name) {
  if (pattern.empty() || pattern.back() != '*') return name == pattern;
  return name.compare(0, pattern.size() - 1, pattern, 0, pattern.size() - 1) == 0;
}

struct Unlogged {
  const char* source;
  std::vector<const char*> functions, metrics;
  When when;
  const char* reason;
};

// A report that gets one of these numbers takes its line out: a metric that is listed and compared
// fails.
const std::vector<Unlogged>& list() {
  const When every = always;
  static const std::vector<Unlogged> all{
      {"ms_swift",
       {"compute_sdar_loss"},
       {"sdar/gate_mean", "sdar/gate_active_ratio"},
       every,
       "The factors of a KL term are not measured."},
      {"nemo_rl",
       {"ClippedPGLossFn.__call__"},
       {"positive_nll_loss"},
       !positive("positive_example_nll_weight"),
       "The value of a second loss that is off."},
      {"areal",
       {"sapo_loss_fn"},
       {"sapo_soft_gate"},
       every,
       "The gate of each token; the library returns sums and means."},
      {"nemo_rl",
       {"ClippedPGLossFn.__call__"},
       {"probs_ratio*"},
       has("disable_ppo_ratio"),
       "Log-probs under the name of ratios."},
      {"openrlhf",
       {"PolicyLoss.forward"},
       {"vllm_kl"},
       !input("rollout_logp") || is("policy_loss_type", {"gspo"}),
       "A constant 0 where the trainer makes no correction, and with gspo."},
      {"prime_rl",
       {"compute_loss[default_loss_fn]"},
       {"is_masked", "masked_mismatch_kl", "unmasked_mismatch_kl", "masked_advantage_positive",
        "masked_advantage_negative"},
       zero_advantage,
       "Tokens of advantage 0, which add nothing to the loss, count as masked."},
      {"prime_rl",
       {"compute_loss[default_loss_fn]", "compute_loss[ipo_loss_fn]"},
       {"nll", "ref_kl", "ref_kl/*"},
       every,
       "One number of each row, of the tokens of one part of the loss."},
      {"prime_rl",
       {"compute_loss[default_loss_fn]", "compute_loss[ipo_loss_fn]"},
       {"is_masked", "masked_mismatch_kl", "unmasked_mismatch_kl"},
       input("ce_weights") && input("ref_kl_weights"),
       "Rows without a token of the part have no number."},
      {"slime",
       {"loss_function[policy_loss]"},
       {"pg_clipfrac", "ppo_kl", "train_rollout_logprob_abs_diff"},
       input("rollout_ids"),
       "Sums over rollouts of means over their rows; the metrics of rows are means of each."},
      {"torchrl",
       {"GRPOLoss.forward"},
       {"loss_objective"},
       is("aggregation", {"none"}),
       "The loss of each token; the library returns sums and means."},
      {"torchrl",
       {"GRPOLoss.forward"},
       {"kl_to_inference", "loss_kl_to_inference"},
       every,
       "The value of the second KL term; the library measures the first of several."},
      {"trinity",
       {"SAPOPolicyLossFn", "TOPRPolicyLossFn"},
       {"avg_soft_gate", "avg_alpha"},
       every,
       "The factors of a loss are not measured."},
      {"trinity",
       {"SAPOPolicyLossFn"},
       {"pos_adv_frac"},
       every,
       "The share of tokens with a positive advantage is not measured."},
      {"trinity",
       {"PPOPolicyLossFn"},
       {"seq_mask/masked_tokens"},
       every,
       "Its numerator counts padding, so it may be above 1."},
      {"trl",
       {"GRPOTrainer._compute_loss"},
       {"vespo/phi_seq_mean"},
       every,
       "The factors of a loss are not measured."},
      {"verl",
       {"compute_policy_loss_dppo_tv", "compute_policy_loss_dppo_kl",
        "compute_policy_loss_geo_mean"},
       {"actor/pg_clipfrac"},
       zero_advantage,
       "Tokens of advantage 0 count on one of the two sides."},
  };
  return all;
}

}  // namespace

std::string unlogged(const Case& recorded, const std::string& metric) {
  for (const Unlogged& line : list()) {
    const bool of_function = std::find(line.functions.begin(), line.functions.end(),
                                       recorded.function) != line.functions.end();
    const bool named = std::any_of(line.metrics.begin(), line.metrics.end(),
                                   [&](const char* pattern) { return matches(pattern, metric); });
    if (recorded.source == line.source && of_function && named && line.when(recorded))
      return line.reason;
  }
  return "";
}

}  // namespace conformance
