// labels: none
// Laws of PidLagrangian on random settings and measurements; and the published rules, bit for bit
// where their order of operations allows it.
#include <gdpo/constraint/published.hpp>
#include <reference/naive_pid.hpp>
#include <support/allocations.hpp>
#include <support/catch.hpp>
#include <support/random_gains.hpp>
#include <support/tolerance.hpp>

namespace pid_laws_test {

namespace {

using gdpo::EmaStart;
using gdpo::PidForm;
using gdpo::PidGains;
using gdpo::PidLagrangian;
using gdpo::PidStep;
using gdpo::SetPoint;
using gdpo::SumCount;
using random_pid::Case;

constexpr double infinity = gdpo::math::infinity;

/// The whole memory of constraint c, as bits, without the counter of held calls.
std::vector<std::uint64_t> memory_of(const PidLagrangian& pid, std::size_t c) {
  std::size_t history = 0;
  for (std::size_t i = 0; i < c; ++i) history += static_cast<std::size_t>(pid.gains()[i].d_delay);
  std::vector<std::uint64_t> words;
  const gdpo::PidState& state = pid.state();
  gdpo::detail::for_each_field(state, [&](const char*, const auto& field) {
    const auto put = [&](auto x) { words.push_back(bits_of(static_cast<double>(x))); };
    if (static_cast<const void*>(&field) == &state.history) {
      for (int k = 0; k < pid.gains()[c].d_delay; ++k)
        put(field[history + static_cast<std::size_t>(k)]);
    } else if (static_cast<const void*>(&field) != &state.held) {
      put(field[c]);
    }
  });
  return words;
}

/// "" where two steps have the same bits.
std::string difference(const PidStep& a, const PidStep& b) {
  const auto numbers = [](const PidStep& s) {
    return std::vector<double>{s.p,
                               s.i,
                               s.d,
                               s.raw,
                               s.lambda,
                               static_cast<double>(s.saturated_steps),
                               double(s.saturated),
                               double(s.held)};
  };
  return ::difference(numbers(a), numbers(b));
}

/// Whether a measurement counts: finite, and of at least one sample.
bool measured(const SumCount& x) {
  return std::isfinite(x.sum) && std::isfinite(x.count) && x.count > 0;
}

/// Runs `rule` and a controller with these gains on the same `steps` random costs near the limit,
/// and calls compare(multiplier of the controller, multiplier of the rule) after each.
template <class Rule, class Compare>
void together(std::uint64_t seed, const PidGains& gains, double limit, Rule rule,
              const Compare& compare, int steps = 600) {
  INFO("seed " << seed);
  Random random(seed);
  const SetPoint point{limit, 1, gdpo::Bound::AtMost};
  random_pid::Walk walk(point);
  PidLagrangian pid(gains, {point});
  for (int t = 0; t < steps; ++t) {
    const double cost = walk(random);
    INFO("step " << t);
    compare(pid.update({cost})[0].lambda, rule(cost));
  }
}
void check_bits(double got, double expected) { CHECK(same_bits(got, expected)); }

}  // namespace

TEST_CASE("a controller is what its settings say, with its whole past in memory") {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    Random random(seed);
    const PidForm form = random_pid::form(random);
    const PidGains g = random_pid::gains(random, form);
    INFO("seed " << seed << ", form " << static_cast<int>(form));
    const SetPoint point = random_pid::set_point(random);
    random_pid::Walk walk(point);
    PidLagrangian pid(g, {point});
    naive_pid::Controller expected{g, point};
    for (int t = 0; t < 150; ++t) {
      const SumCount x = random_pid::measurement(random, walk, 0.1);
      expected.call(x.sum, x.count);
      const PidStep& step = pid.update({x})[0];
      INFO("step " << t);
      REQUIRE(pid.state().updates[0] == static_cast<std::int64_t>(expected.errors.size()));
      REQUIRE(pid.state().held[0] == expected.held);
      REQUIRE(step.held == !measured(x));
      REQUIRE(step.saturated_steps == expected.saturated_steps);
      REQUIRE(step.saturated == (expected.saturated_steps > 0));
      REQUIRE(same_bits(step.lambda, pid.lambda(0)));
      if (form == PidForm::Adam || form == PidForm::Log) {
        // Adam: the correction 1 - beta^t has a relative error of 2^-53 t / (t (1 - beta)) = 1e-13.
        // Log: the exponential has an error of 2 units in the last place and that of its argument,
        // which is below 10.
        const double size = std::abs(expected.raw) + std::abs(expected.lambda());
        REQUIRE(std::abs(step.lambda - expected.lambda()) <= 1e-12 * size);
        // Continue from the controller's multiplier, so that each step is compared by itself: in
        // Log, a rounding grows by a factor of up to 1 + its argument in each step.
        expected.lambdas.back() = step.lambda;
        continue;
      }
      REQUIRE(same_bits(step.lambda, expected.lambda()));
      REQUIRE(same_bits(pid.state().integral[0],
                        form == PidForm::Positional ? expected.integral : g.lambda_init));
      if (step.held) continue;
      REQUIRE(same_bits(step.p, naive_pid::product(g.kp, expected.p)));
      REQUIRE(same_bits(step.d, naive_pid::product(g.kd, expected.d)));
      REQUIRE(same_bits(step.raw, expected.raw));
    }
  }
}

TEST_CASE("the multiplier and the integral stay within their bounds") {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Case c = random_pid::some_case(random, 3);
    PidLagrangian pid = c.controller();
    for (int t = 0; t < 100; ++t) {
      const std::vector<double> integral(pid.state().integral);
      pid.update(c.measure(random));
      for (std::size_t i = 0; i < c.size(); ++i) {
        const PidGains& g = c.gains[i];
        const double lambda = pid.state().lambda[i];
        REQUIRE((lambda >= 0 && lambda <= g.lambda_max && std::isfinite(lambda)));
        // An integral may begin below its bound; its first step is within both.
        REQUIRE((pid.state().integral[i] >= 0 ||
                 (integral[i] == g.lambda_init && pid.state().integral[i] == g.lambda_init)));
        REQUIRE(pid.state().integral[i] <= g.integral_max);
        if (g.form != PidForm::Positional) REQUIRE(same_bits(pid.state().integral[i], integral[i]));
        if (g.form == PidForm::Positional && g.anti_windup == gdpo::AntiWindup::Conditional) {
          const PidStep& step = pid.last()[i];
          // An integral that began below 0 may have to grow to there.
          const bool grew = step.i > integral[i] && integral[i] >= 0;
          if (grew)
            REQUIRE(step.raw <=
                    g.lambda_max + 4 * tolerance::unit * (std::abs(step.p) + step.i + step.d));
        }
      }
    }
  }
}

TEST_CASE("Stooke's algorithm") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    // Where Ki is a power of two, Ki before the integral and inside it give the same bits.
    together(seed, gdpo::pid::stooke(0.3, 0.0625, 1.7), 25, naive_pid::Stooke{0.3, 0.0625, 1.7, 25},
             check_bits);
    together(seed, gdpo::pid::stooke(0.3, 0.01, 1.7), 25, naive_pid::Stooke{0.3, 0.01, 1.7, 25},
             [](double got, double expected) {
               // 600 additions to an integral below 10, and a sum of three terms below 50.
               CHECK(std::abs(got - expected) < 600 * 10 * tolerance::unit + 150 * tolerance::unit);
             });
  }
}

TEST_CASE("OmniSafe's controller in its three norms, bit for bit") {
  using Norm = naive_pid::OmniSafe::Norm;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Random random(seed);
    const auto norm = random.pick({Norm::Sum, Norm::Diff, Norm::None});
    naive_pid::OmniSafe rule;
    rule.norm = norm, rule.penalty_max = norm == Norm::None ? 3 : 100;
    PidGains g = gdpo::pid::omnisafe(norm == Norm::Sum    ? gdpo::LambdaNorm::Sum
                                     : norm == Norm::Diff ? gdpo::LambdaNorm::Diff
                                                          : gdpo::LambdaNorm::None,
                                     rule.penalty_max);
    // The first seeds have the published gains.
    if (seed > 9) {
      g.kp = rule.kp = 2 * random.uniform();
      g.ki = rule.ki = 0.3 * random.uniform();
      g.kd = rule.kd = 3 * random.uniform();
      g.p_ema = rule.p_alpha = random.uniform();
      g.d_ema = rule.d_alpha = random.uniform();
      g.d_delay = 1 + random.below(12);
      rule.delay = static_cast<std::size_t>(g.d_delay);
      // Below 0 too, by more and by less than a step of the integral.
      g.lambda_init = rule.integral = random_pid::between(random, -1, 1);
    }
    together(seed, g, 25, rule, check_bits);
  }
}

TEST_CASE("nuPI from its three starts") {
  using Start = naive_pid::NuPi::Start;
  struct Case {
    Start published;
    EmaStart start;
    double first, second;  // multipliers after errors 1 and 2, with Kp 2, Ki 0.5 and nu 0
  };
  for (const Case& c : {Case{Start::Zeros, EmaStart::Zero, 2.5, 5.5},
                        Case{Start::FirstError, EmaStart::FirstValue, 0.5, 3.5},
                        Case{Start::CooperSgd, EmaStart::AfterFirst, 0.5, 5.5}}) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      for (const double nu : {0.0, 0.9}) {
        // Where Kp is a power of two, Kp xi - Kp xi' and Kp (xi - xi') have the same bits.
        together(seed, gdpo::pid::nupi(0.5, 0.03, nu, c.start), 0,
                 naive_pid::NuPi{0.5, 0.03, nu, c.published}, check_bits);
        together(seed, gdpo::pid::nupi(0.7, 0.03, nu, c.start), 0,
                 naive_pid::NuPi{0.7, 0.03, nu, c.published}, [](double got, double expected) {
                   // Four roundings of numbers below 16 in each of 600 steps.
                   CHECK(std::abs(got - expected) < 600 * 4 * 16 * tolerance::unit);
                 });
      }
    }
    PidLagrangian pid(gdpo::pid::nupi(2, 0.5, 0, c.start));
    CHECK(pid.update({1.0})[0].lambda == c.first);
    CHECK(pid.update({2.0})[0].lambda == c.second);
  }
}

TEST_CASE("gradient ascent, and what nuPI is without Kp and with Kp = Ki") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    together(
        seed, gdpo::pid::dual_ascent(0.05, 0.5), 3,
        [rule = naive_pid::DualAscent{0.05, 0.5}](double cost) mutable { return rule(cost - 3); },
        check_bits);
    for (const double nu : {0.0, 0.9}) {
      together(seed, gdpo::pid::nupi(0, 0.05, nu), 0, naive_pid::DualAscent{0.05}, check_bits);
    }
    // The optimistic gradient method, lambda += rate (2 e - previous e), is the same rule with
    // other roundings.
    const auto optimistic = [last = 0.0, lambda = 0.0](double e) mutable {
      lambda = std::max(0.0, lambda + 0.05 * (2 * e - last));
      last = e;
      return lambda;
    };
    together(seed, gdpo::pid::nupi(0.05, 0.05), 0, optimistic, [](double got, double expected) {
      // Four roundings of numbers below 4 in each of 600 steps.
      CHECK(std::abs(got - expected) < 600 * 4 * 4 * tolerance::unit);
    });
  }
}

TEST_CASE("gradient ascent by RMSprop, bit for bit") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    for (const naive_pid::DualAscentRmsProp& rule :
         {naive_pid::DualAscentRmsProp{}, naive_pid::DualAscentRmsProp{0.5, 0.25, 0.75},
          naive_pid::DualAscentRmsProp{0.01, -0.5}}) {
      together(
          seed, gdpo::pid::dual_ascent_rmsprop(rule.rate, rule.init, rule.upper_bound), 25,
          [of = rule](double cost) mutable { return of(cost - 25); }, check_bits);
    }
  }
  // By hand: v is 0.25, then 0.75 times that.
  PidGains g = gdpo::pid::dual_ascent_rmsprop(0.5, 1);
  g.beta2 = 0.75, g.adam_eps = 0.5;
  PidLagrangian pid(g);
  CHECK(pid.update({1.0})[0].lambda == 1 + 0.5 / (0.5 + 0.5));
  CHECK(pid.state().adam_v[0] == 0.25);
  CHECK(pid.update({0.0})[0].lambda == 1.5);
  CHECK(pid.state().adam_v[0] == 0.1875);
  // Without eps, the first step of a measurement at its limit is 0 and not 0/0.
  g.adam_eps = 0;
  PidLagrangian at_limit(g);
  CHECK(at_limit.update({0.0})[0].lambda == 1);
  // A square that overflows holds the constraint.
  CHECK(at_limit.update({1e200})[0].held);
  CHECK((at_limit.lambda(0) == 1 && at_limit.state().adam_v[0] == 0));
}

TEST_CASE("gradient ascent by Adam") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    double largest = 0;
    together(
        seed, gdpo::pid::dual_ascent_adam(), 25,
        [rule = naive_pid::DualAscentAdam{}](double cost) mutable { return rule(cost - 25); },
        [&](double got, double expected) {
          largest = std::max(largest, expected);
          CHECK(std::abs(got - expected) <= 1e-12 * largest);
        });
    CHECK(largest > 0.1);
  }
}

TEST_CASE("Safe RLHF's multiplier in the logarithm") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    // The accumulated error of log lambda, in roundings. A step multiplies it by 1 + rate * lambda
    // * e and adds the step's own error.
    double condition = 0, lambda = 1;
    together(
        seed, gdpo::pid::safe_rlhf_log(), 0,
        [&, rule = naive_pid::SafeRlhfLog{}](double e) mutable {
          condition = condition * std::abs(1 + 0.1 * lambda * e) + 8;
          lambda = rule(e);
          return lambda;
        },
        [&](double got, double expected) {
          // log lambda is below 8 in size, and is rounded.
          CHECK(std::abs(got - expected) <= 8 * condition * tolerance::unit * expected);
          if (expected > 5 - 1e-9) condition = 8;
        });
  }
}

TEST_CASE("an error is measured in units of its set-point") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const PidGains g = random_pid::gains(random);
    const SetPoint point = random_pid::set_point(random);
    const auto scaled = [&](double by) {
      SetPoint s = point;
      s.limit *= by, s.scale *= by;
      return PidLagrangian(g, {s});
    };
    PidLagrangian one = scaled(1), large = scaled(1024), small = scaled(0x1p-30);
    random_pid::Walk walk(point);
    for (int t = 0; t < 100; ++t) {
      const SumCount x = random_pid::measurement(random, walk, 0.1);
      const PidStep& step = one.update({x})[0];
      REQUIRE(difference(large.update({SumCount{x.sum * 1024, x.count}})[0], step) == "");
      REQUIRE(difference(small.update({SumCount{x.sum * 0x1p-30, x.count}})[0], step) == "");
    }
  }
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const double by = random_pid::between(random, 0.01, 300);
    const SetPoint point{2, 0.5}, other_point{2 * by, 0.5 * by};
    PidLagrangian one(PidGains{}, {point}), other(PidGains{}, {other_point});
    random_pid::Walk walk(point);
    for (int t = 0; t < 300; ++t) {
      const double x = walk(random);
      // An error is rounded by 2^-53 (3 |x| + 2 |limit|) / scale < 1e-14. The multiplier has Kp
      // times that, and Ki times 300 of it.
      CHECK(std::abs(one.update({x})[0].lambda - other.update({x * by})[0].lambda) <
            (2 + 300 * 0.05) * 1e-14);
    }
  }
}

TEST_CASE("a cost and a reward of the opposite sign have the same multiplier") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const PidGains g = random_pid::gains(random);
    SetPoint cost = random_pid::set_point(random), reward;
    cost.bound = gdpo::Bound::AtMost;
    reward = {-cost.limit, cost.scale, gdpo::Bound::AtLeast};
    PidLagrangian a(g, {cost}), b(g, {reward});
    random_pid::Walk walk(cost);
    for (int t = 0; t < 100; ++t) {
      const SumCount x = random_pid::measurement(random, walk, 0.1);
      a.update({x});
      REQUIRE(difference(b.update({SumCount{-x.sum, x.count}})[0], a.last()[0]) == "");
    }
  }
}

TEST_CASE("m constraints are m controllers") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Case c = random_pid::some_case(random, 1 + random.below(7));
    PidLagrangian together = c.controller();
    std::vector<PidLagrangian> alone;
    for (std::size_t i = 0; i < c.size(); ++i)
      alone.emplace_back(c.gains[i], std::vector<SetPoint>{c.set_points[i]});
    for (int t = 0; t < 100; ++t) {
      const std::vector<SumCount> x = c.measure(random);
      const std::vector<PidStep>& steps = together.update(x);
      for (std::size_t i = 0; i < c.size(); ++i) {
        REQUIRE(difference(steps[i], alone[i].update({x[i]})[0]) == "");
        REQUIRE(same_bits(together.lambda()(static_cast<gdpo::index_t>(i)), alone[i].lambda(0)));
      }
    }
    for (std::size_t i = 0; i < c.size(); ++i) {
      CHECK(memory_of(together, i) == memory_of(alone[i], 0));
      CHECK(together.state().held[i] == alone[i].state().held[0]);
    }
  }
}

TEST_CASE("sums with counts are means, in every way to write them") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Case c = random_pid::some_case(random, 2);
    PidLagrangian sums = c.controller(), means = c.controller(), list = c.controller(),
                  strided = c.controller();
    for (int t = 0; t < 60; ++t) {
      const std::vector<SumCount> x = c.measure(random, 0);
      std::vector<double> mean, apart;
      for (const SumCount& s : x) {
        mean.push_back(s.sum / s.count);
        apart.insert(apart.end(), {mean.back(), std::nan("")});
      }
      sums.update(x);
      means.update(mean);
      list.update({mean[0], mean[1]});
      strided.update(gdpo::View<const double, 1>{apart.data(), {2}, {2}});
    }
    const std::vector<unsigned char> expected = gdpo::to_bytes(sums.state());
    CHECK(gdpo::to_bytes(means.state()) == expected);
    CHECK(gdpo::to_bytes(list.state()) == expected);
    CHECK(gdpo::to_bytes(strided.state()) == expected);
  }
}

TEST_CASE("ranks agree, however the samples are spread over them") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const Case c = random_pid::some_case(random, 2);
    const int ranks = 1 + random.below(6), without_samples = random.below(6);
    std::vector<PidLagrangian> all(static_cast<std::size_t>(ranks), c.controller());
    PidLagrangian single = c.controller();
    for (int t = 0; t < 80; ++t) {
      const int samples = random.below(20);  // with 0 samples, all ranks hold
      std::vector<std::vector<SumCount>> parts(static_cast<std::size_t>(ranks),
                                               std::vector<SumCount>(2));
      std::vector<SumCount> whole(2), reduced(2);
      for (int i = 0; i < samples; ++i) {
        int rank = random.below(ranks);
        if (rank == without_samples) rank = (rank + 1) % ranks;
        for (std::size_t k = 0; k < 2; ++k) {
          // Multiples of 2^-9, whose sums are exact in any order.
          const double x = 0.001953125 * random.below(20000) - 10;
          for (SumCount* s : {&parts[static_cast<std::size_t>(rank)][k], &whole[k]})
            s->sum += x, ++s->count;
        }
      }
      for (const auto& part : parts) {
        for (std::size_t k = 0; k < 2; ++k)
          reduced[k].sum += part[k].sum, reduced[k].count += part[k].count;
      }
      single.update(whole);
      for (PidLagrangian& pid : all) pid.update(reduced);
    }
    for (const PidLagrangian& pid : all)
      CHECK(gdpo::to_bytes(pid.state()) == gdpo::to_bytes(single.state()));
  }
  // Averaging the means of the ranks gives another number: one rank has one sample with cost 1, the
  // other nine with cost 0, and the limit is 0.2.
  const SetPoint cost{0.2, 1, gdpo::Bound::AtMost};
  PidLagrangian pooled(PidGains{}, {cost}), of_means(PidGains{}, {cost});
  for (int t = 0; t < 50; ++t) {
    pooled.update({SumCount{1 + 9 * 0.0, 10}});
    of_means.update({(1.0 / 1 + 0.0 / 9) / 2});
  }
  CHECK(pooled.lambda(0) == 0);   // the mean is 0.1, which satisfies the constraint
  CHECK(of_means.lambda(0) > 1);  // the mean of the means is 0.5, which seems to violate it
}

TEST_CASE("what was not measured holds its constraint alone") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Case c = random_pid::some_case(random, 4);
    PidLagrangian pid = c.controller(), without = c.controller();
    for (int t = 0; t < 60; ++t) {
      std::vector<SumCount> x = c.measure(random, 0);
      const auto lost = static_cast<std::size_t>(random.below(4));
      const std::vector<SumCount> before_loss = x;
      while (measured(x[lost])) x[lost] = random_pid::measurement(random, c.walks[lost], 1);
      std::vector<std::vector<std::uint64_t>> before;
      for (std::size_t i = 0; i < 4; ++i) before.push_back(memory_of(pid, i));
      const std::int64_t held = pid.state().held[lost];
      const double lambda = pid.state().lambda[lost];
      const std::vector<PidStep>& steps = pid.update(x);
      for (std::size_t i = 0; i < 4; ++i) {
        REQUIRE(steps[i].held == (i == lost));
        REQUIRE((memory_of(pid, i) == before[i]) == (i == lost));
      }
      REQUIRE(pid.state().held[lost] == held + 1);
      REQUIRE(same_bits(steps[lost].lambda, lambda));
      REQUIRE(same_bits(pid.lambda(static_cast<gdpo::index_t>(lost)), lambda));
      REQUIRE((steps[lost].p == 0 && steps[lost].d == 0));
      // The lost measurement comes one call later, while the others are not measured.
      std::vector<SumCount> late(4);
      late[lost] = before_loss[lost];
      pid.update(late);
      without.update(before_loss);
      for (std::size_t i = 0; i < 4; ++i) REQUIRE(memory_of(pid, i) == memory_of(without, i));
    }
  }
}

TEST_CASE("numbers at the ends of the range leave a controller that works") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Case c = random_pid::some_case(random, 2);
    PidLagrangian pid = c.controller();
    for (int t = 0; t < 60; ++t) {
      std::vector<SumCount> x;
      for (int i = 0; i < 2; ++i) {
        x.push_back({random.pick({1e308, -1e308, 1.7976931348623157e308, 5e-324, -5e-324, 1e-310,
                                  0.0, 1.0}),
                     random.pick({1.0, 1e308, 5e-324})});
      }
      std::vector<std::vector<std::uint64_t>> before;
      for (std::size_t i = 0; i < 2; ++i) before.push_back(memory_of(pid, i));
      const std::vector<PidStep>& steps = pid.update(x);
      for (std::size_t i = 0; i < 2; ++i) {
        const PidStep& s = steps[i];
        for (const double number : {s.p, s.i, s.d, s.raw, s.lambda}) REQUIRE(std::isfinite(number));
        REQUIRE((s.lambda >= 0 && s.lambda <= c.gains[i].lambda_max));
        if (s.held) REQUIRE(memory_of(pid, i) == before[i]);
      }
      const std::vector<unsigned char> left = gdpo::to_bytes(pid.state());
      // The state of a controller is valid, and restoring it changes nothing.
      pid.restore(pid.state());
      REQUIRE(gdpo::to_bytes(pid.state()) == left);
      gdpo::detail::for_each_field(pid.state(), [](const char*, const auto& field) {
        for (const auto number : field) REQUIRE(std::isfinite(static_cast<double>(number)));
      });
    }
  }
  // With the default settings, an error of 1e308 overflows when multiplied by Kp and is held; 1e307
  // saturates.
  PidLagrangian pid;
  CHECK(pid.update({1e308})[0].held);
  CHECK(pid.update({1e307})[0].lambda == 10);
  CHECK(pid.update({-1e307})[0].lambda == 0);
  CHECK(pid.update({5e-324})[0].lambda == 0);
  // An error of -0 is one of 0.
  CHECK(same_bits(PidLagrangian(gdpo::pid::dual_ascent(1)).update({-0.0})[0].i, 0.0));
}

TEST_CASE("the integral between its bounds, by hand") {
  PidGains g;
  g.kp = 1, g.ki = 0.5, g.p_ema = 0, g.integral_max = 1.25;
  PidLagrangian pid(g);
  const auto integral_after = [&](double e) { return pid.update({e})[0].i; };
  CHECK(integral_after(1) == 0.5);
  CHECK(integral_after(1) == 1);
  CHECK(integral_after(1) == 1.25);
  CHECK(integral_after(-4) == 0);
  CHECK(pid.lambda(0) == 0);
  CHECK(integral_after(0.5) == 0.25);

  // Conditional anti-windup: the integral may grow into the room lambda_max - Kp p - Kd d; what it
  // has already stays.
  g.integral_max = infinity, g.lambda_max = 2;
  PidLagrangian conditional(g);
  CHECK(conditional.update({1.5})[0].i == 0.5);  // not 0.75, because 1.5 + 0.5 is the bound
  CHECK(conditional.update({4.0})[0].i == 0.5);  // there is no room at all
  CHECK(conditional.update({-0.5})[0].i == 0.25);
  CHECK(conditional.update({0.0})[0].lambda == 0.25);
}

TEST_CASE("the velocity form does not wind up") {
  for (const double kp : {0.0, 0.5}) {
    PidGains g = gdpo::pid::nupi(kp, 0.01, 0.9);
    g.lambda_max = 10;
    PidLagrangian pid(g);
    for (int t = 0; t < 500; ++t) pid.update({30.0});
    CHECK(pid.lambda(0) == 10);
    CHECK(pid.state().saturated_steps[0] > 400);
    CHECK(pid.update({-25.0})[0].lambda < 10);  // it falls at once
    for (int t = 0; t < 500; ++t) pid.update({-25.0});
    CHECK(pid.lambda(0) == 0);
    CHECK(pid.update({1.0})[0].lambda > 0);
  }
}

TEST_CASE("the derivative looks d_delay updates back") {
  PidGains g;
  g.kp = g.ki = 0, g.kd = 1, g.d_delay = 3;
  const SetPoint cost{25, 2, gdpo::Bound::AtMost};
  PidLagrangian rising(g, {cost}), falling(g, {{25, 2, gdpo::Bound::AtLeast}});
  const std::vector<double> x{7, 7, 9, 9, 9, 9, 9, 5, 5, 5, 5, 5},
      d{0, 0, 1, 1, 1, 0, 0, -2, -2, -2, 0, 0};
  for (std::size_t t = 0; t < x.size(); ++t) {
    INFO("step " << t);
    CHECK(rising.update({x[t]})[0].d == std::max(d[t], 0.0));
    CHECK(falling.update({x[t]})[0].d == std::max(-d[t], 0.0));
  }
  // With EmaStart::Zero the average of the cost itself, not of its distance from the limit, rises
  // from 0.
  g.d_start = EmaStart::Zero;
  PidLagrangian zero(g, {cost});
  for (const double expected : {3.5, 3.5, 4.5, 1.0}) {
    CHECK(zero.update({x[static_cast<std::size_t>(zero.state().updates[0])]})[0].d == expected);
  }
  g.d_start = EmaStart::FirstValue, g.d_ema = 0.5, g.d_delay = 2;
  PidLagrangian averaged(g);  // its averages are 0, 4, 6, 7, 7.5
  const std::vector<double> changes{0, 4, 6, 3, 1.5};
  for (std::size_t t = 0; t < changes.size(); ++t)
    CHECK(averaged.update({t == 0 ? 0.0 : 8.0})[0].d == changes[t]);
}

TEST_CASE("an average corrected for its start is a mean of what there was") {
  for (const double a : {0.1, 0.5, 0.95, 0.999}) {
    PidGains g;
    g.p_ema = a;
    PidLagrangian pid(g), halves(g);
    for (int t = 0; t < 300; ++t) {
      // The correction 1 - a^t is rounded.
      CHECK(std::abs(pid.update({1.5})[0].p - g.kp * 1.5) < 1e-15 / (1 - a));
    }
    // Two values have the weights a and 1.
    halves.update({1.0});
    CHECK(std::abs(halves.update({4.0})[0].p - g.kp * (a * 1 + 4) / (a + 1)) < 1e-14 / (1 - a));
  }
  // The averages of errors 1, 1, 2 with a share of 0.5.
  const std::vector<std::pair<EmaStart, std::vector<double>>> starts{
      {EmaStart::Zero, {0.5, 0.75, 1.375}},
      {EmaStart::BiasCorrected, {1, 1, 1.375 / 0.875}},
      {EmaStart::FirstValue, {1, 1, 1.5}},
      {EmaStart::AfterFirst, {0, 0.5, 1.25}}};
  for (const auto& [start, averages] : starts) {
    PidGains g;
    g.kp = 1, g.p_ema = 0.5, g.p_start = start;
    PidLagrangian pid(g);
    for (std::size_t t = 0; t < 3; ++t) CHECK(pid.update({t < 2 ? 1.0 : 2.0})[0].p == averages[t]);
  }
}

TEST_CASE("an update of multipliers allocates nothing") {
  Random random(3);
  Case c = random_pid::some_case(random, 8);
  PidLagrangian pid = c.controller();
  std::vector<std::vector<SumCount>> x;
  for (int t = 0; t < 50; ++t) x.push_back(c.measure(random));
  std::vector<double> means(8, 0.5);
  const long before = counted::allocations;
  for (const auto& reduced : x) {
    pid.update(reduced);
    pid.update(means);
    pid.update({1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0});
    pid.update(gdpo::view(means.data(), 8));
  }
  CHECK(counted::allocations == before);
}

}  // namespace pid_laws_test
