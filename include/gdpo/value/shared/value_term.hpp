#pragma once
// The value loss of one token.
#include <gdpo/lanes/lanes.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The value loss of one token, or of one register of tokens.
template <class V>
struct ValueTerm {
  V loss;               ///< L
  V slope;              ///< dL/dv
  V error;              ///< v - R
  mask_t<V> clipped{};  ///< The clipped square is strictly larger.
};

/// The formula of a token, which scalar loops, lanes and kernels share (ValueLoss has the math).
struct ValueFormula {
  double clip;  ///< c; not read unless Clips
  bool half;    ///< Whether h is 1/2, else 1.

  /// The term of a token with value v, value at the rollout `old_value` and return R. Without Clips
  /// there is no clip, and old_value is not read.
  ///
  /// The larger square is strictly larger only where v lies outside the clip's interval, and there
  /// clip(v) does not depend on v: so the slope is 0 on the clipped branch, and 2 h (v - R)
  /// everywhere else. An old value that is NaN makes loss and slope NaN; min and max would drop it.
  template <bool Clips, class V>
  GDPO_INLINE ValueTerm<V> operator()(const V& value, const V& old_value, const V& target) const {
    using math::constant, math::mul, math::select;
    ValueTerm<V> term;
    term.error = value - target;
    V square = mul(term.error, term.error);
    V slope = half ? term.error : term.error + term.error;
    if constexpr (Clips) {
      const V c = constant<V>(clip);
      const V held = (math::min)((math::max)(value, V(old_value - c)), V(old_value + c));
      const V error = held - target, held_square = mul(error, error);
      const auto unknown = math::is_nan(old_value);
      term.clipped = square < held_square;
      square = select(unknown, old_value, V(select(term.clipped, held_square, square)));
      slope = select(unknown, old_value, V(select(term.clipped, constant<V>(0.0), slope)));
    }
    term.loss = half ? mul(constant<V>(0.5), square) : square;
    term.slope = slope;
    return term;
  }
};

}  // namespace detail
GDPO_END_NAMESPACE
