#pragma once
#include <gdpo/math/settings.hpp>

GDPO_BEGIN_NAMESPACE

/// The adaptive KL coefficient, a multiplicative controller of one constraint, KL = target (Ziegler et al., arXiv 1909.08593,
/// section 2.2):
///   coef' = coef (1 + clamp(kl / target - 1, min_error, max_error) steps / horizon)
/// verl and OpenRLHF AdaptiveKLController. The coefficient is its whole state. kl, target: nats; steps: samples since the last
/// call, in the unit of the horizon. A kl that is not finite leaves the coefficient as it is. A coefficient of 0 stays 0.
///   loss.kl.beta = controller(loss.kl.beta, metrics.kl.mean(), batch_size);
struct AdaptiveKl {
  double target = 0.1;
  double horizon = 10000;
  double min_error = -0.2, max_error = 0.2;

  double operator()(double coef, double kl, double steps) const {
    constexpr const char* function = "gdpo::AdaptiveKl";
    check(function);
    if (!(coef >= 0) || math::not_finite(coef)) {
      contract::fail(function, "coef", contract::text(coef), "a finite number of at least 0");
    }
    if (!(steps >= 0) || math::not_finite(steps) || math::mul(-min_error, steps) > horizon) {
      contract::fail(
          function, "steps", contract::text(steps),
          "from 0 to horizon / -min_error, beyond which the coefficient would turn negative");
    }
    if (math::not_finite(kl)) return coef;
    const double error = (math::min)((math::max)(kl / target - 1.0, min_error), max_error);
    return math::mul(coef, 1.0 + math::mul(error, steps) / horizon);
  }

  void check(const char* function) const {
    for (const auto& [name, value] : {std::pair{"target", target}, std::pair{"horizon", horizon}}) {
      if (!(value > 0) || math::not_finite(value)) {
        contract::fail(function, name, contract::text(value), "a finite number above 0");
      }
    }
    if (math::not_finite(min_error) || math::not_finite(max_error) || !(min_error <= max_error)) {
      contract::fail(function, "min_error, max_error",
                     contract::text(min_error) + " and " + contract::text(max_error),
                     "finite numbers, the lower before the upper");
    }
  }
};

GDPO_END_NAMESPACE
