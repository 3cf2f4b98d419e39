#pragma once
// The limit of a constrained reward, and the constraint on it that an estimator sees.
#include <gdpo/math/check_fields.hpp>
#include <gdpo/stats/moments.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Checks the inverse of a scale, because violations are divided by it.
inline void check_inverse(const char* function, const FieldPath& owner, double scale) {
  if (!math::not_finite(1.0 / scale)) return;
  contract::fail(function, owner.text("scale"), contract::text(scale),
                 "a finite number that is more than 0 (its inverse too)");
}

}  // namespace detail
GDPO_END_NAMESPACE

// The structs below are plain data, outside the inline namespace: checkpoints hold set-points.
namespace gdpo {

/// The side of the limit on which a value satisfies the constraint.
enum class Bound {
  AtMost,  ///< The value is a cost: it satisfies the constraint at the limit and below.
  AtLeast  ///< The value is a reward: it satisfies the constraint at the limit and above.
};
/// The enumerators of Bound with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Bound) {
  using E = Enumerator<Bound>;
  return std::array{E{"at_most", Bound::AtMost}, E{"at_least", Bound::AtLeast}};
}

/// The limit of a measured value x, and the unit in which its violation is measured.
/// The signed error is positive where x violates the constraint:
///
///     e = (limit - x) / scale    for AtLeast
///     e = (x - limit) / scale    for AtMost
///
/// `calibrate()` makes a set-point from a baseline run: limit = mean + k std, scale = std.
struct SetPoint {
  double limit = 0;              ///< Limit of x, in units of x.
  double scale = 1;              ///< Unit of the violation, above 0, in units of x.
  Bound bound = Bound::AtLeast;  ///< The side of the limit that satisfies the constraint.
  double k = 0;        ///< The k that `calibrate()` was given; kept as a record, read by nothing.
  Moments baseline{};  ///< The moments that `calibrate()` was given; n = 0: a limit set by hand.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("limit", s.limit, finite(), "limit of the value, in its units");
    field("scale", s.scale, more_than(0).with_note("its inverse too"), "unit of the violation");
    field("bound", s.bound, "the side of the limit that satisfies the constraint");
    field("k", s.k, anything().or_nan(""), "what calibrate() was given; a record");
    field("baseline", s.baseline, "what calibrate() was given; a record");
  }
  /// Throws for a scale without a finite inverse, and for a baseline of less than no values.
  template <class Path>
  void check_together(const char* function, const Path& path) const {
    detail::check_inverse(function, path, scale);
    if (baseline.n < 0) {
      contract::fail(function, path.text("baseline") + ".n", contract::text(baseline.n),
                     "a count of at least 0");
    }
  }
};

/// A mean as a sum and a count, so that micro-batches and ranks can be added before dividing.
struct SumCount {
  double sum = 0,  ///< Sum of the values.
      count = 0;   ///< Number of values; 0: nothing was measured.
};

/// What counts as the violation of one sample; `violation_of` (shortfall.hpp) has the formulas.
/// For a constraint on the mean reward, Linear gives the gradient of that mean. Hinge does not tell
/// apart the samples that meet the limit, so the mean reaches the limit only at a much larger
/// multiplier. Indicator fits a limit on the share of violating samples: feed the controller
/// `ConstraintMetrics::violation_rate()`.
enum class Signal {
  Linear,    ///< The signed error e. Safe RLHF and OmniSafe (their cost).
  Hinge,     ///< max(0, e). Recommendation-as-Generation (arXiv 2606.25496).
  Indicator  ///< 1 beyond the limit, else 0; `scale` plays no part. Constrained GRPO (2602.05863).
};
/// The enumerators of Signal with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Signal) {
  using E = Enumerator<Signal>;
  return std::array{E{"linear", Signal::Linear}, E{"hinge", Signal::Hinge},
                    E{"indicator", Signal::Indicator}};
}

/// How the weights of reward and violations are bounded when multipliers grow.
/// A_R: advantages of the reward; A_c: advantages of the violations of constraint c; S: the sum of
/// the multipliers lambda_c.
enum class LambdaNorm {
  /// A_R - sum_c lambda_c A_c. The step grows with the multipliers.
  None,
  /// (A_R - sum_c lambda_c A_c) / (1 + S). Stooke et al. 2020; `sum_norm` of OmniSafe and rlpyt.
  Sum,
  /// max(0, 1 - S) A_R - sum_c lambda_c A_c. `diff_norm` of rlpyt. With m constraints, set each
  /// `PidGains::lambda_max` to 1 / m, so that S stays at most 1.
  Diff
};
/// The enumerators of LambdaNorm with their words.
GDPO_DATA_INLINE constexpr auto enumerators(LambdaNorm) {
  using E = Enumerator<LambdaNorm>;
  return std::array{E{"none", LambdaNorm::None}, E{"sum", LambdaNorm::Sum},
                    E{"diff", LambdaNorm::Diff}};
}

/// A constraint on one reward of the batch, with its current multiplier.
struct Constraint {
  index_t reward = 0;  ///< Number of the constrained reward.
  double lambda = 0;   ///< Multiplier, at least 0. At 0 this constraint does not read the reward.
  double limit = 0;    ///< Limit of the reward, in the reward's units.
  /// Unit of the violation, in the reward's units: the standard deviation of the baseline
  /// (`calibrate`), or 1 to measure violations in the reward's own units, as
  /// Recommendation-as-Generation does.
  double scale = 1;
  Bound bound = Bound::AtLeast;    ///< The side of the limit that satisfies the constraint.
  Signal signal = Signal::Linear;  ///< What counts as the violation of one sample.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("reward", s.reward, at_least(0), "the constrained reward");
    field("lambda", s.lambda, at_least(0), "multiplier; 0: the reward is not read");
    field("limit", s.limit, finite(), "limit of the reward, in its units");
    field("scale", s.scale, more_than(0).with_note("its inverse too"), "unit of the violation");
    field("bound", s.bound, "the side of the limit that satisfies the constraint");
    field("signal", s.signal, "what counts as the violation of one sample");
  }
  /// Throws for a scale without a finite inverse.
  template <class Path>
  void check_together(const char* function, const Path& path) const {
    detail::check_inverse(function, path, scale);
  }
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// How far x lies beyond its limit: x - limit for AtMost, limit - x for AtLeast.
/// In units of x; negative where x satisfies the constraint; NaN stays NaN.
GDPO_INLINE double signed_violation(double limit, Bound bound, double x) {
  return bound == Bound::AtMost ? x - limit : limit - x;
}
/// The signed error e of a value x (see SetPoint), in units of the set-point's scale.
GDPO_INLINE double error_of(const SetPoint& s, double x) {
  return signed_violation(s.limit, s.bound, x) / s.scale;
}

GDPO_END_NAMESPACE
