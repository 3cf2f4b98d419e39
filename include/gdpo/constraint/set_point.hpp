#pragma once
// What a constraint asks of a reward, and what stands for it in the advantages.
#include <gdpo/stats/moments.hpp>

namespace gdpo {  // plain data: set-points are stored with a controller's state

/// On which side of its limit a value satisfies the constraint.
enum class Bound {
  AtMost,  ///< a cost
  AtLeast  ///< a reward with a threshold
};

/// The limit of a measured value x and the unit of its violation. The signed error, positive where violated, is
///   e = (limit - x) / scale  (AtLeast),    e = (x - limit) / scale  (AtMost).
/// calibrate() makes one from a baseline run: limit = mean + k std, scale = std.
struct SetPoint {
  double limit = 0;
  double scale = 1;  ///< above 0, in units of x
  Bound bound = Bound::AtLeast;
  double k = 0;        ///< of calibrate(), with
  Moments baseline{};  ///< what it saw; n = 0: the limit was given by hand
};

/// A mean whose halves were added over micro-batches and ranks; a count of 0: nothing was measured.
struct SumCount {
  double sum = 0, count = 0;
};

/// What a sample's violation is (shortfall.hpp). Where the constraint is on the mean, Linear is its gradient; a hinge stops pulling at
/// samples that meet the limit, so the mean gets there at a much larger multiplier only. Indicator goes with a controller of
/// ConstraintMetrics::violation_rate().
enum class Signal {
  Linear,    ///< the signed error: Safe RLHF, OmniSafe (their cost)
  Hinge,     ///< how far the sample misses, 0 where it does not: RaG, SCRL
  Indicator  ///< 1 where it misses, else 0, whatever the scale: Constrained GRPO
};

/// How the weights of reward and violations keep the step size when multipliers grow. S = sum of the multipliers.
enum class LambdaNorm {
  None,  ///< A_R - sum lambda_c A_c
  Sum,   ///< the same over 1 + S (Stooke 2020; OmniSafe and rlpyt sum_norm)
  Diff  ///< max(0, 1 - S) A_R - sum lambda_c A_c (rlpyt diff_norm); with m constraints, give each a lambda_max of 1 / m
};

/// A multiplier at work on one reward of the batch.
struct Constraint {
  index_t reward = 0;  ///< its column
  double lambda = 0;   ///< multiplier, at least 0; 0: the reward is not read
  double limit = 0;
  double scale =
      1;  ///< the unit of violations: the baseline's std, or 1 for those in the reward's own units (RaG as published)
  Bound bound = Bound::AtLeast;
  Signal signal = Signal::Linear;
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// How far x is beyond its limit, negative within it: x - limit (AtMost), limit - x (AtLeast). NaN stays NaN.
GDPO_INLINE double signed_violation(double limit, Bound bound, double x) {
  return bound == Bound::AtMost ? x - limit : limit - x;
}
/// e of a value x, in units of the set-point's scale; positive: violated.
GDPO_INLINE double error_of(const SetPoint& s, double x) {
  return signed_violation(s.limit, s.bound, x) / s.scale;
}

namespace detail {

inline void check_limit(const char* function, const std::string& name, double limit, double scale) {
  if (math::not_finite(limit))
    contract::fail(function, name + ".limit", contract::text(limit), "a finite number");
  if (!(scale > 0) || math::not_finite(scale) || math::not_finite(1.0 / scale)) {
    contract::fail(function, name + ".scale", contract::text(scale),
                   "a finite number above 0, as its inverse");
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
