// labels: sanitizers
// A limit that moves during a run, and a run that is resumed with another one: the multiplier goes
// on from where it is, and what the controller remembers is told against the new limit.
#include <gdpo/constraint/pid.hpp>
#include <support/catch.hpp>
#include <support/message.hpp>
#include <support/random_gains.hpp>
#include <support/tolerance.hpp>

namespace move_set_point_test {

namespace {

using gdpo::Bound;
using gdpo::PidForm;
using gdpo::PidGains;
using gdpo::PidLagrangian;
using gdpo::SetPoint;
using gdpo::SumCount;

/// Another set-point of the same bound.
SetPoint moved(Random& random, const SetPoint& from) {
  SetPoint to = from;
  if (random.chance(0.75)) to.limit += random_pid::between(random, -2, 2);
  if (random.chance(0.5)) to.scale *= random_pid::between(random, 0.3, 3);
  return to;
}

/// What rounding may make of a term that was computed in two ways. Limits and measurements are
/// below 50, scales above 0.03, gains below 4 and the updates few, so terms and what they are
/// differences of are below 50 / 0.03 * 4 = 7e3 in size; each passes through some 100 roundings.
constexpr double tolerated = 100 * 7e3 * tolerance::unit;

}  // namespace

TEST_CASE("a moved limit changes what the controller remembers, and not the multiplier") {
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    random_pid::Case c = random_pid::some_case(random, 1);
    const PidGains& g = c.gains[0];
    const SetPoint to = moved(random, c.set_points[0]);
    PidLagrangian pid = c.controller(), always(c.gains, {to});
    const int before = random.below(30);
    for (int t = 0; t < before; ++t) {
      const std::vector<SumCount> x = c.measure(random);
      pid.update(x), always.update(x);
    }
    const double lambda = pid.lambda(0), output = pid.state().previous[0] + pid.state().integral[0];
    pid.move(0, to);
    REQUIRE(same_bits(pid.lambda(0), lambda));
    REQUIRE(same_bits(pid.last()[0].lambda, lambda));
    const gdpo::PidState &a = pid.state(), &b = always.state();
    REQUIRE((a.set_points[0].limit == to.limit && a.set_points[0].scale == to.scale));
    const double left = b.previous[0];
    if (g.form != PidForm::Adam) {
      // OmniSafe's kick at the start is Kd times the first measurement; the others are smaller.
      REQUIRE(std::abs(a.previous[0] - left) < tolerated);
      REQUIRE(std::abs(a.p_average[0] - b.p_average[0]) < tolerated);
      REQUIRE(std::abs(a.d_average[0] - b.d_average[0]) < tolerated);
    }
    const bool started = a.updates[0] > 0;
    for (int t = 0; t < 2; ++t) {
      const std::vector<SumCount> x = c.measure(random, 0);
      const double last = pid.lambda(0), u = b.previous[0];
      const gdpo::PidStep &step = pid.update(x)[0], &same = always.update(x)[0];
      REQUIRE(std::abs(step.p - same.p) < tolerated);
      REQUIRE(std::abs(step.d - same.d) < tolerated);
      if (step.held || !started) continue;
      // The change is that of the terms under the new limit, and what Ki adds.
      if (g.form == PidForm::Velocity) {
        REQUIRE(std::abs(step.raw - (last + step.i + (same.p + same.d - u))) < 4 * tolerated);
      }
      if (g.form != PidForm::Positional || lambda <= 0 || output >= g.lambda_max || output <= 0)
        continue;
      const double error = gdpo::error_of(to, x[0].sum / x[0].count);
      if (t == 0) {
        REQUIRE(std::abs(step.raw - (output + same.p + same.d - left)) <=
                std::abs(g.ki * error) + 4 * tolerated);
      }
    }
  }
}

TEST_CASE("0.9 becomes 0.95") {
  const SetPoint old_limit{0.9, 0.3}, new_limit{0.95, 0.3};
  PidLagrangian pid(PidGains{}, {old_limit});
  pid.update({0.5});
  const double lambda = pid.lambda(0);  // 2 e + 0.05 e with e = 0.4 / 0.3
  CHECK(std::abs(lambda - 2.05 * 4 / 3) < 1e-12);
  PidLagrangian resumed(PidGains{}, {new_limit});
  resumed.restore(pid.state());
  pid.move(0, new_limit);
  CHECK(gdpo::to_bytes(resumed.state()) == gdpo::to_bytes(pid.state()));
  for (PidLagrangian* each : {&pid, &resumed}) {
    CHECK((each->lambda(0) == lambda && each->constraints({1})[0].limit == 0.95));
    // The integral is below 0 now, so that the proportional term may be larger.
    CHECK(std::abs(each->state().integral[0] - (0.05 * 4 / 3 - 2 * 0.05 / 0.3)) < 1e-12);
    // The same measurement again: p is the same, and only Ki e of the new error is added.
    CHECK(std::abs(each->update({0.5})[0].lambda - (lambda + 0.05 * 1.5)) < 1e-12);
    // Where the limit is met the integral goes no further down, and where it is not, up again.
    const double integral = each->state().integral[0];
    each->update({1.0});
    CHECK(each->state().integral[0] == integral);
    for (int t = 0; t < 100; ++t) each->update({0.5});
    CHECK((each->state().integral[0] > 0 && each->state().adam_m[0] == 0));
    for (int t = 0; t < 200; ++t) each->update({2.0});
    CHECK(each->state().integral[0] == 0);
  }
  // Back at once: what it remembered before, but for rounding.
  PidLagrangian there(PidGains{}, {old_limit});
  there.update({0.5});
  there.move(0, new_limit);
  there.move(0, old_limit);
  CHECK(there.lambda(0) == lambda);
  CHECK(std::abs(there.state().p_average[0] - 0.5 * 4 / 3) < 1e-12);
  CHECK(std::abs(there.state().integral[0] - 0.05 * 4 / 3) < 1e-12);
}

TEST_CASE("an inactive constraint stays inactive, and a full one full") {
  PidGains g;
  g.p_ema = 0;
  for (const double limit : {0.2, 0.8}) {
    PidLagrangian pid(g, {{0.5, 1}});
    for (int t = 0; t < 5; ++t) pid.update({0.7});
    CHECK((pid.lambda(0) == 0 && pid.state().integral[0] == 0));
    pid.move(0, {limit, 1});
    CHECK(pid.lambda(0) == 0);
    // A lower limit leaves the integral at 0. Under a higher one it holds the proportional term
    // back, so that the multiplier rises from 0 on, by Ki e.
    CHECK(std::abs(pid.state().integral[0] - (limit > 0.7 ? -2 * 0.1 : 0.0)) < 1e-12);
    CHECK(std::abs(pid.update({0.7})[0].lambda - (limit > 0.7 ? 0.05 * 0.1 : 0.0)) < 1e-12);
  }
  PidLagrangian full(g, {{0.5, 1}});
  for (int t = 0; t < 5; ++t) full.update({-10.0});
  CHECK((full.lambda(0) == 10 && full.last()[0].saturated));
  full.move(0, {0.4, 1});
  CHECK((full.lambda(0) == 10 && full.last()[0].saturated_steps == 5));
  CHECK(full.update({-10.0})[0].saturated_steps == 6);
}

TEST_CASE("before the first update a moved limit is that of a new controller") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Random random(seed);
    random_pid::Case c = random_pid::some_case(random, 2);
    const std::vector<SetPoint> to{c.set_points[0], moved(random, c.set_points[1])};
    PidLagrangian pid = c.controller(), fresh(c.gains, to);
    pid.update({SumCount{}, SumCount{}}), fresh.update({SumCount{}, SumCount{}});
    pid.move(1, to[1]);
    for (int t = 0; t < 20; ++t) {
      const std::vector<SumCount> x = c.measure(random);
      pid.update(x), fresh.update(x);
    }
    REQUIRE(gdpo::to_bytes(pid.state()) == gdpo::to_bytes(fresh.state()));
  }
}

TEST_CASE("resumed with another limit is moved, and a moved controller resumes with its bits") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    random_pid::Case c = random_pid::some_case(random, 2);
    const std::vector<SetPoint> to{moved(random, c.set_points[0]), c.set_points[1]};
    PidLagrangian pid = c.controller(), resumed(c.gains, to), again(c.gains, to);
    for (int t = 0; t < 20; ++t) pid.update(c.measure(random));
    resumed.restore(pid.state());
    pid.move(0, to[0]);
    REQUIRE(gdpo::to_bytes(resumed.state()) == gdpo::to_bytes(pid.state()));
    for (int t = 0; t < 30; ++t) {
      again.restore(gdpo::pid_state_from_bytes(gdpo::to_bytes(pid.state())));
      const std::vector<SumCount> x = c.measure(random);
      pid.update(x), again.update(x);
      REQUIRE(gdpo::to_bytes(again.state()) == gdpo::to_bytes(pid.state()));
      for (std::size_t i = 0; i < 2; ++i) {
        REQUIRE((pid.lambda(static_cast<gdpo::index_t>(i)) >= 0));
        REQUIRE((pid.lambda(static_cast<gdpo::index_t>(i)) <= c.gains[i].lambda_max));
      }
    }
  }
}

TEST_CASE("moments of a moved limit") {
  // All errors are the same, so the averages are those of one error, and the next is as well.
  for (const PidForm form : {PidForm::Adam, PidForm::RmsProp, PidForm::Velocity}) {
    PidGains g;
    g.form = form;
    if (form != PidForm::Velocity) g.kp = 0;
    const SetPoint from{1, 2, Bound::AtMost}, to{0.5, 1, Bound::AtMost};
    PidLagrangian pid(g, {from}), always(g, {to});
    for (int t = 0; t < 7; ++t) pid.update({4.0}), always.update({4.0});
    pid.move(0, to);
    const gdpo::PidState &a = pid.state(), &b = always.state();
    CHECK(std::abs(a.p_average[0] - b.p_average[0]) < 1e-12);
    CHECK(std::abs(a.adam_m[0] - b.adam_m[0]) < 1e-12);
    CHECK(std::abs(a.adam_v[0] - b.adam_v[0]) < 1e-12);
    CHECK(std::abs(a.previous[0] - b.previous[0]) < 1e-12);
    const double lambda = pid.lambda(0), other = always.lambda(0);
    const double step = always.update({4.0})[0].lambda - other;
    CHECK(std::abs(pid.update({4.0})[0].lambda - (lambda + step)) < 1e-12);
  }
}

TEST_CASE("what cannot be moved is refused, and nothing changes") {
  PidLagrangian pid(PidGains{}, {{0.9, 0.3}, {5, 1, Bound::AtMost}});
  for (int t = 0; t < 3; ++t) pid.update({0.5, 6.0});
  const std::vector<unsigned char> before = gdpo::to_bytes(pid.state());
  const auto said = [&](gdpo::index_t c, const SetPoint& to) {
    std::string message = message_of([&] { pid.move(c, to); });
    CHECK(gdpo::to_bytes(pid.state()) == before);
    return message;
  };
  const std::string move = "gdpo::PidLagrangian::move: ",
                    why = ", because the multiplier of the other bound says nothing about this one";
  CHECK(said(2, {0.9, 0.3}) == move + "c: given 2; needed: one of 2 constraints");
  CHECK(said(-1, {0.9, 0.3}) == move + "c: given -1; needed: one of 2 constraints");
  CHECK(said(0, {0.9, 0.3, Bound::AtMost}) ==
        move + "set_points[0].bound: given AtMost; needed: AtLeast" + why);
  CHECK(said(1, {5, 1}) == move + "set_points[1].bound: given AtLeast; needed: AtMost" + why);
  CHECK(said(0, {gdpo::math::nan(), 1}) ==
        move + "set_points[0].limit: given nan; needed: a finite number");
  CHECK(said(0, {1, 0}) == move +
                               "set_points[0].scale: given 0; needed: a finite number that is more "
                               "than 0 (its inverse too)");
  CHECK(said(0, {1e308, 1e-3}) ==
        move +
            "set_points[0]: given limit 1e+308 and scale 0.001; needed: numbers "
            "in whose units the errors so far are finite");
  // Neither the error in the new unit is finite nor the distance of the limits.
  PidLagrangian far(PidGains{}, {{1e307, 1}});
  far.update({-1e307});
  CHECK(message_of([&] {
          far.move(0, {0, 0.01});
        }) == move +
                  "set_points[0]: given limit 0 and scale 0.01; needed: numbers in whose units the "
                  "errors so far are finite");

  const std::string restore = "gdpo::PidLagrangian::restore: ";
  const auto resumed = [&](PidLagrangian other) {
    const std::vector<unsigned char> own = gdpo::to_bytes(other.state());
    std::string message = message_of([&] { other.restore(pid.state()); });
    CHECK(gdpo::to_bytes(other.state()) == own);
    return message;
  };
  CHECK(resumed(PidLagrangian(PidGains{}, {{0.9, 0.3}, {5, 1}})) ==
        restore + "set_points[1].bound: given AtMost; needed: AtLeast" + why);
  CHECK(resumed(PidLagrangian(PidGains{}, {{0.9, 0.3}, {1e308, 1e-3, Bound::AtMost}})) ==
        restore +
            "set_points[1]: given limit 1e+308 and scale 0.001; needed: numbers "
            "in whose units the errors so far are finite");
  CHECK(resumed(PidLagrangian(PidGains{}, 2)) ==
        restore +
            "state.set_points[0]: given limit 0.90000000000000002 and scale "
            "0.29999999999999999; needed: the state of a controller that is fed with errors, as "
            "this one is");
  CHECK(message_of([] {
          PidLagrangian().move(0, {1, 1, Bound::AtMost});
        }) == move +
                  "c: given a constraint of a controller that is fed with errors; needed: a "
                  "controller of set-points, which have limits to be moved");
}

}  // namespace move_set_point_test
