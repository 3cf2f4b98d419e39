// labels: sanitizers
// The messages of mistakes with a controller that stand in no table of tests/refusals, and the
// published rules, whose settings are accepted.
#include <gdpo/constraint/published.hpp>
#include <support/catch.hpp>
#include <support/message.hpp>
#include <support/tolerance.hpp>

namespace pid_errors_test {

namespace {

using gdpo::PidGains;
using gdpo::PidLagrangian;
using gdpo::SetPoint;
using gdpo::SumCount;

const double no = std::nan(""), infinite = gdpo::math::infinity;

/// The message about a setting out of range.
std::string given(const std::string& member, double value, const std::string& needed) {
  return "gdpo::PidLagrangian: gains[0]." + member + ": given " + gdpo::contract::text(value) +
         "; needed: " + needed;
}

}  // namespace

TEST_CASE("each published rule is a valid setting") {
  namespace pid = gdpo::pid;
  using gdpo::LambdaNorm;
  for (const PidGains& g :
       {PidGains{}, pid::stooke(0.1, 0.01, 0), pid::omnisafe(), pid::omnisafe(LambdaNorm::Diff),
        pid::omnisafe(LambdaNorm::None, 5), pid::omnisafe(LambdaNorm::None, 5, 0.75),
        pid::nupi(1, 1), pid::nupi(1, 1, 0.9, gdpo::EmaStart::AfterFirst), pid::dual_ascent(0.1),
        pid::dual_ascent_adam(), pid::dual_ascent_rmsprop(), pid::safe_rlhf_log()}) {
    CHECK(message_of([&] { gdpo::detail::check_fields("test", "gains", g); }) == "no error");
    const PidLagrangian pid(g);
    CHECK(pid.lambda(0) == g.lambda_init);
    CHECK(pid.last()[0].lambda == g.lambda_init);
    CHECK((!pid.last()[0].held && !pid.last()[0].saturated));
  }
  CHECK(pid::dual_ascent(0.1, 0.5, 3).lambda_init == 0.5);
  CHECK(pid::dual_ascent_adam(0.1, 0.5, 3).lambda_max == 3);
  const PidGains rmsprop = pid::dual_ascent_rmsprop(0.1, 0.5, 3);
  CHECK((rmsprop.ki == 0.1 && rmsprop.lambda_init == 0.5 && rmsprop.lambda_max == 3));
  CHECK((rmsprop.beta2 == 0.99 && rmsprop.adam_eps == 1e-8));
  CHECK(pid::omnisafe(LambdaNorm::Sum, 100, 0.75).lambda_init == 0.75);
}

TEST_CASE("a published rule takes a negative initial multiplier as its source does") {
  namespace pid = gdpo::pid;
  // The gradient methods start at 0.
  for (const PidGains& g : {pid::dual_ascent(0.25, -2), pid::dual_ascent_adam(0.25, -2),
                            pid::dual_ascent_rmsprop(0.25, -2), pid::dual_ascent(0.25, -infinite)})
    CHECK(PidLagrangian(g).lambda(0) == 0);
  CHECK(PidLagrangian(pid::dual_ascent(0.25, -2)).update({3.0})[0].lambda == 0.75);
  CHECK(message_of([] { PidLagrangian{pid::dual_ascent(0.25, no)}; }) ==
        given("lambda_init", no, "a finite number"));
  // OmniSafe's integral starts below 0; one update later it is at least 0.
  PidGains g = pid::omnisafe(gdpo::LambdaNorm::Sum, 100, -1);
  g.kp = g.kd = 0, g.ki = 0.25;
  PidLagrangian above(g), still_below(g);
  CHECK(above.lambda(0) == 0);
  CHECK((above.last()[0].i == -1 && above.last()[0].lambda == 0));
  CHECK(above.update({5.0})[0].lambda == 0.25);
  CHECK(above.update({5.0})[0].lambda == 1.5);
  CHECK(still_below.update({3.0})[0].i == 0);  // -0.25, cut off
  CHECK(still_below.update({5.0})[0].lambda == 1.25);
  // A multiplier that is kept in its logarithm cannot be negative.
  CHECK(message_of([] { PidLagrangian{pid::safe_rlhf_log(0.1, -2)}; }) ==
        given("lambda_init", -2, "0 to lambda_max"));
}

TEST_CASE("a controller needs one set of gains and one set-point for each constraint") {
  const std::string one_each = "; needed: one of each for every constraint, one at least";
  const std::string prefix = "gdpo::PidLagrangian: gains, set_points: given ";
  const auto sizes = [](std::size_t gains, std::size_t points) {
    return message_of([&] {
      PidLagrangian{std::vector<PidGains>(gains), std::vector<SetPoint>(points)};
    });
  };
  CHECK(sizes(1, 2) == prefix + "1 and 2" + one_each);
  CHECK(sizes(2, 1) == prefix + "2 and 1" + one_each);
  CHECK(sizes(0, 0) == prefix + "0 and 0" + one_each);
  CHECK(message_of([] {
          PidLagrangian{PidGains{}, std::vector<SetPoint>{}};
        }) == prefix + "0 and 0" + one_each);
  for (const gdpo::index_t none : {0, -3}) {
    CHECK(message_of([&] {
            PidLagrangian{PidGains{}, none};
          }) == "gdpo::PidLagrangian: constraints: given " + std::to_string(none) +
                    "; needed: at least 1");
  }
  CHECK(message_of([] {
          PidLagrangian{PidGains{}, std::numeric_limits<gdpo::index_t>::max()};
        }) == "gdpo::PidLagrangian: constraints: given 9223372036854775807; needed: at most 2^20");
  PidGains bad;
  bad.d_delay = 0;
  CHECK(message_of([&] {
          PidLagrangian{std::vector<PidGains>{{}, bad}, std::vector<SetPoint>(2)};
        }) ==
        "gdpo::PidLagrangian: gains[1].d_delay: given 0; needed: 1 to 65536 (as many measurements "
        "are kept)");
}

TEST_CASE("an update with another number of values, or a count below 0, changes nothing") {
  PidLagrangian pid(PidGains{}, 3);
  pid.update({1.0, 2.0, 3.0});
  const std::vector<unsigned char> before = gdpo::to_bytes(pid.state());
  const auto said = [&](const auto& call) {
    const std::string message = message_of(call);
    CHECK(gdpo::to_bytes(pid.state()) == before);
    return message;
  };
  const auto values = [](int n) {
    return "gdpo::PidLagrangian::update: values: given " + std::to_string(n) +
           "; needed: one for each of the 3 constraints";
  };
  const auto count = [](int c, double n) {
    return "gdpo::PidLagrangian::update: reduced(" + std::to_string(c) + ").count: given " +
           gdpo::contract::text(n) + "; needed: a count of at least 0";
  };
  CHECK(said([&] { pid.update({1.0, 2.0}); }) == values(2));
  CHECK(said([&] { pid.update(std::vector<double>(4)); }) == values(4));
  CHECK(said([&] { pid.update(std::vector<double>{}); }) == values(0));
  CHECK(said([&] { pid.update({SumCount{1, 1}}); }) == values(1));
  CHECK(said([&] { pid.update(std::vector<SumCount>(2)); }) == values(2));
  CHECK(said([&] {
          pid.update({SumCount{1, 1}, SumCount{1, 1}, SumCount{1, -1}});
        }) == count(2, -1));
  CHECK(said([&] {
          pid.update({SumCount{1, 1}, SumCount{1, -infinite}, SumCount{1, 1}});
        }) == count(1, -infinite));
}

TEST_CASE("a controller's constraints have its multipliers and limits") {
  const std::vector<SetPoint> points{{1, 0.5, gdpo::Bound::AtMost}, {-2, 4, gdpo::Bound::AtLeast}};
  PidLagrangian pid(PidGains{}, points);
  pid.update({2.0, -7.0});
  const auto list = pid.constraints({3, 1}, gdpo::Signal::Hinge);
  CHECK(list.size() == 2);
  for (gdpo::index_t c = 0; c < 2; ++c) {
    const SetPoint& s = points[static_cast<std::size_t>(c)];
    CHECK(list[c].reward == (c == 0 ? 3 : 1));
    CHECK(same_bits(list[c].lambda, pid.lambda(c)));
    CHECK(list[c].lambda > 0);
    CHECK((list[c].limit == s.limit && list[c].scale == s.scale && list[c].bound == s.bound));
    CHECK(list[c].signal == gdpo::Signal::Hinge);
  }
  CHECK(pid.constraints({0, 1})[0].signal == gdpo::Signal::Linear);
  CHECK(message_of([&] { pid.constraints({1}); }) ==
        "gdpo::PidLagrangian::constraints: rewards: given 1 rewards; needed: one for each of the 2 "
        "constraints");
  CHECK(message_of([&] {
          pid.constraints({1, 2, 3});
        }) ==
        "gdpo::PidLagrangian::constraints: rewards: given 3 rewards; needed: one for each of the 2 "
        "constraints");

  for (const gdpo::index_t none : {-1, 2}) {
    CHECK(message_of([&] { pid.lambda(none); }) == "gdpo::PidLagrangian::lambda: c: given " +
                                                       std::to_string(none) +
                                                       "; needed: one of 2 constraints");
  }
}

TEST_CASE("a controller that is fed with errors knows no limits") {
  for (PidLagrangian pid :
       {PidLagrangian{}, PidLagrangian{PidGains{}}, PidLagrangian{PidGains{}, 1}}) {
    CHECK(pid.update({1.0})[0].lambda > 0);  // an error above 0 is a violation
    CHECK(message_of([&] { pid.constraints({0}); }) ==
          "gdpo::PidLagrangian::constraints: set_points: given none: this controller is fed with "
          "errors; needed: a "
          "controller of set-points, which have the limits of rewards");
  }
}

}  // namespace pid_errors_test
