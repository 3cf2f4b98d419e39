"""The plug-in for slime in a loop that calls it as slime's loss_function does, on the CPU.

    python train.py

slime itself needs GPUs, Megatron-Core and SGLang. Here a linear layer stands for the model, and
the modules of slime and Megatron that the plug-in imports have the two functions that it calls.
"""
import importlib
import sys
import types

import torch


def get_log_probs_and_entropy(logits, *, args, unconcat_tokens, total_lengths, response_lengths,
                              with_entropy=False):
    """As slime's function of this name: a list of tensors, one for each response."""
    found, end = {"log_probs": [], "entropy": []}, 0
    for tokens, total, response in zip(unconcat_tokens, total_lengths, response_lengths):
        end += total
        logp = logits[0, end - response - 1:end - 1].log_softmax(-1)
        found["log_probs"].append(logp.gather(1, tokens[-response:, None])[:, 0])
        found["entropy"].append(-(logp.exp() * logp).sum(-1))
    return torch.empty(0), found


def stand_in(context_parallel=1):
    """The modules that the plug-in imports when its loss is called."""
    mpu = types.SimpleNamespace(get_context_parallel_world_size=lambda: context_parallel)
    loss = types.ModuleType("slime.backends.megatron_utils.loss")
    loss.get_log_probs_and_entropy = get_log_probs_and_entropy
    loss.get_rollout_top_p_logprob_kwargs = lambda args, batch: {}
    for name, content in {"megatron": {}, "megatron.core": {"mpu": mpu}, "slime": {},
                          "slime.backends": {}, "slime.backends.megatron_utils": {"loss": loss},
                          "slime.backends.megatron_utils.loss": vars(loss)}.items():
        module = types.ModuleType(name)
        module.__dict__.update(content)
        sys.modules[name] = module


def sample_mean(batch, per_token=False):
    """slime's sum_of_sample_mean without context parallelism."""
    def reduce(values):
        total = 0
        for row, mask in zip(values.split(batch["response_lengths"]), batch["loss_masks"]):
            total = total + (row * mask).sum() / (1 if per_token else mask.sum().clamp(min=1))
        return total
    return reduce


ARGS = types.SimpleNamespace(
    eps_clip=0.2, eps_clip_high=0.28, eps_clip_c=None, use_kl_loss=False, kl_loss_coef=0.0,
    kl_loss_type="k3", entropy_coef=0.0, advantage_estimator="grpo", use_rollout_logprobs=False,
    calculate_per_token_loss=False, use_tis=False, tis_clip=2.0, tis_clip_low=0.0,
    custom_tis_function_path=None, use_opsm=False, opsm_delta=1e-4)


def main(path="gdpo.integrations.slime.policy_loss", steps=5):
    """Trains with the loss of a path, which is looked up as slime does, and returns the log."""
    stand_in()
    torch.manual_seed(0)
    module, name = path.rsplit(".", 1)
    function = getattr(importlib.import_module(module), name)
    model = torch.nn.Linear(8, 11)
    lengths = [5, 7, 6, 9]
    states = torch.randn(1, sum(lengths), 8)
    tokens = [torch.randint(11, (length,)) for length in lengths]
    batch = {"unconcat_tokens": tokens, "total_lengths": lengths, "response_lengths": [3, 4, 2, 6]}
    batch["loss_masks"] = [torch.ones(length) for length in batch["response_lengths"]]
    batch["advantages"] = [torch.full((length,), advantage) for length, advantage in
                           zip(batch["response_lengths"], (1.0, -1.0, 0.5, -0.5))]
    with torch.no_grad():
        batch["log_probs"] = get_log_probs_and_entropy(
            model(states), args=ARGS, unconcat_tokens=tokens, total_lengths=lengths,
            response_lengths=batch["response_lengths"])[1]["log_probs"]
    batch["ref_log_probs"] = batch["rollout_log_probs"] = batch["log_probs"]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    log = []
    for _ in range(steps):
        loss, metrics = function(ARGS, batch, model(states), sample_mean(batch))
        optimizer.zero_grad()
        (loss / len(lengths)).backward()  # slime divides by the batch afterwards
        optimizer.step()
        log.append({key: value.item() / len(lengths) for key, value in metrics.items()})
    return log


if __name__ == "__main__":
    for step in main(*sys.argv[1:]):
        print("  ".join(f"{key}: {value:.4f}" for key, value in step.items()))
