// labels: lanes, sanitizers
// User policies of every kind, compared with the oracle where it has their formulas, otherwise with
// central differences of the loss itself.
#include <gdpo/prepass.hpp>

#include "support/catch.hpp"
#include "support/loss_archetypes.hpp"
#include "support/loss_calls.hpp"

namespace archetypes_test {

namespace {

using loss_product::Data;
using loss_product::Outcome;
using naive_loss::real;
using naive_loss::Settings;

constexpr double infinite = std::numeric_limits<double>::infinity();

template <class Loss>
void check_against_oracle(const Settings& s, Loss loss) {
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Data data = loss_product::random_tokens(random, 4, 7, random.pick({0.05, 0.3}));
    for (std::size_t k = 0; k < data.logp.size(); ++k) data.tags.push_back(random.below(3));
    if (naive_loss::count(data).tokens == 0) continue;
    loss.aggregate = loss_product::aggregate_of(s);
    CHECK(loss_product::mismatch(s, data, naive_loss::loss(s, data),
                                 loss_product::call<double>(loss, data), tolerance::unit) == "");
    ++compared;
  }
  CHECK(compared > 40);
}

/// Log ratios of up to 0.3 and advantages per token of at least 0.2 in size: no kink is nearby
/// except those that a test asks for.
Data smooth_data(std::uint64_t seed) {
  Random random(seed);
  Data d = loss_product::random_tokens(random, 3, 6, 0.2);
  d.old_logp.clear(), d.advantages.clear(), d.token_advantages.clear();
  for (const double x : d.logp) {
    d.old_logp.push_back(x + 0.6 * random.uniform() - 0.3);
    d.token_advantages.push_back(random.chance(0.5) ? 0.2 + random.uniform()
                                                    : -0.2 - random.uniform());
  }
  for (std::size_t k = 0; k < d.logp.size(); ++k) d.tags.push_back(random.below(3));
  d.mask.assign(d.logp.size(), 1);
  d.mask[3] = d.mask[4] = 0;
  d.weights.clear(), d.kl_weights.clear();
  return d;
}

/// Compares the gradient with central differences of step h = 1e-5. They are off by h^2 / 6 |f'''|
/// and by rounding, 2^-53 |f| / h ~ 1e-11; the tolerances are above both.
template <class Loss>
void check_differences(const Loss& loss) {
  constexpr double h = 1e-5;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Data d = smooth_data(seed);
    const Outcome at = loss_product::call<double>(loss, d);
    for (std::size_t k = 0; k < d.logp.size(); ++k) {
      const double x = d.logp[k];
      d.logp[k] = x + h;
      const double above = loss_product::call<double>(loss, d).result.loss;
      d.logp[k] = x - h;
      const double below = loss_product::call<double>(loss, d).result.loss;
      d.logp[k] = x;
      INFO("seed " << seed << ", token " << k);
      CHECK(at.gradient[k] == Approx((above - below) / (2 * h)).epsilon(1e-6).margin(1e-9));
    }
  }
}

using gdpo::Factors;
using gdpo::kl::None;
using gdpo::surrogate::Ratio;
using gdpo::surrogate::Reinforce;
using Token = gdpo::level::Token<>;

}  // namespace

TEST_CASE("CISPO: Reinforce times a detached clip of the ratio", "[loss][archetype]") {
  Settings s;
  s.surrogate = naive_loss::Reinforce{};
  s.detached = naive_loss::ClippedRatio{0.9, 1.1};
  gdpo::PolicyLoss<Token, Reinforce, None, gdpo::Aggregate, Factors<gdpo::factor::ClippedRatio>>
      loss;
  loss.factor.first = {0.9, 1.1};
  check_against_oracle(s, loss);
}

TEST_CASE("GMPO: a trust region of the token's log ratio under a geometric mean",
          "[loss][archetype]") {
  Settings s;
  s.level = naive_loss::Level::Sequence;
  s.map = naive_loss::Map::TrustRegion;
  s.map_low = 0.1, s.map_high = 0.05;
  s.surrogate = naive_loss::Ratio{infinite, infinite};
  gdpo::PolicyLoss<gdpo::level::Sequence<archetype::TrustRegion>, Ratio, None> loss;
  loss.level.map = {0.1, 0.05};
  loss.surrogate = {infinite, infinite};
  check_against_oracle(s, loss);
}

TEST_CASE("VESPO: a gamma weight of the sequence's summed log ratio", "[loss][archetype]") {
  Settings s;
  s.level = naive_loss::Level::Sequence;
  s.map = naive_loss::Map::Clamp;
  s.statistic = naive_loss::Statistic::Sum;
  s.level_bounds = {std::log(1e-8), 20};
  s.surrogate = naive_loss::Reinforce{};
  s.factor = [](const naive_loss::FactorArgs& a) {
    const real k = a.advantage >= 0 ? 2 : 3, lambda = a.advantage >= 0 ? 3 : 2;
    return std::exp(lambda + k * a.log_ratio - lambda * std::exp(a.log_ratio));
  };
  gdpo::PolicyLoss<gdpo::level::Sequence<gdpo::map::Clamp, gdpo::statistic::Sum>, Reinforce, None,
                   gdpo::Aggregate, Factors<archetype::Gamma>>
      loss;
  loss.level.bounds = {std::log(1e-8), 20};
  check_against_oracle(s, loss);
}

TEST_CASE("factors that read a tag, the row's advantage and other policies; their product",
          "[loss][archetype]") {
  Settings s;
  gdpo::PolicyLoss<gdpo::level::SequenceToken<>, Ratio, gdpo::Kl<>, gdpo::Aggregate,
                   Factors<archetype::ByTag, archetype::ClippedRatio>>
      tagged;
  tagged.factor.rest.first.max = 1.05;
  s.level = naive_loss::Level::SequenceToken;
  s.kl.resize(1);
  s.factor = [](const naive_loss::FactorArgs& a) {
    return a.tag * std::fmin(std::exp(a.log_ratio), static_cast<real>(1.05));
  };
  check_against_oracle(s, tagged);

  Data d = smooth_data(3);
  for (const std::size_t k : {std::size_t{3}, std::size_t{4}})
    d.token_advantages[k] = std::nan("");  // masked
  const gdpo::Aggregate sum = gdpo::aggregate::token_sum();
  const gdpo::PolicyLoss<Token, Ratio, None, gdpo::Aggregate, Factors<archetype::OfTheRow>> of_row{
      {}, {}, {}, sum};
  const gdpo::PolicyLoss<Token, Ratio, None> plain{{}, {}, {}, sum};
  const Outcome with = loss_product::call<double>(of_row, d),
                without = loss_product::call<double>(plain, d);
  for (int i = 0; i < d.rows; ++i) {
    double mean = 0, n = 0;
    for (int t = 0; t < d.width; ++t)
      if (d.valid(i, t)) mean += d.token_advantages[d.at(i, t)], ++n;
    for (int t = 0; t < d.width; ++t) {
      const std::size_t k = d.at(i, t);
      const double factor = mean / n * std::exp(d.ref_logp[k] - d.rollout_logp[k]);
      CHECK(with.gradient[k] == Approx(factor * without.gradient[k]).epsilon(1e-14).margin(1e-300));
    }
  }
  const loss_product::Arrays<double> arrays(d);
  gdpo::TokenBatch<double> batch = arrays.batch();
  batch.rollout_logp = gdpo::TokenView<double>{};
  CHECK_THROWS_WITH(of_row(batch, gdpo::count(batch)),
                    "gdpo::PolicyLoss: batch.rollout_logp: given no array; needed: the sampling "
                    "policy's log-probs, "
                    "which this loss reads");
}

TEST_CASE(
    "surrogates, maps, statistics and aggregates of one's own: the gradient is that of the loss",
    "[loss][archetype]") {
  check_differences(gdpo::PolicyLoss<Token, archetype::Soft, None>{});
  check_differences(gdpo::PolicyLoss<gdpo::level::Sequence<>, archetype::Soft, gdpo::Kl<>>{});
  check_differences(gdpo::PolicyLoss<gdpo::level::Sequence<gdpo::map::None, archetype::SumOverRoot>,
                                     archetype::Soft, None>{});
  gdpo::PolicyLoss<gdpo::level::Sequence<archetype::WithoutTagZero>, Ratio, None,
                   archetype::RootOfLength>
      tags;
  tags.surrogate = {infinite, infinite};
  check_differences(tags);
}

TEST_CASE("a KL policy of one's own, alone and among others", "[loss][archetype]") {
  const Data d = smooth_data(4);
  const gdpo::Aggregate sum = gdpo::aggregate::token_sum();
  const gdpo::PolicyLoss<Token, Ratio, archetype::GatedTeacher> alone{{}, {}, {}, sum};
  const gdpo::PolicyLoss<Token, Ratio, gdpo::Kls<gdpo::Kl<>, archetype::GatedTeacher>> both{
      {}, {}, {}, sum};
  const gdpo::PolicyLoss<Token, Ratio, gdpo::Kl<>> k3{{}, {}, {}, sum};
  const gdpo::PolicyLoss<Token, Ratio, None> none{{}, {}, {}, sum};
  const Outcome a = loss_product::call<double>(alone, d), b = loss_product::call<double>(both, d),
                c = loss_product::call<double>(k3, d), n = loss_product::call<double>(none, d);
  double kl = 0;
  for (std::size_t k = 0; k < d.logp.size(); ++k) {
    if (d.mask[k] == 0) continue;
    const double distance = d.logp[k] - d.teacher_logp[k], gate = 1 / (1 + std::exp(5 * distance)),
                 w = d.row_weights.empty() ? 1.0 : d.row_weights[k / 6];
    kl += w * gate * distance;
    CHECK(a.gradient[k] - n.gradient[k] == Approx(w * gate).epsilon(1e-13).margin(1e-15));
    CHECK(b.gradient[k] - c.gradient[k] == Approx(w * gate).epsilon(1e-13).margin(1e-15));
  }
  CHECK(a.result.kl_loss == Approx(kl).epsilon(1e-13));
  CHECK(b.result.kl_loss == Approx(c.result.kl_loss + kl).epsilon(1e-13));
}

TEST_CASE("Clip-Cov, a pre-pass over the whole batch", "[loss][archetype]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Data d = loss_product::random_tokens(random, 6, 10, 0.2);
    const naive_loss::Counts n = naive_loss::count(d);
    if (n.tokens < 10) continue;
    archetype::ClipCov pass;
    pass.min = 0.1, pass.max = 2, pass.fraction = 1;  // every candidate
    pass.surrogate = {0.1, 0.1};
    Settings s;
    s.surrogate = naive_loss::Ratio{0.1, 0.1};
    s.kl.resize(1);
    gdpo::PolicyLoss<Token, Ratio, gdpo::Kl<>> loss;
    loss.surrogate = {0.1, 0.1};
    loss.aggregate = loss_product::aggregate_of(s);
    const loss_product::Arrays<double> arrays(d);
    gdpo::PrepassMemory<double> memory;
    const gdpo::TokenBatch<double> prepared = gdpo::prepare(arrays.batch(), memory, pass);
    std::vector<double> gradient(d.logp.size());
    Outcome got;
    got.result =
        loss(prepared, gdpo::count(prepared), gdpo::view(gradient.data(), d.rows, d.width));
    got.gradient = gradient;

    // The same decision from the definition: a token whose product of centered advantage and
    // centered log-prob is within the bounds, and which the clip leaves, is dropped.
    real advantages = 0, logps = 0;
    const auto advantage = [&](std::size_t k) {
      return static_cast<real>(d.advantages.empty() ? d.token_advantages[k] : d.advantages[k / 10]);
    };
    const auto for_each = [&](const auto& visit) {
      for (std::size_t k = 0; k < d.logp.size(); ++k) {
        if (d.mask.empty() || d.mask[k] != 0) visit(k);
      }
    };
    for_each([&](std::size_t k) {
      advantages += advantage(k) / static_cast<real>(n.tokens),
          logps += static_cast<real>(d.logp[k]) / static_cast<real>(n.tokens);
    });
    Data expected = d;
    if (expected.weights.empty()) expected.weights.assign(d.logp.size(), 1);
    int dropped = 0;
    for_each([&](std::size_t k) {
      const real c = (advantage(k) - advantages) * (static_cast<real>(d.logp[k]) - logps),
                 r = d.old_logp.empty() ? 1
                                        : std::exp(static_cast<real>(d.logp[k]) -
                                                   static_cast<real>(d.old_logp[k]));
      const bool clipped = (advantage(k) > 0 && r > 1.1L) || (advantage(k) < 0 && r < 0.9L);
      if (c > static_cast<real>(0.1) && c < 2 && !clipped) expected.weights[k] = 0, ++dropped;
    });
    CHECK(loss_product::mismatch(s, expected, naive_loss::loss(s, expected), got,
                                 tolerance::unit) == "");
    CHECK(dropped > 0);

    pass.fraction = 0.05;  // at most max(floor(0.05 n), 1) candidates
    const gdpo::TokenBatch<double> few = gdpo::prepare(arrays.batch(), memory, pass);
    std::vector<double> scratch(10);
    int zeros = 0, given = 0;
    for (int i = 0; i < d.rows; ++i) {
      const double* w = few.weights.row(i, 0, 10, scratch.data());
      for (int t = 0; t < 10; ++t) {
        if (!d.valid(i, t)) continue;
        zeros += w[t] == 0;
        given += !d.weights.empty() && d.weights[d.at(i, t)] == 0;
      }
    }
    CHECK(zeros - given <= std::max(static_cast<int>(0.05 * n.tokens), 1));
    CHECK(zeros >= given);
  }
}

}  // namespace archetypes_test
