// labels: sanitizers
// The messages of mistakes with a controller; values just inside the bounds are accepted.
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

template <class Change>
std::string of_gains(const Change& change) {
  PidGains g;
  change(g);
  return message_of([&] { PidLagrangian{g}; });
}
template <class T>
std::string set(T PidGains::*member, T value) {
  return of_gains([&](PidGains& g) { g.*member = value; });
}
/// The message about a setting out of range.
std::string given(const std::string& member, double value, const std::string& needed) {
  return "gdpo::PidLagrangian: gains[0]." + member + ": given " + gdpo::contract::text(value) +
         "; needed: " + needed;
}

}  // namespace

TEST_CASE("settings of a controller that are out of range are named") {
  struct Member {
    const char* name;
    double PidGains::*member;
  };
  const std::string finite = "a finite number";
  for (const Member& m :
       {Member{"kp", &PidGains::kp}, Member{"ki", &PidGains::ki}, Member{"kd", &PidGains::kd}}) {
    for (const double bad : {no, infinite, -infinite})
      CHECK(set(m.member, bad) == given(m.name, bad, finite));
    for (const double good : {0.0, -1.0, 1e300}) CHECK(set(m.member, good) == "no error");
  }
  for (const Member& m : {Member{"p_ema", &PidGains::p_ema}, Member{"d_ema", &PidGains::d_ema},
                          Member{"beta1", &PidGains::beta1}, Member{"beta2", &PidGains::beta2}}) {
    for (const double bad : {-0.1, 1.0, 1.5, infinite, no}) {
      CHECK(set(m.member, bad) == given(m.name, bad, "0 to below 1"));
    }
    for (const double good : {0.0, 0.5, 1 - 0x1p-53}) CHECK(set(m.member, good) == "no error");
  }
  struct Bound {
    const char* name;
    double PidGains::*member;
    const char* infinity;
  };
  for (const Bound& m : {Bound{"integral_max", &PidGains::integral_max, "off"},
                         Bound{"lambda_max", &PidGains::lambda_max, "off"},
                         Bound{"adam_eps", &PidGains::adam_eps, "no step"}}) {
    const std::string needed = std::string("at least 0 (infinity: ") + m.infinity + ")";
    for (const double bad : {-1e-300, -infinite, no})
      CHECK(set(m.member, bad) == given(m.name, bad, needed));
    for (const double good : {0.0, 0.5, infinite}) CHECK(set(m.member, good) == "no error");
  }
  // An integral may begin below 0; a multiplier, which is the memory of the other forms, may not.
  for (const double bad : {infinite, -infinite, no})
    CHECK(set(&PidGains::lambda_init, bad) == given("lambda_init", bad, finite));
  CHECK(set(&PidGains::lambda_init, 10.5) == given("lambda_init", 10.5, "at most lambda_max"));
  for (const double good : {10.0, 0.0, -0.5, -1e300})
    CHECK(set(&PidGains::lambda_init, good) == "no error");
  for (const gdpo::PidForm form :
       {gdpo::PidForm::Velocity, gdpo::PidForm::Adam, gdpo::PidForm::RmsProp, gdpo::PidForm::Log}) {
    const auto begins_at = [&](double x) {
      return of_gains([&](PidGains& g) { g.form = form, g.kp = 0, g.lambda_init = x; });
    };
    for (const double bad : {-0.5, -5e-324, 10.5})
      CHECK(begins_at(bad) == given("lambda_init", bad, "0 to lambda_max"));
    for (const double bad : {infinite, no})
      CHECK(begins_at(bad) == given("lambda_init", bad, finite));
    CHECK(begins_at(10.0) == "no error");
  }

  // As many measurements are kept, so the number has a bound.
  for (const int bad : {0, -1000, PidGains::largest_d_delay + 1, std::numeric_limits<int>::max()}) {
    CHECK(set(&PidGains::d_delay, bad) ==
          given("d_delay", bad, "1 to 65536 (as many measurements are kept)"));
  }
  for (const int good : {1, PidGains::largest_d_delay})
    CHECK(set(&PidGains::d_delay, good) == "no error");

  const auto begins = [](double at, double highest, gdpo::PidForm form) {
    return of_gains(
        [&](PidGains& g) { g.lambda_init = at, g.integral_max = highest, g.form = form; });
  };
  CHECK(begins(0.5, 0.25, gdpo::PidForm::Positional) ==
        given("lambda_init", 0.5,
              "at most integral_max, because the integral begins at lambda_init"));
  CHECK(begins(0.5, 0.5, gdpo::PidForm::Positional) == "no error");
  CHECK(begins(-0.5, 0, gdpo::PidForm::Positional) == "no error");
  // This form has no integral.
  CHECK(begins(0.5, 0.25, gdpo::PidForm::Velocity) == "no error");

  for (const gdpo::EmaStart start : {gdpo::EmaStart::BiasCorrected, gdpo::EmaStart::AfterFirst}) {
    CHECK(
        set(&PidGains::d_start, start) ==
        "gdpo::PidLagrangian: gains[0].d_start: given a start of averages of errors; needed: zero "
        "or first_value");
    CHECK(set(&PidGains::p_start, start) == "no error");
  }
  // A number that is no enumerator would switch the constraint off for ever.
  CHECK(set(&PidGains::form, static_cast<gdpo::PidForm>(9)) ==
        "gdpo::PidLagrangian: gains[0].form: given 9, which is no enumerator; needed: one of "
        "positional, velocity, adam, rms_prop, log");
  CHECK(set(&PidGains::p_start, static_cast<gdpo::EmaStart>(4)).find("gains[0].p_start: given 4") !=
        std::string::npos);
  for (const int bad : {-1, 2}) {
    CHECK(set(&PidGains::anti_windup, static_cast<gdpo::AntiWindup>(bad))
              .find("gains[0].anti_windup: given " + std::to_string(bad)) != std::string::npos);
  }
  for (const gdpo::PidForm form :
       {gdpo::PidForm::Adam, gdpo::PidForm::RmsProp, gdpo::PidForm::Log}) {
    const auto with = [&](double kp, double kd) {
      return of_gains([&](PidGains& g) { g.form = form, g.kp = kp, g.kd = kd, g.lambda_init = 1; });
    };
    const std::string rate = "gdpo::PidLagrangian: gains[0].kp, gains[0].kd: given ";
    CHECK(with(2, 0) == rate + "2 and 0; needed: 0: this form has a rate, ki, alone");
    CHECK(with(0, 0.5) == rate + "0 and 0.5; needed: 0: this form has a rate, ki, alone");
    CHECK(with(0, 0) == "no error");
  }
  CHECK(of_gains([](PidGains& g) { g.form = gdpo::PidForm::Log, g.kp = 0; }) ==
        given("lambda_init", 0, "above 0: a multiplier of 0 stays 0 in this form"));
}

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

  const auto point = [](double limit, double scale) {
    return message_of([&] { PidLagrangian{PidGains{}, {SetPoint{}, {limit, scale}}}; });
  };
  const std::string at = "gdpo::PidLagrangian: set_points[1].";
  for (const double value : {no, infinite, -infinite}) {
    CHECK(point(value, 1) ==
          at + "limit: given " + gdpo::contract::text(value) + "; needed: a finite number");
  }
  for (const double value : {0.0, -1.0, 5e-324, no, infinite}) {
    CHECK(point(0, value) == at + "scale: given " + gdpo::contract::text(value) +
                                 "; needed: a finite number that is more than 0 (its inverse too)");
  }
  CHECK(point(-1e300, 1e-300) == "no error");
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
