#pragma once
// What the aggregates of a loss and of its KL terms make of one row.
#include <gdpo/loss/kl.hpp>
#include <gdpo/tokens/normalizer.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The parts of a row's loss, relative to the one weight U that its gradient is multiplied by.
///
/// U is W_i, that of the loss's aggregate. Where W_i is 0, it is the first weight of a KL term that
/// is not, so that the term is still in the loss and the surrogate is not. A loss whose KL terms
/// have no aggregates of their own has nothing to keep.
template <class Kls, bool own = own_aggregates_v<Kls>>
struct TermParts {
  /// Whether the surrogate is in the loss: W_i is not 0.
  GDPO_INLINE static constexpr bool surrogate() { return true; }
};
template <class Kls>
struct TermParts<Kls, true> {
  double of_kl[number_of_kls<Kls>] = {};  ///< Of each KL term, W'_i / U; 0: it is not in the loss.
  bool with_surrogate = true;
  GDPO_INLINE bool surrogate() const { return with_surrogate; }

  /// Computes the shares of a row and returns U. `weight` is W_i, 0 in place of one that is not
  /// finite, and `given` what TokenBatch::row_weights multiplies weights by. bad() is called for a
  /// weight of a KL term that is not finite, which counts as 0.
  GDPO_CALLS_ANY
  template <class Bad>
  GDPO_INLINE double set(const Kls& kls, double weight, const AggregateArgs& args, double given,
                         const Bad& bad) {
    int k = 0;
    double unit = weight;
    for_each_kl(kls, [&](const auto& kl) {
      double own = weight;
      if constexpr (has_aggregate_v<std::decay_t<decltype(kl)>>) {
        own = kl.beta != 0 && args.row.tokens > 0 ? math::mul(kl.aggregate(args), given) : 0.0;
        if (math::not_finite(own)) {
          if (!math::not_finite(given)) bad();  // else that of the loss has been counted
          own = 0;
        }
      }
      if (unit == 0) unit = own;
      of_kl[k++] = own;
    });
    // Nothing of a row of weight 0 is in the loss; its metrics are those of equal weights.
    with_surrogate = weight != 0 || unit == 0;
    for (double& share : of_kl) share = unit != 0 ? share / unit : 1.0;
    return unit;
  }
};

}  // namespace detail
GDPO_END_NAMESPACE
