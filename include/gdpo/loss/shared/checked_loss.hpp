#pragma once
// The checked arguments of a loss call, and the memory that it works in.
#include <gdpo/loss/shared/check_loss.hpp>
#include <gdpo/loss/shared/loss_tally.hpp>
#include <gdpo/tokens/token_row.hpp>
#include <vector>

GDPO_BEGIN_NAMESPACE

namespace detail {
template <class Exec, class S, class Loss>
class BatchLoss;

/// Scratch memory of one worker, with room for the longest row.
template <class S>
struct LossScratch {
  RowScratch<S> rows;
  std::vector<double> tokens;  ///< One number a token: RowLoss's scratch, then the advantages.
  /// The gradient of a row, if the caller wants none or its gradient is not contiguous.
  std::vector<S> gradient;
};
}  // namespace detail

/// Scratch memory of loss calls. After a first call, further calls of the same shape and executor
/// allocate nothing. It serves one call at a time: threads that call at the same time need one
/// each.
template <class S>
class LossWorkspace {
  template <class Exec, class T, class Loss>
  friend class detail::BatchLoss;
  std::vector<detail::LossScratch<S>> workers;
  std::vector<detail::Tally> units;
};

namespace detail {

/// The arguments of a loss call, which the constructor checks.
template <class S, class Loss>
class CheckedLoss {
 public:
  CheckedLoss(const char* function, const Loss& loss, const TokenBatch<S>& batch,
              const Normalizer& normalizer, const TokenOut<S>& gradient)
      : loss_(loss),
        batch_(batch),
        normalizer_(normalizer),
        gradient_(gradient),
        layout_(layout_of(function, batch, NeedsLogp::Yes)),
        reads_(check_loss(function, loss, batch, layout_)),
        over_(over_of(loss.aggregate)) {
    check_normalizer(function, loss.aggregate, normalizer, batch.prepared);
    check_seen(function, over_, normalizer,
               counts_of_shape(layout_, static_cast<bool>(batch.mask)));
    check_written_tokens(function, "gradient", gradient, layout_);
    check_row_weights(function, batch, layout_);
    const char* nothing = divides_by_nothing(loss.aggregate, normalizer);
    if (nothing && count_rows(batch, layout_).tokens > 0) fail_without_count(function, nothing);
  }

  const TokenLayout& layout() const { return layout_; }
  const TokenReads& reads() const { return reads_; }
  index_t over() const { return over_; }

  struct WeighedRow {
    TokenRow<S> row;
    index_t tokens;  ///< Number of valid tokens.
    double weight;   ///< W_i. One that is not finite is counted in the tally and becomes 0.
  };
  WeighedRow read(index_t i, LossScratch<S>& scratch, Tally& tally) const {
    const TokenRow<S> row = read_row(batch_, layout_, i, reads_, scratch.rows);
    const index_t tokens = row.count();
    double weight =
        tokens > 0 ? loss_.aggregate(AggregateArgs{{tokens, layout_.width}, normalizer_}) : 0.0;
    if (tokens > 0 && batch_.row_weights) weight = math::mul(weight, batch_.row_weights(i));
    if (math::not_finite(weight)) note(tally.non_finite.weights, i, -1), weight = 0;
    return {row, tokens, weight};
  }
  void reserve(LossScratch<S>& scratch) const {
    scratch.rows.reserve(layout_.longest);
    const auto longest = static_cast<std::size_t>(layout_.longest);
    if (scratch.tokens.size() < longest) scratch.tokens.resize(longest);
    if (!(gradient_ && gradient_.contiguous()) && scratch.gradient.size() < longest)
      scratch.gradient.resize(longest);
  }

 protected:
  const Loss& loss_;
  const TokenBatch<S>& batch_;
  const Normalizer& normalizer_;
  const TokenOut<S>& gradient_;
  TokenLayout layout_;
  TokenReads reads_;
  index_t over_;
};

}  // namespace detail

GDPO_END_NAMESPACE
