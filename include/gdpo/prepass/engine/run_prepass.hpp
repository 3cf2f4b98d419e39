#pragma once
// What prepare() is made of.
#include <gdpo/prepass/args.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

template <class P, class S, class = void>
constexpr bool is_prepass_v = false;
template <class P, class S>
constexpr bool is_prepass_v<P, S, std::enable_if_t<std::is_same_v<Reach, decltype(P::reach)>>> =
    std::is_invocable_v<const P&, const PrepassArgs<S>&>;

/// Dense arrays of the batch's shape, in the order of its positions.
template <class S, class T>
TokenView<T> dense_like(const TokenView<S>& like, std::vector<T>& values) {
  T* data = values.data();
  if (like.rank() == 1) return gdpo::view(data, like.extent(0));
  if (like.rank() == 2) return gdpo::view(data, like.extent(0), like.extent(1));
  return gdpo::view(data, like.extent(0), like.extent(1), like.extent(2));
}

/// A pre-pass drops what the engine did not know; the loss counts it.
template <class S>
NonFinite non_finite_rollout(const TokenBatch<S>& batch, const TokenLayout& layout,
                             RowScratch<S>& scratch) {
  NonFinite seen = batch.rollout_non_finite;
  if (!batch.rollout_logp || seen.count > 0) return seen;
  for (index_t i = 0; i < layout.rows; ++i) {
    const TokenRow<S> row = read_row(batch, layout, i, {}, scratch);
    for (index_t t = 0; t < row.length; ++t) {
      if (row.valid(t) && math::not_finite(row.rollout_logp[t])) note(seen, i, t);
    }
  }
  return seen;
}

/// A weight 0 drops, whatever the other is.
template <class S>
S weighed(S a, S b) {
  return math::is_zero(a) || math::is_zero(b) ? S(0) : math::mul(a, b);
}

template <class S, class Pass>
void run_prepass(const Pass& pass, const PrepassRows<S>& rows, std::vector<double>& weights,
                 double& entropy_threshold) {
  weights.assign(static_cast<std::size_t>(rows.positions()), 1.0);
  const PrepassArgs<S> args{rows, weights.data()};
  if constexpr (std::is_same_v<decltype(pass(args)), EntropyThreshold>) {
    entropy_threshold = pass(args).value;
  } else {
    pass(args);
  }
}

}  // namespace detail

GDPO_END_NAMESPACE
