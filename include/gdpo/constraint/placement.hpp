#pragma once
// Where the multipliers of constraints enter the advantages.
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/constraint/shortfall.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The weight of the primary advantages if the multipliers add up to `sum` (LambdaNorm).
inline double reward_weight(LambdaNorm norm, double sum) {
  return norm == LambdaNorm::Diff ? (math::max)(1.0 - sum, 0.0) : 1.0;
}

/// mixed = (weight A_R + what add_violations adds for each constraint) / divisor. The norm gives
/// weight and divisor.
template <class Call, class AddViolations>
void mix(Call& call, LambdaNorm norm, const AddViolations& add_violations) {
  const double sum = call.lambda_sum();
  call.add_primary(reward_weight(norm, sum));
  for (const Constraint& c : call.active()) add_violations(c);
  if (norm == LambdaNorm::Sum) call.divide(1.0 + sum);
  call.report_degenerate();
}

}  // namespace detail

/// Placements: where the violations enter the advantages, and thereby what a multiplier means.
///
/// v_ic is the violation of constraint c in row i, in units of the constraint's scale
/// (`violation_of`). A_R are the advantages that the estimator gives to the primary rewards alone,
/// its renormalization included. S is the sum of the multipliers lambda_c.
///
/// The table compares the placements. Second column: how many times as much as the reward a
/// violation weighs at lambda = 1, in a group of 16 where the reward has standard deviation 0.516,
/// the hinge 0.032, and the baseline 0.1 (Composite with scale 1, the others with scale 0.1). Third
/// column: size of the advantage of a lone violation of 0.001 or of 1 among 16, before the norm.
///
///     NormalizeThenCombine   1        3.75 or 3.75
///     AdvantageMix           1        3.75 or 3.75
///     FixedScale             0.32     0.0094 or 9.4
///     Composite              0.061    depends on the spread of the reward
///
/// A placement of one's own is a struct with `template <class Call> void operator()(Call&) const`.
/// It calls the public members of Call, in which the placements below are written.
namespace placement {

/// a_i = estimator(R_i - sum_c lambda_c v_ic): violations enter before the standardization. The
/// published form of Recommendation-as-Generation (arXiv 2606.25496). The standardization divides
/// the violations by the spread of the whole, so lambda means something else in every group. It
/// also saturates: as lambda grows, the advantages become those of -v alone, and a controller that
/// raises lambda further changes nothing.
struct Composite {
  /// With `combine::NormalizeThenSum`: the primary reward from which the violations are subtracted;
  /// -1: the only primary reward. With `combine::SumThenNormalize` it must be -1: the violations
  /// are subtracted from the weighted sum.
  index_t reward = -1;
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("reward", s.reward, at_least(-1).with_note("-1: the only one, or the sum"),
          "the primary reward from which the violations are subtracted");
  }

  /// Computes the advantages of one call.
  template <class Call>
  void operator()(Call& call) const {
    call.penalize(reward);
  }
};

/// a = renorm(z(R) - sum_c lambda_c z(v_c)): violations are standardized like a reward.
/// z are the estimator's values before its renormalization. This is GDPO where a reward has the
/// weight -lambda_c; with `Signal::Indicator` it is Constrained GRPO (arXiv 2602.05863).
///
/// lambda means the same in every group, but one violation of 1e-3 in a group weighs as much as one
/// of 1. A batch renormalization (GDPO) bounds the step by itself, so `LambdaNorm::Sum` changes
/// nothing there. Without renormalization (GRPO) the step grows with lambda, and Sum bounds it.
struct NormalizeThenCombine {
  LambdaNorm norm = LambdaNorm::None;  ///< How the step is bounded when multipliers grow.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("norm", s.norm, "how the step is bounded when multipliers grow");
  }

  /// Computes the advantages of one call.
  template <class Call>
  void operator()(Call& call) const {
    const double sum = call.lambda_sum(),
                 factor = norm == LambdaNorm::Sum ? 1.0 / (1.0 + sum) : 1.0;
    call.renormalize_sum(math::mul(factor, detail::reward_weight(norm, sum)), factor);
    call.report_degenerate();
  }
};

/// a_i = (A_R,i - sum_c lambda_c (v_ic - mean of v_c in the group)) / (1 + S). The default.
/// A violation keeps its size, in standard deviations of the baseline (`calibrate`): lambda has no
/// unit, and a group with hardly any violation is not blown up to unit size. If violations spread
/// less than the baseline did, `LambdaNorm::Sum` makes the steps smaller as lambda grows.
struct FixedScale {
  LambdaNorm norm = LambdaNorm::Sum;  ///< How the step is bounded when multipliers grow.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("norm", s.norm, "how the step is bounded when multipliers grow");
  }

  /// Computes the advantages of one call.
  template <class Call>
  void operator()(Call& call) const {
    GroupAdvantage<baseline::Mean, scale::None, combine::SumThenNormalize> centered;
    centered.missing = call.estimator().missing;
    centered.singleton = call.estimator().singleton;
    detail::mix(call, norm,
                [&](const Constraint& c) { call.add_violations(c, centered, -c.lambda); });
  }
};

/// a = (A_R - sum_c lambda_c A_c) / (1 + S), where A_c are the advantages of the violations alone.
/// The estimator gives A_c as if v_c were the only reward. Safe RLHF and OmniSafe use this form
/// with `Signal::Linear` for their cost; their A_c come from a critic (see `mix_into`).
struct AdvantageMix {
  LambdaNorm norm = LambdaNorm::Sum;  ///< How the step is bounded when multipliers grow.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("norm", s.norm, "how the step is bounded when multipliers grow");
  }

  /// Computes the advantages of one call.
  template <class Call>
  void operator()(Call& call) const {
    detail::mix(call, norm,
                [&](const Constraint& c) { call.add_violations(c, call.estimator(), -c.lambda); });
  }
};

}  // namespace placement

/// Mixes advantages that exist already, such as those of critics, as AdvantageMix does.
/// out_i = (A_R,i - sum_c lambda_c A_c,i) / (1 + S), or as `norm` says. Sources: Safe RLHF, and
/// `_compute_adv_surrogate` of CPPOPID and PPOLag in OmniSafe.
///
/// reward_advantages: (N), A_R.
/// cost_advantages: (m, N), A_c. A row whose multiplier is 0 is not read.
/// lambda: (m), finite and at least 0.
/// out: (N); it may be reward_advantages.
///
/// Computed in double, constraint after constraint, and rounded once to the scalar of out.
/// Errors: `invalid_input` for shapes that do not fit and for multipliers that are negative, not
/// finite, or without a finite sum. Nothing is written then.
template <class A, class B, class R>
void mix_into(View<A, 1> reward_advantages, View<B, 2> cost_advantages,
              View<const double, 1> lambda, LambdaNorm norm, View<R, 1> out) {
  constexpr const char* function = "gdpo::mix_into";
  contract::check_written(function, "out", out);
  contract::check_array(function, "lambda", lambda);
  contract::check_extents(function, "cost_advantages", 2, cost_advantages.extent);
  detail::check_fields(function, "norm", norm);
  const index_t rows = out.extent[0], m = lambda.extent[0];
  if (reward_advantages.extent[0] != rows || cost_advantages.extent[0] != m ||
      (m > 0 && cost_advantages.extent[1] != rows)) {
    contract::fail(function, "reward_advantages, cost_advantages, lambda",
                   contract::shape(1, reward_advantages.extent) + ", " +
                       contract::shape(2, cost_advantages.extent) + " and " +
                       contract::shape(1, lambda.extent),
                   "(N), (m, N) and (m), with N = " + contract::text(rows) + ", the length of out");
  }
  contract::check_array(function, "reward_advantages", reward_advantages);
  double sum = 0;
  for (index_t c = 0; c < m; ++c) {
    if (!(lambda(c) >= 0) || math::not_finite(lambda(c))) {
      contract::fail(function, "lambda(" + contract::text(c) + ")", contract::text(lambda(c)),
                     "a finite number of at least 0");
    }
    sum += lambda(c);
  }
  if (math::not_finite(sum))
    contract::fail(function, "lambda", "multipliers without a finite sum", "a finite sum");
  if (sum > 0) contract::check_array(function, "cost_advantages", cost_advantages);
  for (index_t i = 0; i < rows; ++i) {
    double a = 0.0 + math::mul(detail::reward_weight(norm, sum), load(reward_advantages(i)));
    for (index_t c = 0; c < m; ++c) {
      if (lambda(c) > 0) a -= math::mul(lambda(c), load(cost_advantages(c, i)));
    }
    if (norm == LambdaNorm::Sum) a /= 1.0 + sum;
    store(out(i), static_cast<result_t<R>>(a));
  }
}

GDPO_END_NAMESPACE
