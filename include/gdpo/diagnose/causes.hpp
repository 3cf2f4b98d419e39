#pragma once
// The usual cause of an input that is not finite, for each input of a loss its own.
#include <gdpo/advantage/report.hpp>
#include <gdpo/tokens/metric.hpp>
#include <string>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// One function for each line of GDPO_COUNTED_INPUTS.
struct Causes {
  const GroupReport* report;  ///< The rewards behind the advantages; null: not known.

  GDPO_COLD std::string logp() const {
    return "A token that the model gives probability 0, logits that overflow in 16 bits, or a mask "
           "that covers padding.";
  }
  GDPO_COLD std::string old_logp() const {
    return "A token that the policy of the rollout gives probability 0 (its top-k or top-p may "
           "differ from the sampling's), an overflow in 16 bits, or a mask that covers padding.";
  }
  GDPO_COLD std::string ref_logp() const {
    return "A token that the reference gives probability 0, such as one that its vocabulary does "
           "not have, an overflow in 16 bits, or a mask that covers padding.";
  }
  GDPO_COLD std::string rollout_logp() const {
    return "A token for which the sampling engine has reported no log-prob, or one that its top-k "
           "or top-p left out.";
  }
  GDPO_COLD std::string teacher_logp() const {
    return "A token that the teacher gives probability 0 or has not scored, such as one that its "
           "vocabulary does not have.";
  }
  GDPO_COLD std::string advantages() const {
    if (report && report->infinite_rewards > 0) {
      return "Infinite rewards, of which the report counts " +
             std::to_string(report->infinite_rewards) +
             ": a reward function that divides by 0 or takes the logarithm of 0.";
    }
    if (report && report->excluded_rewards > 0) {
      return "Missing rewards (NaN), of which the report counts " +
             std::to_string(report->excluded_rewards) +
             ", passed on by the estimator: a reward function that fails or abstains.";
    }
    return "An infinite reward, a missing one (NaN) that is passed on, or a division by a spread "
           "of 0.";
  }
  GDPO_COLD std::string weights() const {
    return "An importance ratio that overflows, since its log-probs are far apart, or a quotient "
           "with a denominator of 0.";
  }
  // Of a critic.
  GDPO_COLD std::string values() const {
    return "A critic that has diverged, or an overflow in 16 bits.";
  }
  GDPO_COLD std::string old_values() const {
    return "Values of the rollout that were never filled in, or an overflow in 16 bits.";
  }
  GDPO_COLD std::string returns() const {
    return "An infinite reward, a missing one (NaN), or values that are not finite.";
  }
  GDPO_COLD std::string row_weights() const {
    return "A weight of a row that is a quotient with a denominator of 0.";
  }
  GDPO_COLD std::string entropies() const {
    return "Logits that are -inf, whose p log p is 0 times infinity, or an overflow in 16 bits.";
  }
};

}  // namespace detail
GDPO_END_NAMESPACE
