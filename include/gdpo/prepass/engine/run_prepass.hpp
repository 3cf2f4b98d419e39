#pragma once
// The steps of prepare().
#include <gdpo/prepass/shared/weights.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Whether P meets the contract of a pre-pass (PrepassArgs).
template <class P, class S, class = void>
constexpr bool is_prepass_v = false;
template <class P, class S>
constexpr bool is_prepass_v<P, S, std::enable_if_t<std::is_same_v<Reach, decltype(P::reach)>>> =
    std::is_invocable_v<const P&, const PrepassArgs<S>&>;

/// Counts the valid tokens whose rollout_logp is not finite. Pre-passes drop such tokens, so the
/// loss would not see them; it reports this count. A count that is already there is kept, because
/// an earlier prepare() may have masked some of those tokens since.
template <class S>
NonFinite non_finite_rollout(const TokenBatch<S>& batch, const TokenLayout& layout,
                             RowScratch<S>& scratch) {
  NonFinite non_finite = batch.rollout_non_finite;
  if (!batch.rollout_logp || non_finite.count > 0) return non_finite;
  for (index_t i = 0; i < layout.rows; ++i) {
    const TokenRow<S> row = read_row(batch, layout, i, {}, scratch);
    for (index_t t = 0; t < row.length; ++t) {
      if (row.valid(t) && math::not_finite(row.rollout_logp[t])) note(non_finite, i, t);
    }
  }
  return non_finite;
}

/// Runs one pre-pass: its weights go to `weights`, which are set to 1 before, and its threshold, if
/// it returns one, to `entropy_threshold`.
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

/// Adds the logs of the weights with Reach::Level to those of the batch. `shared`: each segment
/// has one weight, whose log goes to the first valid token. Both arrays have one number a position.
template <class S>
void add_level_logs(const PrepassRows<S>& rows, bool shared, const S* weights, S* logs) {
  for (index_t i = 0; i < rows.size(); ++i) {
    const TokenRow<S> row = rows(i);
    const S* w = weights + rows.begin(i);
    S* l = logs + rows.begin(i);
    for (index_t begin = 0; begin < row.length;) {
      const index_t end = row.segment_end(begin);
      bool first = true;
      for (index_t t = begin; t < end; ++t) {
        if (!row.valid(t)) continue;
        if (first || !shared) l[t] = with_level_log(l[t], w[t]);
        first = false;
      }
      begin = end;
    }
  }
}

}  // namespace detail

GDPO_END_NAMESPACE
