"""Trains a tiny model on one CPU through SkyRL's functions, as its trainer and worker call them.

A prompt is a digit, and the completion is to repeat it. No ray, no GPU, no download. It runs in
SkyRL's environment, or with nothing but requirements.txt.
"""
import stubs  # noqa: F401  in place of packages that are missing
import torch

from gdpo.integrations import skyrl
from skyrl.backends.skyrl_train.utils import ppo_utils
from skyrl.train.config import AlgorithmConfig, OffPolicyCorrectionConfig

PROMPTS, COMPLETIONS, WIDTH, VOCABULARY, STEPS, EPOCHS = 16, 8, 4, 8, 40, 2

# SkyRL's command line: trainer.algorithm.policy_loss_type=... and so on.
ALGORITHM = AlgorithmConfig(
    policy_loss_type="gdpo:skyrl::regular", advantage_estimator="gdpo:verl::grpo",
    eps_clip_high=0.28, off_policy_correction=OffPolicyCorrectionConfig(tis_ratio_type="token"))


class Model(torch.nn.Module):
    """A recurrent language model."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 32)
        self.recurrent = torch.nn.GRU(32, 32, batch_first=True)
        self.head = torch.nn.Linear(32, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.recurrent(self.embedding(tokens))[0]).log_softmax(-1)


def rollout(model):
    """Prompts with completions of them."""
    tokens = torch.randint(1, VOCABULARY, (PROMPTS, 1)).repeat_interleave(COMPLETIONS, 0)
    with torch.no_grad():
        for _ in range(WIDTH):
            tokens = torch.cat((tokens, torch.multinomial(model(tokens)[:, -1].exp(), 1)), 1)
    return tokens


def logp_of(model, tokens):
    return model(tokens[:, :-1]).gather(2, tokens[:, 1:, None]).squeeze(2)


def main():
    """Trains, and prints SkyRL's metrics of each step."""
    skyrl.register()  # of a run of SkyRL its entry point does it, see README.md
    torch.set_num_threads(1)  # for a model of this size more are slower
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    policy_loss = ppo_utils.PolicyLossRegistry.get(ALGORITHM.policy_loss_type)
    index = [f"prompt {number}" for number in range(PROMPTS) for _ in range(COMPLETIONS)]
    for _ in range(STEPS):
        tokens = rollout(model)
        mask = torch.ones(len(tokens), WIDTH)
        rewards = torch.zeros_like(mask)
        rewards[:, -1] = (tokens[:, 1:] == tokens[:, :1]).float().mean(1)
        advantages, _ = ppo_utils.compute_advantages_and_returns(
            rewards, mask, index, ALGORITHM.advantage_estimator, ALGORITHM)
        advantages = ppo_utils.apply_loss_reduction_to_advantages_minibatch(
            advantages, mask, ALGORITHM.loss_reduction, len(mask), WIDTH)
        with torch.no_grad():
            old_logp = logp_of(model, tokens)
        rollout_logp = old_logp + 0.05 * torch.randn(old_logp.shape)
        for _ in range(EPOCHS):
            loss, metrics = policy_loss(logp_of(model, tokens), old_logp, advantages, ALGORITHM,
                                        loss_mask=mask, rollout_logprobs=rollout_logp)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        log = {"reward": rewards.sum(1).mean().item(), "policy_loss": loss.item(),
               **{f"loss_metrics/{name}": value for name, value in metrics.items()}}
        print("  ".join(f"{name}: {value:.4f}" for name, value in log.items()))


if __name__ == "__main__":
    main()
