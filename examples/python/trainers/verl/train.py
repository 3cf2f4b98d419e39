"""Trains a tiny model on one CPU through verl's own functions, as its trainer and actor call them.

A prompt is a digit. The completion is to repeat it (reward "accuracy") and to end with the token 0
(reward "format", which is kept at 0.9 or more by a constraint). No ray, no GPU, no download. It
runs in verl's environment, or with nothing but requirements.txt.
"""
import stubs  # noqa: F401  in place of packages that are missing
import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict

import gdpo.integrations.verl  # noqa: F401  the wheel does it in every process of verl
from verl.trainer.ppo import core_algos
from verl.utils.metric import reduce_metrics
from verl.utils.tensordict_utils import assign_non_tensor
from verl.utils.tracking import Tracking
from verl.workers.config import ActorConfig, PolicyLossConfig
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding

PROMPTS, COMPLETIONS, WIDTH, VOCABULARY, STEPS, EPOCHS = 16, 8, 4, 8, 40, 2

# What stands in verl's configuration: +algorithm.gdpo_estimator=... and so on.
ALGORITHM = OmegaConf.create({
    "adv_estimator": "gdpo",
    "gdpo_reward_keys": ["accuracy", "format"],
    "gdpo_estimator": "gdpo",
    "gdpo_constraints": ["format>=0.9 scale=0.3"],
})
ACTOR = ActorConfig(
    strategy="fsdp", rollout_n=COMPLETIONS, ppo_micro_batch_size_per_gpu=PROMPTS * COMPLETIONS,
    policy_loss=PolicyLossConfig(loss_mode="gdpo:dapo high=0.28"))


class Model(torch.nn.Module):
    """A recurrent language model."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 32)
        self.recurrent = torch.nn.GRU(32, 32, batch_first=True)
        self.head = torch.nn.Linear(32, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.recurrent(self.embedding(tokens))[0])


def rollout(model):
    """Prompts, completions, and the mask that ends with the first token 0."""
    prompts = torch.randint(1, VOCABULARY, (PROMPTS, 1)).repeat_interleave(COMPLETIONS, 0)
    tokens = prompts
    with torch.no_grad():
        for _ in range(WIDTH):
            chances = model(tokens)[:, -1].softmax(-1)
            tokens = torch.cat((tokens, torch.multinomial(chances, 1)), 1)
    responses = tokens[:, 1:]
    ended = (responses == 0).cumsum(1)
    return prompts, responses, (ended - (responses == 0).long() == 0).long()


def packed_logp(model, data):
    """Log-probs of the next tokens, packed as verl's engines give them to ppo_loss."""
    tokens = torch.cat((data["prompts"], data["responses"]), 1)
    logp = model(tokens[:, :-1]).log_softmax(-1).gather(2, tokens[:, 1:, None]).squeeze(2)
    return torch.nn.functional.pad(logp, (0, 1))[data["attention_mask"].bool()]


def main():
    torch.set_num_threads(1)  # for a model of this size more are slower
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    log = Tracking("gdpo", "train.py", "console")
    index = np.repeat([f"prompt {number}" for number in range(PROMPTS)], COMPLETIONS)
    for step in range(1, STEPS + 1):
        prompts, responses, mask = rollout(model)
        rewards = {
            "accuracy": ((responses == prompts) * mask).float().mean(1).numpy(),
            "format": ((responses == 0) & mask.bool()).any(1).float().numpy()}
        attention_mask = torch.cat((torch.ones_like(prompts), mask), 1)
        data = TensorDict({"prompts": prompts, "responses": responses, "response_mask": mask,
                           "attention_mask": attention_mask}, batch_size=len(prompts))
        advantages, _ = core_algos.get_adv_estimator_fn(ALGORITHM.adv_estimator)(
            token_level_rewards=torch.zeros(mask.shape), response_mask=mask, config=ALGORITHM,
            index=index, non_tensor_batch=rewards, batch=data)
        data["advantages"] = advantages
        assign_non_tensor(data, dp_size=1, batch_num_tokens=int(mask.sum()),
                          global_batch_size=len(prompts))
        with torch.no_grad():
            data["old_log_probs"] = no_padding_2_padding(packed_logp(model, data), data)
        for _ in range(EPOCHS):
            loss, metrics = ppo_loss(ACTOR, {"log_probs": packed_logp(model, data)}, data)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        log.log(reduce_metrics(metrics), step)


if __name__ == "__main__":
    main()
