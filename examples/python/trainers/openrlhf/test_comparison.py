"""OpenRLHF's own PolicyLoss and ours, on random batches of float32, bfloat16 and float64.

Masks are ragged, some have holes, some rows are empty. OpenRLHF computes in the type that it is
given; it gets the stored values widened to float64, and ours the stored ones. Gradients of bfloat16
log-probs are compared after both were rounded to bfloat16.
"""
import importlib.metadata
import random

import pytest
import torch

import openrlhf.models.loss
from gdpo.integrations import openrlhf as plugin

TRAINER = f"openrlhf {importlib.metadata.version('openrlhf')}"
FUNCTION = "PolicyLoss.forward"
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
LOSS = 1e-5
METRICS = ("clip_ratio", "ppo_kl", "vllm_kl", "is_filter_ratio")


class Tokens:
    """Random log-probs, advantages and masks of a micro-batch, with the counts of a step."""

    def __init__(self, seed):
        choose = self.choose = random.Random(seed)
        torch.manual_seed(seed)
        self.dtype = DTYPES[seed % 3]
        rows, width = choose.randint(1, 6), choose.randint(2, 12)
        shape = (rows, width)
        lengths = torch.randint(0 if choose.random() < 0.5 else 1, width + 1, (rows,))
        lengths[choose.randrange(rows)] = width
        mask = torch.arange(width) < lengths[:, None]
        if choose.random() < 0.3:  # turns of a tool between turns of the model
            mask &= torch.rand(shape) < 0.8
            mask[0, 0] = True
        old = -torch.rand(shape, dtype=torch.float64) * 3
        # Log ratios of a step, of a policy far away, and beyond OpenRLHF's clamp.
        spread = choose.choice((0.02, 0.3, 2.0))
        ratios = torch.randn(shape, dtype=torch.float64) * spread
        ratios[torch.rand(shape) < 0.02] = choose.choice((25.0, -25.0))
        rollout = old + torch.randn(shape, dtype=torch.float64) * choose.choice((0.1, 0.5, 2.0))
        advantages = torch.randn(shape, dtype=torch.float64)
        advantages[torch.rand(shape) < 0.1] = 0
        self.logp, *arrays = (array.to(self.dtype) for array in (
            old + ratios, old, advantages, rollout.clamp(max=0.0)))
        self.arrays = dict(zip(("old_log_probs", "advantages", "rollout_log_probs"), arrays))
        self.arrays["action_mask"] = mask
        if choose.random() < 0.7:  # of a step, averaged over its micro-batches
            share = choose.choice((0.5, 1, 4))
            self.arrays.update(
                dp_size=choose.choice((1, 2, 8)),
                batch_num_tokens=share * mask.sum().float(),
                global_batch_size=share * mask.any(-1).sum().float())

    def options(self, **others):
        """Options of PolicyLoss, another clip range in each batch."""
        low, high = self.choose.choice(((0.2, 0.2), (0.2, 0.28), (3e-4, 4e-4)))
        return {"clip_eps_low": low, "clip_eps_high": high,
                "dual_clip": self.choose.choice((None, 1.1, 3.0)),
                "token_level_loss": self.choose.random() < 0.5, **others}

    def run(self, loss, widen):
        """What a PolicyLoss returns, and the gradient in the type of the log-probs."""
        def given(array):
            wide = widen and isinstance(array, torch.Tensor) and array.is_floating_point()
            return array.double() if wide else array

        logp = given(self.logp).clone().requires_grad_()
        result = loss(logp, **{name: given(array) for name, array in self.arrays.items()})
        result[0].backward()
        return result, logp.grad.to(self.dtype)


def compare(record, presets, tokens, options, seed):
    """Runs both classes with the same options, and holds all that they return together."""
    own_class = openrlhf.models.loss.PolicyLoss
    theirs = getattr(own_class, "of_openrlhf", own_class)(**options)
    plugin.install()
    ours = openrlhf.models.loss.PolicyLoss(**options)
    result, gradient = tokens.run(ours, False)
    their_result, their_gradient = tokens.run(theirs, True)
    context = f"seed {seed}, {tokens.dtype}, {options}"
    key = (TRAINER, FUNCTION, presets)
    record.batch(*key)
    scale = their_gradient.double().abs().sum().reshape(1)  # of the terms that cancel
    record.close(*key, "loss", *(torch.cat((value.detach().double().reshape(1), scale))
                                 for value in (result[0], their_result[0])), LOSS, context)
    # Both round the gradient to bfloat16, of which two neighbors are 2^-8 apart.
    tolerance = 2**-8 if tokens.dtype == torch.bfloat16 else LOSS
    record.close(*key, "gradient", gradient, their_gradient, tolerance, context)
    for name, value, their_value in zip(METRICS, result[1:], their_result[1:]):
        assert (value is None) == (their_value is None), (name, context)
        if value is not None:
            record.close(*key, "metrics", value, their_value, LOSS, f"{name}, {context}")


@pytest.mark.parametrize("kind, presets", [("ppo", "verl::vanilla"),
                                           ("gspo", "trl::grpo sequence")])
def test_losses(record, seeds, kind, presets):
    """The losses of policy_loss_type, with every divisor and with the dual clip."""
    for seed in seeds:
        tokens = Tokens(seed)
        compare(record, presets, tokens, tokens.options(policy_loss_type=kind), seed)


@pytest.mark.parametrize("level, mode, gating", [
    ("token", "clip", "ratio"),
    *((level, "mask", gating) for level in ("token", "seq")
      for gating in ("ratio", "binary_kl", "tv"))])
def test_corrections(record, seeds, level, mode, gating):
    """The corrections of is_correction_*, on the loss of ppo."""
    name = f"{level}_clip" if mode == "clip" else f"{level}_mask_{gating}"
    for seed in seeds:
        tokens = Tokens(seed)
        bounds = {"ratio": [(0.5, 5.0), (0.9, 1.1)], "binary_kl": [(0.0, 0.05), (-1.0, 0.01)],
                  "tv": [(0.0, 0.1), (-1.0, 0.03)]}[gating]
        options = tokens.options(is_correction_level=level, is_correction_mode=mode,
                                 is_correction_gating=gating,
                                 is_correction_threshold=list(tokens.choose.choice(bounds)))
        compare(record, f"openrlhf::{name}", tokens, options, seed)


def test_correction_of_gspo(record, seeds):
    """With policy_loss_type=gspo a correction takes the ratio against the sampler."""
    for seed in seeds:
        tokens = Tokens(seed)
        options = tokens.options(policy_loss_type="gspo", is_correction_level="token")
        compare(record, "trl::grpo sequence, against the sampler", tokens, options, seed)
