#pragma once
// A call of a value loss on the host: its rows in units, on any number of workers.
#include <gdpo/core/exec.hpp>
#include <gdpo/value/engine/value_moments.hpp>
#include <gdpo/value/engine/value_row.hpp>
#include <gdpo/value/shared/check_value_loss.hpp>
#include <vector>

GDPO_BEGIN_NAMESPACE
namespace detail {
template <class Exec, class S, class Loss>
class BatchValueLoss;

/// Scratch memory of one worker, with room for the longest row.
template <class S>
struct ValueScratch {
  RowScratch<S> rows;
  std::vector<S> gradient;  ///< The gradient of a row, if the caller's is not contiguous.
};
}  // namespace detail

/// Scratch memory of value losses. After a first call, further calls of the same shape and executor
/// allocate nothing. It serves one call at a time: threads that call at the same time need one
/// each.
template <class S>
class ValueWorkspace {
  template <class Exec, class T, class Loss>
  friend class detail::BatchValueLoss;
  std::vector<detail::ValueScratch<S>> workers;
  std::vector<detail::ValueTally> units;
};

namespace detail {

/// A call of a value loss whose arguments the constructor checks.
///
/// The rows are cut into units as those of a policy loss are (BatchLoss): at most 128 of
/// consecutive rows, whose number alone decides them. Rows are added in their order within a unit,
/// then the units in theirs, so the bits do not depend on the workers.
template <class Exec, class S, class Loss>
class BatchValueLoss {
 public:
  using Metrics = std::remove_const_t<decltype(Loss::metrics)>;

  BatchValueLoss(const char* function, const Loss& loss, const ValueBatch<S>& batch,
                 const Normalizer& normalizer, const TokenOut<S>& gradient)
      : loss_(loss),
        clips_(clips<S>(loss.clip)),
        batch_(tokens_of(batch, clips_)),
        normalizer_(normalizer),
        gradient_(gradient) {
    check_value_shapes(function, batch, NeedsLogp::Yes);
    layout_ = layout_of(function, batch_, NeedsLogp::Yes);
    layout_.shaped = "values";
    check_value_loss(function, loss, batch, layout_);
    check_normalizer(function, loss.aggregate, normalizer, Prepared{});
    over_ = over_of(loss.aggregate);
    check_seen(function, over_, normalizer,
               counts_of_shape(layout_, static_cast<bool>(batch_.mask)));
    check_written_tokens(function, "gradient", gradient, layout_);
    check_row_weights(function, batch_, layout_);
    const char* nothing = divides_by_nothing(loss.aggregate, normalizer);
    if (nothing && count_rows(batch_, layout_).tokens > 0) fail_without_count(function, nothing);
  }

  ValueLossResult operator()(const Exec& exec, ValueWorkspace<S>& workspace) const {
    constexpr index_t most_units = 128;
    const index_t rows = layout_.rows, rows_a_unit = (rows + most_units - 1) / most_units;
    const index_t units = rows > 0 ? (rows + rows_a_unit - 1) / rows_a_unit : 0;
    const index_t workers = workers_for(exec, units, layout_.tokens);
    if (static_cast<index_t>(workspace.workers.size()) < workers)
      workspace.workers.resize(static_cast<std::size_t>(workers));
    for (index_t w = 0; w < workers; ++w) reserve(workspace.workers[static_cast<std::size_t>(w)]);
    if (static_cast<index_t>(workspace.units.size()) < units)
      workspace.units.resize(static_cast<std::size_t>(units));
    for_each_unit(exec, workers, units, [&](index_t worker, index_t unit) {
      const index_t first = unit * rows_a_unit;
      ValueTally& tally = workspace.units[static_cast<std::size_t>(unit)];
      tally = ValueTally{};
      run(first, (std::min)(first + rows_a_unit, rows),
          workspace.workers[static_cast<std::size_t>(worker)], tally);
    });
    ValueTally total;
    for (index_t u = 0; u < units; ++u) total.add(workspace.units[static_cast<std::size_t>(u)]);
    Normalizer seen = seen_by(total.metrics);
    seen.tokens = total.tokens;
    check_seen("gdpo::ValueLoss", over_, normalizer_, seen);
    ValueLossResult result;
    result.loss = total.loss, result.normalizer = normalizer_, result.metrics = total.metrics;
    result.over = over_;
    return result;
  }

 private:
  using V = std::conditional_t<std::is_same_v<Exec, Seq>, S, math::Native<S>>;
  using OfRow =
      RowMoments<std::conditional_t<std::is_same_v<Exec, Seq>, double, math::Native<double>>, S>;

  void reserve(ValueScratch<S>& scratch) const {
    scratch.rows.reserve(layout_.longest);
    const auto longest = static_cast<std::size_t>(layout_.longest);
    if (gradient_ && !gradient_.contiguous() && scratch.gradient.size() < longest)
      scratch.gradient.resize(longest);
  }
  void run(index_t first, index_t last, ValueScratch<S>& scratch, ValueTally& tally) const {
    RowValueLoss<V, S, Metrics> row_loss({loss_.clip, loss_.half}, clips_, tally);
    ValueMetrics& m = tally.metrics;
    for (index_t i = first; i < last; ++i) {
      const RowSpan at = layout_(i);
      const TokenRow<S> row = read_row(batch_, layout_, i, TokenReads::none(), scratch.rows);
      const index_t tokens = row.count();
      double weight =
          tokens > 0 ? loss_.aggregate(AggregateArgs{{tokens, layout_.width}, normalizer_}) : 0.0;
      if (tokens > 0 && batch_.row_weights) weight = math::mul(weight, batch_.row_weights(i));
      if (math::not_finite(weight)) note(m.non_finite.weights, i, -1), weight = 0;
      const bool counts = weight != 0;  // otherwise the row adds nothing, even if its sums are NaN
      const View<S, 1> out = gradient_ ? gradient_.row(i, at.begin, at.length) : View<S, 1>{};
      S* const to = !out ? nullptr : gradient_.contiguous() ? out.data : scratch.gradient.data();
      const ValueSums sums = row_loss(row, weight, to);
      if (counts) tally.loss += math::mul(weight, sums.of[value_of_loss]);
      if (out && (!counts || to != out.data)) {
        for (index_t t = 0; t < at.length; ++t) out(t) = counts ? to[t] : S(0);
      }
      tally.add_row(tokens);
      if constexpr (Metrics::means) {
        for (int q = 0; q < value_quantities; ++q) tally.add_quantity(q, sums, tokens);
        tally.add_clipped(sums, tokens);
        if (tokens == 0) continue;
        const CenteredSums about =
            OfRow::of(row, tokens, sums.of[value_of_value], sums.of[value_of_error]);
        m.returns = merge(m.returns, about.moments(0, tokens));
        m.residuals = merge(m.residuals, about.moments(1, tokens));
      }
    }
  }

  const Loss& loss_;
  bool clips_;
  TokenBatch<S> batch_;
  const Normalizer& normalizer_;
  const TokenOut<S>& gradient_;
  TokenLayout layout_;
  index_t over_ = -1;
};

}  // namespace detail
GDPO_END_NAMESPACE
