// One policy-gradient step under two constraints: see Training::step(), whose parts are numbered.
#include "training.hpp"

namespace constrained {
namespace {

/// The limits of the two constraints, from the rewards of eight runs of the baseline policy: its
/// mean plus 0.8 (alignment) or 0.5 (quality) of its std. The baseline policy therefore misses both
/// limits.
std::vector<gdpo::SetPoint> calibrated(const Bandit& bandit, std::uint64_t seed) {
  gdpo::Moments of_alignment, of_quality;
  for (std::uint64_t run = 0; run < 8; ++run) {
    const Rollouts rollouts =
        bandit.sample(bandit.baseline(), {seed, Random::Stream::Baseline, run});
    const auto rewards = gdpo::view(rollouts.rewards);
    of_alignment =
        gdpo::merge(of_alignment, gdpo::baseline_moments(gdpo::column(rewards, alignment)));
    of_quality = gdpo::merge(of_quality, gdpo::baseline_moments(gdpo::column(rewards, quality)));
  }
  return {gdpo::calibrate(of_alignment, 0.8), gdpo::calibrate(of_quality, 0.5)};
}

/// The log-prob of each completion's item under a policy.
Eigen::ArrayXf of_completions(const Rollouts& rollouts, const Policy& policy) {
  const Rows log_probs = policy.log_probs();
  Eigen::ArrayXf result(Bandit::completions);
  for (int row = 0; row < Bandit::completions; ++row) {
    result[row] = static_cast<float>(
        log_probs(row / Bandit::group_size, rollouts.items[static_cast<std::size_t>(row)]));
  }
  return result;
}

}  // namespace

Training::Training(const Settings& settings)
    : settings_(settings),
      bandit_(settings.seed),
      policy_(bandit_.baseline()),
      pid_(settings.gains, calibrated(bandit_, settings.seed)) {}

Training::Training(const Settings& settings, State state) : Training(settings) {
  pid_.restore(std::move(state.pid));
  policy_ = std::move(state.policy);
  steps_done_ = state.steps_done;
}

Step Training::step() {
  // 1. Sample completions and their rewards from the current policy.
  const Rollouts rollouts = bandit_.sample(
      policy_, {settings_.seed, Random::Stream::Rollouts, static_cast<std::uint64_t>(steps_done_)});
  // The exact expectations, for the record of the step only; the controller does not see them.
  const std::array<double, 3> expected = bandit_.expected(policy_);

  // 2. Measure the mean of each constrained reward in this batch against its limit, and let the
  // controller move the multipliers.
  const auto rewards = gdpo::view(rollouts.rewards);
  const auto& limits = pid_.state().set_points;
  pid_.update({gdpo::measure(gdpo::column(rewards, alignment), limits[0]).value(),
               gdpo::measure(gdpo::column(rewards, quality), limits[1]).value()});
  // 3. Advantages: GDPO on the feedback, minus the violations weighted by the multipliers.
  const gdpo::Constrained constrained{gdpo::Gdpo{}, gdpo::placement::FixedScale{},
                                      pid_.constraints({alignment, quality}, settings_.signal)};
  Eigen::ArrayXf advantages(Bandit::completions);
  gdpo::advantages_into(gdpo::simd, gdpo::RewardBatch{rewards, gdpo::groups_of(Bandit::group_size)},
                        constrained, gdpo::view(advantages), workspace_);

  // 4. GRPO's loss and its gradient. A completion is one token. There is no old_logp because the
  // step is on-policy: the ratio is exactly 1. ref_logp is the baseline policy, for the KL term.
  const Eigen::ArrayXf logp = of_completions(rollouts, policy_),
                       ref_logp = of_completions(rollouts, bandit_.baseline());
  Eigen::ArrayXf dlogp(Bandit::completions);
  gdpo::TokenBatch<float> batch;
  batch.logp = gdpo::view(logp.data(), Bandit::completions, 1);
  batch.ref_logp = gdpo::view(ref_logp.data(), Bandit::completions, 1);
  batch.advantages = gdpo::view(advantages);
  gdpo::grpo_loss(batch, gdpo::count(batch), gdpo::view(dlogp.data(), Bandit::completions, 1));
  // 5. Chain rule to the logits, and gradient descent.
  descend(rollouts, dlogp);

  ++steps_done_;
  return {{gdpo::error_of(limits[0], expected[alignment]),
           gdpo::error_of(limits[1], expected[quality])},
          {pid_.lambda(0), pid_.lambda(1)},
          expected[feedback]};
}

/// Gradient descent on the logits. The log-prob of item j in its context has, by logit i, the
/// derivative
///     (1 if i = j else 0) - p_i.
/// A completion therefore adds dlogp to its own item and takes dlogp p_i from every item i of its
/// context. The second part is applied once per context, with the sum of its dlogp.
void Training::descend(const Rollouts& rollouts, const Eigen::ArrayXf& dlogp) {
  Rows gradient = Rows::Zero(Bandit::contexts, Bandit::items);
  Eigen::ArrayXd sums = Eigen::ArrayXd::Zero(Bandit::contexts);
  for (int row = 0; row < Bandit::completions; ++row) {
    const int context = row / Bandit::group_size;
    gradient(context, rollouts.items[static_cast<std::size_t>(row)]) +=
        static_cast<double>(dlogp[row]);
    sums[context] += static_cast<double>(dlogp[row]);
  }
  gradient -= policy_.log_probs().exp().colwise() * sums;
  policy_.logits -= settings_.learning_rate * gradient;
}

}  // namespace constrained
