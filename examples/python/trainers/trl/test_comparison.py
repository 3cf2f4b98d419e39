"""TRL's own advantages, losses, masks and metrics beside ours, on random batches.

TRL's methods run on a stand-in for the trainer whose model gives random log-probs. TRL computes in
the type of its tensors, whose rounding would be the limit: so ours reads the tensors as they are,
and TRL the same numbers in float64. The gradient of bfloat16 log-probs, which ours rounds once to
bfloat16, is compared up to that rounding and left out of the record.

A loss is a sum of terms of both signs, whose errors in float32 are relative to the terms: where
they cancel, the loss differs by at most 1e-5 of the sum of their magnitudes. TRL makes float32 of
all rewards; its arithmetic with them is done in float64 here, because stds of nearly equal rewards
lose most of their digits in float32.
"""
import collections
import math
import random
import types
from typing import Any, Dict, NamedTuple, Optional

import gdpo
import pytest
import torch
import trl
from gdpo.configs._trl_loss import LOSS_TYPES
from gdpo.integrations.trl import GRPOTrainer
from trl.experimental.gmpo import GMPOTrainer

BATCHES = 200  # of each function
TYPES = (torch.float32, torch.bfloat16, torch.float64)


def random_mask(rng, rows, width, empty=True):
    """Completions of random lengths; some have no token."""
    lengths = torch.tensor([rng.choice([0 if empty else 1, width, rng.randint(1, width)])
                            for _ in range(rows)])
    return (torch.arange(width) < lengths[:, None]).long()


class Run(NamedTuple):
    """What a call of `_compute_loss` gave."""

    loss: torch.Tensor
    gradient: torch.Tensor  #: By the log-probs.
    metrics: Dict[str, float]
    by_entropies: Optional[torch.Tensor]  #: The gradient by the entropies.
    trainer: Any


class LossBatch:
    """Random inputs and settings of `_compute_loss`."""

    def __init__(self, seed, loss_type):
        rng = self.rng = random.Random(seed)
        torch.manual_seed(seed)
        self.dtype = TYPES[seed % 3]
        self.rows, self.width = rng.randint(1, 6), rng.randint(2, 12)
        self.training = rng.random() < 0.8
        self.processes = rng.choice([1, 1, 4])
        self.steps = rng.choice([1, 2, 3])
        self.settings = dict(
            loss_type=loss_type, importance_sampling_level=rng.choice(["token", "sequence"]),
            epsilon_low=rng.choice([0.2, 0.05, 1.5]), epsilon_high=rng.choice([0.2, 0.28, 0.01]),
            beta=rng.choice([0.0, 0.04, 1.0]), max_completion_length=rng.choice([self.width, 50]),
            top_entropy_quantile=rng.choice([1.0, 0.2, 0.7]),
            off_policy_mask_threshold=rng.choice([None, 0.0, 0.5]),
            use_vllm=rng.random() < 0.5, vllm_importance_sampling_correction=rng.random() < 0.7,
            current_gradient_accumulation_steps=rng.choice([1, 2, 5]), _entropy_bonus_enabled=False,
            aux_loss_enabled=rng.random() < 0.2, router_aux_loss_coef=0.01)
        self.arguments = dict(delta=rng.choice([None, 1.05, 2.0, 0.97]), report_to=[],
                              use_bias_correction_kl=rng.random() < 0.4,
                              steps_per_generation=self.steps)
        other = random.Random(f"{loss_type} {seed}")
        if loss_type == "sapo":
            self.arguments.update(sapo_temperature_pos=other.choice([1.0, 0.5]),
                                  sapo_temperature_neg=other.choice([1.05, 3.0]))
        if loss_type == "vespo":
            self.arguments.update({f"vespo_{name}": other.choice(values) for name, values in (
                ("k_pos", [2.0, 0.5]), ("k_neg", [3.0, 0.0]), ("lambda_pos", [3.0, 0.0]),
                ("lambda_neg", [2.0, 1.0]))})
            # vLLM's weights have a test of their own. TRL's own code runs with ratios of tokens
            # in the KL.
            self.settings.update(use_vllm=False, importance_sampling_level="token")
            self.arguments["use_bias_correction_kl"] = False
        if loss_type == "cispo":  # whose bound is of the ratio itself
            self.settings["epsilon_high"] = random.Random(f"cispo {seed}").choice(
                [0.2, 0.9, 1.05, 5.0])
        shape = (self.rows, self.width)
        self.spread = rng.choice([0.02, 0.3, 1.0])
        self.logp = self._rounded(-torch.rand(shape) * 3)
        self.entropies = self._rounded(torch.rand(shape) * 2)
        self.inputs = self._inputs(shape)

    def _rounded(self, values):
        """Numbers of the type of this batch, which float32 has too."""
        return values.to(torch.float32).to(self.dtype)

    def _inputs(self, shape):
        rng = self.rng
        # A bound below 1 clips the ratio 1 that TRL gives to a row without tokens, and counts it.
        # In the loss of GMPOTrainer such a row has a value, which has no gradient.
        empty = self.settings["loss_type"] != "gmpo" and (
            self.settings["loss_type"] != "cispo" or self.settings["epsilon_high"] >= 1)
        near = lambda: self._rounded(self.logp.float() + self.spread * torch.randn(shape))
        inputs = {
            "prompt_ids": torch.zeros(self.rows, 2, dtype=torch.long),
            "prompt_mask": torch.ones(self.rows, 2, dtype=torch.long),
            "completion_ids": torch.zeros(shape, dtype=torch.long),
            "completion_mask": random_mask(rng, *shape, empty=empty),
            "advantages": torch.randn(self.rows) + rng.choice([0.0, 0.5]),
            "ref_per_token_logps": near()}
        if rng.random() < 0.2:
            inputs["advantages"] = torch.randn(shape)
        elif rng.random() < 0.2:
            inputs["advantages"] = torch.zeros(self.rows)
        if rng.random() < 0.3:
            inputs["tool_mask"] = (torch.rand(shape) < 0.7).long()
            inputs["tool_mask"][:, 0] |= not empty
        if rng.random() < 0.7:
            inputs["old_per_token_logps"] = near()
        if rng.random() < 0.6:
            inputs["sampling_per_token_logps"] = near()
            inputs["sampling_per_token_logps"][torch.rand(shape) < 0.1] = math.nan
        if self.settings["use_vllm"] and self.settings["vllm_importance_sampling_correction"]:
            width = rng.choice([1, self.width])
            inputs["importance_sampling_ratio"] = torch.rand(self.rows, width) * 2
        inputs["num_items_in_batch"] = inputs["completion_mask"].sum() * rng.choice([1, 3])
        return inputs

    def run(self, cls, helpers, widen, loss=None):
        """A Run of a trainer's class; with a loss, of ours with that one.

        widen: the arithmetic is in float64, of the same stored numbers. In float32, TRL's
        exp(x) - x - 1 is rounded by 6e-8 of 1, which for two policies that are close is up to 1e-4
        of the gradient of the KL term; in bfloat16 it has three digits.
        """
        wide = torch.float64 if widen else self.dtype
        cast = lambda v: v.to(wide) if v.dtype == self.dtype and v.is_floating_point() else v
        logp = self.logp.to(wide, copy=True).requires_grad_()
        entropies = self.entropies.to(wide, copy=True).requires_grad_()
        trainer = helpers.trainer(
            cls, self.training, self.processes, args=types.SimpleNamespace(**self.arguments),
            **self.settings)
        if loss is not None:
            trainer._gdpo_loss = loss
        trainer._get_per_token_logps_and_entropies = lambda *a, **k: (
            logp, entropies, torch.tensor(0.5))
        loss = trainer._compute_loss(None, {k: cast(v) for k, v in self.inputs.items()})
        loss.backward()
        return Run(loss.detach(), logp.grad, helpers.metrics(trainer), entropies.grad, trainer)

    def __str__(self):
        return (f"type {self.dtype}, {self.settings}, {self.arguments}, training {self.training}, "
                f"processes {self.processes}, inputs {sorted(self.inputs)}")


def beside_terms(loss, gradient):
    """A loss, and the sum of the magnitudes of its terms, to which differences are relative.

    The derivative of a term by its log-prob is the term itself, as far as it is not clipped.
    """
    return torch.stack([loss.double(), gradient.double().abs().sum()])


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_losses(helpers, record, loss_type):
    about = (helpers.TRL, "GRPOTrainer._compute_loss", f"trl::{loss_type} (loss)")
    for seed in range(BATCHES):
        batch = LossBatch(seed, loss_type)
        context = f"seed {seed}: {batch}"
        loss, gradient, metrics, *_ = batch.run(GRPOTrainer, helpers, widen=False)
        their_loss, their_gradient, their_metrics, *_ = batch.run(trl.GRPOTrainer, helpers,
                                                                  widen=True)
        record.batch(*about)
        record.close(*about, "loss", beside_terms(loss, their_gradient),
                     beside_terms(their_loss, their_gradient), 1e-5, context)
        if batch.dtype == torch.bfloat16:  # which rounds by at most 2^-9 of the number
            torch.testing.assert_close(gradient.double(), their_gradient, rtol=2.0 ** -8, atol=1e-6,
                                       msg=lambda differences: f"{differences}; {context}")
        else:
            record.close(*about, "gradient", gradient, their_gradient, 1e-5, context)
        clips = {key for key in metrics if "clip_ratio" in key}
        assert clips == {key for key in their_metrics if "clip_ratio" in key}, context
        for key, value in their_metrics.items():
            record.close(*about, "metrics", metrics[key], value, 1e-5, f"{key}, {context}")


def with_entropy_bonus(batch, adaptive):
    """Adds the options of TRL's entropy bonus, and a state of its controller."""
    rng = random.Random(f"entropy bonus {batch.rng.random()}")
    batch.settings.update(
        _entropy_bonus_enabled=True, use_adaptive_entropy=adaptive, _entropy_window_stats=None,
        entropy_coef=rng.choice([0.01, 0.3, 1.0] if adaptive else [0.01, 0.3, 1.0, -0.1]),
        _last_world_entropy=rng.choice([math.inf, 1.5, 0.9, 0.1]))
    batch.arguments.update(
        entropy_target=rng.choice([0.2, 0.9, 1.2]), entropy_coef_delta=rng.choice([0.005, 0.5]),
        entropy_coef_min=rng.choice([0.0, 0.05]), entropy_coef_max=rng.choice([1.0, 0.4]))


@pytest.mark.parametrize("adaptive", [False, True], ids=["constant", "adaptive"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_entropy_bonus(helpers, record, loss_type, adaptive):
    """Loss, both gradients, metrics, and the coefficient and entropy for the next step."""
    about = (helpers.TRL, "GRPOTrainer._compute_loss", f"trl::{loss_type} (loss), entropy bonus")
    for seed in range(BATCHES // 2):
        batch = LossBatch(2 * seed + adaptive, loss_type)
        with_entropy_bonus(batch, adaptive)
        context = f"seed {2 * seed + adaptive}: {batch}"
        ours = batch.run(GRPOTrainer, helpers, widen=False)
        theirs = batch.run(trl.GRPOTrainer, helpers, widen=True)
        terms = theirs.gradient.abs().sum() + (theirs.by_entropies * batch.entropies).abs().sum()
        record.batch(*about)
        record.close(*about, "loss", beside_terms(ours.loss, terms),
                     beside_terms(theirs.loss, terms), 1e-5, context)
        by_entropies = (torch.zeros_like(batch.entropies) if ours.by_entropies is None  # no bonus
                        else ours.by_entropies)
        for gradient, their_gradient in ((ours.gradient, theirs.gradient),
                                         (by_entropies, theirs.by_entropies)):
            if batch.dtype == torch.bfloat16:
                torch.testing.assert_close(
                    gradient.double(), their_gradient, rtol=2.0 ** -8, atol=1e-6,
                    msg=lambda differences: f"{differences}; {context}")
            else:
                record.close(*about, "gradient", gradient, their_gradient, 1e-5, context)
        assert ours.metrics.keys() >= {"policy_loss"} | ({"entropy_coef"} if batch.training else
                                                         set()), context
        for key, value in theirs.metrics.items():
            record.close(*about, "metrics", ours.metrics[key], value, 1e-5, f"{key}, {context}")
        for name in ("entropy_coef", "_last_world_entropy"):
            record.close(*about, "metrics", getattr(ours.trainer, name),
                         getattr(theirs.trainer, name), 1e-5, f"{name}, {context}")
        assert ours.trainer._entropy_window_stats is None


def test_gmpo(helpers, record):
    """GMPOTrainer beside our GRPOTrainer with its loss, on what it reads of the configuration."""
    about = (helpers.TRL, "GMPOTrainer._compute_loss", "trl::gmpo (loss)")
    for seed in range(BATCHES):
        batch = LossBatch(seed, "gmpo")
        batch.settings.update(top_entropy_quantile=1.0, use_vllm=False, aux_loss_enabled=False,
                              off_policy_mask_threshold=None, importance_sampling_level="token")
        if batch.inputs["advantages"].dim() == 2:
            batch.inputs["advantages"] = batch.inputs["advantages"][:, 0].contiguous()
        loss = gdpo.PolicyLoss("trl::gmpo", beta=batch.settings["beta"],
                               level_map_low=batch.settings["epsilon_low"],
                               level_map_high=batch.settings["epsilon_high"])
        context = f"seed {seed}: {batch}"
        ours, gradient, metrics, *_ = batch.run(GRPOTrainer, helpers, widen=False, loss=loss)
        theirs, their_gradient, their_metrics, *_ = batch.run(GMPOTrainer, helpers, widen=True)
        record.batch(*about)
        record.close(*about, "loss", beside_terms(ours, their_gradient),
                     beside_terms(theirs, their_gradient), 1e-5, context)
        if batch.dtype == torch.bfloat16:
            torch.testing.assert_close(gradient.double(), their_gradient, rtol=2.0 ** -8, atol=1e-6,
                                       msg=lambda differences: f"{differences}; {context}")
        else:
            record.close(*about, "gradient", gradient, their_gradient, 1e-5, context)
        assert not [key for key in metrics if "clip_ratio" in key]
        for key, value in their_metrics.items():
            if "clip_ratio" not in key:
                record.close(*about, "metrics", metrics[key], value, 1e-5, f"{key}, {context}")


def test_rloo(helpers, record):
    """RLOOTrainer's loss beside the one by its name, without rows that have no token."""
    about = (helpers.TRL, "RLOOTrainer._compute_loss", "trl::rloo (loss)")
    for seed in range(BATCHES):
        batch = LossBatch(seed, "rloo")
        rng = random.Random(f"rloo {seed}")
        mask = random_mask(rng, batch.rows, batch.width, empty=False)
        old_logp = batch._rounded(batch.logp.float() + batch.spread * torch.randn(mask.shape))
        advantages = torch.randn(batch.rows)
        context = f"seed {seed}: {batch}"
        logp = batch.logp.double().requires_grad_()
        trainer = helpers.trainer(
            trl.RLOOTrainer, epsilon_low=batch.settings["epsilon_low"],
            epsilon_high=batch.settings["epsilon_high"], aux_loss_enabled=False)
        trainer._get_per_token_logps_and_entropies = lambda *a, **k: (
            logp, batch.entropies.double(), None)
        theirs = trainer._compute_loss(None, {
            **batch.inputs, "completion_mask": mask, "advantages": advantages.double(),
            "old_logps": (old_logp.double() * mask).sum(1)})
        [their_gradient] = torch.autograd.grad(theirs, logp)
        low = batch.settings["epsilon_low"]
        at = batch.logp.clone().requires_grad_()
        ours, metrics = gdpo.PolicyLoss(
            "trl::rloo", low=low if low <= 1 else math.inf, high=batch.settings["epsilon_high"])(
                at, old_logp=old_logp, mask=mask, advantages=advantages,
                counts=gdpo.count(mask=mask))
        [gradient] = torch.autograd.grad(ours, at)
        record.batch(*about)
        record.close(*about, "loss", beside_terms(ours.detach(), their_gradient),
                     beside_terms(theirs.detach(), their_gradient), 1e-5, context)
        if batch.dtype == torch.bfloat16:
            torch.testing.assert_close(gradient.double(), their_gradient, rtol=2.0 ** -8, atol=1e-6,
                                       msg=lambda differences: f"{differences}; {context}")
        else:
            record.close(*about, "gradient", gradient, their_gradient, 1e-5, context)
        for key, name in (("low_mean", "low"), ("high_mean", "high")):
            record.close(*about, "metrics", metrics[f"clip_fraction_{name}.row_sum"] / batch.rows,
                         helpers.metrics(trainer)[f"clip_ratio/{key}"], 1e-5, context)


class RewardBatch:
    """Random rewards, and settings of `_generate_and_score_completions`."""

    def __init__(self, seed, scale_rewards, aggregation):
        rng = self.rng = random.Random(seed)
        torch.manual_seed(seed)
        self.training = rng.random() < 0.8
        self.size = rng.choice([1, 2, 4, 8])
        self.groups, self.functions = rng.randint(1, 4), rng.randint(1, 3)
        rows = self.groups * self.size
        self.rewards = torch.randn(rows, self.functions) * rng.choice([1.0, 10.0])
        if rng.random() < 0.5:
            self.rewards = torch.randint(0, 2, self.rewards.shape).float()  # as checkers give them
        if rng.random() < 0.4:
            self.rewards[torch.rand(self.rewards.shape) < 0.3] = math.nan
        if rng.random() < 0.3:  # a constant group
            self.rewards[:self.size] = self.rewards[0].clone()
        # TRL makes float32 of all rewards; those of bfloat16 reach it with their own rounding.
        self.rewards = self.rewards.to(TYPES[seed % 3]).float()
        width = rng.randint(2, 9)
        lengths = [rng.randint(1, width) for _ in range(rows)]
        self.completions = [[5] * length for length in lengths]
        self.width = max(lengths)
        self.old_logp = -torch.rand(rows, self.width) * 3
        self.sampling = [[None if rng.random() < 0.1 else
                          self.old_logp[i, t].item() + rng.gauss(0, 0.5) for t in range(length)]
                         for i, length in enumerate(lengths)]
        self.tool_masks = ([[int(rng.random() < 0.7) for _ in range(length)] for length in lengths]
                           if rng.random() < 0.3 else None)
        self.settings = dict(
            scale_rewards=scale_rewards, multi_objective_aggregation=aggregation,
            reward_weights=torch.tensor([rng.choice([1.0, 0.3, 2.0])
                                         for _ in range(self.functions)]),
            num_generations=self.size, num_generations_eval=self.size, num_iterations=1, beta=0.0,
            mask_truncated_completions=rng.random() < 0.3, use_vllm=False)

    def run(self, cls, helpers, widen=False, **settings):
        """The trainer after the call, and the call's output.

        widen: the arithmetic is in float64, of the same rewards.
        """
        rows = len(self.rewards)
        logs = collections.defaultdict(lambda: collections.deque(maxlen=rows))
        logs["rewards"] = collections.defaultdict(lambda: collections.deque(maxlen=rows))
        logs["extra"] = collections.defaultdict(lambda: collections.deque(maxlen=rows))
        columns = [lambda column=column, **kwargs: column.tolist() for column in self.rewards.T]
        args = types.SimpleNamespace(
            per_device_train_batch_size=rows, per_device_eval_batch_size=rows, report_to=[],
            gradient_checkpointing_kwargs=None, steps_per_generation=1,
            gradient_accumulation_steps=1)
        trainer = helpers.trainer(
            cls, self.training, args=args, environment_factories=None, environments=None, tools=[],
            pad_to_multiple_of=None, eos_token_ids=[5 if self.rng.random() < 0.5 else 1],
            reward_funcs=columns, reward_processing_classes=[None] * self.functions,
            reward_func_names=[f"reward{i}" for i in range(self.functions)],
            log_multimodal=False, _logs=logs, _pending_extra_logs={}, _pending_metrics={},
            _tokenizer=types.SimpleNamespace(pad_token_id=0), **{**self.settings, **settings})
        if widen:
            trainer.reward_weights = trainer.reward_weights.double()
        trainer._generate = lambda prompts: (
            [[1, 2]] * rows, self.completions, self.tool_masks, ["text"] * rows, self.sampling, {},
            None, [])
        trainer._get_per_token_logps_and_entropies = lambda *a, **k: (self.old_logp, None, None)
        torch.set_default_dtype(torch.float64 if widen else torch.float32)
        try:
            return trainer, trainer._generate_and_score_completions(
                [{"prompt": "text"} for _ in range(rows)])
        finally:
            torch.set_default_dtype(torch.float32)

    def __str__(self):
        return f"{self.groups} groups of {self.size}, rewards {self.rewards.tolist()}, " \
               f"{self.settings}"


ESTIMATORS = [("group", "sum_then_normalize", "trl::grpo", "groups"),
              ("batch", "sum_then_normalize", "trl::grpo_batch_scale", "batch"),
              ("none", "sum_then_normalize", "trl::grpo_no_scale", "groups"),
              ("group", "normalize_then_sum", "trl::gdpo", "sum")]


@pytest.mark.parametrize("scale_rewards, aggregation, preset, zero_std", ESTIMATORS)
def test_advantages(helpers, record, scale_rewards, aggregation, preset, zero_std):
    about = (helpers.TRL, "GRPOTrainer._generate_and_score_completions", preset)
    for seed in range(BATCHES):
        batch = RewardBatch(seed, scale_rewards, aggregation)
        context = f"seed {seed}: {batch}"
        theirs, output = batch.run(trl.GRPOTrainer, helpers, widen=True)
        ours, replaced = batch.run(GRPOTrainer, helpers)
        record.batch(*about)
        record.close(*about, "advantages", replaced["advantages"], output["advantages"], 1e-6,
                     context)
        assert list(ours._logs["advantages"]) == replaced["advantages"].tolist(), context
        report = gdpo.advantages(batch.rewards, group_size=batch.size, estimator=preset,
                                 weights=batch.settings["reward_weights"].tolist(), report=True
                                 ).report
        logged = report.to_dict("", ours.reward_func_names, zero_std=zero_std)
        for key, value in helpers.metrics(theirs).items():
            if key == "frac_reward_zero_std" and len(batch.rewards) == 1:
                continue  # TRL says 1 of a batch of one row, and the report 0
            if key in logged:
                record.close(*about, "metrics", logged[key], value, 1e-5, f"{key}, {context}")
            else:  # what cannot be known has no key with us, and is NaN or a fraction of no rows
                assert math.isnan(value) or key == "frac_reward_zero_std", (key, value, context)


@pytest.mark.parametrize("scale_rewards, aggregation, preset, zero_std", ESTIMATORS)
def test_advantages_of_any_rewards(helpers, record, any_rewards, scale_rewards, aggregation, preset,
                                   zero_std):
    """None, NaN, infinities, huge and tiny numbers, weights of 0 and below: TRL's numbers."""
    about = (helpers.TRL, "GRPOTrainer._generate_and_score_completions", f"{preset}, any rewards")
    for seed in range(any_rewards.batches // len(ESTIMATORS)):
        batch = RewardBatch(seed, scale_rewards, aggregation)
        batch.rewards, batch.settings["reward_weights"] = any_rewards(
            batch.rng, *batch.rewards.shape, huge=2.0 ** 90)
        context = f"seed {seed}: {batch}"
        _, output = batch.run(trl.GRPOTrainer, helpers, widen=True)
        _, replaced = batch.run(GRPOTrainer, helpers)
        record.batch(*about)
        record.close_to_any(*about, replaced["advantages"], output["advantages"], context)


MODES = {"token_truncate": ["trl::token_truncate"], "sequence_truncate": ["trl::sequence_truncate"],
         "token_mask": ["trl::token_mask"],
         "sequence_mask": ["trl::sequence_mask"]}


@pytest.mark.parametrize("mode", MODES)
def test_vespo_with_the_weights_of_vllm(helpers, record, mode):
    """The weights that TRL made of a rollout are part of the ratio of the row in both.

    TRL's constructor refuses the modes of sequences, whose weight `_compute_loss` counts once.
    """
    about = (helpers.TRL, "GRPOTrainer._compute_loss", f"trl::vespo (loss), {mode}")
    for seed in range(BATCHES):
        batch = LossBatch(seed, "vespo")
        rollout = RewardBatch(seed, "group", "sum_then_normalize")
        if rollout.width == 1:  # which TRL's metrics take for one value of each row
            continue
        # Far from the sampler, so that weights are bounded and masked.
        rollout.old_logp = rollout.old_logp + batch.spread * torch.randn(rollout.old_logp.shape)
        vllm = dict(use_vllm=True, vllm_importance_sampling_correction=True,
                    vllm_importance_sampling_mode=mode,
                    vllm_importance_sampling_clip_min=batch.rng.choice([None, 0.5]),
                    vllm_importance_sampling_clip_max=batch.rng.choice([1.5, 3.0]))
        _, output = rollout.run(trl.GRPOTrainer, helpers, **vllm)
        old_logp = batch._rounded(output["old_per_token_logps"])
        shape = (batch.rows, batch.width) = old_logp.shape
        batch.logp = batch._rounded(old_logp.float() + batch.spread * torch.randn(shape))
        batch.entropies = batch._rounded(torch.rand(shape) * 2)
        batch.settings.update(vllm)
        batch.inputs = {
            **output, "old_per_token_logps": old_logp,
            "ref_per_token_logps": batch._rounded(batch.logp.float() + 0.3 * torch.randn(shape)),
            "num_items_in_batch": output["completion_mask"].sum()}
        context = f"seed {seed}: {batch}"
        loss, gradient, metrics, *_ = batch.run(GRPOTrainer, helpers, widen=False)
        their_loss, their_gradient, their_metrics, *_ = batch.run(trl.GRPOTrainer, helpers,
                                                                  widen=True)
        record.batch(*about)
        record.close(*about, "loss", beside_terms(loss, their_gradient),
                     beside_terms(their_loss, their_gradient), 1e-5, context)
        if batch.dtype == torch.bfloat16:
            torch.testing.assert_close(gradient.double(), their_gradient, rtol=2.0 ** -8, atol=1e-6,
                                       msg=lambda differences: f"{differences}; {context}")
        else:
            record.close(*about, "gradient", gradient, their_gradient, 1e-5, context)
        for key, value in their_metrics.items():
            record.close(*about, "metrics", metrics[key], value, 1e-5, f"{key}, {context}")


@pytest.mark.parametrize("mode", MODES)
def test_rollout_corrections(helpers, record, mode):
    """A token whose log-prob the engine does not have, NaN, has the ratio 1."""
    about = (helpers.TRL, "GRPOTrainer._generate_and_score_completions", " ".join(MODES[mode]))
    for seed in range(BATCHES):
        batch = RewardBatch(seed, "group", "sum_then_normalize")
        _, output = batch.run(trl.GRPOTrainer, helpers, use_vllm=True,
                              vllm_importance_sampling_correction=True,
                              vllm_importance_sampling_mode=mode,
                              vllm_importance_sampling_clip_min=None,
                              vllm_importance_sampling_clip_max=3.0)
        mask = output["completion_mask"] * output.get("tool_mask", 1)
        old_logp, rollout = output["old_per_token_logps"], output["sampling_per_token_logps"]
        prepared = gdpo.prepare(MODES[mode], old_logp=old_logp, mask=mask, rollout_logp=rollout)
        theirs = output["importance_sampling_ratio"] * mask
        record.batch(*about)
        record.close(*about, "metrics", prepared.weights * prepared.mask, theirs, 1e-5,
                     f"seed {seed}")


def test_top_entropy(helpers, record):
    about = (helpers.TRL, "GRPOTrainer.get_high_entropy_mask", "top_entropy")
    for seed in range(BATCHES):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        entropies = (torch.rand(rng.randint(1, 6), rng.randint(1, 12)) * 2).to(TYPES[seed % 3])
        entropies = entropies.float().to(TYPES[seed % 3])  # TRL's quantile is that of float32
        mask = random_mask(rng, *entropies.shape)
        quantile = rng.choice([0.2, 0.5, 0.8, 0.95])
        theirs = helpers.trainer(trl.GRPOTrainer).get_high_entropy_mask(
            entropies.float(), mask, quantile)
        prepared = gdpo.prepare(f"top_entropy {quantile}", mask=mask, entropies=entropies,
                                logp=entropies)
        record.batch(*about)
        record.close(*about, "metrics", prepared.weights * mask, theirs * 1.0, 0, f"seed {seed}")
