// Controllers compiled with -ffast-math. A measurement that is not finite holds a controller and
// changes no byte of its state; set-points and settings that are no numbers are refused; and the
// forms give the numbers that were worked out by hand.
#include <gdpo/constraint/adaptive_kl.hpp>
#include <gdpo/constraint/published.hpp>

#include "support/exact.hpp"

using exact::bits, exact::expect, exact::refused;
using gdpo::PidGains, gdpo::PidLagrangian, gdpo::PidStep, gdpo::SumCount;

namespace {

const double bad_numbers[] = {exact::nan(), exact::from_bits(0xfff8000000000000u),
                              exact::infinity(), exact::from_bits(0xfff0000000000000u)};

/// Whether `got` is a number within `tolerance` of `expected`. That it is a number is decided by
/// its bits, because under -ffast-math a comparison with NaN may give anything.
bool near_to(double got, double expected, double tolerance) {
  const double distance = got > expected ? got - expected : expected - got;
  return (bits(got) & 0x7ff0000000000000u) != 0x7ff0000000000000u && distance <= tolerance;
}

/// The bytes of the state without its counter of held calls.
std::vector<unsigned char> memory_of(const PidLagrangian& pid) {
  gdpo::PidState state = pid.state();
  state.held.assign(state.held.size(), 0);
  return gdpo::to_bytes(state);
}

/// Measurements that are not finite hold the controller: only the counter of held calls changes.
void held(const char* what, const PidGains& gains) {
  PidLagrangian pid(gains, {{25, 2, gdpo::Bound::AtMost}, {-1, 0.5, gdpo::Bound::AtLeast}});
  for (int t = 0; t < 5; ++t) pid.update({30.0, -3.0});
  const std::vector<unsigned char> before = memory_of(pid);
  const std::uint64_t lambda = bits(pid.lambda(0));
  std::int64_t calls = 0;
  for (const double bad : bad_numbers) {
    // As a mean, as a sum, and as a count; a count of minus infinity is a mistake of the caller.
    expect(what, pid.update({bad, bad})[0].held && pid.last()[1].held);
    expect(what, pid.update({SumCount{bad, 4}, SumCount{bad, 4}})[0].held);
    calls += 2;
    if (bits(bad) == 0xfff0000000000000u) continue;
    expect(what, pid.update({SumCount{1, bad}, SumCount{1, bad}})[0].held);
    ++calls;
  }
  expect(what, pid.update({SumCount{1, 0}, SumCount{0, 0}})[1].held);
  expect(what, memory_of(pid) == before && bits(pid.lambda(0)) == lambda &&
                   bits(pid.last()[0].lambda) == lambda);
  expect("calls that were held are counted",
         pid.state().held[0] == calls + 1 && pid.state().held[1] == calls + 1);
  const PidStep& other = pid.update({exact::nan(), -3.0})[1];
  expect("the other constraint is updated",
         !other.held && pid.last()[0].held && memory_of(pid) != before);
}

/// Measures each of `values` in turn and expects exactly these multipliers.
void multipliers(const char* what, const PidGains& gains, const std::vector<double>& values,
                 const std::vector<double>& expected) {
  PidLagrangian pid(gains, {{1, 2, gdpo::Bound::AtMost}});
  std::vector<double> lambda;
  for (const double x : values) lambda.push_back(pid.update({x})[0].lambda);
  exact::same(what, lambda, expected);
}

/// The largest violation of the steps first .. last - 1 in the closed loop of support/plant.hpp.
double largest_violation(const PidGains& gains, int first, int last) {
  PidLagrangian pid(gains);
  double j = 0, lambda = 0, largest = 0;
  for (int t = 0; t < last; ++t) {
    j += 0.5 - 0.1 * lambda;
    lambda = pid.update({j})[0].lambda;
    if (t >= first && j > largest) largest = j;
  }
  return largest;
}

void settings() {
  for (double PidGains::*member :
       {&PidGains::kp, &PidGains::ki, &PidGains::kd, &PidGains::p_ema, &PidGains::d_ema,
        &PidGains::integral_max, &PidGains::lambda_init, &PidGains::lambda_max, &PidGains::beta1,
        &PidGains::beta2, &PidGains::adam_eps}) {
    PidGains g;
    g.*member = exact::nan();
    expect("NaN settings are refused", refused([&] { PidLagrangian{g}; }));
  }
  for (const double bad : bad_numbers) {
    expect("limits are numbers", refused([&] { PidLagrangian{PidGains{}, {{bad, 1}}}; }));
    expect("scales are numbers", refused([&] { PidLagrangian{PidGains{}, {{0, bad}}}; }));
    PidLagrangian pid;
    gdpo::PidState state = pid.state();
    state.d_average[0] = bad;
    expect("states are numbers", refused([&] { pid.restore(state); }));
  }
}

}  // namespace

int main() {
  PidGains delayed, averaged;
  delayed.kd = 1, delayed.d_delay = 3, delayed.d_ema = 0.5;
  averaged.p_start = gdpo::EmaStart::AfterFirst, averaged.anti_windup = gdpo::AntiWindup::None;
  held("default", PidGains{});
  held("delay", delayed);
  held("no anti-windup", averaged);
  held("OmniSafe", gdpo::pid::omnisafe());
  held("nuPI", gdpo::pid::nupi(1, 0.5, 0.5));
  held("Adam", gdpo::pid::dual_ascent_adam());
  held("RMSprop", gdpo::pid::dual_ascent_rmsprop());
  held("Log", gdpo::pid::safe_rlhf_log());
  settings();

  // The values are errors of 1, 2, -1, 20, -20 and 1; lambda = e + I, I growing by 0.25 e.
  PidGains g;
  g.kp = 1, g.ki = 0.25, g.p_ema = 0, g.lambda_max = 4;
  multipliers("positional", g, {3, 5, -1, 41, -39, 3}, {1.25, 2.75, 0, 4, 0, 1.25});
  g.lambda_max = exact::infinity();
  multipliers("positional without a bound", g, {3, 5, -1, 41, -39, 3},
              {1.25, 2.75, 0, 25.5, 0, 1.75});
  g.form = gdpo::PidForm::Velocity;
  multipliers("velocity", g, {3, 5, -1, 41, -39, 3}, {1.25, 2.75, 0, 26, 0, 21.25});
  g = gdpo::pid::dual_ascent(0.5, 1);
  multipliers("gradient ascent", g, {3, 5, -1, 41, -39, 3}, {1.5, 2.5, 2, 12, 2, 2.5});

  // The average of squares is 0.25, then 0.1875; the first step is 0.5 / (sqrt(0.25) + 0.5).
  g = gdpo::pid::dual_ascent_rmsprop(0.5, 1);
  g.beta2 = 0.75, g.adam_eps = 0.5;
  multipliers("RMSprop", g, {3, 1}, {1.5, 1.5});
  PidLagrangian adam(gdpo::pid::dual_ascent_adam(0.25, 1)),
      log(gdpo::pid::safe_rlhf_log(0.5, 1, 5));
  expect("Adam", near_to(adam.update({1e-3})[0].lambda, 1.25, 1e-5));
  expect("Log", near_to(log.update({1.0})[0].lambda, 1.6487212707001282, 1e-14));
  expect("Log at its bound",
         bits(log.update({1e6})[0].lambda) == bits(5.0) && log.last()[0].saturated);

  expect("an integral alone oscillates",
         near_to(largest_violation(gdpo::pid::stooke(0, 0.01, 0), 1500, 2000), 15.81, 0.01));
  expect("the default settles", near_to(largest_violation(PidGains{}, 0, 500), 2.159, 1e-3) &&
                                    near_to(largest_violation(PidGains{}, 1500, 2000), 0, 1e-9));

  const gdpo::AdaptiveKl kl;
  for (const double bad : bad_numbers)
    expect("a KL that is no number", bits(kl(0.25, bad, 64)) == bits(0.25));
  expect("a coefficient that is no number", refused([&] { kl(exact::nan(), 0.1, 64); }));
  expect("adaptive KL", near_to(kl(0.25, 5, 100), 0.25 * 1.002, 1e-15));
  return exact::failures == 0 ? 0 : 1;
}
