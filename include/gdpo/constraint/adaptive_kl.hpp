#pragma once
// AdaptiveKl: moves the KL coefficient until the measured KL is at its target.
#include <gdpo/math/check_fields.hpp>

GDPO_BEGIN_NAMESPACE

/// A controller that moves the KL coefficient until the measured KL is at its target.
/// Source: Ziegler et al. (arXiv 1909.08593), section 2.2; `AdaptiveKLController` of verl and
/// OpenRLHF. The coefficient is multiplied by a factor near 1:
///
///     coef' = coef (1 + clamp(kl / target - 1, min_error, max_error) steps / horizon)
///
/// The controller has no state but the coefficient, which the caller keeps:
///
///     loss.kl.beta = controller(loss.kl.beta, metrics.kl.mean(), batch_size);
struct AdaptiveKl {
  double target = 0.1;      ///< KL to be kept, in nats, above 0.
  double horizon = 10000;   ///< A larger horizon moves the coefficient more slowly; in samples.
  double min_error = -0.2,  ///< Lower bound of the relative error kl / target - 1.
      max_error = 0.2;      ///< Upper bound of the relative error.

  /// The next coefficient. coef: the current one, at least 0; 0 stays 0. kl: the measured mean KL
  /// in nats; if it is not finite, the result is coef. steps: samples since the last call, in the
  /// unit of the horizon.
  /// Errors: `invalid_input` for a coef that is negative or not finite, for steps below 0 or above
  /// horizon / -min_error (beyond it the coefficient could turn negative), and for settings out of
  /// their range.
  double operator()(double coef, double kl, double steps) const {
    constexpr const char* function = "gdpo::AdaptiveKl";
    detail::check_fields(function, "", *this);
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

  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("target", s.target, more_than(0), "the KL to be kept, in nats");
    field("horizon", s.horizon, more_than(0), "larger: the coefficient moves more slowly");
    field("min_error", s.min_error, finite(), "lower bound of the relative error");
    field("max_error", s.max_error, finite(), "upper bound of the relative error");
  }
  /// Throws unless min_error <= max_error.
  void check_together(const char* function, const detail::FieldPath& path) const {
    if (min_error <= max_error) return;
    contract::fail(function, path.text("min_error") + ", " + path.text("max_error"),
                   contract::text(min_error) + " and " + contract::text(max_error),
                   "the lower before the upper");
  }
};

GDPO_END_NAMESPACE
