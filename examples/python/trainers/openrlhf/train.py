"""Trains a tiny model on one CPU through OpenRLHF's own trainer of the actor, with a loss of gdpo.

A prompt is a digit, and the completion is to repeat it. OpenRLHF's ActorPPOTrainer makes the loss
and steps the model; rollouts and advantages are made here, where OpenRLHF has vLLM. No Ray, no
DeepSpeed, no GPU. It runs in OpenRLHF's environment, or with nothing but requirements.txt.
"""
import stubs  # noqa: F401  in place of packages that are missing
import types

import torch

import gdpo
from gdpo.integrations import openrlhf

openrlhf.install()  # of a run in Ray the workers do it, see README.md

from openrlhf.trainer.ppo_utils.experience import Experience  # noqa: E402
from openrlhf.trainer.ray import ppo_actor  # noqa: E402

PROMPTS, COMPLETIONS, WIDTH, VOCABULARY, STEPS, EPOCHS = 16, 8, 4, 8, 40, 2


class Model(torch.nn.Module):
    """A recurrent language model, called as OpenRLHF's Actor."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 32)
        self.recurrent = torch.nn.GRU(32, 32, batch_first=True)
        self.head = torch.nn.Linear(32, VOCABULARY)

    def logp(self, tokens):
        return self.head(self.recurrent(self.embedding(tokens))[0]).log_softmax(-1)

    def forward(self, sequences, action_mask, **_):
        logp = self.logp(sequences[:, :-1])
        return logp.gather(2, sequences[:, 1:, None]).squeeze(2), types.SimpleNamespace()


class Strategy:
    """What ActorPPOTrainer asks of DeepspeedStrategy, for one process without DeepSpeed."""

    ring_attn_group = None

    def __init__(self, args):
        self.args = args

    def backward(self, loss, model, optimizer):
        optimizer.zero_grad()
        loss.backward()

    def optimizer_step(self, optimizer, model, scheduler, name):
        optimizer.step()
        scheduler.step()

    def get_grad_norm(self, model):
        return torch.cat([p.grad.reshape(-1) for p in model.parameters()]).norm().item()


def arguments():
    """OpenRLHF's options of this run, such as --actor.eps_clip_low_high 0.2 0.28."""
    space = types.SimpleNamespace
    return space(
        actor=space(eps_clip_low_high=(0.2, 0.28), dual_clip=None, loss_agg_mode="token-mean",
                    policy_loss_type="ppo", aux_loss_coef=0.0, entropy_coef=None),
        algo=space(kl=space(use_loss=False), advantage=space(
            is_correction_level="token", is_correction_mode="mask", is_correction_gating="ratio",
            is_correction_threshold=[0.5, 5.0])),
        train=space(max_epochs=EPOCHS, dynamic_batch_enable=False, colocate_all=False,
                    async_enable=False),
        ds=space(packing_samples=False), vllm=space(sync_backend="gloo"))


def rollout(model):
    """Prompts with completions of them."""
    tokens = torch.randint(1, VOCABULARY, (PROMPTS, 1)).repeat_interleave(COMPLETIONS, 0)
    with torch.no_grad():
        for _ in range(WIDTH):
            chances = model.logp(tokens)[:, -1].exp()
            tokens = torch.cat((tokens, torch.multinomial(chances, 1)), 1)
    return tokens


def main():
    """Trains, prints what OpenRLHF measures in each step, and returns it."""
    torch.set_num_threads(1)  # for a model of this size more are slower
    torch.manual_seed(0)
    # There is one process and no GPU, and batches are handed over without the buffer on one.
    ppo_actor.torch_dist_barrier_and_cuda_sync = lambda: None
    ppo_actor.NaiveReplayBuffer = lambda *arguments: None
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    trainer = ppo_actor.ActorPPOTrainer(
        Strategy(arguments()), model, None, optimizer,
        torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0))
    log = []
    for step in range(STEPS):
        tokens = rollout(model)
        mask = torch.ones(len(tokens), WIDTH, dtype=torch.bool)
        reward = (tokens[:, 1:] == tokens[:, :1]).float().mean(1)
        advantages = gdpo.advantages(reward[:, None], group_size=COMPLETIONS, estimator="grpo")
        with torch.no_grad():
            old_logp, _ = model(tokens, mask)
        for _ in range(EPOCHS):
            experience = Experience(
                sequences=tokens, action_mask=mask, action_log_probs=old_logp,
                rollout_log_probs=old_logp + 0.05 * torch.randn(old_logp.shape),
                advantages=advantages[:, None].expand(old_logp.shape), info={"reward": reward})
            metrics = trainer.training_step(experience, 0.0, step)["metrics"]
        log.append({name: float(torch.as_tensor(metrics[name]).float().mean()) for name in (
            "policy_loss", "ppo_clip_ratio", "ppo_kl", "vllm_kl", "is_filter_ratio", "reward")})
        print("  ".join(f"{name}: {value:.4f}" for name, value in log[-1].items()))
    return log, trainer


if __name__ == "__main__":
    main()
