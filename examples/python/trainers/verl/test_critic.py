"""The critic's side of verl's PPO beside ours, on random batches of float32.

Masks have holes, and rows of 0 and 1 tokens. Both sums are of at most a few dozen terms, verl's in
float32, ours in double. So what is compared is within some ulp of float32, of which one is 1.2e-7:
1e-6 of the largest number, and of advantages, which are of about 1, of 1.
"""
import random

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict

import gdpo
import gdpo.integrations.verl as plugin
import verl
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils
from verl.workers.config import CriticConfig
from verl.workers.utils import losses

TRAINER = f"verl {verl.__version__}"
TOLERANCE = 1e-6
MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean",
         "seq-mean-token-sum-norm")


class Batch:
    """Random rewards, values and a mask with holes; rows of 0 and 1 tokens are among them."""

    def __init__(self, seed):
        choose = random.Random(seed)
        g = torch.Generator().manual_seed(seed)
        rows, width = choose.randint(3, 9), choose.randint(3, 14)
        self.shape = (rows, width)
        self.mask = torch.rand(self.shape, generator=g) > choose.choice((0.1, 0.4))
        self.mask[0] = False
        self.mask[1] = torch.arange(width) == choose.randrange(width)
        self.mask[2] = True
        normal = lambda: torch.randn(self.shape, generator=g)
        self.rewards = torch.where(torch.rand(self.shape, generator=g) < 0.3, normal(), 0.0)
        self.values, self.baselines = normal(), torch.randn(rows, generator=g)
        self.old_logp = -2 * torch.rand(self.shape, generator=g) - 0.3
        pi = self.old_logp.exp()  # at least its square is in the sum, at most 1 - pi the rest
        self.sum_pi_squared = pi ** 2 + (1 - pi) ** 2 * torch.rand(self.shape, generator=g)
        self.weights = 0.1 + torch.rand(self.shape, generator=g) if choose.random() < 0.5 else None
        self.index = np.array([f"prompt {choose.randrange(3)}" for _ in range(rows)], dtype=object)
        self.gamma, self.lam = choose.choice((1.0, 0.99, 0.9)), choose.choice((1.0, 0.95, 0.5))
        self.mask_as = choose.choice((torch.int64, torch.float32))
        self.choose, self.normal = choose, normal

    def data(self):
        """What verl's trainer hands to compute_advantage."""
        arrays = {"token_level_rewards": self.rewards, "values": self.values,
                  "response_mask": self.mask.to(self.mask_as), "old_log_probs": self.old_logp,
                  "reward_baselines": self.baselines, "sum_pi_squared": self.sum_pi_squared,
                  "prompts": torch.ones(self.shape[0], 1)}
        if self.weights is not None:
            arrays["rollout_is_weights"] = self.weights
        return DataProto.from_dict(tensors={name: array.clone() for name, array in arrays.items()},
                                   non_tensors={"uid": self.index})

    def advantages(self, adv_estimator, **options):
        """Advantages and returns by verl's own dispatch, compute_advantage of its trainer."""
        from verl.trainer.ppo.ray_trainer import compute_advantage
        config = OmegaConf.create({"gamma": self.gamma, "lam": self.lam, **options})
        batch = compute_advantage(self.data(), adv_estimator, self.gamma, self.lam,
                                  config=config).batch
        return batch["advantages"], batch["returns"]


# verl's adv_estimator, the one by which ours is asked for, and ours.
ESTIMATORS = [("gae", "gdpo", "verl::gae"),
              ("reinforce_plus_plus", "gdpo", "verl::reinforce_plus_plus"),
              ("remax", "remax", "verl::remax"),
              ("optimal_token_baseline", "gdpo", "verl::optimal_token_baseline"),
              ("tir_optimal_token_baseline", "gdpo",
               "verl::multi_turn_optimal_token_baseline")]


@pytest.mark.parametrize("theirs, ours, name", ESTIMATORS)
def test_estimators(record, seeds, theirs, ours, name):
    """Both ways through verl's trainer; at the tokens of the mask, the others are read by nobody.

    verl sums the returns of a token baseline from the masked tokens too, which have no rewards here
    in either.
    """
    for seed in seeds:
        batch = Batch(seed)
        batch.rewards[~batch.mask] = 0
        at = batch.mask
        wanted = batch.advantages(theirs)
        got = batch.advantages(ours, gdpo_estimator=name)
        record.batch(TRAINER, f"adv_estimator={theirs}", name)
        for what, one, other in zip(("advantages", "returns"), got, wanted):
            record.close(TRAINER, f"adv_estimator={theirs}", name, "advantages", one[at], other[at],
                         TOLERANCE, f"{what}, seed {seed}")
            assert not one[~at].any()


@pytest.mark.parametrize("theirs", [name for name, *_ in ESTIMATORS])
def test_without_a_line_the_estimator_is_that_of_verl(theirs):
    batch = Batch(3)
    wanted = {"gae": lambda: core_algos.compute_gae_advantage_return(
        batch.rewards, batch.values, batch.mask.to(batch.mask_as), batch.gamma, batch.lam)}
    got = batch.advantages(theirs)
    if theirs in wanted:
        for one, other in zip(got, wanted[theirs]()):
            assert torch.equal(one, other)
    assert got[0].isfinite().all()


def test_a_line_has_the_last_word():
    """Its own discounts, other estimators of tokens, and what fits no estimator of tokens."""
    batch = Batch(5)
    rewards, values, mask = batch.rewards, batch.values, batch.mask
    for line, settings in (("verl::gae gamma=0.5 lambda=0.25", {}),
                           ("nemo_rl::vapo", {"gamma": batch.gamma, "returns_lambda": batch.lam}),
                           ("verl::gae renorm=none", {"gamma": batch.gamma,
                                                      "returns_lambda": batch.lam})):
        got = batch.advantages("gdpo", gdpo_estimator=line)
        want = gdpo.token_advantages(estimator=line, rewards=rewards, values=values, mask=mask,
                                     **settings)
        for one, other in zip(got, want):
            assert torch.equal(one, other)
    for option in ({"gdpo_reward_keys": ["a"]}, {"gdpo_constraints": ["a>=1"]}):
        with pytest.raises(ValueError, match="estimator over tokens takes verl's rewards"):
            batch.advantages("gdpo", gdpo_estimator="verl::gae", **option)
    with pytest.raises(ValueError, match="no values in the batch; needed: critic.enable=True"):
        plugin.advantages(rewards, mask, batch.index, batch={}, config=OmegaConf.create(
            {"gdpo_estimator": "verl::gae", "gamma": 1.0, "lam": 1.0}))
    with pytest.raises(ValueError, match="the setting 'low'"):
        batch.advantages("gdpo", gdpo_estimator="verl::gae low=1")


def loss_of(function, batch, vpreds, mode, clip, info):
    """A value loss of verl, its gradient and its clip fraction."""
    vpreds = vpreds.clone().requires_grad_()
    loss, clipped = function(vpreds=vpreds, returns=batch.returns, values=batch.values,
                             response_mask=batch.mask, cliprange_value=clip, loss_agg_mode=mode,
                             **info)
    loss.backward()
    return loss.detach(), vpreds.grad, clipped


def test_value_loss(record, seeds):
    """compute_value_loss in each mode, with and without the counts of a global batch."""
    for seed in seeds:
        batch = Batch(seed)
        batch.returns = batch.normal()
        vpreds = batch.values + batch.choose.choice((0.05, 0.5, 2.0)) * batch.normal()
        mode, clip = batch.choose.choice(MODES), batch.choose.choice((0.2, 0.5, 1e3))
        info = {}
        if batch.choose.random() < 0.6:
            info = {"dp_size": batch.choose.choice((1, 4)), "batch_num_tokens": 77,
                    "global_batch_size": 16, "loss_scale_factor": batch.choose.choice((None, 40))}
        theirs = loss_of(core_algos.compute_value_loss, batch, vpreds, mode, clip, info)
        ours = loss_of(core_algos.compute_value_loss, batch, vpreds, f"gdpo:{mode}", clip, info)
        about = (TRAINER, "compute_value_loss", "verl::value_loss")
        record.batch(*about)
        for what, one, other in zip(("loss", "gradient", "metrics"), ours, theirs):
            record.close(*about, what, one, other, TOLERANCE, f"seed {seed}, {mode}, {info}")


def test_value_loss_of_a_line():
    """Settings of the line stand before those of verl's configuration."""
    batch = Batch(7)
    batch.returns = batch.normal()
    got = loss_of(plugin.value_loss, batch, batch.values + 1.0, "gdpo:token-sum clip=0.1 delta=0.7",
                  0.5, {"dp_size": 3})
    vpreds = (batch.values + 1.0).requires_grad_()
    want = gdpo.ValueLoss(clip=0.1, delta=0.7, aggregate="token-sum", scale=3)(
        vpreds, returns=batch.returns, old_values=batch.values, mask=batch.mask,
        counts=gdpo.count(mask=batch.mask)).loss
    want.backward()
    assert torch.equal(got[0], want.detach()) and torch.equal(got[1], vpreds.grad)
    for mode, words in (("gdpo:", "needed: gdpo:MODE"), ("gdpo:mean", "'mean'; needed: one of"),
                        ("gdpo:token-mean low=1", "the setting 'low'"),
                        ("gdpo:delta=1", "needed: gdpo:MODE"),
                        ("gdpo:token-mean half", "needed: gdpo:MODE")):
        with pytest.raises(ValueError, match=words):
            plugin.value_loss(batch.values, batch.returns, batch.values, batch.mask, 0.5, mode)
    with pytest.raises(ValueError, match="batch_num_tokens; needed"):
        plugin.value_loss(batch.values, batch.returns, batch.values, batch.mask, 0.5, dp_size=2)


def test_the_workers_of_verl_call_it():
    """value_loss of verl's workers, with a configuration of the critic: loss and log."""
    batch = Batch(11)
    mask = batch.mask.long()
    attention = torch.cat((torch.ones(len(mask), 1, dtype=torch.int64), mask), 1)
    results = []
    for mode in ("token-mean", "gdpo:token-mean"):
        data = TensorDict({"prompts": torch.ones(len(mask), 1), "responses": torch.ones(mask.shape),
                           "response_mask": mask, "attention_mask": torch.ones_like(attention),
                           "values": batch.values, "returns": batch.rewards},
                          batch_size=len(mask))
        tensordict_utils.assign_non_tensor(data, dp_size=1, batch_num_tokens=int(mask.sum()),
                                           global_batch_size=len(mask))
        vpreds = torch.cat((batch.values[:, :1], batch.values + 1.0), 1)
        config = CriticConfig(strategy="fsdp", ppo_micro_batch_size_per_gpu=4, loss_agg_mode=mode)
        loss, metrics = losses.value_loss(config, {"values": vpreds.reshape(-1)}, data)
        results.append([float(loss), metrics["critic/vf_clipfrac"], metrics["critic/vpred_mean"]])
    assert results[0] == pytest.approx(results[1], rel=1e-6) and results[0][0] > 0


def test_the_plugin_is_where_verl_looks():
    assert losses.compute_value_loss is core_algos.compute_value_loss
    assert core_algos.compute_value_loss.is_of_gdpo


@pytest.mark.parametrize("algorithm, critic, words", [
    ({"adv_estimator": "gdpo", "gdpo_estimator": "verl::gae lambda=0.9"}, "gdpo:token-mean", None),
    ({"adv_estimator": "gdpo", "gdpo_estimator": "verl::optimal_token_baseline"}, "", None),
    ({"adv_estimator": "remax", "gdpo_estimator": "verl::remax"}, "token-mean", None),
    ({"adv_estimator": "gdpo", "gdpo_estimator": "verl::gae low=1"}, "", "the setting 'low'"),
    ({"adv_estimator": "remax", "gdpo_estimator": "verl::grpo"}, "", "'verl::grpo'; needed"),
    ({"adv_estimator": "gae"}, "gdpo:mean", "'mean'; needed: one of token-mean")])
def test_slips_are_told_with_the_configuration(algorithm, critic, words, recwarn):
    config = OmegaConf.create({"algorithm": algorithm, "critic": {"loss_agg_mode": critic},
                               "actor_rollout_ref": {"actor": {}}, "trainer": {}})
    if words is None:
        plugin.check(config)
        assert not recwarn
    else:
        with pytest.raises(ValueError, match=words):
            plugin.check(config)
