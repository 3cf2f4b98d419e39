#pragma once
// A call of a value loss on the host: what a row adds to the tally.
#include <gdpo/tokens/row_driver.hpp>
#include <gdpo/value/engine/value_moments.hpp>
#include <gdpo/value/engine/value_row.hpp>
#include <gdpo/value/shared/check_value_loss.hpp>

GDPO_BEGIN_NAMESPACE

/// Scratch memory of value losses.
template <class S>
using ValueWorkspace = TokenWorkspace<S, detail::ValueTally>;

namespace detail {

/// The value loss as RowDriver runs it.
template <class Exec, class S, class Loss>
class ValueRows {
  template <class T>
  using Lanes = std::conditional_t<std::is_same_v<Exec, Seq>, T, math::Native<T>>;
  using Metrics = std::remove_const_t<decltype(Loss::metrics)>;

 public:
  static constexpr bool always_writes = false;

  ValueRows(const Loss& loss, ValueTally& tally)
      : row_loss_({loss.clip, loss.half}, clips<S>(loss.clip), tally), tally_(tally) {}

  NonFinite& bad_weights() { return tally_.metrics.non_finite.weights; }
  ValueSums operator()(const WeighedRow<S>& weighed, S* gradient, RowMemory<S>&) {
    return row_loss_(weighed.row, weighed.weight, gradient);
  }
  void add(const RowSpan&, const WeighedRow<S>& weighed, const ValueSums& sums, RowMemory<S>&) {
    const auto& [row, tokens, weight] = weighed;
    if (weighed.counts()) tally_.loss += math::mul(weight, sums.of[value_of_loss]);
    tally_.add_row(tokens);
    if constexpr (Metrics::means) {
      for (int q = 0; q < value_quantities; ++q) tally_.add_quantity(q, sums, tokens);
      tally_.add_clipped(sums, tokens);
      if (tokens == 0) return;
      const CenteredSums moments = RowMoments<Lanes<double>, S>::of(
          row, tokens, sums.of[value_of_value], sums.of[value_of_error]);
      ValueMetrics& m = tally_.metrics;
      m.returns = merge(m.returns, moments.moments(0, tokens));
      m.residuals = merge(m.residuals, moments.moments(1, tokens));
    }
  }

 private:
  RowValueLoss<Lanes<S>, S, Metrics> row_loss_;
  ValueTally& tally_;
};

/// A call of a value loss. `tokens`: tokens_of(batch).
template <class Exec, class S, class Loss>
ValueLossResult value_loss(const char* function, const Exec& exec, const Loss& loss,
                           const ValueBatch<S>& batch, const TokenBatch<S>& tokens,
                           const Normalizer& normalizer, const TokenOut<S>& gradient,
                           ValueWorkspace<S>& workspace) {
  check_value_shapes(function, batch, NeedsLogp::Yes);
  TokenLayout layout = layout_of(function, tokens, NeedsLogp::Yes);
  layout.shaped = "values";
  check_value_loss(function, loss, batch, layout);
  const RowDriver driver(function, loss.aggregate, tokens, layout, TokenReads::none(), normalizer,
                         gradient);
  using Rows = ValueRows<Exec, S, Loss>;
  const ValueTally total = driver.template run<Rows>(
      exec, workspace, [&](ValueTally& tally) { return Rows(loss, tally); });
  Normalizer seen = seen_by(total.metrics);
  seen.tokens = total.tokens;
  check_seen(function, driver.over(), normalizer, seen);
  ValueLossResult result;
  result.loss = total.loss, result.normalizer = normalizer, result.metrics = total.metrics;
  result.over = driver.over();
  return result;
}

}  // namespace detail
GDPO_END_NAMESPACE
