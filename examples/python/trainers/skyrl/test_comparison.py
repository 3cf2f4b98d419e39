"""SkyRL's own losses and estimators and ours, on random batches of three types.

They are float32, bfloat16 and float64. Masks are ragged, some have holes, some rows are empty.
SkyRL computes in the type that it is given; it gets the stored values widened to float64, and ours
the stored ones. Its ratios are float32 in any case. Gradients of bfloat16 log-probs are
compared after both were rounded to bfloat16.
"""
import dataclasses
import importlib.metadata
import random

import numpy as np
import pytest
import torch

from gdpo.integrations import skyrl as plugin
from skyrl.backends.skyrl_train.utils import ppo_utils
from skyrl.train.config import (AlgorithmConfig, CISPOConfig, ClipCovConfig, DPPOConfig,
                                KLCovConfig, OffPolicyCorrectionConfig, SAPOConfig)

TRAINER = f"skyrl {importlib.metadata.version('skyrl')}"
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
ADVANTAGES, LOSS = 1e-6, 1e-5
REDUCTIONS = ("token_mean", "token_mean_legacy", "sequence_mean", "seq_mean_token_sum_norm")


class Tokens:
    """Random log-probs, masks and advantages of a micro-batch, which SkyRL's function divides."""

    ARRAYS = ("old_log_probs", "rollout_logprobs", "advantages")

    def __init__(self, seed, covariance=False):
        choose = self.choose = random.Random(seed)
        torch.manual_seed(seed)
        self.dtype = DTYPES[seed % 3]
        # Of two tokens both covariances are one number, of which rounding decides the larger.
        rows, width = choose.randint(1, 6), choose.randint(3 if covariance else 2, 12)
        shape = (rows, width)
        lengths = torch.randint(0 if choose.random() < 0.5 else 1, width + 1, (rows,))
        lengths[choose.randrange(rows)] = width
        mask = torch.arange(width) < lengths[:, None]
        if choose.random() < 0.3 and not covariance:  # turns of a tool between turns of the model
            mask &= torch.rand(shape) < 0.8
            mask[0, 0] = True
        self.mask = mask.to(choose.choice((torch.int64, torch.float32)))
        old = -torch.rand(shape, dtype=torch.float64) * 3 - 0.01
        # Log ratios of a step, of a policy far away, and beyond SkyRL's clamp.
        spread = choose.choice((0.02, 0.3, 2.0))
        ratios = torch.randn(shape, dtype=torch.float64) * spread
        if not covariance:
            far, beyond = torch.rand(shape) < 0.02, choose.choice((25.0, -25.0))
            ratios[far] = beyond
            old[far & (ratios > 0)] -= 25
        rollout = old + torch.randn(shape, dtype=torch.float64) * choose.choice((0.01, 0.1, 0.5))
        advantages = torch.randn(shape, dtype=torch.float64)
        if not covariance:
            advantages[torch.rand(shape) < 0.1] = 0
        self.reduction = choose.choice(REDUCTIONS)
        if not covariance:  # whose picks are by the advantages as they are
            advantages = ppo_utils.apply_loss_reduction_to_advantages_minibatch(
                advantages, self.mask, self.reduction, rows, width)
        arrays = (old, rollout.clamp(max=-0.005), advantages)
        self.arrays = {name: array.to(self.dtype) for name, array in zip(self.ARRAYS, arrays)}
        self.logp = -(old + ratios).abs().clamp(min=0.005).to(self.dtype)

    def config(self, kind, correction=None):
        """SkyRL's options, with another clip range in each batch."""
        low, high = self.choose.choice(((0.2, 0.2), (0.2, 0.28), (3e-4, 4e-4)))
        delta = self.choose.choice((0.2, 0.05, 0.01))
        return AlgorithmConfig(
            policy_loss_type=kind, eps_clip_low=low, eps_clip_high=high,
            clip_ratio_c=self.choose.choice((1.1, 3.0)), loss_reduction="sequence_mean",
            cispo=CISPOConfig(*self.choose.choice(((0.0, 5.0), (0.3, 0.4), (1.5, 0.1)))),
            sapo=SAPOConfig(*self.choose.choice(((1.0, 1.05), (0.5, 3.0)))),
            dppo=DPPOConfig(self.choose.choice(("binary_tv", "binary_kl")), delta, 1.5 * delta),
            clip_cov=ClipCovConfig(1.0, self.choose.choice((-0.2, 0.1)), 5.0),
            kl_cov=KLCovConfig(self.choose.choice((0.2, 0.5)), self.choose.choice((1.0, 0.3))),
            off_policy_correction=correction or OffPolicyCorrectionConfig())

    def run(self, loss, config, widen):
        """What a loss returns, and the gradient in the type of the log-probs."""
        def given(array):
            return array.double() if widen else array

        logp = given(self.logp).clone().requires_grad_()
        value, metrics = loss(
            log_probs=logp, config=config, loss_mask=self.mask,
            **{name: given(array) for name, array in self.arrays.items()})
        value.backward()
        return value, metrics, logp.grad.to(self.dtype)

    def close(self, record, kind, presets, config, seed, function=None):
        """Runs SkyRL's loss and ours, and holds loss, gradient and metrics together."""
        own = ppo_utils.PolicyLossRegistry.get(kind)
        ours = ppo_utils.PolicyLossRegistry.get(f"gdpo:skyrl::{kind}")
        value, metrics, gradient = self.run(ours, config, False)
        their_value, their_metrics, their_gradient = self.run(own, config, True)
        context = f"seed {seed}, {self.dtype}, {self.reduction}, {dataclasses.asdict(config)}"
        key = (TRAINER, function or own.__name__, presets)
        record.batch(*key)
        scale = their_gradient.double().abs().sum().reshape(1)  # of the terms that cancel
        record.close(*key, "loss", *(torch.cat((each.detach().double().reshape(1), scale))
                                     for each in (value, their_value)), LOSS, context)
        # Both round the gradient to bfloat16, of which two neighbors are 2^-8 apart.
        tolerance = 2**-8 if self.dtype == torch.bfloat16 else LOSS
        record.close(*key, "gradient", gradient, their_gradient, tolerance, context)
        assert their_metrics.keys() == {name for name in metrics if not name.startswith("gdpo/")}
        for name, number in their_metrics.items():
            record.close(*key, "metrics", metrics[name], number, LOSS, f"{name}, {context}")


@pytest.fixture(autouse=True)
def registered():
    plugin.register()


@pytest.mark.parametrize("kind", plugin._OF_SKYRL)
def test_losses(record, seeds, kind):
    """SkyRL's loss and ours, both from SkyRL's registry and with SkyRL's configuration."""
    preset = {"dual_clip": "skyrl::regular, dual clip",
              "importance_sampling": "trl::bnpo without a clip"}.get(kind, plugin._OF_SKYRL[kind])
    for seed in seeds:
        tokens = Tokens(seed, covariance=kind.endswith("_cov"))
        tokens.close(record, kind, preset, tokens.config(kind), seed)


def corrections(choose):
    """Options of off_policy_correction for each of the parts."""
    low, high = choose.choice(((0.5, 2.0), (0.9, 1.1), (0.99, 1.01)))
    return {
        "token_tis": {"tis_ratio_type": "token", "token_tis_ratio_clip_high": high},
        "sequence_tis": {"tis_ratio_type": "sequence", "sequence_tis_ratio_clip_high": high},
        "geometric_mask": {"sequence_mask_metric": "geometric", "geo_mask_low": low,
                           "geo_mask_high": high},
        "product_mask": {"sequence_mask_metric": "product", "product_mask_low": low,
                         "product_mask_high": high},
        "outlier_token_high": {"outlier_token_is_threshold_high": high},
        "outlier_token_low": {"outlier_token_is_threshold_low": low},
        "token_mask": {"token_mask_is_threshold_low": low, "token_mask_is_threshold_high": high}}


@pytest.mark.parametrize("part", [*corrections(random.Random(0)), "all"])
def test_corrections(record, seeds, part):
    """The parts of off_policy_correction, each alone and many together, on SkyRL's losses."""
    for seed in seeds:
        tokens = Tokens(seed)
        if seed == 0:
            tokens.mask[0] = 0  # a batch in which a row has no tokens
        parts = corrections(tokens.choose)
        chosen = parts if part == "all" else {part: parts[part]}
        options = {}
        for values in chosen.values():
            if part != "all" or tokens.choose.random() < 0.6:
                options.update(values)
        kind = tokens.choose.choice(("regular", "gspo", "cispo", "sapo", "rollout_is", "dppo"))
        config = tokens.config(kind, OffPolicyCorrectionConfig(**options))
        presets = "several of them" if part == "all" else f"skyrl::{part}"
        tokens.close(record, kind, presets, config, seed, "apply_off_policy_correction")


@pytest.mark.parametrize("name, preset, by_std", [
    ("grpo", "verl::grpo", True), ("grpo", "verl::grpo_no_std", False),
    ("rloo", "verl::rloo_vectorized", True)])
def test_estimators(record, seeds, name, preset, by_std):
    """SkyRL's estimators of a row's reward, with groups of one and in any order.

    SkyRL computes mean and std of a group in float32, so rewards are those that it adds exactly.
    """
    own = ppo_utils.AdvantageEstimatorRegistry.get(name)
    ours = ppo_utils.AdvantageEstimatorRegistry.get(f"gdpo:{preset}")
    for seed in seeds:
        choose = random.Random(seed)
        torch.manual_seed(seed)
        index = [f"prompt {group}" for group in range(choose.randint(1, 6))
                 for _ in range(choose.randint(1, 8))]
        choose.shuffle(index)
        index = index if seed % 2 else np.array(index)
        rewards = torch.zeros(len(index), 5)
        rewards[:, -1] = torch.randint(-32, 33, (len(index),)) / 16
        if choose.random() < 0.3:
            rewards[:, -1] = choose.choice((0.0, 1.0))
        lengths = torch.randint(0, 6, (len(index),))
        mask = (torch.arange(5) < lengths[:, None]).float()
        theirs, _ = own(rewards.clone(), mask, index=index, grpo_norm_by_std=by_std)
        result, returns = ours(token_level_rewards=rewards, response_mask=mask, index=index,
                               values=None, gamma=1.0, lambd=1.0, config=None)
        assert result is returns
        key = (TRAINER, own.__name__, preset)
        record.batch(*key)
        record.close(*key, "advantages", result, theirs, ADVANTAGES, f"seed {seed}")
