#include "training.hpp"

namespace constrained {
namespace {

/// Limits that the baseline policy misses: by 0.8 and 0.5 of the std that it has.
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

/// Log-probs of the completions' items.
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
  const Rollouts rollouts = bandit_.sample(
      policy_, {settings_.seed, Random::Stream::Rollouts, static_cast<std::uint64_t>(steps_done_)});
  const std::array<double, 3> expected = bandit_.expected(policy_);

  // The multipliers follow the measured means; they weigh the constrained rewards against the feedback.
  const auto rewards = gdpo::view(rollouts.rewards);
  const auto& limits = pid_.state().set_points;
  pid_.update({gdpo::measure(gdpo::column(rewards, alignment), limits[0]).value(),
               gdpo::measure(gdpo::column(rewards, quality), limits[1]).value()});
  const gdpo::Constrained constrained{gdpo::Gdpo{}, gdpo::placement::FixedScale{},
                                      pid_.constraints({alignment, quality}, settings_.signal)};
  Eigen::ArrayXf advantages(Bandit::completions);
  gdpo::advantages_into(gdpo::simd, gdpo::RewardBatch{rewards, gdpo::groups_of(Bandit::group_size)},
                        constrained, gdpo::view(advantages), workspace_);

  // GRPO's loss and its gradient, on-policy: without old_logp. A completion is one token.
  const Eigen::ArrayXf logp = of_completions(rollouts, policy_),
                       ref_logp = of_completions(rollouts, bandit_.baseline());
  Eigen::ArrayXf dlogp(Bandit::completions);
  gdpo::TokenBatch<float> batch;
  batch.logp = gdpo::view(logp.data(), Bandit::completions, 1);
  batch.ref_logp = gdpo::view(ref_logp.data(), Bandit::completions, 1);
  batch.advantages = gdpo::view(advantages);
  gdpo::grpo_loss(batch, gdpo::count(batch), gdpo::view(dlogp.data(), Bandit::completions, 1));
  descend(rollouts, dlogp);

  ++steps_done_;
  return {{gdpo::error_of(limits[0], expected[alignment]),
           gdpo::error_of(limits[1], expected[quality])},
          {pid_.lambda(0), pid_.lambda(1)},
          expected[feedback]};
}

/// dloss/dlogits: of the log-softmax, dlogp (1 at the item - probability).
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
