#pragma once
#include <gdpo/constraint/set_point.hpp>
#include <gdpo/storage/column.hpp>

namespace gdpo {  // plain data: it crosses ranks

/// What measure() saw of one constraint; merge() gives that of two micro-batches or ranks.
struct ConstraintMetrics {
  double count = 0;          ///< samples measured
  double sum = 0;            ///< of the values
  double violation_sum = 0;  ///< of the hinge, in units of the values
  double violated = 0;       ///< samples beyond the limit
  double largest = 0;        ///< hinge
  double missing = 0;        ///< samples that are NaN, or invalid

  /// What a controller takes: the signed error comes from the mean value. The mean hinge cannot take its place: it is above
  /// 0 where the mean is at the limit, and an integral of it can never fall.
  GDPO_DATA_INLINE SumCount value() const { return {sum, count}; }
  GDPO_DATA_INLINE double mean_violation() const { return count > 0 ? violation_sum / count : 0.0; }
  GDPO_DATA_INLINE double violation_rate() const { return count > 0 ? violated / count : 0.0; }
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// The hinge of one sample and its slope, for a reward that is itself differentiated.
struct Shortfall {
  double limit = 0;
  Bound bound = Bound::AtLeast;

  struct Hinge {
    double value;  ///< max(0, limit - x) (AtLeast), max(0, x - limit) (AtMost); NaN stays NaN
    double
        slope;  ///< d value / d x: -1 or +1 beyond the limit, 0 within it and at the limit (the subgradient taken)
  };
  /// Beyond the limit; not where x is NaN.
  GDPO_INLINE bool violated(double x) const {
    return !math::is_nan(x) && (bound == Bound::AtLeast ? x < limit : x > limit);
  }
  GDPO_INLINE Hinge operator()(double x) const {
    if (violated(x))
      return {signed_violation(limit, bound, x), bound == Bound::AtLeast ? -1.0 : 1.0};
    return {math::is_nan(x) ? x : 0.0, 0.0};
  }
};

/// v of one sample as its constraint's signal has it, in units of the constraint's scale. NaN stays NaN.
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

inline ConstraintMetrics merge(const ConstraintMetrics& a, const ConstraintMetrics& b) {
  return {a.count + b.count,
          a.sum + b.sum,
          a.violation_sum + b.violation_sum,
          a.violated + b.violated,
          (math::max)(a.largest, b.largest),
          a.missing + b.missing};
}

/// values: (N), one reward of the batch (a column of the rewards: column(rewards, c)); NaN is missing. valid: (N) or none, 0:
/// left out. Sums in row order, in double. An infinite value makes the sums infinite; a controller then holds.
template <class T>
ConstraintMetrics measure(View<T, 1> values, const SetPoint& set_point, const Column& valid = {}) {
  constexpr const char* function = "gdpo::measure";
  detail::check_limit(function, "set_point", set_point.limit, set_point.scale);
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
