// The operators for tensors of a device as torch.ops.gdpo_grid, with the simulated grid of the
// library's tests as the device and tensors of the CPU. test_device.py compares them with
// torch.ops.gdpo.
#include <gdpo/with/torch_stable.hpp>
#include <gdpo/with/torch_stable/device/advantages.hpp>
#include <gdpo/with/torch_stable/device/logits.hpp>
#include <gdpo/with/torch_stable/device/loss.hpp>
#include <gdpo/with/torch_stable/device/mismatch.hpp>
#include <gdpo/with/torch_stable/device/prepare.hpp>

#include "../../../../tests/support/simulated_grid.hpp"

namespace {

class Grid {
 public:
  explicit Grid(const gdpo::torch_stable::detail::Call&) {}
  const SimulatedGrid& on() const { return grid_; }

 private:
  SimulatedGrid grid_{7};
};

}  // namespace

STABLE_TORCH_LIBRARY(gdpo_grid, library) {
  using namespace gdpo::torch_stable;
  for (const char* schema :
       {policy_loss_schema, policy_loss_forward_schema, policy_loss_from_logits_schema,
        policy_loss_from_logits_in_place_schema, token_logprobs_schema,
        token_logprobs_backward_schema, scaled_schema, scale_in_place_schema, count_schema,
        value_loss_schema, advantages_schema, prepare_schema, mismatch_schema}) {
    library.def(schema);
  }
}

STABLE_TORCH_LIBRARY_IMPL(gdpo_grid, CPU, library) {
  using namespace gdpo::torch_stable;
  device::register_losses<Grid>(library);
  device::register_logits<Grid>(library);
  device::register_advantages<Grid>(library);
  device::register_prepasses<Grid>(library);
  device::register_mismatch<Grid>(library);
}
