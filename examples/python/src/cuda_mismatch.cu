// Registers the operator of mismatch reports for tensors of a GPU.
#include <gdpo/with/torch_stable_cuda.hpp>

STABLE_TORCH_LIBRARY_IMPL(gdpo, CUDA, library) {
  using namespace gdpo::torch_stable;
  device::register_mismatch<CurrentStream>(library);
}
