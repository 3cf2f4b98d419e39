// Advantages in the instruction set that this file is compiled for. Calls with constraints or with
// rollouts of several rows are compiled once, in general.cpp: they would double the time that this
// library takes to compile.
#include <gdpo/with/torch_stable/advantages.hpp>

#include "general.hpp"
#include "operators.hpp"

namespace {

std::tuple<Tensor, Tensor> advantages_of(GDPO_TORCH_ADVANTAGES_PARAMETERS) {
  const auto run =
      constraints || rollout_ids ? general_advantages : gdpo::torch_stable::plain_advantages;
  return run(GDPO_TORCH_ADVANTAGES_NAMES);
}

}  // namespace

const Operator GDPO_INSTRUCTION_SET::advantages[] = {{"advantages", TORCH_BOX(&advantages_of)},
                                                     {nullptr, nullptr}};
