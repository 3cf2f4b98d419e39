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

/// Checks the counts that the KL terms' own aggregates divide by, as RowDriver checks that of the
/// loss's.
template <class S, class Loss>
void check_own_counts(const char* function, const Loss& loss, const TokenBatch<S>& batch,
                      const TokenLayout& layout, const Normalizer& normalizer) {
  for_each_own_aggregate(loss.kl, [&](const auto& own) {
    check_step_counts(function, over_of(own), normalizer, batch.prepared, layout,
                      static_cast<bool>(batch.mask));
    const char* nothing = divides_by_nothing(own, normalizer);
    if (nothing && count_rows(batch, layout).tokens > 0) fail_without_count(function, nothing);
  });
}
/// Throws if one of the counts that divided a loss is less than what the call has seen. `over` is
/// that of the loss's aggregate.
template <class Loss>
void check_all_seen(const char* function, const Loss& loss, index_t over, const Normalizer& n,
                    const Normalizer& seen) {
  check_seen(function, over, n, seen);
  for_each_own_aggregate(loss.kl,
                         [&](const auto& own) { check_seen(function, over_of(own), n, seen); });
}

/// A call of a policy loss whose arguments the constructor checks.
template <class S, class Loss>
class CheckedLoss : public RowDriver<S, std::remove_const_t<decltype(Loss::aggregate)>> {
  using Driver = RowDriver<S, std::remove_const_t<decltype(Loss::aggregate)>>;

 public:
  CheckedLoss(const char* function, const Loss& loss, const TokenBatch<S>& batch,
              const Normalizer& normalizer, const TokenOut<S>& gradient)
      : CheckedLoss(function, loss, batch, layout_of(function, batch, NeedsLogp::Yes), normalizer,
                    gradient) {}

 private:
  CheckedLoss(const char* function, const Loss& loss, const TokenBatch<S>& batch,
              const TokenLayout& layout, const Normalizer& normalizer, const TokenOut<S>& gradient)
      : Driver(function, loss.aggregate, batch, layout, check_loss(function, loss, batch, layout),
               normalizer, gradient) {
    check_own_counts(function, loss, batch, layout, normalizer);
  }
};

}  // namespace detail
GDPO_END_NAMESPACE
