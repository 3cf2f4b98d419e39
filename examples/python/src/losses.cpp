// The losses in the instruction set that this file is compiled for; GDPO_INSTRUCTION_SET names it.
#include "losses.hpp"

#include <gdpo/with/torch_stable/contrastive.hpp>
#include <gdpo/with/torch_stable/from_logits.hpp>

#ifndef GDPO_INSTRUCTION_SET
#define GDPO_INSTRUCTION_SET baseline
#endif
#define GDPO_JOIN_NAMES(a, b) a##b
#define GDPO_JOIN(a, b) GDPO_JOIN_NAMES(a, b)

const Losses GDPO_JOIN(losses_, GDPO_INSTRUCTION_SET) = {
    TORCH_BOX(&gdpo::torch_stable::policy_loss),
    TORCH_BOX(&gdpo::torch_stable::token_logprobs),
    TORCH_BOX(&gdpo::torch_stable::token_logprobs_backward),
    TORCH_BOX(&gdpo::torch_stable::policy_loss_from_logits),
    TORCH_BOX(&gdpo::torch_stable::policy_loss_from_logits_in_place),
    TORCH_BOX(&gdpo::torch_stable::contrastive_loss)};
