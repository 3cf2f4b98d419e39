// The losses and what comes from logits, in the instruction set that this file is compiled for.
#include <gdpo/with/torch_stable/contrastive.hpp>
#include <gdpo/with/torch_stable/from_logits.hpp>
#include <gdpo/with/torch_stable/scale.hpp>
#include <gdpo/with/torch_stable/value_loss.hpp>

#include "operators.hpp"

const Operator GDPO_INSTRUCTION_SET::losses[] = {
    {"policy_loss", TORCH_BOX(&gdpo::torch_stable::policy_loss)},
    {"policy_loss_forward", TORCH_BOX(&gdpo::torch_stable::policy_loss)},
    {"policy_loss_from_logits", TORCH_BOX(&gdpo::torch_stable::policy_loss_from_logits)},
    {"policy_loss_from_logits_", TORCH_BOX(&gdpo::torch_stable::policy_loss_from_logits_in_place)},
    {"contrastive_loss", TORCH_BOX(&gdpo::torch_stable::contrastive_loss)},
    {"value_loss", TORCH_BOX(&gdpo::torch_stable::value_loss)},
    {"token_logprobs", TORCH_BOX(&gdpo::torch_stable::token_logprobs)},
    {"token_logprobs_backward", TORCH_BOX(&gdpo::torch_stable::token_logprobs_backward)},
    {"scaled", TORCH_BOX(&gdpo::torch_stable::scaled)},
    {"scale_", TORCH_BOX(&gdpo::torch_stable::scale_in_place)},
    {"count", TORCH_BOX(&gdpo::torch_stable::count)},
    {nullptr, nullptr}};
