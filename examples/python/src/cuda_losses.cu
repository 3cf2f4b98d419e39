// Registers the operators of losses and counts, and of log-probs and losses from logits, for
// tensors of a GPU. They share a file because both call the kernels of the losses.
#include <gdpo/with/torch_stable_cuda.hpp>

STABLE_TORCH_LIBRARY_IMPL(gdpo, CUDA, library) {
  using namespace gdpo::torch_stable;
  device::register_losses<CurrentStream>(library);
  device::register_logits<CurrentStream>(library);
}
