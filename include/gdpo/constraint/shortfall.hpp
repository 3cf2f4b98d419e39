#pragma once
// Measures how far samples fall short of a constraint.
#include <gdpo/constraint/set_point.hpp>
#include <gdpo/storage/column.hpp>

// The struct below is plain data, outside the inline namespace: it is sent between ranks.
namespace gdpo {

/// Sums over the samples of one constraint, made by `measure()`.
/// `merge()` adds those of two micro-batches or ranks. The hinge of a sample is how far it lies
/// beyond the limit, 0 where it meets the limit.
struct ConstraintMetrics {
  double count = 0;          ///< Number of samples measured.
  double sum = 0;            ///< Sum of the values.
  double violation_sum = 0;  ///< Sum of the hinges, in units of the values.
  double violated = 0;       ///< Number of samples beyond the limit.
  double largest = 0;        ///< Largest hinge, in units of the values.
  double missing = 0;        ///< Number of samples left out because they are NaN or not valid.

  /// Sum and count of the values: the input of `PidLagrangian::update`. The controller computes its
  /// signed error from their mean. Do not feed it the mean hinge: that is above 0 even where the
  /// mean is at the limit, and an integral of it can never fall.
  GDPO_DATA_INLINE SumCount value() const { return {sum, count}; }
  /// Mean hinge, in units of the values; 0 without samples.
  GDPO_DATA_INLINE double mean_violation() const { return count > 0 ? violation_sum / count : 0.0; }
  /// Share of the samples beyond the limit, from 0 to 1; 0 without samples.
  GDPO_DATA_INLINE double violation_rate() const { return count > 0 ? violated / count : 0.0; }
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// The hinge of one sample and its slope, for a reward that is itself differentiated.
struct Shortfall {
  double limit = 0;              ///< Limit of x, in units of x.
  Bound bound = Bound::AtLeast;  ///< The side of the limit that satisfies the constraint.

  /// A hinge and its derivative.
  struct Hinge {
    /// max(0, limit - x) for AtLeast, max(0, x - limit) for AtMost; NaN stays NaN.
    double value;
    /// d value / d x. Beyond the limit it is -1 for AtLeast and +1 for AtMost, else 0. At the limit
    /// itself, where the hinge has a kink, it is 0.
    double slope;
  };
  /// Whether x lies beyond the limit; false at the limit and for NaN.
  GDPO_INLINE bool violated(double x) const {
    return !math::is_nan(x) && (bound == Bound::AtLeast ? x < limit : x > limit);
  }
  /// The hinge of x and its slope.
  GDPO_INLINE Hinge operator()(double x) const {
    if (violated(x))
      return {signed_violation(limit, bound, x), bound == Bound::AtLeast ? -1.0 : 1.0};
    return {math::is_nan(x) ? x : 0.0, 0.0};
  }
};

/// The violation v of one sample x of a constrained reward:
///
///     Linear      signed_violation(limit, bound, x) / scale
///     Hinge       the hinge of Shortfall / scale
///     Indicator   1 if x lies beyond the limit, else 0
///
/// NaN stays NaN.
GDPO_INLINE double violation_of(const Constraint& c, double x) {
  const Shortfall shortfall{c.limit, c.bound};
  switch (c.signal) {
    case Signal::Hinge:
      return shortfall(x).value / c.scale;
    case Signal::Indicator:
      return math::is_nan(x) ? x : shortfall.violated(x) ? 1.0 : 0.0;
    case Signal::Linear:
      break;
  }
  return signed_violation(c.limit, c.bound, x) / c.scale;
}

/// The metrics of both sets of samples: sums and counts are added, `largest` is the larger one.
inline ConstraintMetrics merge(const ConstraintMetrics& a, const ConstraintMetrics& b) {
  return {a.count + b.count,
          a.sum + b.sum,
          a.violation_sum + b.violation_sum,
          a.violated + b.violated,
          (math::max)(a.largest, b.largest),
          a.missing + b.missing};
}

/// Measures one constrained reward over the samples of a batch, in one pass.
/// values: (N), one reward; `gdpo::column(rewards, c)` is column c of an array. NaN is missing.
/// valid: (N), samples with 0 are left out; absent: all count.
/// set_point: the limit. Its scale is checked but not used: results are in units of the values.
///
/// Sums are taken in row order, in double. An infinite value makes `sum` infinite or NaN; a
/// controller then holds (PidLagrangian).
/// Errors: `invalid_input` for a limit that is not finite, a scale that is not a finite number
/// above 0 with a finite inverse, or a `valid` of another length.
template <class T>
ConstraintMetrics measure(View<T, 1> values, const SetPoint& set_point, const Column& valid = {}) {
  constexpr const char* function = "gdpo::measure";
  detail::check_fields(function, "set_point", set_point);
  contract::check_array(function, "values", values);
  if (valid && valid.size() != values.extent[0]) {
    contract::fail(function, "valid", contract::text(valid.size()) + " entries",
                   "one for each of the " + contract::text(values.extent[0]) + " values");
  }
  const Shortfall shortfall{set_point.limit, set_point.bound};
  ConstraintMetrics m;
  for (index_t i = 0; i < values.extent[0]; ++i) {
    const double x = load(values(i));
    if (math::is_nan(x) || (valid && valid(i) == 0)) {
      ++m.missing;
      continue;
    }
    const double hinge = shortfall(x).value;
    ++m.count;
    m.sum += x;
    m.violation_sum += hinge;
    m.violated += shortfall.violated(x) ? 1 : 0;
    m.largest = (math::max)(m.largest, hinge);
  }
  return m;
}

GDPO_END_NAMESPACE
