// Random settings, set-points and measurements for the PID controllers.
#pragma once
#include <gdpo/constraint/pid.hpp>
#include <support/generators.hpp>
#include <vector>

namespace random_pid {

inline double between(Random& random, double low, double high) {
  return low + (high - low) * random.uniform();
}

/// Random gains of one form. Every setting is varied, and switched off in some of the draws.
inline gdpo::PidGains gains(Random& random, gdpo::PidForm form) {
  using namespace gdpo;
  PidGains g;
  g.form = form;
  const bool rate_alone = form == PidForm::Adam || form == PidForm::RmsProp || form == PidForm::Log;
  g.kp = rate_alone ? 0 : random.pick({0.0, 0.5, 2.0, between(random, 0, 3)});
  g.ki = between(random, 0, 0.3);
  g.kd = rate_alone ? 0 : random.pick({0.0, 0.5, 1.0, between(random, 0, 3)});
  g.p_ema = random.pick({0.0, 0.5, 0.95, random.uniform()});
  g.p_start = random.pick(
      {EmaStart::Zero, EmaStart::BiasCorrected, EmaStart::FirstValue, EmaStart::AfterFirst});
  g.d_ema = random.pick({0.0, 0.9, random.uniform()});
  g.d_delay = random.pick({1, 2, 3, 10});
  g.d_start = random.pick({EmaStart::Zero, EmaStart::FirstValue});
  g.integral_max = random.pick({math::infinity, 1.5});
  g.anti_windup = random.pick({AntiWindup::None, AntiWindup::Conditional});
  g.lambda_max = random.pick({math::infinity, 10.0, 2.0, 0.5});
  // Without a bound, the exponential of PidForm::Log overflows on some walks.
  if (form == PidForm::Log) g.lambda_max = (std::min)(g.lambda_max, 10.0);
  g.lambda_init = random.pick({0.25, 0.5});
  // The integral alone may begin below 0.
  if (form == PidForm::Positional && random.chance(0.25)) g.lambda_init = -0.4;
  g.beta1 = random.pick({0.9, 0.0, random.uniform()});
  g.beta2 = random.pick({0.999, 0.99, 0.5});
  g.adam_eps = random.pick({1e-8, 1e-3, 0.0});
  return g;
}
inline gdpo::PidForm form(Random& random) {
  using F = gdpo::PidForm;
  return random.pick({F::Positional, F::Positional, F::Velocity, F::Adam, F::RmsProp, F::Log});
}
inline gdpo::PidGains gains(Random& random) { return gains(random, form(random)); }

inline gdpo::SetPoint set_point(Random& random) {
  gdpo::SetPoint s;
  s.limit = random.pick({0.0, 25.0, between(random, -3, 3)});
  s.scale = random.pick({1.0, 0.5, between(random, 0.1, 4)});
  s.bound = random.pick({gdpo::Bound::AtMost, gdpo::Bound::AtLeast});
  return s;
}

/// Values that wander around the limit, a few scales to either side, and are exactly the limit now
/// and then.
class Walk {
 public:
  Walk(const gdpo::SetPoint& point) : point_(point) {}
  double operator()(Random& random) {
    if (random.chance(0.02)) at_ = random.pick({0.0, 1.0, -1.0});
    at_ = 0.98 * at_ + between(random, -0.5, 0.5);
    if (random.chance(0.05)) return point_.limit;
    return point_.limit + point_.scale * at_;
  }

 private:
  gdpo::SetPoint point_;
  double at_ = 0;
};

/// The measurement of one constraint for one update: the sum over 1 to 50 samples. With probability
/// `lost` there are no samples, or a sum or count that is not finite.
inline gdpo::SumCount measurement(Random& random, Walk& walk, double lost) {
  const double value = walk(random);
  if (random.chance(lost)) {
    const double no = gdpo::math::nan(), infinite = gdpo::math::infinity;
    return random.pick<gdpo::SumCount>({{0, 0},
                                        {value, 0},
                                        {no, 1},
                                        {infinite, 3},
                                        {-infinite, 3},
                                        {value, no},
                                        {value, infinite},
                                        {no, 0}});
  }
  const double count = random.chance(0.5) ? 1 : 1 + random.below(50);
  return {value * count, count};
}

/// The gains and set-points of several constraints, with a walk for each.
struct Case {
  std::vector<gdpo::PidGains> gains;
  std::vector<gdpo::SetPoint> set_points;
  std::vector<Walk> walks;
  std::size_t size() const { return gains.size(); }
  gdpo::PidLagrangian controller() const { return {gains, set_points}; }
  std::vector<gdpo::SumCount> measure(Random& random, double lost = 0.1) {
    std::vector<gdpo::SumCount> all;
    for (Walk& walk : walks) all.push_back(measurement(random, walk, lost));
    return all;
  }
};
inline Case some_case(Random& random, int constraints) {
  Case c;
  for (int i = 0; i < constraints; ++i) {
    c.gains.push_back(gains(random));
    c.set_points.push_back(set_point(random));
    c.walks.emplace_back(c.set_points.back());
  }
  return c;
}

}  // namespace random_pid
