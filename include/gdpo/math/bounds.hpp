#pragma once
// Bounds: a closed interval that a number is clamped to.
#include <gdpo/core/fields.hpp>
#include <gdpo/math/scalar.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Throws unless the ends of an interval are in order.
GDPO_COLD inline void check_ends(const char* function, const FieldPath& path, double lo,
                                 double hi) {
  if (lo < hi && !math::is_nan(lo) && !math::is_nan(hi)) return;
  contract::fail(function, path.text("lo") + ", " + path.text("hi"),
                 contract::text(lo) + " and " + contract::text(hi), "lo < hi (infinite: off)");
}

}  // namespace detail

/// A closed interval that a log ratio, an estimate, a reward or an advantage is clamped to. An
/// infinite end is off.
///
/// The gradient passes inside, both ends included, and is 0 outside. Needed: lo < hi.
struct Bounds {
  double lo = -math::infinity;  ///< Lower end, in the unit of what is bounded.
  double hi = math::infinity;   ///< Upper end.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("lo", s.lo, anything(), "lower end; -infinity: off");
    field("hi", s.hi, anything(), "upper end; infinity: off");
  }
  /// Throws unless lo < hi.
  void check_together(const char* function, const detail::FieldPath& path) const {
    detail::check_ends(function, path, lo, hi);
  }
};

namespace detail {

/// Throws unless lo < hi. It says what check_fields says, and is compiled once.
GDPO_COLD inline void check_bounds(const char* function, const char* name, const Bounds& b) {
  check_ends(function, FieldPath{nullptr, name}, b.lo, b.hi);
}

/// Whether the bounds do nothing. The comparison is written out, because is_inf hides its argument
/// from the compiler, which could then not drop the clamp at compile time.
GDPO_INLINE bool is_off(const Bounds& b) {
  return b.lo == -math::infinity && b.hi == math::infinity;
}
/// x clamped to the bounds; NaN stays NaN.
GDPO_INLINE double clamped(const Bounds& b, double x) {
  return x < b.lo ? b.lo : x > b.hi ? b.hi : x;
}

}  // namespace detail
GDPO_END_NAMESPACE
