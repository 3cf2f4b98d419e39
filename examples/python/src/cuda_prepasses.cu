// Registers the operator of pre-passes for tensors of a GPU.
#include <gdpo/with/torch_stable_cuda.hpp>

STABLE_TORCH_LIBRARY_IMPL(gdpo, CUDA, library) {
  using namespace gdpo::torch_stable;
  device::register_prepasses<CurrentStream>(library);
}
