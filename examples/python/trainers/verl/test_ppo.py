"""Twenty steps of PPO with a critic, ours beside verl's own, from the same seed.

Each run samples from its own actor, and everything is computed by verl's functions, as its trainer
and workers call them: compute_advantage, value_loss and ppo_loss. Ours replaces the estimator, the
value loss and the policy loss by their names in the configuration. All is in float64, so that the
two runs, whose sums are in other orders, stay within rounding: 1e-6 is asked for, of parameters of
about 1, while Adam makes steps of 0.01. An actor that had drawn another token once would be far
beyond. Adam does not see a factor of a loss, so the losses are compared too.
"""
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict

import gdpo.integrations.verl  # noqa: F401  the wheel does it in every process of verl
from verl.protocol import DataProto
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.utils.tensordict_utils import assign_non_tensor
from verl.workers.config import ActorConfig, CriticConfig, PolicyLossConfig
from verl.workers.utils.losses import ppo_loss, value_loss
from verl.workers.utils.padding import no_padding_2_padding

ROWS, WIDTH, VOCABULARY, STEPS, EPOCHS = 16, 5, 7, 20, 2
THEIRS = {"adv_estimator": "gae", "gdpo_estimator": None, "loss_mode": "vanilla", "critic": ""}
OURS = {"adv_estimator": "gdpo", "gdpo_estimator": "verl::gae", "loss_mode": "gdpo:verl::vanilla",
        "critic": "gdpo:"}


class Model(torch.nn.Module):
    """A recurrent model with one output of that width for each token."""

    def __init__(self, outputs):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 12)
        self.recurrent = torch.nn.GRU(12, 12, batch_first=True)
        self.head = torch.nn.Linear(12, outputs)

    def forward(self, tokens):
        return self.head(self.recurrent(self.embedding(tokens))[0])


def rollout(actor):
    """Prompts, completions, and the mask that ends with the first token 0."""
    prompts = torch.randint(1, VOCABULARY, (ROWS, 1))
    tokens = prompts
    with torch.no_grad():
        for _ in range(WIDTH):
            tokens = torch.cat((tokens, torch.multinomial(
                actor(tokens)[:, -1].softmax(-1), 1)), 1)
    responses = tokens[:, 1:]
    ended = (responses == 0).cumsum(1)
    return prompts, responses, (ended - (responses == 0).long() == 0).long()


def packed(model, data):
    """Log-probs of the next tokens, or values, packed as verl's engines give them to its losses."""
    tokens, valid = torch.cat((data["prompts"], data["responses"]), 1), data["attention_mask"]
    out = model(tokens)
    if out.shape[2] == 1:
        return {"values": out.squeeze(2)[valid.bool()]}
    logp = out[:, :-1].log_softmax(-1).gather(2, tokens[:, 1:, None]).squeeze(2)
    return {"log_probs": torch.nn.functional.pad(logp, (0, 1))[valid.bool()]}


def update(model, optimizer, loss, config, data):
    """Two epochs of two mini-batches of two micro-batches; gives their losses."""
    seen = []
    for _ in range(EPOCHS):
        for mini in data.split(ROWS // 2):
            for micro in mini.split(ROWS // 4):
                assign_non_tensor(micro, dp_size=1, global_batch_size=len(mini),
                                  batch_num_tokens=int(mini["response_mask"].sum()))
                seen.append(loss(config, packed(model, micro), micro)[0])
                seen[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
    return torch.stack(seen).detach()


def run(names, gamma=0.99, lam=0.9, mode="token-mean"):
    """Completions, parameters of actor and critic, and losses of each step."""
    torch.manual_seed(0)
    actor, critic = Model(VOCABULARY).double(), Model(1).double()
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in (actor, critic)]
    algorithm = OmegaConf.create({"gamma": gamma, "lam": lam,
                                  "gdpo_estimator": names["gdpo_estimator"]})
    actor_config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=ROWS // 4, loss_agg_mode=mode,
        policy_loss=PolicyLossConfig(loss_mode=names["loss_mode"]))
    critic_config = CriticConfig(strategy="fsdp", ppo_micro_batch_size_per_gpu=ROWS // 4,
                                 cliprange_value=0.2, loss_agg_mode=names["critic"] + mode)
    history = []
    for _ in range(STEPS):
        prompts, responses, mask = rollout(actor)
        data = TensorDict({
            "prompts": prompts, "responses": responses, "response_mask": mask,
            "attention_mask": torch.cat((torch.ones_like(prompts), mask), 1)}, batch_size=ROWS)
        with torch.no_grad():
            data["old_log_probs"] = no_padding_2_padding(packed(actor, data)["log_probs"], data)
            data["values"] = no_padding_2_padding(packed(critic, data)["values"], data)
        rewards = ((responses == prompts) * mask).double()  # of each token that repeats the prompt
        batch = DataProto.from_dict(
            tensors={"token_level_rewards": rewards, "response_mask": mask,
                     "values": data["values"].clone()},
            non_tensors={"uid": np.arange(ROWS).astype(object)})
        batch = compute_advantage(batch, names["adv_estimator"], gamma, lam,
                                  config=algorithm).batch
        data["advantages"], data["returns"] = batch["advantages"], batch["returns"]
        losses = (update(critic, optimizers[1], value_loss, critic_config, data),
                  update(actor, optimizers[0], ppo_loss, actor_config, data))
        history.append((responses, torch.cat([p.detach().flatten().clone() for model in (
            actor, critic) for p in model.parameters()]), torch.cat(losses)))
    return history


@pytest.mark.parametrize("mode", ("token-mean", "seq-mean-token-mean"))
def test_twenty_steps(mode):
    theirs, ours = run(THEIRS, mode=mode), run(OURS, mode=mode)
    for step, (own, other) in enumerate(zip(ours, theirs), 1):
        assert torch.equal(own[0], other[0]), f"step {step}: other completions"
        for what, one, another in zip(("parameters", "losses"), own[1:], other[1:]):
            apart = float((one - another).abs().max())
            assert apart <= 1e-6, f"step {step}: {what} differ by {apart:.1e}"
    assert float((theirs[-1][1] - theirs[0][1]).abs().max()) > 0.05  # it has moved


@pytest.mark.parametrize("change", ({"lam": 0.91}, {"gamma": 0.98}))
def test_the_comparison_sees_a_change(change):
    """Another discount, by a hundredth, leaves the tolerance within the first steps."""
    theirs, ours = run(THEIRS), run(OURS, **change)
    assert float((ours[1][1] - theirs[1][1]).abs().max()) > 1e-5
