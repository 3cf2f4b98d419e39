#include "bandit.hpp"

namespace constrained {

Rows Policy::log_probs() const {
  // Log-softmax of each row; subtracting the largest logit first keeps exp() from overflowing.
  Rows result = logits.colwise() - logits.rowwise().maxCoeff();
  result.colwise() -= result.exp().rowwise().sum().log().eval();
  return result;
}

Bandit::Bandit(std::uint64_t seed) {
  Random random(seed, Random::Stream::Bandit);
  for (Rows& mean : means_) mean.resize(contexts, items);
  baseline_.logits.resize(contexts, items);
  for (int c = 0; c < contexts; ++c) {
    for (int i = 0; i < items; ++i) {
      // Feedback falls with what makes alignment and quality rise, so that they are in conflict.
      const double asked_for = random.normal(), well_made = random.normal();
      means_[alignment](c, i) = asked_for;
      means_[quality](c, i) = 0.2 * asked_for + well_made;
      means_[feedback](c, i) = 0.6 * random.normal() - 0.6 * asked_for - 0.5 * well_made;
      baseline_.logits(c, i) = 0.5 * random.normal();
    }
  }
}

Rollouts Bandit::sample(const Policy& policy, Random random) const {
  const Rows probs = policy.log_probs().exp();
  Rollouts rollouts{std::vector<int>(completions), Eigen::ArrayXXf(completions, 3)};
  for (int row = 0; row < completions; ++row) {
    const int context = row / group_size;
    // Draw an item: the first whose cumulative probability exceeds a uniform number.
    int item = 0;
    double rest = random.uniform();
    while (item + 1 < items && (rest -= probs(context, item)) >= 0) ++item;
    rollouts.items[static_cast<std::size_t>(row)] = item;
    for (int k = 0; k < 3; ++k) {
      const double reward =
          means_[static_cast<std::size_t>(k)](context, item) + noise * random.normal();
      rollouts.rewards(row, k) = static_cast<float>(reward);
    }
  }
  return rollouts;
}

std::array<double, 3> Bandit::expected(const Policy& policy) const {
  const Rows probs = policy.log_probs().exp();
  std::array<double, 3> result{};
  for (std::size_t k = 0; k < result.size(); ++k) result[k] = (probs * means_[k]).sum() / contexts;
  return result;
}

}  // namespace constrained
