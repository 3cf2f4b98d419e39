// What takes long to compile and is seldom large, for any processor of the architecture.
#include "general.hpp"

std::tuple<Tensor, Tensor> general_advantages(GDPO_TORCH_ADVANTAGES_PARAMETERS) {
  return gdpo::torch_stable::general_advantages(GDPO_TORCH_ADVANTAGES_NAMES);
}
