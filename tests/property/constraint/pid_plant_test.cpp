// labels: none
// Controllers in a closed loop (support/plant.hpp): each way in which a published rule fails, with
// its numbers, and the default settings in the same place. Numbers without another source were
// computed with the published rule (reference/naive_pid.hpp).
#include <gdpo/constraint/published.hpp>
#include <reference/naive_pid.hpp>
#include <support/catch.hpp>
#include <support/generators.hpp>
#include <support/plant.hpp>
#include <support/tolerance.hpp>

namespace pid_plant_test {

namespace {

using gdpo::PidGains;
using gdpo::PidLagrangian;
using plant::Run;

/// Whether `got` is `quoted` to within half of its last digit.
bool rounds_to(double got, double quoted, double last_digit) {
  return std::abs(got - quoted) <= last_digit / 2;
}

/// How much of the first peak is left at the end.
double decay(const Run& r) { return r.last_peak() / r.first_peak(); }

Run of_preset(const PidGains& gains) { return plant::run_pid(gains); }
template <class Rule>
Run of_paper(Rule rule) {
  return plant::run(rule);
}
naive_pid::OmniSafe omnisafe_at(double limit) {
  naive_pid::OmniSafe rule;
  rule.limit = limit;
  return rule;
}

/// The bytes of the state without its counter of held calls.
std::vector<unsigned char> memory_of(const PidLagrangian& pid) {
  gdpo::PidState state = pid.state();
  std::fill(state.held.begin(), state.held.end(), 0);
  return gdpo::to_bytes(state);
}

/// The default settings settle in the same loop, with a first peak below that of the rule.
void settles_by_default(double first_peak) {
  const Run r = of_preset(PidGains{});
  CHECK(decay(r) < 1e-3);
  CHECK(r.first_peak() < first_peak);
  CHECK(rounds_to(r.first_peak(), 2.159, 1e-3));
  CHECK(rounds_to(r.cumulative(), 100, 0.1));
  CHECK(r.undershoot() >= 0);
}

}  // namespace

TEST_CASE("an integral alone oscillates for ever") {
  const Run published = of_paper(naive_pid::Stooke{0, 0.01, 0}),
            r = of_preset(gdpo::pid::stooke(0, 0.01, 0));
  for (const Run& run : {published, r}) {
    CHECK(rounds_to(run.first_peak(), 15.81, 0.01));
    CHECK(rounds_to(run.last_peak(), 15.81, 0.01));
    CHECK(rounds_to(run.cumulative(), 10045.7, 0.1));
    CHECK(decay(run) > 0.999);
  }
  // Gradient ascent is an integral alone.
  CHECK(difference(of_preset(gdpo::pid::dual_ascent(0.01)).lambda, r.lambda) == "");
  settles_by_default(r.first_peak());
}

TEST_CASE("a proportional term damps the oscillation") {
  for (const bool preset : {false, true}) {
    const auto pi = [&](double kp) {
      return preset ? of_preset(gdpo::pid::stooke(kp, 0.01, 0))
                    : of_paper(naive_pid::Stooke{kp, 0.01, 0});
    };
    // The damping, Kp sqrt(b / Ki) / 2, is 1 and 0.32.
    const Run critical = pi(0.632), light = pi(0.2);
    CHECK(rounds_to(critical.first_peak(), 5.85, 0.01));
    CHECK(critical.last_peak() < 1e-12);
    CHECK(rounds_to(critical.cumulative(), 500, 1));
    CHECK(critical.undershoot() > -1e-12);
    CHECK(rounds_to(light.first_peak(), 10.46, 0.01));
    CHECK(decay(light) < 1e-3);
    CHECK(rounds_to(light.cumulative(), 768, 1));
    CHECK(light.undershoot() < -3);
  }
  settles_by_default(5.85);
}

TEST_CASE("an average of the error adds lag") {
  const auto averaged = [](double a, gdpo::EmaStart start) {
    PidGains g = gdpo::pid::stooke(0.632, 0.01, 0);
    g.p_ema = a;
    g.p_start = start;
    return of_preset(g);
  };
  const Run from_zero = averaged(0.95, gdpo::EmaStart::Zero),
            long_from_zero = averaged(0.99, gdpo::EmaStart::Zero);
  CHECK(rounds_to(from_zero.first_peak(), 8.76, 0.01));
  CHECK(rounds_to(long_from_zero.first_peak(), 12.6, 0.1));
  CHECK(rounds_to(long_from_zero.last_peak(), 0.59, 0.01));  // it has not settled
  CHECK(rounds_to(long_from_zero.cumulative(), 2330, 1));
  // With bias correction the same average lags less.
  const Run corrected = averaged(0.95, gdpo::EmaStart::BiasCorrected);
  CHECK(rounds_to(corrected.first_peak(), 7.10, 0.01));
  CHECK(rounds_to(averaged(0.99, gdpo::EmaStart::BiasCorrected).cumulative(), 937, 1));
  settles_by_default(corrected.first_peak());
}

TEST_CASE("OmniSafe's gains are slow on a plant of unit size") {
  const Run published = of_paper(omnisafe_at(0));
  CHECK(rounds_to(published.first_peak(), 13.79, 0.01));
  CHECK(rounds_to(published.cumulative(), 1580, 1));
  CHECK(difference(of_preset(gdpo::pid::omnisafe()).lambda, published.lambda) == "");
  settles_by_default(published.first_peak() / 6);
}

TEST_CASE("a derivative sees the violation coming") {
  const auto with = [](double kd) {
    naive_pid::OmniSafe rule = omnisafe_at(0);
    rule.kp = 0.2, rule.kd = kd;
    PidGains g = gdpo::pid::omnisafe();
    g.kp = 0.2, g.kd = kd;
    const Run published = of_paper(rule);
    CHECK(difference(of_preset(g).lambda, published.lambda) == "");
    return published.first_peak();
  };
  CHECK(rounds_to(with(0), 12.38, 0.01));
  CHECK(rounds_to(with(1), 8.29, 0.01));
  CHECK(rounds_to(with(5), 4.69, 0.01));

  // Without a derivative these gains are damped like the lightly damped rule above. The history is
  // full from the start.
  PidGains g;
  g.kp = 0.2, g.ki = 0.01, g.p_ema = 0, g.d_ema = 0.95, g.d_delay = 10;
  const auto ours = [&](double kd) {
    g.kd = kd;
    return of_preset(g);
  };
  CHECK(rounds_to(ours(0).first_peak(), 10.46, 0.01));
  CHECK(rounds_to(ours(1).first_peak(), 7.57, 0.01));
  CHECK(rounds_to(ours(5).first_peak(), 4.69, 0.01));
  CHECK(ours(5).cumulative() < ours(0).cumulative());
  settles_by_default(4.69);
}

TEST_CASE("a derivative whose average starts at zero kicks where nothing is violated") {
  const auto largest = [](double kd) {
    naive_pid::OmniSafe rule;
    rule.kd = kd, rule.integral = 0;
    double peak = 0;
    for (int t = 0; t < 200; ++t) peak = std::max(peak, rule(25));
    return peak;
  };
  CHECK(rounds_to(largest(0.01), 0.100, 0.001));
  CHECK(rounds_to(largest(1), 10.03, 0.01));

  for (const double kd : {0.0, 0.01, 1.0, 100.0}) {
    for (const gdpo::Bound bound : {gdpo::Bound::AtMost, gdpo::Bound::AtLeast}) {
      PidGains g;
      g.kd = kd, g.d_ema = 0.95, g.d_delay = 10;
      PidLagrangian pid(g, {{25, 0.1, bound}});
      for (int t = 0; t < 200; ++t) {
        const gdpo::PidStep& step = pid.update({25.0})[0];
        CHECK((step.lambda == 0 && step.p == 0 && step.i == 0 && step.d == 0));
      }
    }
  }
}

TEST_CASE("an integral without a bound winds up") {
  naive_pid::OmniSafe published;
  for (int t = 0; t < 500; ++t) published(25 + 30);
  CHECK(rounds_to(published.integral, 150, 1));
  int more = 0;
  while (published(25 - 25) > 0) ++more;
  CHECK(more == 590);

  const auto unwinds = [](const PidGains& g, int at_most) {
    PidLagrangian pid(g, {{25, 1, gdpo::Bound::AtMost}});
    for (int t = 0; t < 500; ++t) {
      pid.update({25.0 + 30});
      CHECK(pid.state().integral[0] <= g.lambda_max);
    }
    CHECK(pid.lambda(0) == g.lambda_max);
    int steps = 0;
    while (pid.update({25.0 - 25})[0].lambda > 0) ++steps;
    CHECK(steps <= at_most);
  };
  unwinds(PidGains{}, 1);  // the proportional term alone outweighs the integral
  PidGains integral = gdpo::pid::stooke(0, 0.01, 0);
  integral.lambda_max = 10;
  integral.anti_windup = gdpo::AntiWindup::Conditional;
  unwinds(integral, 40);  // lambda_max / (Ki 25) steps
}

TEST_CASE("a bound on the output alone leaves the integral to wind up") {
  naive_pid::OmniSafe published;
  published.norm = naive_pid::OmniSafe::Norm::None;
  published.penalty_max = 10, published.ki = 0.1;
  for (int t = 0; t < 500; ++t) published(25 + 30);
  CHECK(rounds_to(published.integral, 1500, 1));
  int saturated = 0;
  while (published(25 - 25) >= 10) ++saturated;
  CHECK(saturated == 595);

  PidGains same = gdpo::pid::omnisafe(gdpo::LambdaNorm::None, 10);
  same.ki = 0.1;
  const auto saturated_after = [](const PidGains& g) {
    PidLagrangian pid(g, {{25, 1, gdpo::Bound::AtMost}});
    for (int t = 0; t < 500; ++t) pid.update({25.0 + 30});
    int steps = 0;
    while (pid.update({25.0 - 25})[0].saturated) ++steps;
    return steps;
  };
  CHECK(saturated_after(same) == 595);
  same.anti_windup = gdpo::AntiWindup::Conditional;
  CHECK(saturated_after(same) == 0);
  CHECK(saturated_after(PidGains{}) == 0);
}

TEST_CASE("after a limit that could not be met for a while the integral undershoots") {
  // lambda_max = 6 pushes by 0.6, so the drift wins for 300 steps, and after that no more.
  const auto loop = [](const auto& rule, double hard, double easy) {
    return plant::run(
        rule, [&](int t) { return t < 300 ? hard : easy; }, 0.1, 4000);
  };
  const auto of = [&](PidGains g, double hard, double easy) {
    g.lambda_max = 6;
    PidLagrangian pid(g);
    return loop([&](double j) { return pid.update({j})[0].lambda; }, hard, easy);
  };
  // The steps off target: those that miss it by more than 1 on the satisfied side.
  const auto off_target = [](const Run& r) {
    return std::count_if(r.violation.begin(), r.violation.end(), [](double j) { return j < -1; });
  };
  struct Lowest {
    double undershoot;
    int off_target;
  };
  const auto pair = [&](PidGains g, double hard, double easy, Lowest without, Lowest with) {
    g.anti_windup = gdpo::AntiWindup::None;
    const Run wound_up = of(g, hard, easy);
    CHECK(rounds_to(wound_up.undershoot(), without.undershoot, 0.1));
    CHECK(off_target(wound_up) == without.off_target);
    g.anti_windup = gdpo::AntiWindup::Conditional;
    const Run conditional = of(g, hard, easy);
    CHECK(rounds_to(conditional.undershoot(), with.undershoot, 0.01));
    CHECK(off_target(conditional) == with.off_target);
    CHECK(std::abs(conditional.undershoot()) < 2);
    CHECK(std::abs(wound_up.undershoot()) > 20 * std::abs(conditional.undershoot()));
  };
  pair(gdpo::pid::stooke(0.5, 0.02, 0), 0.9, 0.3, {-125.6, 832}, {-1.49, 38});
  pair(gdpo::pid::stooke(0, 0.05, 0), 1, 0.5, {-141.2, 2000}, {-1.41, 622});
  for (const Run& r : {of(PidGains{}, 0.9, 0.3), of(PidGains{}, 1, 0.5)}) {
    CHECK(std::abs(r.undershoot()) < 2);
    CHECK(off_target(r) == 0);
  }

  // Another form of conditional integration stops the integral while the multiplier is at its
  // bound; ours lets it grow up to the bound. It is 3 steps less off target.
  double integral = 0, lambda = 0;
  const Run stopped = loop(
      [&](double e) {
        if (!(lambda >= 6 && e > 0)) integral = std::max(0.0, integral + 0.02 * e);
        return lambda = std::min(std::max(0.5 * e + integral, 0.0), 6.0);
      },
      0.9, 0.3);
  CHECK(rounds_to(stopped.undershoot(), -1.43, 0.01));
  CHECK(off_target(stopped) == 35);
}

TEST_CASE("the mean of a hinge never lets the integral fall") {
  constexpr std::uint64_t seed = 7;
  INFO("seed " << seed);
  Random random(seed);
  const auto normal = [&] {
    const double r = std::sqrt(-2 * std::log(1 - random.uniform()));
    return r * std::cos(6.283185307179586 * random.uniform());
  };
  constexpr int batch = 256, steps = 1000;
  // The mean of the rewards is 0.28 std on the satisfied side of the limit.
  PidLagrangian of_hinge, of_mean;
  double integral = 0, hinge_at_limit = 0;
  int below_zero = 0;
  for (int t = 0; t < steps; ++t) {
    double sum = 0, hinges = 0;
    for (int i = 0; i < batch; ++i) {
      const double e = normal() - 0.28;
      sum += e;
      hinges += std::max(e, 0.0);
      hinge_at_limit += std::max(e + 0.28, 0.0);
    }
    of_hinge.update({gdpo::SumCount{hinges, batch}});
    CHECK(of_hinge.state().integral[0] >= integral);
    integral = of_hinge.state().integral[0];
    CHECK(of_mean.update({gdpo::SumCount{sum, batch}})[0].i <= 0.05);
    below_zero += of_mean.lambda(0) == 0;
  }
  // The integral takes all that lambda_max leaves beside Kp p, although the constraint is
  // satisfied.
  CHECK(integral > 9);
  CHECK(below_zero == steps);  // 0.28 is 4.5 times the std of a batch's mean
  hinge_at_limit /= batch * steps;
  // At the limit E max(z, 0) = 1 / sqrt(2 pi) for a normal z, so a limit of 0 on the mean hinge
  // cannot be met. The std of this estimate is 0.58 / sqrt(256000).
  CHECK(std::abs(hinge_at_limit - 0.39894) < 5 * 0.58 / std::sqrt(256000.0));
}

TEST_CASE("one NaN switches the published rule off for ever and is turned away here") {
  const double no = std::nan("");
  naive_pid::OmniSafe published;
  for (int t = 0; t < 100; ++t) published(40);
  CHECK(rounds_to(published.integral, 15, 0.01));
  published(no);
  CHECK(published.integral == 0);
  for (int t = 0; t < 100; ++t) CHECK(published(40) == 0);
  CHECK(std::isnan(published.p));

  for (const PidGains& g : {PidGains{}, gdpo::pid::omnisafe(), gdpo::pid::nupi(1, 0.1, 0.9),
                            gdpo::pid::dual_ascent_adam(), gdpo::pid::dual_ascent_rmsprop(),
                            gdpo::pid::safe_rlhf_log()}) {
    PidLagrangian pid(g, {{25, 1, gdpo::Bound::AtMost}}),
        undisturbed(g, {{25, 1, gdpo::Bound::AtMost}});
    for (int t = 0; t < 100; ++t) {
      pid.update({40.0});
      undisturbed.update({40.0});
    }
    const std::vector<unsigned char> before = gdpo::to_bytes(pid.state());
    const double lambda = pid.lambda(0);
    for (const double bad : {no, gdpo::math::infinity, -gdpo::math::infinity}) {
      const gdpo::PidStep& step = pid.update({bad})[0];
      CHECK(step.held);
      CHECK(same_bits(step.lambda, lambda));
      CHECK(memory_of(pid) == before);
    }
    CHECK(pid.state().held[0] == 3);
    for (int t = 0; t < 100; ++t) {
      const gdpo::PidStep& step = pid.update({40.0})[0];
      CHECK(!step.held);
      CHECK(same_bits(step.lambda, undisturbed.update({40.0})[0].lambda));
    }
    CHECK(pid.lambda(0) > 0);
    CHECK(memory_of(pid) == gdpo::to_bytes(undisturbed.state()));
  }
}

TEST_CASE("the positional output, added up, integrates twice") {
  naive_pid::Docstring docstring{0.1, 0.01};
  PidLagrangian positional(gdpo::pid::stooke(0.1, 0.01, 0)), ours;
  for (int t = 0; t < 100; ++t) {
    docstring(1);
    positional.update({1.0});
    ours.update({1.0});
  }
  CHECK(rounds_to(docstring.lambda, 60.5, 0.1));
  CHECK(rounds_to(positional.lambda(0), 1.1, 0.1));
  // 100 additions.
  CHECK(std::abs(ours.lambda(0) - (2 + 100 * 0.05)) < 200 * tolerance::formula);
}

TEST_CASE("a multiplier in the logarithm sticks to zero") {
  const auto steps_to_one = [](auto rule) {
    int steps = 1;
    while (rule(1.0) < 1) ++steps;
    return steps;
  };
  const auto of = [&](const PidGains& gains) {
    PidLagrangian pid(gains);
    return steps_to_one([&](double e) { return pid.update({e})[0].lambda; });
  };
  CHECK(steps_to_one(naive_pid::SafeRlhfLog{0.1, std::log(1e-3)}) == 9994);
  CHECK(of(gdpo::pid::safe_rlhf_log(0.1, 1e-3)) == 9994);
  CHECK(steps_to_one(naive_pid::DualAscent{0.1, 1e-3}) == 10);
  CHECK(of(gdpo::pid::dual_ascent(0.1, 1e-3)) == 10);
  CHECK(of(PidGains{}) == 1);
}

TEST_CASE("Adam and RMSprop move a multiplier as fast for a thousandth of a violation") {
  const auto moved = [](auto rule, double start, double e) {
    double lambda = start;
    for (int t = 0; t < 5; ++t) lambda = rule(e);
    return lambda - start;
  };
  const auto of = [&](const PidGains& gains, double e) {
    PidLagrangian pid(gains);
    return moved([&](double x) { return pid.update({x})[0].lambda; }, pid.lambda(0), e);
  };
  for (const double e : {1e-3, 1.0, 1e3}) {
    CHECK(rounds_to(moved(naive_pid::DualAscentAdam{}, 0.001, e), 0.175, 0.001));
    CHECK(rounds_to(of(gdpo::pid::dual_ascent_adam(), e), 0.175, 0.001));
    // RMSprop: the sum of 0.035 / sqrt(1 - 0.99^t) over five steps t. The first is ten rates.
    CHECK(rounds_to(moved(naive_pid::DualAscentRmsProp{}, 0.001, e), 1.136, 0.001));
    CHECK(rounds_to(of(gdpo::pid::dual_ascent_rmsprop(), e), 1.136, 0.001));
  }
  CHECK(std::abs(of(PidGains{}, 1e-3) - 1e-3 * of(PidGains{}, 1)) < tolerance::formula);
}

TEST_CASE("an average from zero has hardly seen its first errors") {
  naive_pid::OmniSafe published = omnisafe_at(0);
  PidGains g;
  g.p_ema = 0.95;
  PidLagrangian ours(g), by_default;
  for (int t = 1; t <= 200; ++t) {
    published(3);
    const double share = published.p / 3;
    if (t == 1) CHECK(rounds_to(share, 0.05, 0.01));
    if (t == 13) CHECK(share < 0.5);
    if (t == 14) CHECK(rounds_to(share, 0.51, 0.01));
    if (t == 44) CHECK(share < 0.9);
    if (t == 45) CHECK(rounds_to(share, 0.90, 0.01));
    // With bias correction, the average of a constant error is that error from the first step on.
    CHECK(std::abs(ours.update({3.0})[0].p - g.kp * 3) < tolerance::formula);
    CHECK(std::abs(by_default.update({3.0})[0].p - g.kp * 3) < tolerance::formula);
  }
}

TEST_CASE("a limit that cannot be met is counted and does not wind up") {
  PidLagrangian pid;
  std::int64_t counted = 0, longest = 0;
  const Run r = plant::run(
      [&](double j) {
        const gdpo::PidStep& step = pid.update({j})[0];
        counted = step.lambda == 10 ? counted + 1 : 0;
        longest = std::max(longest, counted);
        CHECK(step.saturated == (counted > 0));
        CHECK(step.saturated_steps == counted);
        CHECK(pid.state().saturated_steps[0] == counted);
        CHECK(step.i <= 10);
        return step.lambda;
      },
      // lambda_max = 10 pushes by 1, less than the drift of the first 500 steps.
      [](int t) { return t < 500 ? 1.5 : 0.5; }, 0.1, 2000);
  CHECK(longest > 490);
  CHECK(r.violation[499] > 200);
  CHECK(counted == 0);
  CHECK(std::abs(r.violation.back()) < 1e-9);
  CHECK(std::abs(r.undershoot()) < 2);
}

TEST_CASE("the default settles on plants that answer ninety times more or less") {
  struct Case {
    double b, peak, undershoot;
  };
  // A multiplier of 5 holds each of these plants. The damping, Kp sqrt(b / Ki) / 2, is 0.45, 0.77,
  // 1.4, 2.4 and 4.2, less the effect of the average's lag.
  for (const Case& c : {Case{0.01, 1.30, -0.26}, Case{0.03, 1.71, -0.02}, Case{0.1, 2.16, 0},
                        Case{0.3, 2.50, 0}, Case{0.9, 4.50, 0}}) {
    INFO("b " << c.b);
    PidLagrangian pid;
    const Run r = plant::run([&](double j) { return pid.update({j})[0].lambda; },
                             [&](int) { return 5 * c.b; }, c.b, 2000);
    CHECK(rounds_to(r.first_peak(), c.peak, 0.01));
    CHECK(rounds_to(r.undershoot(), c.undershoot, 0.01));
    CHECK(decay(r) < 1e-3);
  }
}

}  // namespace pid_plant_test
