#pragma once
#include <gdpo/loss/term.hpp>

GDPO_BEGIN_NAMESPACE

/// A closed interval that bounds a log ratio or an estimate; infinite: off. Inside, ends included, the gradient passes.
struct Bounds {
  double lo = -math::infinity, hi = math::infinity;
};

namespace detail {

/// Not by is_inf, which hides its argument from the compiler.
GDPO_INLINE bool is_off(const Bounds& b) {
  return b.lo == -math::infinity && b.hi == math::infinity;
}

template <class V>
struct Bounded {
  V value;
  mask_t<V> outside;  ///< NaN stays NaN and is not outside: it shows
};
template <class V>
GDPO_INLINE Bounded<V> bound(const Bounds& bounds, const V& x) {
  using math::constant;
  const V lo = constant<V>(bounds.lo), hi = constant<V>(bounds.hi);
  return {(math::max)((math::min)(x, hi), lo), math::either(x<lo, x> hi)};
}

inline void check_bounds(const char* function, const char* owner, const Bounds& b) {
  if (!(b.lo < b.hi) || math::is_nan(b.lo) || math::is_nan(b.hi)) {
    contract::fail(function, contract::Text(owner) + ".lo, " + owner + ".hi",
                   contract::text(b.lo) + " and " + contract::text(b.hi),
                   "lo < hi (infinite: off)");
  }
}

}  // namespace detail

/// The map of a level: what becomes of a token's log ratio before anything else. Contract:
///   template <class V> Mapped<V> operator()(const Token<V>&) const;      reads token_log_ratio and advantage
namespace map {

/// The log ratio as it is.
struct None {
  template <class V>
  GDPO_INLINE Mapped<V> operator()(const Token<V>& t) const {
    return {t.token_log_ratio, math::constant<V>(1.0)};
  }
};

/// min(max(x, lo), hi), no gradient outside. verl and OpenRLHF: +-20. LossMetrics::log_ratio_bounded counts its tokens.
struct Clamp {
  double lo = -20, hi = 20;
  template <class V>
  GDPO_INLINE Mapped<V> operator()(const Token<V>& t) const {
    const auto x = detail::bound({lo, hi}, t.token_log_ratio);
    return {x.value, math::select(x.outside, math::constant<V>(0.0), math::constant<V>(1.0))};
  }
  void check(const char* function) const { detail::check_bounds(function, "level.map", {lo, hi}); }
};

}  // namespace map
GDPO_END_NAMESPACE
