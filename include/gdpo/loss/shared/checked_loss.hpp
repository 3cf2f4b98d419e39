#pragma once
// The checked arguments of a policy loss, and the memory that it works in.
#include <gdpo/loss/shared/check_loss.hpp>
#include <gdpo/loss/shared/loss_tally.hpp>
#include <gdpo/tokens/row_driver.hpp>

GDPO_BEGIN_NAMESPACE

/// Scratch memory of policy losses.
template <class S>
using LossWorkspace = TokenWorkspace<S, detail::Tally>;

namespace detail {

/// Checks the counts that other aggregates than the loss's divide by, as RowDriver checks that of
/// the loss's.
template <class S, class Loss>
void check_own_counts(const char* function, const Loss& loss, const TokenBatch<S>& batch,
                      const TokenLayout& layout, const Normalizer& normalizer) {
  for_each_other_aggregate(loss, [&](const auto& own) {
    check_step_counts(function, over_of(own), normalizer, batch.prepared, layout,
                      static_cast<bool>(batch.mask));
    check_divisor(function, own, batch, layout, normalizer);
  });
}
/// Throws if one of the counts that divided a loss is less than what the call has seen. `over` is
/// that of the loss's aggregate.
template <class Loss>
void check_all_seen(const char* function, const Loss& loss, index_t over, const Normalizer& n,
                    const Normalizer& seen) {
  check_seen(function, over, n, seen);
  for_each_other_aggregate(loss,
                           [&](const auto& own) { check_seen(function, over_of(own), n, seen); });
}

/// What the rows of a call of a policy loss need besides their batch.
template <class S, class Loss>
struct LossCall {
  const Loss& loss;
  const Normalizer& normalizer;
  const TokenOut<S>& entropies;  ///< LossGradient::entropies.
};

/// A call of a policy loss whose arguments the constructor checks.
template <class S, class Loss>
class CheckedLoss : public RowDriver<S, std::remove_const_t<decltype(Loss::aggregate)>> {
  using Driver = RowDriver<S, std::remove_const_t<decltype(Loss::aggregate)>>;

 public:
  CheckedLoss(const char* function, const Loss& loss, const TokenBatch<S>& batch,
              const Normalizer& normalizer, const LossGradient<S>& gradient)
      : CheckedLoss(function, loss, batch, layout_of(function, batch, NeedsLogp::Yes), normalizer,
                    gradient) {}

  /// The call refers to its gradient.
  CheckedLoss(const char*, const Loss&, const TokenBatch<S>&, const Normalizer&,
              const LossGradient<S>&&) = delete;

 private:
  CheckedLoss(const char* function, const Loss& loss, const TokenBatch<S>& batch,
              const TokenLayout& layout, const Normalizer& normalizer,
              const LossGradient<S>& gradient)
      : Driver(function, loss.aggregate, batch, layout, check_loss(function, loss, batch, layout),
               normalizer, gradient.logp) {
    check_written_tokens(function, "gradient.entropies", gradient.entropies, layout);
    check_own_counts(function, loss, batch, layout, normalizer);
  }
};

}  // namespace detail
GDPO_END_NAMESPACE
