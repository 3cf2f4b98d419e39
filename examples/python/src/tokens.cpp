// What reads arrays of tokens, but losses, in the instruction set that this file is compiled for.
#include <gdpo/with/torch_stable/mismatch.hpp>
#include <gdpo/with/torch_stable/prepare.hpp>
#include <gdpo/with/torch_stable/token_advantages.hpp>

#include "operators.hpp"

const Operator GDPO_INSTRUCTION_SET::tokens[] = {
    {"token_advantages", TORCH_BOX(&gdpo::torch_stable::token_advantages)},
    {"optimal_token_baseline", TORCH_BOX(&gdpo::torch_stable::optimal_token_baseline)},
    {"prepare", TORCH_BOX(&gdpo::torch_stable::prepare)},
    {"mismatch", TORCH_BOX(&gdpo::torch_stable::mismatch)},
    {nullptr, nullptr}};
