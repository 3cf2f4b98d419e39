#pragma once

#include <array>
#include <cstdint>
#include <gdpo/constraint.hpp>
#include <vector>

#include "bandit.hpp"

namespace constrained {

struct Settings {
  std::uint64_t seed = 1;
  int steps = 600;
  double learning_rate =
      32;  ///< of the logits; the loss is a mean over 512 completions, 16 for each context
  gdpo::PidGains gains;
  gdpo::Signal signal =
      gdpo::Signal::Linear;  ///< the mean is constrained, so the mean's gradient; RaG has Hinge
};

/// One step as it was: of the policy that sampled, without the noise of sampling, and the multipliers it met.
struct Step {
  std::array<double, 2>
      error;  ///< of alignment and quality, in std of the baseline; positive: violated
  std::array<double, 2> lambda;
  double feedback;
};

/// Policy training with two constrained rewards. All that it remembers from step to step is in State.
class Training {
 public:
  struct State {
    int steps_done = 0;
    Policy policy;
    gdpo::PidState pid;
  };

  /// Calibrates the limits on a baseline run: tau_c = mu_c + k_c sigma_c.
  explicit Training(const Settings& settings);
  Training(const Settings& settings, State state);

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
