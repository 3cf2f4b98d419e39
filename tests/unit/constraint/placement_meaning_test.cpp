// labels: sanitizers
// What a multiplier weighs in each placement, and how far the advantages go when it grows.
#include <algorithm>
#include <gdpo/constraint.hpp>
#include <gdpo/loss.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/tolerance.hpp"

namespace placement_meaning_test {

namespace {

using gdpo::LambdaNorm;
namespace placement = gdpo::placement;

constexpr int G = 16;
const double multipliers[] = {0.5, 1, 2, 5, 10, 50};

/// A group of 16 with rewards of 0 and 1, whose std is 0.516, and hinges of 0 and 0.0615, whose std
/// is 0.032. Half of the samples with each reward violate, so that R and v are orthogonal and the
/// advantages are a = alpha z(R) - beta z(v), where z standardizes.
struct Group {
  std::vector<double> rewards, r, v;  // (16, 2): the reward and x; z(R); z(v)
  // The unit of violations, and the stds of the reward and of the violation in the unit of x.
  double scale, sigma_r, sigma_v;

  explicit Group(double unit) : scale(unit) {
    const double shortfall = 0.06147, std = std::sqrt(G * 0.25 / (G - 1));
    for (int i = 0; i < G; ++i) {
      const double reward = i < G / 2, missing = i % 2;
      rewards.insert(rewards.end(), {reward, 0.5 - missing * shortfall});
      r.push_back((reward - 0.5) / std);
      v.push_back((missing - 0.5) / std);
    }
    sigma_r = std;
    sigma_v = shortfall * std;
  }

  template <class Estimator, class Placement>
  std::vector<double> advantages(const Estimator& e, const Placement& p, double lambda) const {
    const gdpo::Constraint c{1, lambda, 0.5, scale, gdpo::Bound::AtLeast, gdpo::Signal::Hinge};
    return gdpo::advantages(gdpo::view(rewards.data(), G, 2), gdpo::groups_of(G),
                            gdpo::Constrained{e, p, {c}});
  }
  /// How many times as much as the reward the violation weighs: beta / alpha.
  template <class Estimator, class Placement>
  double ratio(const Estimator& e, const Placement& p, double lambda) const {
    const std::vector<double> a = advantages(e, p, lambda);
    double on_r = 0, on_v = 0;
    for (std::size_t i = 0; i < G; ++i) on_r += a[i] * r[i], on_v += a[i] * v[i];
    return -on_v / on_r;
  }
  /// The largest |a|; with from > 0 the largest change of a as lambda goes there from `from`.
  template <class Estimator, class Placement>
  double size(const Estimator& e, const Placement& p, double lambda, double from = 0) const {
    std::vector<double> a = advantages(e, p, lambda), b = advantages(e, p, from);
    double largest = 0;
    for (std::size_t i = 0; i < G; ++i)
      largest = std::max(largest, std::abs(from > 0 ? a[i] - b[i] : a[i]));
    return largest;
  }
};

/// The next step of a policy whose log-probs are 16 logits less their log-sum-exp, and which took
/// each action once: its size, and what the loss then says about the ratios.
struct Step {
  double size, clip_fraction;
};
Step gradient_step(const std::vector<double>& advantages, double rate) {
  std::vector<double> logits(G, 0.0), old_logp(G), logp(G), gradient(G);
  const auto policy = [&] {
    double sum = 0;
    for (const double z : logits) sum += std::exp(z);
    for (std::size_t i = 0; i < G; ++i) logp[i] = logits[i] - std::log(sum);
  };
  auto loss = gdpo::grpo_loss;
  loss.kl.beta = 0;
  const auto measured = [&] {
    gdpo::TokenBatch<double> batch;
    batch.logp = gdpo::view(std::as_const(logp).data(), G, 1);
    batch.old_logp = gdpo::view(std::as_const(old_logp).data(), G, 1);
    batch.advantages = gdpo::view(advantages);
    return loss(batch, gdpo::count(batch), gdpo::view(gradient.data(), G, 1));
  };
  policy();
  old_logp = logp;
  measured();
  double sum = 0, squares = 0;
  for (const double g : gradient) sum += g;
  for (std::size_t i = 0; i < G; ++i) {
    const double step = -rate * (gradient[i] - std::exp(logp[i]) * sum);
    logits[i] += step;
    squares += step * step;
  }
  policy();
  return {std::sqrt(squares), measured().metrics.clip_fraction.mean()};
}

}  // namespace

TEST_CASE("what a multiplier weighs: in Composite as little as the violations spread",
          "[placement][meaning]") {
  // Violations in the unit of the reward, and in stds of a baseline that spreads by 0.1.
  const Group published(1), group(0.1);
  CHECK(std::abs(group.sigma_r - 0.516) < 0.0005);
  CHECK(std::abs(group.sigma_v - 0.032) < 0.0005);
  const double composite[] = {0.031, 0.061, 0.123, 0.307, 0.615, 3.07};
  const double last_digit[] = {0.001, 0.001, 0.001, 0.001, 0.001, 0.01};
  for (std::size_t k = 0; k < 6; ++k) {
    const double lambda = multipliers[k], relative = tolerance::formula * lambda / group.sigma_v;
    INFO("lambda " << lambda);
    const double in_reward = published.ratio(gdpo::Grpo{}, placement::Composite{}, lambda);
    CHECK(std::abs(in_reward - composite[k]) <= last_digit[k] / 2);
    CHECK(std::abs(in_reward - lambda * group.sigma_v / group.sigma_r) <= relative);
    const double in_units = group.ratio(gdpo::Gdpo{}, placement::Composite{}, lambda);
    CHECK(std::abs(in_units - 10 * lambda * group.sigma_v / group.sigma_r) <= 10 * relative);
    // Standardized, a violation weighs lambda times as much as the reward. In stds of a baseline
    // that spreads by 0.1 it weighs 3.15 times less than that, because sigma_v is 0.032.
    for (const LambdaNorm norm : {LambdaNorm::None, LambdaNorm::Sum}) {
      const double combined =
          group.ratio(gdpo::Grpo{}, placement::NormalizeThenCombine{norm}, lambda);
      const double mixed = group.ratio(gdpo::Gdpo{}, placement::AdvantageMix{norm}, lambda);
      const double fixed = group.ratio(gdpo::Gdpo{}, placement::FixedScale{norm}, lambda);
      CHECK(std::abs(combined - lambda) <= relative);
      CHECK(std::abs(mixed - lambda) <= relative);
      CHECK(std::abs(fixed - lambda * group.sigma_v / 0.1) <= relative);
    }
  }
}

TEST_CASE("Composite saturates: the advantages become those of -v", "[placement][meaning]") {
  // The advantages are a = sqrt(15 / 16) (+-1 -+ rho) / sqrt(1 + rho^2) with
  // rho = lambda sigma_v / (scale sigma_R).
  const auto change = [](double scale, double root_mean_square, int more_than_008) {
    const Group group(scale);
    const auto part = [&](double lambda) {
      return 1 / std::hypot(1, lambda * group.sigma_v / scale / group.sigma_r);
    };
    const auto rest = [&](double lambda) { return std::sqrt(1 - part(lambda) * part(lambda)); };
    const double c = std::sqrt(15.0 / 16), of_reward = part(100) - part(200),
                 of_violation = rest(200) - rest(100);
    const double largest = group.size(gdpo::Grpo{}, placement::Composite{}, 200, 100);
    // Rounding of lambda v, which is about 12 at most in the unit of x, relative to a spread of
    // sigma_v or more.
    CHECK(std::abs(largest - c * (of_reward + of_violation)) < tolerance::formula / group.sigma_v);
    CHECK(std::abs(c * std::hypot(of_reward, of_violation) - root_mean_square) < 0.00005);
    const std::vector<double> from = group.advantages(gdpo::Grpo{}, placement::Composite{}, 100),
                              to = group.advantages(gdpo::Grpo{}, placement::Composite{}, 200);
    double squares = 0;
    int above = 0;
    for (std::size_t i = 0; i < G; ++i) {
      squares += (to[i] - from[i]) * (to[i] - from[i]);
      above += std::abs(to[i] - from[i]) > 0.08;
    }
    CHECK(std::abs(std::sqrt(squares / G) - root_mean_square) < 0.00005);
    // The root of the mean square is 0.08 at most. An advantage moves by more where the weight that
    // the reward loses and the one that the violation gains pull in the same direction.
    CHECK(std::sqrt(squares / G) <= 0.08);
    CHECK(above == more_than_008);
    return largest;
  };
  CHECK(std::abs(change(1, 0.0775, 8) - 0.0863) < 0.00005);  // rho is 6.1 and 12.3
  CHECK(std::abs(change(0.1, 0.0079, 0) - 0.0080) < 0.00005);
}

TEST_CASE("without a norm the step grows with the multiplier, with one it does not",
          "[placement][meaning]") {
  const Group group(0.1);
  const auto near = [](double got, double quoted, double half_digit) {
    return std::abs(got - quoted) <= half_digit;
  };
  const double own = group.size(gdpo::Grpo{}, placement::FixedScale{}, 0);
  CHECK(near(own, 0.968, 0.0005));
  // The largest |a| at lambda = 200, and its change from 100 to 200.
  CHECK(near(group.size(gdpo::Grpo{}, placement::FixedScale{LambdaNorm::None}, 200), 62.4, 0.05));
  CHECK(near(group.size(gdpo::Grpo{}, placement::FixedScale{LambdaNorm::None}, 200, 100), 30.7,
             0.05));
  CHECK(near(group.size(gdpo::Grpo{}, placement::FixedScale{}, 200), 0.311, 0.0005));
  CHECK(near(group.size(gdpo::Grpo{}, placement::FixedScale{}, 200, 100), 0.0063, 0.00005));
  CHECK(
      near(group.size(gdpo::Grpo{}, placement::AdvantageMix{LambdaNorm::None}, 200), 194.6, 0.05));
  CHECK(near(group.size(gdpo::Grpo{}, placement::AdvantageMix{LambdaNorm::None}, 200, 100), 96.8,
             0.05));
  CHECK(near(group.size(gdpo::Grpo{}, placement::AdvantageMix{}, 200), 0.968, 0.0005));
  CHECK(near(group.size(gdpo::Grpo{}, placement::AdvantageMix{}, 200, 100), 0.0095, 0.00005));
  // NormalizeThenCombine has no norm by default, because a renormalization over the batch acts as
  // one. An estimator without it needs LambdaNorm::Sum.
  CHECK(near(group.size(gdpo::Grpo{}, placement::NormalizeThenCombine{}, 200), 194.6, 0.05));
  CHECK(near(group.size(gdpo::Grpo{}, placement::NormalizeThenCombine{}, 200, 100), 96.8, 0.05));
  CHECK(near(group.size(gdpo::Grpo{}, placement::NormalizeThenCombine{LambdaNorm::Sum}, 200, 100),
             0.0095, 0.00005));
  CHECK(near(group.size(gdpo::Gdpo{}, placement::NormalizeThenCombine{}, 200), 0.973, 0.0005));
  CHECK(
      near(group.size(gdpo::Gdpo{}, placement::NormalizeThenCombine{}, 200, 100), 0.0049, 0.00005));
  for (const double lambda : multipliers) {
    const std::vector<double> none =
        group.advantages(gdpo::Gdpo{}, placement::NormalizeThenCombine{}, lambda);
    const auto sum = placement::NormalizeThenCombine{LambdaNorm::Sum};
    CHECK(deviation(group.advantages(gdpo::Gdpo{}, sum, lambda), none,
                    tolerance::formula / group.sigma_v) == "");
  }
}

TEST_CASE("without a norm the clip fraction jumps as the multiplier grows, with one it does not",
          "[placement][meaning]") {
  // The learning rate lets the advantages of the reward alone move a log-prob by 0.1; the clip
  // range is 0.2.
  const Group group(0.1);
  const auto after = [&](const auto& p, double lambda) {
    return gradient_step(group.advantages(gdpo::Grpo{}, p, lambda), 1.6);
  };
  const double lambdas[] = {0, 0.5, 1, 2, 5, 10, 20, 50, 200};
  // weight: how many times as much as the reward a violation weighs at lambda = 1. z(R) and z(v)
  // are orthogonal, so without a norm the step is hypot(1, lambda weight) times that of the reward.
  const auto check = [&](const auto& with_norm, const auto& without, double weight,
                         const std::vector<double>& clipped) {
    const double own = after(without, 0).size;
    CHECK(std::abs(own - 0.1 * std::sqrt(15.0)) < tolerance::formula);
    for (std::size_t k = 0; k < clipped.size(); ++k) {
      const double lambda = lambdas[k], grown = std::hypot(1, lambda * weight),
                   relative = tolerance::formula / group.sigma_v;
      INFO("lambda " << lambda);
      const Step grows = after(without, lambda), stays = after(with_norm, lambda);
      CHECK(std::abs(grows.size / own - grown) < grown * relative);
      CHECK(std::abs(stays.size / own - grown / (1 + lambda)) < relative);
      CHECK(stays.size <= own);
      CHECK(grows.clip_fraction == clipped[k]);
      CHECK(stays.clip_fraction == 0);
    }
  };
  check(placement::FixedScale{}, placement::FixedScale{LambdaNorm::None}, group.sigma_v / 0.1,
        {0, 0, 0, 0, 0.5, 0.75, 1, 1, 1});
  const std::vector<double> standardized{0, 0, 0.25, 0.5, 1, 1, 1, 1, 1};
  check(placement::AdvantageMix{}, placement::AdvantageMix{LambdaNorm::None}, 1, standardized);
  check(placement::NormalizeThenCombine{LambdaNorm::Sum}, placement::NormalizeThenCombine{}, 1,
        standardized);
}

TEST_CASE("with LambdaNorm::Sum advantages stay within those of the reward and of the violations",
          "[placement][meaning]") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const int m = 1 + random.below(4), columns = 1 + m;
    std::vector<double> rewards;
    for (int i = 0; i < 32 * columns; ++i) rewards.push_back(random.uniform());
    const auto view = gdpo::view(std::as_const(rewards).data(), 32, columns);
    const auto run = [&](const gdpo::Gdpo& e, const auto& p,
                         const std::vector<gdpo::Constraint>& constraints) {
      double largest = 0;
      for (const double a :
           gdpo::advantages(view, gdpo::groups_of(8), gdpo::Constrained{e, p, constraints}))
        largest = std::max(largest, std::abs(a));
      return largest;
    };
    std::vector<gdpo::Constraint> constraints;
    for (int k = 1; k <= m; ++k)
      constraints.push_back({k, random.pick({1.0, 30.0, 1e3, 1e6}), 0.5, 0.2});
    gdpo::Gdpo one_reward, no_reward;
    std::vector<double> weights(static_cast<std::size_t>(columns), 0.0);
    no_reward.weights = weights;
    weights[0] = 1;
    one_reward.weights = weights;
    const auto check = [&](const auto& with_norm, const auto& without) {
      double bound = run(one_reward, without, {});
      for (gdpo::Constraint k : constraints) {
        k.lambda = 1;
        bound = std::max(bound, run(no_reward, without, {k}));
      }
      CHECK(run(one_reward, with_norm, constraints) <= bound * (1 + tolerance::formula));
    };
    check(placement::FixedScale{}, placement::FixedScale{LambdaNorm::None});
    check(placement::AdvantageMix{}, placement::AdvantageMix{LambdaNorm::None});
  }
}

TEST_CASE("bounds of a constrained estimator", "[placement][clip]") {
  Random random(3);
  std::vector<double> rewards;
  for (int i = 0; i < G; ++i)
    rewards.insert(rewards.end(), {4 * random.uniform() - 2, 4 * random.uniform() - 2});
  const auto run = [&](const auto& e, const auto& p, double lambda) {
    const gdpo::Constraint c{1, lambda, 0.5, 1, gdpo::Bound::AtLeast, gdpo::Signal::Linear};
    return gdpo::advantages(gdpo::view(rewards.data(), G, 2), gdpo::groups_of(4),
                            gdpo::Constrained{e, p, {c}});
  };
  const auto clamped = [](std::vector<double> a, double low, double high) {
    for (double& x : a) x = std::min(std::max(x, low), high);
    return a;
  };
  const auto check = [&](auto e, const auto& p) {
    // `clip` bounds the mixed advantages, also where no constraint is active.
    for (const double lambda : {0.0, 0.7}) {
      e.clip = {};
      const std::vector<double> expected = clamped(run(e, p, lambda), -0.3, 0.2);
      e.clip = {-0.3, 0.2};
      CHECK(run(e, p, lambda) == expected);
    }
  };
  for (const auto norm : {LambdaNorm::None, LambdaNorm::Sum}) {
    check(gdpo::Gdpo{}, placement::FixedScale{norm});
    check(gdpo::DrGrpo{}, placement::FixedScale{norm});
    check(gdpo::Gdpo{}, placement::AdvantageMix{norm});
    check(gdpo::Gdpo{}, placement::NormalizeThenCombine{norm});
  }
  check(gdpo::Gdpo{}, placement::Composite{});
  check(gdpo::Grpo{}, placement::Composite{});

  // `reward_clip` bounds the primary reward; the violation of 2.5 and more stays as it is.
  gdpo::DrGrpo e;
  rewards = {3, 0.5, 0, -2, -5, 0.5, 1, 0.5};
  rewards.resize(2 * G, 0.5);
  e.reward_clip = {-1, 1};
  const std::vector<double> a = run(e, placement::FixedScale{LambdaNorm::None}, 1),
                            whole = run(e, placement::Composite{}, 1);
  // Rewards 1, 0, -1, 1 with mean 1/4; violations 0, 2.5, 0, 0 with mean 5/8.
  for (const auto& [i, value] : {std::pair{0, 1.375}, {1, -2.125}, {2, -0.625}, {3, 1.375}})
    CHECK(std::abs(a[static_cast<std::size_t>(i)] - value) <= tolerance::formula);
  // Composite bounds what is left of them: 1, -1, -1, 1.
  for (const auto& [i, value] : {std::pair{0, 1.0}, {1, -1.0}, {2, -1.0}, {3, 1.0}})
    CHECK(std::abs(whole[static_cast<std::size_t>(i)] - value) <= tolerance::formula);
}

TEST_CASE("one small violation among satisfied samples", "[placement][meaning]") {
  // 15 samples meet the limit, and one misses it by 1e-3 or by 1. Standardized, both misses weigh
  // the same; in stds of a baseline they do not.
  const auto weight = [](double miss, double scale, const auto& e, const auto& p) {
    std::vector<double> rewards;
    for (int i = 0; i < G; ++i) rewards.insert(rewards.end(), {0.0, i == 3 ? 1 - miss : 1.5});
    const gdpo::Constraint c{1, 1, 1, scale, gdpo::Bound::AtLeast, gdpo::Signal::Hinge};
    return -gdpo::advantages(gdpo::view(rewards.data(), G, 2), gdpo::groups_of(G),
                             gdpo::Constrained{e, p, {c}})[3];
  };
  const auto standardized = [&](double miss, double eps) {
    gdpo::Grpo e;
    e.scale.eps = eps;
    return weight(miss, 1, e, placement::NormalizeThenCombine{});
  };
  CHECK(std::abs(standardized(1e-3, 1e-4) - 2.68) < 0.005);
  CHECK(std::abs(standardized(1, 1e-4) - 3.75) < 0.005);
  CHECK(std::abs(standardized(1e-3, 1e-8) - 3.75) < 0.005);
  CHECK(std::abs(standardized(1, 1e-8) - 3.75) < 0.005);
  CHECK(std::abs(weight(1e-3, 0.1, gdpo::Grpo{}, placement::FixedScale{LambdaNorm::None}) -
                 0.0094) < 0.00005);
  CHECK(std::abs(weight(1, 0.1, gdpo::Grpo{}, placement::FixedScale{LambdaNorm::None}) - 9.375) <
        1e-12);
}

}  // namespace placement_meaning_test
