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
               normalizer, gradient) {}
};

}  // namespace detail
GDPO_END_NAMESPACE
