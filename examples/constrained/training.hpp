#pragma once

#include <array>
#include <cstdint>
#include <gdpo/constraint.hpp>
#include <vector>

#include "bandit.hpp"

namespace constrained {

/// What defines a run.
struct Settings {
  std::uint64_t seed = 1;
  int steps = 600;
  /// Step size of gradient descent on the logits. It is large because the loss is a mean over 512
  /// completions, only 16 of which belong to one context.
  double learning_rate = 32;
  gdpo::PidGains gains;
  /// The violation of a single completion. The constraint is on the mean of the reward, and Linear
  /// is the gradient of that mean. Recommendation-as-Generation (arXiv 2606.25496) uses Hinge.
  gdpo::Signal signal = gdpo::Signal::Linear;
};

/// The record of one step: the exact expectations of the policy that sampled, before its update,
/// and the multipliers that weighed its rewards.
struct Step {
  /// Errors of alignment and quality, in std of the baseline's reward; positive where violated.
  std::array<double, 2> error;
  std::array<double, 2> lambda;  ///< multipliers of alignment and quality
  double feedback;               ///< expected feedback
};

/// Policy training with two constrained rewards. State has everything that one step leaves to the
/// next, so a run that starts from a State continues as if it had not been interrupted.
class Training {
 public:
  struct State {
    int steps_done = 0;
    Policy policy;
    gdpo::PidState pid;
  };

  /// Starts from the baseline policy. The limits are calibrated on samples of it,
  ///     tau_c = mu_c + k_c sigma_c,
  /// with the mean mu_c and the std sigma_c of reward c.
  explicit Training(const Settings& settings);
  /// Continues from a state.
  Training(const Settings& settings, State state);

  /// One step: sample, measure, control, advantages, loss, update.
  Step step();
  int steps_done() const { return steps_done_; }
  State state() const { return {steps_done_, policy_, pid_.state()}; }

 private:
  void descend(const Rollouts& rollouts, const Eigen::ArrayXf& dlogp);

  Settings settings_;
  Bandit bandit_;
  Policy policy_;
  gdpo::PidLagrangian pid_;
  gdpo::Workspace workspace_;
  int steps_done_ = 0;
};

}  // namespace constrained
