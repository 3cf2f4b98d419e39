#pragma once
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/constraint/shortfall.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The weight of the reward beside multipliers that add up to `sum`.
inline double reward_weight(LambdaNorm norm, double sum) {
  return norm == LambdaNorm::Diff ? (math::max)(1.0 - sum, 0.0) : 1.0;
}

/// mixed = (weight A_R - sum_c of add_violations) / divisor
template <class Call, class AddViolations>
void mix(Call& call, LambdaNorm norm, const AddViolations& add_violations) {
  const double sum = call.lambda_sum();
  call.add_primary(reward_weight(norm, sum));
  for (const Constraint& c : call.active()) add_violations(c);
  if (norm == LambdaNorm::Sum) call.divide(1.0 + sum);
  call.report_degenerate();
}

}  // namespace detail

/// Where the violations v_c enter the advantages, and with that, what a multiplier means. v_ic: of row i, in units of the
/// constraint's scale (violation_of). A_R: the advantages that the estimator gives to the primary rewards alone, renormalisation
/// included.
/// What lambda = 1 weighs, against the reward, in a group of 16 where rewards spread by 0.516, hinges by 0.032 and the baseline by 0.1:
/// Composite 0.061 (in the reward's own units), NormalizeThenCombine 1, FixedScale 0.32, AdvantageMix 1. A lone violation among 16,
/// of 0.001 or of 1: standardised 3.75 or 3.75, FixedScale 0.0094 or 9.4 (before the norm).
namespace placement {

/// a_i = estimator(R_i - sum_c lambda_c v_ic): violations enter before standardisation, the published form of RaG / SCRL (arXiv
/// 2606.25496). lambda is multiplied by sigma_v / sigma of the whole: it means another thing in every group, and saturates (as
/// lambda -> inf the advantages become those of -v), so that a controller's loop gain dies.
struct Composite {
  /// The reward that carries the violations, where each is standardised by itself; -1: the sum, or the only primary reward.
  index_t reward = -1;

  template <class Call>
  void operator()(Call& call) const {
    call.penalise(reward);
  }
};

/// a = renorm(z(R) - sum_c lambda_c z(v_c)): violations are standardised like a reward, with weight -lambda_c (GDPO with such a
/// weight; Constrained GRPO, arXiv 2602.05863, with Signal::Indicator). lambda keeps its meaning, but one violation of 1e-3 in a
/// group weighs as much as one of 1. A batch renormalisation is a norm of its own, beside which
/// LambdaNorm::Sum changes nothing; without one (GRPO) the step grows with lambda, and Sum bounds it.
struct NormalizeThenCombine {
  LambdaNorm norm = LambdaNorm::None;

  template <class Call>
  void operator()(Call& call) const {
    const double sum = call.lambda_sum(),
                 factor = norm == LambdaNorm::Sum ? 1.0 / (1.0 + sum) : 1.0;
    call.renormalize_sum(math::mul(factor, detail::reward_weight(norm, sum)), factor);
    call.report_degenerate();
  }
};

/// a_i = (A_R,i - sum_c lambda_c (v_ic - mean of v_c in its group)) / (1 + sum lambda). The default: a violation keeps its size, in
/// units of the baseline's std (calibrate), so lambda has no unit and no small spread is blown up. Where
/// violations spread less than the baseline did, LambdaNorm::Sum makes steps smaller as lambda grows.
struct FixedScale {
  LambdaNorm norm = LambdaNorm::Sum;

  template <class Call>
  void operator()(Call& call) const {
    GroupAdvantage<baseline::Mean, scale::None, combine::SumThenNormalize, renorm::None> centred;
    centred.missing = call.estimator().missing;
    centred.singleton = call.estimator().singleton;
    detail::mix(call, norm,
                [&](const Constraint& c) { call.add_violations(c, centred, -c.lambda); });
  }
};

/// a = (A_R - sum_c lambda_c A_c) / (1 + sum lambda), A_c the advantages that the estimator gives to the violations alone (Safe
/// RLHF, OmniSafe; their cost is Signal::Linear, and their A_c comes from a critic: mix_into).
struct AdvantageMix {
  LambdaNorm norm = LambdaNorm::Sum;

  template <class Call>
  void operator()(Call& call) const {
    detail::mix(call, norm,
                [&](const Constraint& c) { call.add_violations(c, call.estimator(), -c.lambda); });
  }
};

}  // namespace placement

/// AdvantageMix of advantages that are there already (a critic's): out_i = (A_R,i - sum_c lambda_c A_c,i) / (1 + sum lambda), or as
/// `norm` says. reward_advantages: (N); cost_advantages: (m, N); lambda: (m), at least 0; out: (N), which may be
/// reward_advantages. In double, constraint after constraint. OmniSafe CPPOPID and PPOLag _compute_adv_surrogate; Safe RLHF.
template <class A, class B, class R>
void mix_into(View<A, 1> reward_advantages, View<B, 2> cost_advantages,
              View<const double, 1> lambda, LambdaNorm norm, View<R, 1> out) {
  constexpr const char* function = "gdpo::mix_into";
  const index_t rows = out.extent[0], m = lambda.extent[0];
  if (reward_advantages.extent[0] != rows || cost_advantages.extent[0] != m ||
      (m > 0 && cost_advantages.extent[1] != rows)) {
    contract::fail(function, "reward_advantages, cost_advantages, lambda",
                   contract::shape(1, reward_advantages.extent) + ", " +
                       contract::shape(2, cost_advantages.extent) + " and " +
                       contract::shape(1, lambda.extent),
                   "(N), (m, N) and (m), with N = " + contract::text(rows) + ", the length of out");
  }
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
