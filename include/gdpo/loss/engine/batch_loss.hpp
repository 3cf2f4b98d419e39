#pragma once
// A call of a policy loss on the host: what a row adds to the tally.
#include <gdpo/loss/engine/row_loss.hpp>
#include <gdpo/loss/shared/checked_loss.hpp>
#include <gdpo/loss/shared/positive_logp.hpp>
#include <gdpo/loss/shared/write_result.hpp>

GDPO_BEGIN_NAMESPACE

namespace detail {

/// Moments of the advantages at the row's valid tokens.
template <class S>
Moments advantages_of(const TokenRow<S>& row, index_t tokens, std::vector<double>& scratch) {
  Moments m;
  if (tokens == 0) return m;
  if (row.advantages) {
    index_t n = 0;
    // This packs the advantages of the valid tokens without a branch on the mask, because such a
    // branch would often be mispredicted.
    for (index_t t = 0; t < row.length; ++t) {
      scratch[static_cast<std::size_t>(n)] = static_cast<double>(row.advantages[t]);
      n += row.valid(t);
    }
    return moments_of(InRowOrder{}, scratch.data(), nullptr, n);
  }
  m.n = tokens;
  m.weight = static_cast<double>(tokens);
  m.mean = m.min = m.max = row.advantage;
  return m;
}

/// The V that formulas run on: lanes of S, or of double at levels of segments. With `seq` it is one
/// such number.
template <class Exec, class S, class Level>
using lanes_for =
    std::conditional_t<std::is_same_v<Exec, Seq>, std::conditional_t<Level::of_segment, double, S>,
                       math::Native<std::conditional_t<Level::of_segment, double, S>>>;

/// The policy loss as RowDriver runs it.
template <class V, class S, class Loss>
class PolicyRows {
 public:
  static constexpr bool always_writes = true;

  PolicyRows(const Loss& loss, const TokenBatch<S>& batch, Tally& tally)
      : row_loss_(loss, tally), batch_(batch), tally_(tally) {}

  NonFinite& bad_weights() { return tally_.non_finite.weights; }
  RowSums operator()(const WeighedRow<S>& weighed, S* gradient, RowMemory<S>& memory) {
    const RowSums sums = row_loss_(weighed.row, weighed.weight, gradient, memory.tokens.data());
    if (weighed.counts()) {
      tally_.policy_loss += math::mul(weighed.weight, sums.of[of_metric<&LossMetrics::surrogate>]);
      tally_.kl_loss += math::mul(weighed.weight, sums.kl_loss);
    }
    return sums;
  }
  void add(const RowSpan& span, const WeighedRow<S>& weighed, const RowSums& sums,
           RowMemory<S>& memory) {
    const auto& [row, tokens, weight] = weighed;
    // Tally::add() below loads the sums of this row as vectors. They were stored one by one, and a
    // vector load has to wait until such stores have reached the cache. The work in between gives
    // them time.
    tally_.advantage = merge(tally_.advantage, advantages_of(row, tokens, memory.tokens));
    const index_t completion =
        batch_.completion_mask ? count_row(batch_.completion_mask, span, memory.rows.mask.data())
                               : tokens;
    tally_.add(sums, tokens, completion,
               batch_.truncated ? batch_.truncated(span.row) : math::nan(),
               positive_logp(row, tokens), RowLoss<V, S, Loss>::Metrics::means);
  }

 private:
  RowLoss<V, S, Loss> row_loss_;
  const TokenBatch<S>& batch_;
  Tally& tally_;
};

/// A call of a policy loss.
template <class Exec, class S, class Loss>
class BatchLoss : public CheckedLoss<S, Loss> {
 public:
  using CheckedLoss<S, Loss>::CheckedLoss;

  Tally operator()(const Exec& exec, LossWorkspace<S>& workspace) const {
    using Rows = PolicyRows<lanes_for<Exec, S, decltype(Loss::level)>, S, Loss>;
    return this->template run<Rows>(
        exec, workspace, [&](Tally& tally) { return Rows(this->loss_, this->batch_, tally); });
  }
};

}  // namespace detail

GDPO_END_NAMESPACE
