// Cases of kind pid: a cost or a KL divergence per step in, the multiplier or coefficient after
// each step out. Also the advantages that a multiplier mixes.
#include <gdpo/constraint.hpp>
#include <string>
#include <vector>

#include "comparison.hpp"
#include "params.hpp"
#include "registry.hpp"

namespace conformance {
namespace {

std::vector<double> series(const Case& recorded, const char* name) {
  const Array values = array_of(recorded.inputs.at(name));
  if (values.shape.size() != 1) throw BadGolden(std::string(name) + " must have one axis");
  return values.data;
}

Array of_steps(const std::vector<double>& values) { return {{values.size()}, values}; }

// --- controllers

// The multiplier and the integral of a controller's last constraint, after every cost.
struct Course {
  std::vector<double> lambda, integral;
};

// update(step) feeds a controller the cost of that step and returns the controller.
template <class Update>
Course course(std::size_t steps, const Update& update) {
  Course out;
  for (std::size_t t = 0; t < steps; ++t) {
    const gdpo::PidState& state = update(t).state();
    out.lambda.push_back(state.lambda.back());
    out.integral.push_back(state.integral.back());
  }
  return out;
}

void same_bits(const Course& wanted, const Course& got, const std::string& way,
               Comparison& comparison) {
  const auto first_difference = [&](const char* name, const std::vector<double>& a,
                                    const std::vector<double>& b) {
    std::size_t t = 0;
    while (t < a.size() && gdpo::math::bits_of(a[t]) == gdpo::math::bits_of(b[t])) ++t;
    comparison.law(t == a.size(), t == a.size() ? ""
                                                : way + ": " + name + "[" + std::to_string(t) +
                                                      "] is " + gdpo::contract::text(b[t]) +
                                                      ", not " + gdpo::contract::text(a[t]));
  };
  first_difference("lambda", wanted.lambda, got.lambda);
  first_difference("integral", wanted.integral, got.integral);
}

// Runs a controller over the recorded costs. Laws: it has the same bits when fed with sums and
// counts; when restored from its bytes before every step; and when the constraint is mirrored
// (AtLeast, all signs turned) beside another one, where each is held while the other is updated.
void follow(const gdpo::PidGains& gains, double cost_limit, const Case& recorded,
            Comparison& comparison) {
  only(recorded.inputs, {"costs"});
  const std::vector<double> costs = series(recorded, "costs");
  const std::vector<gdpo::SetPoint> point = {{cost_limit, 1, gdpo::Bound::AtMost}};
  const auto from_costs = [&](const auto& update) { return course(costs.size(), update); };
  using Controller = gdpo::PidLagrangian;

  Controller pid(gains, point);
  const Course got = from_costs([&](std::size_t t) -> const Controller& {
    pid.update({costs[t]});
    return pid;
  });

  Controller summed(gains, point);
  same_bits(got, from_costs([&](std::size_t t) -> const Controller& {
              // A power of two: the mean is exactly the cost.
              const double count = 1 << t % 5;
              summed.update({gdpo::SumCount{gdpo::math::mul(count, costs[t]), count}});
              return summed;
            }),
            "fed with sums and counts", comparison);

  Controller resumed(gains, point);
  same_bits(got, from_costs([&](std::size_t t) -> const Controller& {
              const std::vector<unsigned char> bytes = gdpo::to_bytes(resumed.state());
              resumed = Controller(gains, point);
              resumed.restore(gdpo::pid_state_from_bytes(bytes));
              resumed.update({costs[t]});
              return resumed;
            }),
            "restored before every step", comparison);
  comparison.law(gdpo::to_bytes(resumed.state()) == gdpo::to_bytes(pid.state()),
                 "restored before every step: another state at the end");

  gdpo::PidGains of_another = gains;
  of_another.d_delay += 3;
  Controller pair(std::vector{of_another, gains},
                  {point[0], {-cost_limit, 1, gdpo::Bound::AtLeast}});
  same_bits(got, from_costs([&](std::size_t t) -> const Controller& {
              pair.update({gdpo::math::nan(), -costs[t]});
              pair.update({costs[t], gdpo::math::nan()});
              return pair;
            }),
            "upside down, next to another", comparison);

  comparison.output("lambda", of_steps(got.lambda));
  if (recorded.expected.contains("pid_i")) comparison.output("pid_i", of_steps(got.integral));
}

// omnisafe: its initial Lagrangian multiplier is the initial integral, which may be negative.
void pid_update(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  const bool sum = params.flag("sum_norm"), diff = params.flag("diff_norm");
  if (sum && diff)
    throw Unsupported("parameter sum_norm = true with diff_norm = true is not mapped");
  const gdpo::LambdaNorm norm = sum    ? gdpo::LambdaNorm::Sum
                                : diff ? gdpo::LambdaNorm::Diff
                                       : gdpo::LambdaNorm::None;
  gdpo::PidGains gains = gdpo::pid::omnisafe(norm, params.number("penalty_max"),
                                             params.number("lagrangian_multiplier_init"));
  gains.kp = params.number("pid_kp");
  gains.ki = params.number("pid_ki");
  gains.kd = params.number("pid_kd");
  gains.d_delay = params.integer("pid_d_delay");
  gains.p_ema = params.number("pid_delta_p_ema_alpha");
  gains.d_ema = params.number("pid_delta_d_ema_alpha");
  const double cost_limit = params.number("cost_limit");
  params.remark("first_cost_d");
  params.all_read();
  follow(gains, cost_limit, recorded, comparison);
}

// omnisafe: dual ascent by SGD, Adam or RMSprop. A negative initial multiplier starts at 0.
void update_lagrange_multiplier(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  const std::string optimizer = params.choice("lambda_optimizer", {"Adam", "RMSprop", "SGD"});
  const double rate = params.number("lambda_lr"),
               init = params.number("lagrangian_multiplier_init");
  const double upper_bound = params.at_most("lagrangian_upper_bound"),
               cost_limit = params.number("cost_limit");
  params.remark("optimizer_defaults");
  params.all_read();
  const auto rule = optimizer == "Adam"      ? gdpo::pid::dual_ascent_adam
                    : optimizer == "RMSprop" ? gdpo::pid::dual_ascent_rmsprop
                                             : gdpo::pid::dual_ascent;
  follow(rule(rate, init, upper_bound), cost_limit, recorded, comparison);
}

// verl and openrlhf: the adaptive KL coefficient.
void adaptive_kl(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  gdpo::AdaptiveKl controller;
  controller.target = params.number("target_kl");
  controller.horizon = params.number("horizon");
  params.of_preset("error_clip", gdpo::Bounds{controller.min_error, controller.max_error});
  double coef = params.number("init_kl_coef");
  const double steps = params.number("n_steps");
  params.all_read();
  only(recorded.inputs, {"kl"});
  std::vector<double> coefs;
  for (const double kl : series(recorded, "kl"))
    coefs.push_back(coef = controller(coef, kl, steps));
  comparison.law(controller(coef, gdpo::math::nan(), steps) == coef,
                 "a KL of NaN moves the coefficient");
  comparison.output("value", of_steps(coefs));
}

// --- advantages

// omnisafe: mixes the advantages of reward and cost, both from critics. Laws: the same bits in
// place beside a constraint with multiplier 0; and from a constrained estimator that leaves rewards
// as they are.
void compute_adv_surrogate(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  const double lambda = params.number("lagrangian_multiplier");
  params.all_read();
  only(recorded.inputs, {"reward_advantages", "cost_advantages"});
  const std::vector<double> of_reward = series(recorded, "reward_advantages");
  std::vector<double> of_cost = series(recorded, "cost_advantages");
  if (of_reward.size() != of_cost.size())
    throw BadGolden("reward_advantages and cost_advantages of different lengths");
  const auto n = static_cast<gdpo::index_t>(of_reward.size());
  constexpr auto norm = gdpo::LambdaNorm::Sum;

  std::vector<double> mixed(of_reward.size());
  gdpo::mix_into(gdpo::view(of_reward), gdpo::view(of_cost.data(), 1, n), gdpo::view(&lambda, 1),
                 norm, gdpo::view(mixed));

  std::vector<double> columns;
  for (std::size_t i = 0; i < of_reward.size(); ++i)
    columns.insert(columns.end(), {of_reward[i], of_cost[i]});
  using AsTheyAre = gdpo::GroupAdvantage<gdpo::baseline::None, gdpo::scale::None,
                                         gdpo::combine::SumThenNormalize>;
  const gdpo::Constrained constrained{
      AsTheyAre{}, gdpo::placement::AdvantageMix{norm}, {{1, lambda, 0, 1, gdpo::Bound::AtMost}}};
  const auto placed =
      gdpo::advantages(gdpo::view(columns.data(), n, 2), gdpo::groups_of(n), constrained);
  comparison.law(placed == mixed, "the advantages under a constraint are others");

  std::vector<double> in_place = of_reward;
  of_cost.resize(2 * of_cost.size(), gdpo::math::nan());
  const std::vector<double> lambdas = {lambda, 0};
  gdpo::mix_into(gdpo::view(in_place), gdpo::view(of_cost.data(), 2, n), gdpo::view(lambdas), norm,
                 gdpo::view(in_place));
  comparison.law(in_place == mixed,
                 "in place, beside a constraint that is not at work: other advantages");

  comparison.output("advantages", of_steps(mixed));
}

}  // namespace

void add_constraints(Registry& registry) {
  registry.add("omnisafe", "pid", "PIDLagrangian.pid_update", pid_update);
  registry.add("omnisafe", "pid", "Lagrange.update_lagrange_multiplier",
               update_lagrange_multiplier);
  registry.add("verl", "pid", "AdaptiveKLController", adaptive_kl);
  registry.add("openrlhf", "pid", "AdaptiveKLController", adaptive_kl);
  registry.add("omnisafe", "advantage", "CPPOPID._compute_adv_surrogate", compute_adv_surrogate);
  registry.add("omnisafe", "advantage", "PPOLag._compute_adv_surrogate", compute_adv_surrogate);
}

}  // namespace conformance
