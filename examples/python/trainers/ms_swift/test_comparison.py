"""ms-swift's own advantages, losses and metrics beside ours, on random batches.

Both run on a stand-in for the trainer that has its attributes and the methods of its class.
Rewards are multiples of 1/8 and weights multiples of 1/4, so that ms-swift's float32 sums of equal
rewards are equal: otherwise it divides the rounding of a constant group by its own size.

In bfloat16, ours gets the bfloat16 tensors and ms-swift's the same values widened to float32,
because its bfloat16 arithmetic rounds to three digits.
"""
import random
import types

import pytest
import torch
from swift.rl_core.data import GRPOBatch

import gdpo
from gdpo.configs import _ms_swift_loss as options

DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def rewards_of(rng, rows, columns):
    """Rewards of which some are missing, with constant groups, and weights."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    rewards = torch.randint(-16, 17, (rows, columns), generator=generator) / 8.0
    if rng.random() < 0.3:
        rewards[:, rng.randrange(columns)] = 0.5
    if rng.random() < 0.3:
        rewards[: rows // 2] = rewards[:1]
    if rng.random() < 0.5:
        rewards[torch.rand(rows, columns, generator=generator) < 0.2] = float("nan")
    weights = torch.tensor([rng.choice([0.25, 0.5, 1.0, 2.0]) for _ in range(columns)])
    return rewards, weights


def rollout(rng, rows, group, dtype):
    """The samples of some rows, and the batches that they were encoded in."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    mask = torch.rand(rows, 5, generator=generator) < 0.8
    logps = -torch.rand(2, rows, 5, generator=generator, dtype=torch.float64).to(dtype)
    samples = [types.SimpleNamespace(prompt_id=f"p{row // group}", request_id=f"r{row}")
               for row in range(rows)]
    batch = GRPOBatch(completion_mask=mask, truncated_mask=mask[:, 0], seq_lengths=mask.sum(1),
                      old_per_token_logps=logps[0], ref_per_token_logps=logps[1])
    return samples, [{"grpo_batch": batch}]


def widened(batch):
    """The batch with its bfloat16 tensors in float32."""
    return GRPOBatch(**{name: value.float() if isinstance(value, torch.Tensor)
                        and value.dtype == torch.bfloat16 else value
                        for name, value in vars(batch).items()})


@pytest.mark.parametrize("estimator, scale", list(options.ESTIMATORS))
def test_advantages(record, helpers, seeds, estimator, scale):
    """Rewards are float32 in ms-swift; bfloat16 and float64 are the types of the log-probs.

    With a KL in them its arithmetic is run in float64, because a KL is no multiple of 1/8.
    """
    preset = options.ESTIMATORS[estimator, scale]
    for seed in seeds:
        rng = random.Random(f"{estimator} {scale} {seed}")
        # A batch of one row has no second stage: ms-swift's std of one row is NaN.
        group = rng.choice([1, 2, 4, 5])
        rows = group * rng.randint(2, 5)
        rewards, weights = rewards_of(rng, rows, rng.randint(1, 4))
        dtype = DTYPES[seed % 3]
        trainer = helpers.trainer(
            advantage_estimator=estimator, scale_rewards=scale, num_generations=group,
            kl_in_reward=scale != "gdpo" and rng.random() < 0.4, beta=rng.choice([0.0, 0.04, 0.5]),
            reward_weights=weights, reward_func_names=[f"f{i}" for i in range(len(weights))])
        assert trainer._gdpo_estimator == preset
        samples, batches = rollout(rng, rows, group, dtype)
        ours = trainer._compute_advantages(samples, rewards, batches)
        mine = helpers.metrics(trainer)
        exact = rewards.double() if trainer.kl_in_reward else rewards
        wide = [{"grpo_batch": widened(batches[0]["grpo_batch"])}]
        theirs = helpers.own._compute_advantages(trainer, samples, exact, wide)
        name = "_compute_advantages"
        record.batch(helpers.SWIFT, name, preset)
        record.close(helpers.SWIFT, name, preset, "advantages", ours, theirs, 1e-6,
                     f"seed {estimator} {scale} {seed}")
        assert mine.keys() == helpers.metrics(trainer).keys()



@pytest.mark.parametrize("estimator, scale", list(options.ESTIMATORS))
def test_advantages_of_any_rewards(record, helpers, any_rewards, estimator, scale):
    """None, NaN, infinities, huge and tiny numbers, weights of 0 and below.

    Two things differ, each only where ms-swift trains on NaN. Where the std of the batch is NaN, a
    group of equal values keeps its 0 here and is NaN there. And inf - inf in the sum of a row is an
    infinity here and NaN there.
    """
    preset = options.ESTIMATORS[estimator, scale]
    for seed in range(any_rewards.batches // len(options.ESTIMATORS) + 1):
        rng = random.Random(f"any {estimator} {scale} {seed}")
        group = rng.choice([1, 2, 4, 8])
        rows = group * rng.randint(2, 5)
        rewards, weights = any_rewards(rng, rows, rng.randint(1, 4), huge=2.0 ** 90)
        trainer = helpers.trainer(
            advantage_estimator=estimator, scale_rewards=scale, num_generations=group,
            reward_weights=weights.double(),
            reward_func_names=[f"f{i}" for i in range(len(weights))])
        samples, batches = rollout(rng, rows, group, torch.float32)
        theirs = helpers.own._compute_advantages(trainer, samples, rewards.double(), batches)
        ours = trainer._compute_advantages(samples, rewards, batches)
        sums = (rewards.double() * weights).nansum(1).view(-1, group)
        equal = (sums == sums[:, :1]).all(1).repeat_interleave(group) & (ours == 0)
        may_differ = equal & (scale == "batch") & theirs.isnan()
        if any_rewards.adds_infinities(rewards, weights):
            may_differ |= ~ours.isfinite() & ~theirs.isfinite()
        about = (helpers.SWIFT, "_compute_advantages", f"{preset}, any rewards")
        record.batch(*about)
        record.close_to_any(*about, ours, theirs, f"seed any {estimator} {scale} {seed}, groups of "
                            f"{group}, weights {weights.tolist()}, rewards {rewards.tolist()}",
                            may_differ)


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus"])
def test_advantages_of_requests(record, helpers, seeds, estimator):
    """Rows of one request share its advantage, and prompts have any number of requests."""
    for seed in seeds:
        rng = random.Random(f"{estimator} {seed}")
        scale = rng.choice(["group", "batch", "none", "gdpo"])
        rows = rng.randint(3, 16)
        rewards, weights = rewards_of(rng, rows, rng.randint(1, 3))
        prompts = [f"p{rng.randrange(4)}" for _ in range(rows)]
        requests = [f"{prompt} r{rng.randrange(3)}" for prompt in prompts]
        first = {request: row for row, request in reversed(list(enumerate(requests)))}
        rewards = rewards[[first[request] for request in requests]]
        samples = [types.SimpleNamespace(prompt_id=prompt, request_id=request)
                   for prompt, request in zip(prompts, requests)]
        trainer = helpers.trainer(
            advantage_estimator=estimator, scale_rewards=scale, dynamic_num_samples=True,
            num_generations=1, reward_weights=weights,
            reward_func_names=[f"f{i}" for i in range(len(weights))])
        theirs = helpers.own._compute_advantages(trainer, samples, rewards, [])
        ours = trainer._compute_advantages(samples, rewards, [])
        name, presets = "compute_advantages_dynamic", f"ms_swift::{estimator} and its scales"
        record.batch(helpers.SWIFT, name, presets)
        record.close(helpers.SWIFT, name, presets, "advantages", ours, theirs, 1e-6,
                     f"seed {estimator} {scale} {seed}")


def test_reward_metrics(record, helpers, seeds):
    """Those of compute_reward_metrics that ms-swift logs, from the report of gdpo.advantages.

    A reward function without an observation is in ours with NaN; with one observation its std is
    NaN, where ms-swift logs 0.
    """
    from swift.rl_core.advantage import compute_reward_metrics
    for seed in seeds:
        rng = random.Random(seed)
        group, scale = rng.choice([1, 2, 4]), rng.choice(["group", "batch", "none", "gdpo"])
        rewards, weights = rewards_of(rng, group * rng.randint(2, 5), rng.randint(1, 4))
        names = [f"f{i}" for i in range(len(weights))]
        theirs = compute_reward_metrics((rewards * weights).nansum(1), rewards, names, group, scale)
        _, report = gdpo.advantages(rewards, group_size=group, weights=weights.tolist(),
                                    estimator="ms_swift::grpo", report=True)
        ours = report.to_dict(reward_names=names,
                              std="batch" if scale == "batch" else "mean_of_groups")
        expected = {"reward": theirs.reward_mean, "reward_std": theirs.reward_std,
                    "frac_reward_zero_std": theirs.frac_reward_zero_std}
        for name in theirs.per_func_mean:
            expected[f"rewards/{name}/mean"] = theirs.per_func_mean[name]
            if int((~rewards[:, names.index(name)].isnan()).sum()) > 1:
                expected[f"rewards/{name}/std"] = theirs.per_func_std[name]
        record.batch(helpers.SWIFT, "compute_reward_metrics", "ms_swift::grpo")
        for key, value in expected.items():
            record.close(helpers.SWIFT, "compute_reward_metrics", "ms_swift::grpo", "metrics",
                         ours[key], value, 1e-6, f"seed {seed} {key}")


def micro_batch(rng, dtype, group=1):
    """A micro-batch with ragged masks, empty rows and missing log-probs, and its entropies.

    It has whole groups of that many rows.
    """
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    rows, width = group * rng.randint(1, 6), rng.randint(2, 9)

    def normal(scale=1.0):
        values = scale * torch.randn(rows, width, generator=generator, dtype=torch.float64)
        return values.to(dtype)

    lengths = torch.randint(0 if rows > 1 else 1, width + 1, (rows, 1), generator=generator)
    lengths[rng.randrange(rows)] = width
    mask = torch.arange(width) < lengths
    if rng.random() < 0.3:
        mask &= torch.rand(rows, width, generator=generator) < 0.9
        mask[:, 0] = True
    old = (normal().double() - 2).to(dtype)
    near = lambda scale: (old.double() + normal(scale).double()).to(dtype)
    logp, rollout = near(0.3), near(0.4)
    ref = near(rng.choice([0.3, 1.5, 8.0]))  # 8 reaches the clamps of the KL
    advantages = torch.randn(rows, 1, generator=generator).expand(rows, width).clone()
    if rng.random() < 0.2:
        advantages[rng.randrange(rows)] = 0.0
    for values in (logp, old, ref, rollout):
        values[~mask] = 0.0
    batch = GRPOBatch(
        completion_mask=mask, truncated_mask=torch.rand(rows, generator=generator) < 0.4,
        seq_lengths=mask.sum(1), ref_per_token_logps=ref, advantages=advantages,
        old_per_token_logps=None if rng.random() < 0.2 else old,
        rollout_per_token_logps=None if rng.random() < 0.3 else rollout,
        num_items_in_batch=torch.tensor(float(rng.randint(rows, 40))))
    # ms-swift compares with a quantile in float32, so float64 gets values that float32 has too.
    entropies = torch.rand(rows, width, generator=generator).to(dtype)
    return logp, entropies, batch


def settings_of(rng, loss_type):
    """Options of the trainer, each at random."""
    # 0.2 is not exact in float32, in which ms-swift takes the quantile: where that falls on a
    # token's entropy, its threshold can be above it by one rounding, and the token is dropped.
    top = rng.choice([1.0, 1.0, 0.25, 0.5, 0.77])
    teacher = rng.random() < 0.2
    # Of CISPO it is the bound of the ratio itself.
    highs = [0.2, 1.05, 5.0] if loss_type == "cispo" else [0.2, 0.28, 0.4]
    return {
        "loss_type": loss_type, "epsilon_low": rng.choice([0.1, 0.2, 0.3]),
        "epsilon_high": rng.choice(highs), "beta": rng.choice([0.0, 0.04, 0.5]),
        "importance_sampling_level": rng.choice(["token", "sequence", "sequence_token"]),
        "tau_pos": rng.choice([1.0, 0.5, 2.0]), "tau_neg": rng.choice([1.05, 3.0]),
        "kl_in_reward": rng.random() < 0.2, "overlong_filter": rng.random() < 0.5,
        "max_completion_length": rng.choice([9, 100]), "top_entropy_quantile": top,
        "rollout_importance_sampling_mode": rng.choice(
            [None, "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]),
        "rollout_importance_sampling_threshold": rng.choice([1.1, 2.0]),
        "log_rollout_offpolicy_metrics": rng.random() < 0.3,
        "disable_rollout_importance_sampling": rng.random() < 0.1,
        "off_policy_sequence_mask_delta": None if teacher else rng.choice([None, 0.0, 0.2]),
        "_has_teacher": teacher, "current_gradient_accumulation_steps": rng.choice([1, 2, 4]),
        "processes": rng.choice([1, 2, 3]), "training": rng.random() < 0.8,
        "args": {"delta": rng.choice([None, 1.3, 2.0]), "log_entropy": rng.random() < 0.5}}


def settings_of_real(rng, settings, group):
    """The same for loss_type="real", which ms-swift refuses with a teacher.

    With kl_in_reward, GRPOTrainer multiplies the KL that it then lacks by the mask, a TypeError.
    """
    return {**settings, "_has_teacher": False, "kl_in_reward": False, "num_generations": group,
            "real_tau": rng.choice([0.1, 0.5, 2.0])}


def settings_of_fipo(rng, settings):
    """The same for loss_type="fipo", which ms-swift refuses with a teacher.

    At levels of sequences its own thresholds bound the ratio of a row, which ours lacks.
    """
    safety = rng.choice([None, 1.2, 4.0])
    if safety is not None or settings["args"]["delta"] is not None:
        settings = {**settings, "importance_sampling_level": "token"}
    return {**settings, "_has_teacher": False, "fipo_gamma": 2**(-1 / rng.choice([1.0, 4.0, 32.0])),
            "fipo_clip_range": rng.choice([None, 0.2, 0.5]),
            "fipo_clip_high_only": rng.random() < 0.5, "fipo_safety_threshold": safety}


def gradient_of(function, logp, entropies, trainer, batch):
    """The loss of one of the two, its gradient by the log-probs, and the metrics that it logs."""
    logp = logp.clone().requires_grad_(True)
    trainer.compute_entropy = trainer.args.log_entropy or trainer.top_entropy_quantile < 1.0
    trainer._get_per_token_logps_and_entropies = lambda *_, compute_entropy: (
        logp, entropies if compute_entropy else None)
    loss, data = function(None, {}, batch)
    [gradient] = torch.autograd.grad(loss, logp)
    trainer._update_metrics(data)
    return loss, gradient, data


@pytest.mark.parametrize("loss_type", [*options.LOSS_TYPES, "real"])
def test_loss(record, helpers, seeds, loss_type):
    """Loss, gradient and metrics of a micro-batch, with all options that ours translates.

    The sum of the gradient's magnitudes stands beside the loss: terms of both signs cancel, and
    the rounding of a float32 sum is that of its terms and not that of what is left.
    """
    name, preset = "_compute_loss_and_metrics", f"ms_swift::{loss_type}"
    for seed in seeds:
        rng = random.Random(f"{loss_type} {seed}")
        dtype = DTYPES[seed % 3]
        group = rng.choice([2, 3, 4]) if loss_type == "real" else 1
        logp, entropies, batch = micro_batch(rng, dtype, group)
        settings = settings_of(rng, loss_type)
        if loss_type == "real":
            settings = settings_of_real(rng, settings, group)
        elif loss_type == "fipo":
            settings = settings_of_fipo(rng, settings)
        if settings["_has_teacher"]:  # whose signal makes advantages differ from token to token
            batch.advantages = batch.advantages + torch.randn(
                logp.shape, generator=torch.Generator().manual_seed(seed))
        compare_losses(record, helpers, (helpers.SWIFT, name, preset), settings, dtype, logp,
                       entropies, batch, f"seed {loss_type} {seed}")


@pytest.mark.parametrize("loss_type", [*options.LOSS_TYPES[:-1]])
def test_sdar(record, helpers, seeds, loss_type):
    """The term of a teacher that ms-swift adds to each of these losses, and what it logs of it."""
    name, preset = "_compute_loss_and_metrics", f"ms_swift::{loss_type} + ms_swift::sdar"
    for seed in seeds[::4]:
        rng = random.Random(f"sdar {loss_type} {seed}")
        dtype = DTYPES[seed % 3]
        logp, entropies, batch = micro_batch(rng, dtype)
        generator = torch.Generator().manual_seed(seed)
        apart = rng.choice([0.3, 2.0]) * torch.randn(logp.shape, generator=generator,
                                                     dtype=torch.float64)
        batch.teacher_per_token_logps = (logp.double() + apart).to(dtype)
        settings = {**settings_of(rng, loss_type), "_has_teacher": True,
                    "off_policy_sequence_mask_delta": None,
                    "sdar_loss_coef": rng.choice([0.01, 0.1, 2.0]),
                    "sdar_gate_beta": rng.choice([0.0, 1.0, 5.0])}
        metrics = compare_losses(record, helpers, (helpers.SWIFT, name, preset), settings, dtype,
                                 logp, entropies, batch, f"seed sdar {loss_type} {seed}")
        assert "sdar/gate_mean" in metrics


def compare_losses(record, helpers, about, settings, dtype, logp, entropies, batch, context):
    """Holds the loss, the gradient and the metrics of ours to ms-swift's; returns the metrics."""
    trainer = helpers.trainer(**settings)
    assert trainer._gdpo_loss is not None
    loss, gradient, data = gradient_of(trainer._compute_loss_and_metrics, logp, entropies, trainer,
                                       batch)
    ours = helpers.metrics(trainer)
    wide = torch.promote_types(dtype, torch.float32)
    own, own_gradient, own_data = gradient_of(
        lambda *a: helpers.own._compute_loss_and_metrics(trainer, *a), logp.to(wide),
        entropies.to(wide), trainer, widened(batch))
    theirs = helpers.metrics(trainer)
    context = f"{context} {settings}"
    record.batch(*about)
    terms = own_gradient.abs().sum().item()
    record.close(*about, "loss", [loss.item(), terms], [own.item(), terms], 1e-5, context)
    # The gradient of bfloat16 log-probs is rounded to bfloat16, to nearest.
    record.close(*about, "gradient", gradient,
                 own_gradient.to(dtype) if dtype == torch.bfloat16 else own_gradient,
                 2**-8 if dtype == torch.bfloat16 else 1e-5, context)
    assert ours.keys() == theirs.keys(), context
    for key, value in theirs.items():
        record.close(*about, "metrics", ours[key], value, 1e-5, f"{key} {context}")
    assert torch.equal(data["completion_mask"], own_data["completion_mask"]), context
    return ours


MODES = {"token_truncate": ["ms_swift::token_truncate"],
         "token_mask": ["ms_swift::token_mask"],
         "sequence_truncate": ["ms_swift::sequence_truncate"],
         "sequence_mask": ["ms_swift::sequence_mask"]}


@pytest.mark.parametrize("mode", list(MODES))
def test_rollout_corrections(record, helpers, seeds, mode):
    """The weights of tokens, which in ours are weights and a mask of what stays in the loss."""
    name, presets = "_apply_rollout_importance_sampling", " + ".join(MODES[mode])
    trainer = helpers.trainer(rollout_importance_sampling_mode=mode)
    for seed in seeds:
        rng = random.Random(f"{mode} {seed}")
        logp, _, batch = micro_batch(rng, DTYPES[seed % 3])
        mask, rollout_logp = batch.completion_mask, batch.ref_per_token_logps
        prepared = gdpo.prepare(MODES[mode], logp=logp, rollout_logp=rollout_logp, mask=mask)
        wide = torch.promote_types(logp.dtype, torch.float32)
        theirs = helpers.own._apply_rollout_importance_sampling(
            trainer, logp.to(wide) - rollout_logp.to(wide), mask)
        record.batch(helpers.SWIFT, name, presets)
        for ours in (prepared.weights, prepared.kl_weights):
            record.close(helpers.SWIFT, name, presets, "metrics", ours[mask], theirs[mask], 1e-5,
                         f"seed {mode} {seed}")


@pytest.mark.parametrize("loss_type", [*options.LOSS_TYPES, "real"])
def test_megatron_loss(record, megatron, helpers, seeds, loss_type):
    """MegatronGRPOTrainer.loss_func, which ours does not replace, beside the presets of its losses.

    Megatron divides each loss by the number of micro-batches, which it multiplies by before.
    """
    preset = "ms_swift::megatron_bnpo" if loss_type == "bnpo" else f"ms_swift::{loss_type}"
    name = "MegatronGRPOTrainer.loss_func"
    for seed in seeds:
        rng = random.Random(f"megatron {loss_type} {seed}")
        dtype = DTYPES[seed % 3]
        group = rng.choice([2, 3, 4]) if loss_type == "real" else 1
        logp, entropies, batch = micro_batch(rng, dtype, group)
        if batch.old_per_token_logps is None:
            batch.old_per_token_logps = batch.ref_per_token_logps
        settings = settings_of(rng, loss_type)
        if loss_type == "real":
            settings = {**settings_of_real(rng, settings, group),
                        "kl_in_reward": settings["kl_in_reward"]}  # which is no error here
        elif loss_type == "fipo":
            settings = settings_of_fipo(rng, settings)
        settings.update(rollout_importance_sampling_mode=None, log_rollout_offpolicy_metrics=False)
        trainer = helpers.trainer(**settings, log_entropy=settings["args"]["log_entropy"])
        wide = torch.promote_types(dtype, torch.float32)
        mask = batch.completion_mask
        if settings["overlong_filter"]:
            mask = mask & ~batch.truncated_mask.unsqueeze(1)
        # Megatron's quantile leaves out the filtered rows, and HF's does not.
        weights = None
        if trainer.top_entropy_quantile < 1.0 and mask.any():
            weights = gdpo.prepare(f"top_entropy {1 - trainer.top_entropy_quantile!r}", mask=mask,
                                   logp=logp, entropies=entropies).weights
        if loss_type == "fipo":
            weights = gdpo.prepare(
                line_of_fipo(trainer), logp=logp, old_logp=batch.old_per_token_logps, mask=mask,
                token_advantages=batch.advantages, weights=weights).weights
        micro_batches = rng.choice([1, 2, 4])
        ours_at, theirs_at = (logp.clone().requires_grad_(True),
                              logp.to(wide).requires_grad_(True))
        own, own_metrics = megatron_loss(megatron, helpers, trainer, theirs_at, entropies.to(wide),
                                         widened(batch), micro_batches)
        if settings["off_policy_sequence_mask_delta"] is not None:
            keep = helpers.own._compute_off_policy_sequence_mask(
                trainer, logp.to(wide), (batch.old_per_token_logps
                if batch.rollout_per_token_logps is None else batch.rollout_per_token_logps
                ).to(wide), mask, batch.advantages[:, 0] * mask.any(1))
            mask = mask & keep.unsqueeze(1)
        counts = gdpo.count(mask=mask)
        counts[:3].clamp_(min=1)
        counts[3] = max(batch.num_items_in_batch.item() / 2, 1.0) / micro_batches
        extra = {"constant": trainer.max_completion_length} if loss_type == "dr_grpo" else {}
        clip = dict(low=trainer.epsilon_low, high=trainer.epsilon_high, delta=trainer.args.delta)
        if loss_type == "cispo":
            clip = dict(max_ratio=trainer.epsilon_high)
        elif loss_type == "sapo":
            clip = dict(tau_pos=trainer.tau_pos, tau_neg=trainer.tau_neg)
        beta = 0.0 if trainer.kl_in_reward else trainer.beta
        if loss_type == "real":
            made, more = gdpo.ContrastiveLoss(preset, tau=trainer.real_tau, beta=beta), {
                "group_size": group}
            counts[3] = len(logp) / group
        else:
            made, more = gdpo.PolicyLoss(preset, trainer.importance_sampling_level, **clip,
                                         beta=beta, **extra), {"weights": weights}
        loss, metrics = made(
            ours_at, old_logp=batch.old_per_token_logps, ref_logp=batch.ref_per_token_logps,
            mask=mask, token_advantages=batch.advantages, counts=counts, **more)
        [gradient] = torch.autograd.grad(loss, ours_at)
        [own_gradient] = torch.autograd.grad(own, theirs_at)
        record.batch(helpers.SWIFT, name, preset)
        context, terms = f"seed {loss_type} {seed} {settings}", own_gradient.abs().sum().item()
        record.close(helpers.SWIFT, name, preset, "loss", [loss.item(), terms],
                     [own.item(), terms], 1e-5, context)
        record.close(helpers.SWIFT, name, preset, "gradient", gradient,
                     own_gradient.to(dtype) if dtype == torch.bfloat16 else own_gradient,
                     2**-8 if dtype == torch.bfloat16 else 1e-5, context)
        if trainer.beta != 0.0 and not trainer.kl_in_reward:
            record.close(helpers.SWIFT, name, preset, "metrics", metrics.mean("kl"),
                         own_metrics["kl"], 1e-5, context)


def line_of_fipo(trainer):
    """The pre-pass that a trainer's options of FIPO stand for."""
    delta, clip, safety = (trainer.args.delta, trainer.fipo_clip_range,
                           trainer.fipo_safety_threshold)
    low = 1 if trainer.fipo_clip_high_only else 1 - (clip or 0)
    bounds = f"{low},{1 + clip}" if clip else "-inf,inf"
    return (f"ms_swift::fipo gamma={trainer.fipo_gamma} clip={bounds} "
            f"drop_above={delta or 'inf'} safety={safety or 'inf'}")


def megatron_loss(megatron, helpers, trainer, logp, entropies, batch, micro_batches):
    """Loss and metrics of the loss function of ms-swift's Megatron trainer."""
    stand_in = types.SimpleNamespace(**vars(trainer))
    stand_in.args = types.SimpleNamespace(
        **vars(trainer.args), num_microbatches=micro_batches, report_to=[],
        overlong_filter=trainer.overlong_filter)
    stand_in.micro_batch_size = len(logp)
    stand_in.unwrapped_models = [types.SimpleNamespace(training=True)]
    stand_in.compute_entropy = trainer.args.log_entropy or trainer.top_entropy_quantile < 1.0
    stand_in._all_reduce_metric = lambda metrics: metrics
    stand_in._step, stand_in.steps_per_generation = 0, 3
    own = megatron.MegatronGRPOTrainer
    stand_in._compute_fipo_influence = (
        lambda *arrays: own._compute_fipo_influence(stand_in, *arrays))
    stand_in._compute_off_policy_sequence_mask = (
        lambda *arrays: own._compute_off_policy_sequence_mask(stand_in, *arrays))
    return own.loss_func(stand_in, logp, {"grpo_batch": batch, "per_token_entropy": entropies})
