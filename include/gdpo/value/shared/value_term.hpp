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
  double clip;   ///< c; not read unless Clips
  bool half;     ///< Whether h is 1/2, else 1.
  double delta;  ///< From which |v - R| on the loss grows linearly; infinite: nowhere.

  /// The term of a token with value v, value at the rollout `old_value` and return R. Without Clips
  /// there is no clip, and old_value is not read.
  ///
  /// The second square is strictly larger only where v lies outside the clip's interval, and there
  /// clip(v) does not depend on v: so the slope is 0 on the clipped branch, and that of the first
  /// square everywhere else. An old value that is NaN makes loss and slope NaN; min and max would
  /// drop it.
  template <bool Clips, class V>
  GDPO_INLINE ValueTerm<V> operator()(const V& value, const V& old_value, const V& target) const {
    using math::constant, math::mul, math::select;
    ValueTerm<V> term;
    term.error = value - target;
    V square = square_of(term.error);
    V slope = slope_of(term.error);
    if constexpr (Clips) {
      const V c = constant<V>(clip);
      const V held = (math::min)((math::max)(value, V(old_value - c)), V(old_value + c));
      const V held_square = square_of(V(held - target));
      const auto unknown = math::is_nan(old_value);
      term.clipped = square < held_square;
      square = select(unknown, old_value, V(select(term.clipped, held_square, square)));
      slope = select(unknown, old_value, V(select(term.clipped, constant<V>(0.0), slope)));
    }
    term.loss = half ? mul(constant<V>(0.5), square) : square;
    term.slope = slope;
    return term;
  }

 private:
  /// e^2, or beyond delta its tangent 2 delta (|e| - delta / 2).
  template <class V>
  GDPO_INLINE V square_of(const V& error) const {
    const V size = math::abs(error), knee = math::constant<V>(delta);
    const V tangent = math::mul(V(knee + knee), V(size - math::constant<V>(delta / 2)));
    return math::select(size > knee, tangent, V(math::mul(error, error)));
  }
  /// h times the derivative of square_of().
  template <class V>
  GDPO_INLINE V slope_of(const V& error) const {
    const V knee = math::constant<V>(delta);
    // A NaN stays: it is neither above nor below.
    V e = math::select(error > knee, knee, error);
    e = math::select(e < V(-knee), V(-knee), e);
    return half ? e : V(e + e);
  }
};

}  // namespace detail
GDPO_END_NAMESPACE
