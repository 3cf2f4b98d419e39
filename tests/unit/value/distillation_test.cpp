// labels: lanes
// distillation_advantage: a teacher's log-probs as advantages.
#include <cmath>
#include <gdpo/loss.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/runtime.hpp>
#include <gdpo/value.hpp>
#include <limits>

#include "reference/naive_value.hpp"
#include "support/catch.hpp"
#include "support/generators.hpp"

namespace distillation_test {

namespace {

using Numbers = std::vector<double>;

struct Data {
  gdpo::index_t rows, width;
  Numbers logp, teacher, rewards;
  std::vector<unsigned char> mask;

  template <class Estimator>
  Numbers operator()(const Estimator& e) const {
    gdpo::ReturnBatch<double> batch;
    batch.logp = view(logp), batch.ref_logp = view(teacher), batch.mask = view(mask);
    if (!rewards.empty()) batch.rewards = view(rewards);
    Numbers advantages(logp.size(), -77.0), returns = advantages;
    gdpo::advantages_and_returns_into(batch, e, gdpo::view(advantages.data(), rows, width),
                                      gdpo::view(returns.data(), rows, width));
    return advantages;
  }
  template <class T>
  gdpo::View<const T, 2> view(const std::vector<T>& v) const {
    return gdpo::view(v.data(), rows, width);
  }
};

}  // namespace

TEST_CASE("the teacher's lead over the sampler, by hand", "[value][teacher]") {
  Data d{2, 3, {-1, -2, -0.5, -1, -1, -4}, {-0.5, -3, -0.5, -2, 9, -1}, {}, {1, 1, 1, 1, 0, 1}};
  CHECK(d(gdpo::distillation_advantage) == Numbers{0.5, -1, 0, -1, 0, 3});
  d.rewards = {2, 2, 2, -4, -4, -4};  // the advantages of the rows
  auto half = gdpo::distillation_advantage;
  half.penalty.coef = 0.5;
  CHECK(d(half) == Numbers{2.25, 1.5, 2, -4.5, 0, -2.5});
  d.rewards.clear();
  auto discounted = gdpo::distillation_advantage;
  discounted.returns.gamma = 0.5;
  CHECK(d(discounted) == Numbers{0.0, -1, 0, 0.5, 0, 3});
}

TEST_CASE("rewards of rows by a view with stride 0", "[value][teacher]") {
  const Data d{2, 2, {-1, -2, -1, -2}, {-1.5, -1, -1, -1}, {}, {1, 1, 1, 1}};
  const Numbers of_rows{1, -1};
  gdpo::ReturnBatch<double> batch;
  batch.logp = d.view(d.logp), batch.ref_logp = d.view(d.teacher);
  batch.rewards = gdpo::view(of_rows.data(), {2, 2}, {1, 0});
  Numbers advantages(4), returns(4);
  gdpo::advantages_and_returns_into(batch, gdpo::distillation_advantage,
                                    gdpo::view(advantages.data(), 2, 2),
                                    gdpo::view(returns.data(), 2, 2));
  CHECK(advantages == Numbers{0.5, 2, -1, 0});
}

TEST_CASE("a token that the teacher excludes shows at no other", "[value][teacher]") {
  constexpr double inf = std::numeric_limits<double>::infinity();
  const Data d{1, 4, {-1, -1, -1, -1}, {-0.5, -inf, std::nan(""), -0.5}, {}, {1, 1, 1, 1}};
  const Numbers a = d(gdpo::distillation_advantage);
  CHECK(a[0] == 0.5);
  CHECK(a[1] == -inf);
  CHECK(std::isnan(a[2]));
  CHECK(a[3] == 0.5);
}

TEST_CASE("as an advantage and as a term a teacher gives one gradient", "[value][teacher]") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    Data d{3, 7, {}, {}, {}, {}};
    for (int k = 0; k < 21; ++k) {
      d.logp.push_back(-3 * random.uniform()), d.teacher.push_back(-3 * random.uniform());
      d.mask.push_back(random.chance(0.8));
    }
    const Numbers advantages = d(gdpo::distillation_advantage);
    gdpo::TokenBatch<double> batch;
    batch.logp = d.view(d.logp), batch.mask = d.view(d.mask);
    Numbers as_term(21), as_advantage(21);
    auto of_term = batch, of_advantage = batch;
    of_term.teacher_logp = d.view(d.teacher);
    of_advantage.token_advantages = d.view(advantages);
    const gdpo::Normalizer n = gdpo::count(batch);
    if (n.tokens == 0) continue;
    const auto out = [&](Numbers& v) { return gdpo::view(v.data(), 3, 7); };
    const double kl = gdpo::distillation_loss(of_term, n, out(as_term)).loss;
    const gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Reinforce> reinforce{
        {}, {}, {0.0}, gdpo::aggregate::token_mean()};
    reinforce(of_advantage, n, out(as_advantage));
    double mean = 0;
    for (std::size_t k = 0; k < 21; ++k) {
      // One product and one quotient, each rounded.
      CHECK(std::fabs(as_term[k] - as_advantage[k]) <= 4 * 0x1p-53 * std::fabs(as_term[k]));
      if (d.mask[k]) mean += (d.logp[k] - d.teacher[k]) / n.tokens;
    }
    CHECK(std::fabs(kl - mean) <= 64 * 0x1p-53 * 3);
  }
}

TEST_CASE("IW-OPD: the advantages of a teacher times the weights of the prefix, by hand",
          "[value][teacher]") {
  // a = 1, -1, 2, 0: weights 1 + 0.5 (1 - 0, 1 - 1/4, 1 - 2/4, 1 - 4/4)
  const Data d{1, 4, {-2, -2, -3, -1}, {-1, -3, -1, -1}, {}, {1, 1, 1, 1}};
  const Numbers a = d(gdpo::distillation_advantage);
  gdpo::TokenBatch<double> batch;
  batch.logp = d.view(d.logp), batch.rollout_logp = d.view(d.logp);
  batch.teacher_logp = d.view(d.teacher), batch.token_advantages = d.view(a);
  gdpo::PrepassMemory<double> memory;
  const auto prepared =
      std::visit([&](const auto& pass) { return gdpo::prepare(batch, memory, pass); },
                 gdpo::runtime::prepass("trl::iw_opd"));
  CHECK(memory.weights == Numbers{1.5, 1.375, 1.25, 1});
  const gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Reinforce> reinforce{
      {}, {}, {0.0}, gdpo::aggregate::token_mean()};
  Numbers gradient(4);
  const auto result = reinforce(prepared, gdpo::count(prepared), gdpo::view(gradient.data(), 1, 4));
  CHECK(gradient == Numbers{-1.5 / 4, 1.375 / 4, -2.5 / 4, 0});
  CHECK(result.loss == (1.5 * 2 - 1.375 * 2 + 2.5 * 3) / 4);
}

TEST_CASE("a mixture with the teacher: the definition in long double", "[value][teacher]") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    Data d{3, 11, {}, {}, {}, {}};
    const double spread = random.pick({1e-6, 0.1, 3.0, 60.0});
    for (int k = 0; k < 33; ++k) {
      d.logp.push_back(-spread * random.uniform()), d.teacher.push_back(-spread * random.uniform());
      d.mask.push_back(random.chance(0.8));
    }
    auto e = gdpo::mixture_advantage;
    e.penalty.coef = random.pick({1.0, 0.8, -2.0});
    e.penalty.kl.lambda = random.pick({0.0, 0.2, 0.5, 0.9, 1.0});
    e.penalty.kl.temperature = random.pick({1.0, 2.0, 0.5});
    const Numbers a = d(e);
    Data poisoned = d;
    for (std::size_t k = 0; k < 33; ++k) {
      if (d.mask[k]) continue;
      poisoned.logp[k] = std::nan(""), poisoned.teacher[k] = -INFINITY;
    }
    CHECK(poisoned(e) == a);
    for (std::size_t k = 0; k < 33; ++k) {
      const long double wanted =
          d.mask[k] == 0
              ? 0
              : -static_cast<long double>(e.penalty.coef) *
                    naive::mixture_divergence(e.penalty.kl.lambda, e.penalty.kl.temperature,
                                              d.logp[k], d.teacher[k]);
      // Two terms of at most |x| cancel, each off by a few units in the last place; those of the
      // definition are as large as the log-probs.
      const double x = std::fabs(d.teacher[k] - d.logp[k]) / e.penalty.kl.temperature,
                   size = 1 + (std::fabs(d.teacher[k]) + std::fabs(d.logp[k])) * 2;
      CHECK(std::fabs(static_cast<double>(a[k] - wanted)) <=
            (16 * 0x1p-53 * x + 8 * 0x1p-64 * size) * std::fabs(e.penalty.coef));
    }
  }
}

TEST_CASE("a mixture with the teacher: its ends and its sign", "[value][teacher]") {
  Data d{1, 4, {-1, -2, -3, -0.5}, {-1, -1, -4, -0.25}, {}, {1, 1, 1, 1}};
  auto e = gdpo::mixture_advantage;
  for (const double a : d(e)) CHECK(a >= 0);
  CHECK(d(e)[0] == 0);
  // Nor does rounding turn the sign, however near the two are.
  Random random(11);
  Data near{1, 2000, {}, {}, {}, {}};
  for (int k = 0; k < 2000; ++k) {
    near.logp.push_back(0), near.mask.push_back(1);
    near.teacher.push_back((2 * random.uniform() - 1) * std::pow(2.0, -20 - random.below(30)));
  }
  for (const double lambda : {1e-9, 0.01, 0.3, 0.5, 0.8, 0.999}) {
    e.penalty.kl.lambda = lambda;
    for (const double a : near(e)) REQUIRE(a >= 0);
  }
  // A token that one of the two excludes.
  Data excluded{1, 3, {-1, -INFINITY, -INFINITY}, {-INFINITY, -1, -INFINITY}, {}, {1, 1, 1}};
  e.penalty.kl.lambda = 0.5;
  CHECK((excluded(e)[0] == INFINITY && excluded(e)[1] == INFINITY && std::isnan(excluded(e)[2])));
  e.penalty.kl.lambda = 0;
  CHECK(d(e) == d(gdpo::distillation_advantage));
  e.penalty.kl.lambda = 1;
  CHECK(d(e) == Numbers{0, -1, 1, -0.25});
  e.penalty.kl.temperature = 0;
  CHECK_THROWS_AS(d(e), gdpo::invalid_input);
  e.penalty.kl = {2, 1};
  CHECK_THROWS_AS(d(e), gdpo::invalid_input);
  const auto named = gdpo::runtime::configured_token_advantage("trinity::jsd lambda=0.2 coef=2");
  CHECK(std::visit([](const auto& x) { return x.penalty.coef; }, named) == 2);
}

TEST_CASE("distillation by name", "[value][teacher]") {
  const auto loss = gdpo::runtime::configured_loss("distillation beta=0.5");
  CHECK(std::visit([](const auto& l) { return l.kl.beta; }, loss) == 0.5);
  CHECK(std::visit([](const auto& l) { return l.kl.against; }, loss) == gdpo::Against::Teacher);
  const auto e = gdpo::runtime::configured_token_advantage("distillation gamma=0.9 coef=2");
  CHECK(std::visit([](const auto& x) { return x.returns.gamma; }, e) == 0.9);
  CHECK(std::visit([](const auto& x) { return x.penalty.coef; }, e) == 2);
}

TEST_CASE("a penalty is against the log-probs that it is given") {
  Data data{1, 2, {-1, -2}, {-1.5, -1}, {}, {1, 1}};
  auto estimator = gdpo::distillation_advantage;
  estimator.penalty.kl.against = gdpo::Against::Data;
  CHECK_THROWS_AS(data(estimator), gdpo::invalid_input);
}

}  // namespace distillation_test
