"""verl's own functions beside ours, on random batches of float32, bfloat16 and float64.

Masks are ragged, some rows are empty, some groups have one row or equal rewards, and some rewards
are NaN. verl computes in the type that it is given. Where that is bfloat16, its rounding is the
limit of a comparison, so verl's function then gets the same stored values widened to float64; ours
gets the bfloat16 tensors. The gradients of bfloat16 log-probs are compared after ours was rounded
to bfloat16 and theirs too.
"""
import dataclasses
import math
import random

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import gdpo
import gdpo.integrations.verl as plugin
import verl
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils
from verl.utils.metric import Metric
from verl.workers.config import ActorConfig, PolicyLossConfig
from verl.workers.utils.losses import ppo_loss

TRAINER = f"verl {verl.__version__}"
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
ADVANTAGES, LOSS = 1e-6, 1e-5
MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean",
         "seq-mean-token-sum-norm")


def widened(tensor):
    """The stored values in a type in which verl's arithmetic has the precision of ours.

    Of bfloat16 it is float64: a product of such numbers may lie just between two of them, and then
    the rounding of float32 would decide which of them it becomes.
    """
    return tensor.double() if tensor is not None and tensor.dtype == torch.bfloat16 else tensor


class Groups:
    """Random rewards of groups in random order, with lengths of their completions."""

    def __init__(self, seed, smallest=1, rewards=1, exact=False):
        choose = random.Random(seed)
        torch.manual_seed(seed)
        self.dtype = DTYPES[seed % 3]
        ids = [f"prompt {group}" for group in range(choose.randint(1, 6))
               for _ in range(choose.randint(smallest, 8))]
        if len(ids) < 2:  # verl refuses to whiten one token
            ids.append(ids[0])
        choose.shuffle(ids)
        self.ids, rows = np.array(ids, dtype=object), len(ids)
        self.width = choose.randint(2, 9)
        lengths = torch.randint(0 if choose.random() < 0.5 else 1, self.width + 1, (rows,))
        lengths[0] = self.width
        self.mask = (torch.arange(self.width) < lengths[:, None]).to(
            choose.choice((torch.int64, torch.bool, torch.float32)))
        # Rewards of sixteenths have exact sums, so that the mean of a constant group is its reward.
        # Elsewhere verl divides the rounding of the mean by a std of about that size.
        self.values = torch.randint(-32, 33, (rows, rewards)).double() / 16
        if self.dtype == torch.float64 and not exact:
            self.values += torch.randn(rows, rewards, dtype=torch.float64)
        if choose.random() < 0.3:
            self.values[self.ids == ids[0]] = choose.choice((0.0, 1.0, -0.5))
        if choose.random() < 0.3:
            self.values[choose.randrange(rows), choose.randrange(rewards)] = float("nan")
        self.choose = choose

    def token_rewards(self):
        """The first reward at the last token of its row, as verl places it."""
        placed = torch.zeros(len(self.values), self.width, dtype=self.dtype)
        placed[:, -1] = self.values[:, 0].to(self.dtype)
        return placed

    def ours(self, estimator, rewards):
        """Our advantages, at the tokens."""
        names = {name: number for number, name in enumerate(dict.fromkeys(self.ids))}
        advantages = gdpo.advantages(
            rewards, estimator=estimator, tokens=self.mask.sum(-1),
            group_ids=torch.tensor([names[name] for name in self.ids]))
        return advantages.unsqueeze(-1) * self.mask

    def without_missing(self):
        """The rows of groups in which no reward is NaN."""
        missing = set(self.ids[self.values.isnan().any(1).numpy()])
        return torch.tensor([name not in missing for name in self.ids])

    def close(self, record, function, presets, ours, theirs, seed):
        """Holds them together at the tokens of the mask: the others are read by nobody."""
        record.batch(TRAINER, function, presets)
        at = self.mask.bool()
        if "passk" in function:  # see test_passk_of_a_missing_reward
            at = at & self.without_missing()[:, None]
        record.close(TRAINER, function, presets, "advantages", ours[at], theirs[at], ADVANTAGES,
                     f"seed {seed}")


# Of each estimator: verl's function, our preset, and the rows of its smallest groups.
ESTIMATORS = [
    ("compute_grpo_outcome_advantage", "verl::grpo", 1),
    ("compute_grpo_outcome_advantage", "verl::grpo_no_std", 1),
    ("compute_grpo_vectorized_outcome_advantage", "verl::grpo", 1),
    ("compute_grpo_vectorized_outcome_advantage", "verl::grpo_no_std", 1),
    ("compute_rloo_outcome_advantage", "verl::rloo", 1),
    ("compute_rloo_vectorized_outcome_advantage", "verl::rloo_vectorized", 1),
    ("compute_opo_outcome_advantage", "verl::opo", 1),
    ("compute_gpg_outcome_advantage", "verl::gpg", 1),
    ("compute_grpo_passk_outcome_advantage", "verl::grpo_passk", 2),
    ("compute_grpo_passk_outcome_advantage", "verl::grpo_passk_no_std", 2),
    ("compute_reinforce_plus_plus_baseline_outcome_advantage",
     "verl::reinforce_plus_plus_baseline", 1),
]


@pytest.mark.parametrize("function, preset, smallest", ESTIMATORS)
def test_estimators(record, seeds, function, preset, smallest):
    """verl takes the division by the std of grpo as an argument, and of grpo_passk from config.

    grpo_vectorized computes mean and std in float32 for rewards of float64 too, and so gets those
    that float32 adds exactly.
    """
    has_std = not preset.endswith("no_std")
    settings = {}
    if "passk" in function:
        settings["config"] = AlgoConfig(norm_adv_by_std_in_grpo=has_std)
    elif "grpo" in function:
        settings["norm_adv_by_std_in_grpo"] = has_std
    for seed in seeds:
        groups = Groups(seed, smallest, exact="vectorized" in function)
        rewards = groups.token_rewards()
        theirs, _ = getattr(core_algos, function)(widened(rewards), groups.mask, groups.ids,
                                                  **settings)
        groups.close(record, function, preset, groups.ours(preset, rewards.sum(-1)), theirs, seed)


def test_passk_of_a_missing_reward():
    """A NaN is the best completion for verl, and ours gives NaN to the whole group.

    verl's torch.topk sorts NaN first, so the advantage of its row is NaN, and that of the others 0.
    """
    rewards, index = torch.tensor([[1.0], [float("nan")], [0.0]]), np.array(["a"] * 3)
    theirs, _ = core_algos.compute_grpo_passk_outcome_advantage(
        rewards, torch.ones(3, 1), index, config=AlgoConfig())
    ours = gdpo.advantages(rewards, estimator="verl::grpo_passk", group_size=3)
    assert theirs[:, 0].isnan().tolist() == [False, True, False]
    assert ours.isnan().all()


@pytest.mark.parametrize("preset", ["verl::gdpo", "verl::gdpo_no_std"])
def test_gdpo(record, seeds, preset):
    """The presets beside verl's function, from the reward components and from one reward.

    verl makes float32 of the components; a single reward keeps its type.
    """
    for seed in seeds:
        several = seed % 2 == 0
        groups = Groups(seed, rewards=random.Random(seed).randint(1, 3) if several else 1)
        keys = [f"reward {number}" for number in range(groups.values.shape[1])]
        weights = [0.25 * groups.choose.randint(1, 8) for _ in keys]
        config = AlgoConfig(gdpo_reward_keys=keys, gdpo_reward_weights=weights)
        columns = {key: groups.values[:, at].numpy() for at, key in enumerate(keys)}
        prompts = torch.ones(len(groups.ids), 2)
        batch = {"prompts": prompts, "attention_mask": torch.cat((prompts, groups.mask), 1).long()}
        arguments = {}
        if several:
            arguments = {"config": config, "non_tensor_batch": columns, "batch": batch}
        settings = {"index": groups.ids, "norm_adv_by_std_in_grpo": preset == "verl::gdpo",
                    **arguments}
        rewards = groups.token_rewards()
        theirs, _ = core_algos.compute_gdpo_outcome_advantage(widened(rewards), groups.mask,
                                                              **settings)
        ours, returns = plugin.advantages(rewards, groups.mask, **settings)
        assert ours is returns
        groups.close(record, "compute_gdpo_outcome_advantage", preset, ours, theirs, seed)



@pytest.mark.parametrize("preset", ["verl::gdpo", "verl::gdpo_no_std"])
def test_gdpo_of_any_rewards(record, any_rewards, preset):
    """NaN, infinities, huge and tiny numbers, weights of 0 and below: verl's numbers.

    verl's arithmetic is in float32: a whole reward is huge or tiny here, so that its differences
    are no rounding, and every row has a token, since one row's tokens alone are no batch to whiten.
    """
    for seed in range(any_rewards.batches // 2):
        groups = Groups(seed, rewards=random.Random(seed).randint(1, 3))
        rewards, weights = any_rewards(groups.choose, *groups.values.shape, huge=1.5)
        rewards[:, 0] *= groups.choose.choice((1.0, 2.0 ** 40, 2.0 ** -40))
        groups.mask[:, 0] = 1
        if not rewards.isfinite().all() and groups.choose.random() < 0.5:
            rewards = rewards.nan_to_num(0.5, 1.0, 0.0)  # else nearly all advantages are NaN
        keys = [f"reward {number}" for number in range(rewards.shape[1])]
        config = AlgoConfig(gdpo_reward_keys=keys, gdpo_reward_weights=weights.tolist())
        columns = {key: rewards[:, at].numpy() for at, key in enumerate(keys)}
        prompts = torch.ones(len(groups.ids), 2)
        batch = {"prompts": prompts, "attention_mask": torch.cat((prompts, groups.mask), 1).long()}
        settings = {"index": groups.ids, "norm_adv_by_std_in_grpo": preset == "verl::gdpo",
                    "config": config, "non_tensor_batch": columns, "batch": batch}
        sums = groups.mask.float() * 0
        theirs, _ = core_algos.compute_gdpo_outcome_advantage(sums, groups.mask, **settings)
        ours, _ = plugin.advantages(sums, groups.mask, **settings)
        about = (TRAINER, "compute_gdpo_outcome_advantage", f"{preset}, any rewards")
        record.batch(*about)
        record.close_to_any(*about, ours.reshape(-1), theirs.reshape(-1),
                            f"seed {seed}, weights {weights.tolist()}, rewards {rewards.tolist()}")


class Tokens:
    """Random log-probs, advantages and masks of a micro-batch, and a configuration of the actor."""

    ARRAYS = ("old_logp", "logp", "ref_logp", "advantages", "weights")

    def __init__(self, seed):
        choose = random.Random(seed)
        torch.manual_seed(seed)
        self.dtype = DTYPES[seed % 3]
        rows, width = choose.randint(1, 6), choose.randint(2, 12)
        self.shape = (rows, width)
        lengths = torch.randint(0 if choose.random() < 0.5 else 1, width + 1, (rows,))
        lengths[choose.randrange(rows)] = width
        self.mask = torch.arange(width) < lengths[:, None]
        self.old_logp = -torch.rand(self.shape, dtype=torch.float64) * 3
        # Log ratios of a step, of a policy far away, and beyond the clamps of verl.
        spread = choose.choice((0.02, 0.3, 3.0))
        ratios = torch.randn(self.shape, dtype=torch.float64) * spread
        ratios[torch.rand(self.shape) < 0.02] = choose.choice((25.0, -25.0))
        self.logp = self.old_logp + ratios
        self.ref_logp = self.logp + torch.randn(self.shape, dtype=torch.float64) * spread
        self.advantages = torch.randn(self.shape, dtype=torch.float64)
        self.advantages[torch.rand(self.shape) < 0.1] = 0
        self.weights = torch.rand(self.shape, dtype=torch.float64) * 2
        for name in self.ARRAYS:
            setattr(self, name, getattr(self, name).to(self.dtype))
        if choose.random() < 0.5:  # no correction of the rollout
            self.weights = None
        self.aggregate = choose.choice(MODES)
        self.info = self._info(choose)
        self.choose = choose

    def _info(self, choose):
        """Counts of a global batch, some of them, or none."""
        kind = choose.choice(("none", "all", "some"))
        if kind == "none":
            return {}
        info = {"dp_size": choose.choice((1, 2, 8)),
                "batch_num_tokens": choose.choice((int(self.mask.sum()), 100, 777)),
                "global_batch_size": choose.choice((self.shape[0], 64)),
                "loss_scale_factor": choose.choice((None, 17, 2048))}
        if kind == "some":
            info["dp_size"] = 1
            info[choose.choice(("batch_num_tokens", "global_batch_size"))] = None
        return info

    def actor(self, mode="vanilla", **settings):
        """The actor's configuration, with another clip range in each batch."""
        low, high = self.choose.choice(((0.2, 0.2), (0.2, 0.28), (3e-4, 4e-4), (None, None)))
        config = ActorConfig(
            strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=4, clip_ratio=0.15,
            clip_ratio_low=low, clip_ratio_high=high, loss_agg_mode=self.aggregate,
            clip_ratio_c=self.choose.choice((1.1, 3.0, 10.0)),
            tau_pos=self.choose.choice((1.0, 0.5)), tau_neg=self.choose.choice((1.05, 3.0)),
            policy_loss=PolicyLossConfig(loss_mode=mode, dro_beta=self.choose.choice((0.1, 1.0))),
            **settings)
        config.global_batch_info.update(self.info)
        return config

    def widen(self):
        """Goes on with the stored values in a type in which verl computes as precisely as we."""
        for name in self.ARRAYS:
            setattr(self, name, widened(getattr(self, name)))
        self.dtype = self.logp.dtype

    def given(self, name, widen=True):
        """One of the arrays; for verl with widened values."""
        return widened(getattr(self, name)) if widen else getattr(self, name)

    def gradient_of(self, loss, widen):
        """The loss of log-probs, and their gradient in the type that the log-probs were stored in.

        loss: a function of log-probs.
        """
        logp = self.given("logp", widen).clone().requires_grad_()
        result = loss(logp)
        value = result[0] if isinstance(result, tuple) else result
        value.backward()
        return value, logp.grad.to(self.dtype), result

    def close(self, record, function, presets, ours, theirs, seed, cancels=True):
        """Runs both, and holds loss, gradient and metrics together.

        ours, theirs: functions of log-probs, which return a loss or a pair of it and metrics.
        cancels: whether terms of both signs are added. Then the sum of their magnitudes is the
          scale of the rounding, and that of the derivatives is about it.
        """
        loss, gradient, result = self.gradient_of(ours, False)
        their_loss, their_gradient, their_result = self.gradient_of(theirs, True)
        scale = (their_gradient.double().abs().sum() * cancels).reshape(1)
        loss, their_loss = (torch.cat((value.detach().double().reshape(1), scale))
                            for value in (loss, their_loss))
        context = f"seed {seed}, {self.dtype}, {self.aggregate}, {self.info}"
        record.batch(TRAINER, function, presets)
        # Both round the gradient to bfloat16, of which two neighbors are 2^-8 apart.
        tolerance = 2**-8 if self.dtype == torch.bfloat16 else LOSS
        record.close(TRAINER, function, presets, "loss", loss, their_loss, LOSS, context)
        record.close(TRAINER, function, presets, "gradient", gradient, their_gradient, tolerance,
                     context)
        if isinstance(their_result, tuple):
            for key, value in their_result[1].items():
                record.close(TRAINER, function, presets, "metrics", result[1][key], value, LOSS,
                             f"{key}, {context}")


def loss_function(tokens, name, config, widen):
    """A loss of verl's registry, or of ours in it, as a function of log-probs.

    The gradient of verl's sapo is that of a sigmoid y, y (1 - y), which in float32 has a digit or
    two where y is nearly 1. So that loss gets the stored values in float64.
    """
    to = torch.Tensor.double if name == "sapo" else lambda array: array
    weights = tokens.given("weights", widen)
    arguments = {"old_log_prob": to(tokens.given("old_logp", widen)), "response_mask": tokens.mask,
                 "advantages": to(tokens.given("advantages", widen)), "config": config,
                 "loss_agg_mode": tokens.aggregate,
                 "rollout_is_weights": None if weights is None else to(weights)}
    return lambda logp: core_algos.get_policy_loss_fn(name)(log_prob=to(logp), **arguments)


@pytest.mark.parametrize("mode", plugin.OF_VERL)
def test_losses(record, seeds, mode):
    """verl's loss and ours, both from verl's registry and with verl's configuration."""
    for seed in seeds:
        tokens = Tokens(seed)
        config = tokens.actor()
        tokens.close(record, f"compute_policy_loss_{mode}", f"verl::{mode} (loss)",
                     loss_function(tokens, f"gdpo:verl::{mode}", config, False),
                     loss_function(tokens, mode, config, True), seed)


def aggregated(tokens, **settings):
    """Our loss with the counts and the aggregate that verl's configuration gives to agg_loss."""
    info = tokens.info
    counts = gdpo.count(mask=tokens.mask)
    if info.get("batch_num_tokens") is not None:
        counts[0] = info["batch_num_tokens"]
    if info.get("global_batch_size") is not None:
        counts[1:3] = info["global_batch_size"]
    if tokens.aggregate == "seq-mean-token-sum-norm":
        settings["constant"] = info.get("loss_scale_factor")
    policy_loss = gdpo.PolicyLoss("verl::vanilla", aggregate=tokens.aggregate,
                                  scale=info.get("dp_size", 1), **settings)
    return lambda logp, **arrays: policy_loss(logp, mask=tokens.mask, counts=counts, **arrays).loss


@pytest.mark.parametrize("mode", MODES)
def test_agg_loss(record, seeds, mode):
    """The aggregates alone: with a ratio of 1 a token's loss is minus its advantage."""
    for seed in seeds:
        tokens = Tokens(seed)
        tokens.aggregate = mode
        losses = -tokens.given("advantages")
        theirs = core_algos.agg_loss(losses, tokens.mask, mode, **tokens.info)
        ours = aggregated(tokens)(tokens.logp, token_advantages=tokens.advantages)
        record.batch(TRAINER, "agg_loss", mode)
        # Of a sum of terms that cancel, the terms are the scale.
        terms = core_algos.agg_loss(losses.abs(), tokens.mask, mode, **tokens.info)
        record.close(TRAINER, "agg_loss", mode, "loss", torch.stack((ours, terms.to(ours.dtype))),
                     torch.stack((theirs, terms)), LOSS, f"seed {seed}, {tokens.info}")


KLS = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")


def kl_settings(kind):
    """Our settings of a kl_loss_type: verl clamps k3 alone, as the KL term of the preset is."""
    settings = {"kl": kind}
    if not kind.startswith(("low_var_kl", "k3")):
        settings["kl_input"] = settings["kl_output"] = (-math.inf, math.inf)
    return settings


@pytest.mark.parametrize("kind", [kl + plus for kl in KLS for plus in ("", "+")])
def test_kl_penalty(record, seeds, kind):
    """The KL term alone, which is what is left of the loss where all advantages are 0.

    verl's k3 is exp(d) - d - 1, whose rounding in float32 is as large as a small KL. So verl's
    function gets the stored values widened to float64.
    """
    for seed in seeds:
        tokens = Tokens(seed)
        zeros = torch.zeros(tokens.shape)

        def theirs(logp):
            kl = core_algos.kl_penalty(logp.double(), tokens.ref_logp.double(), kind)
            return 0.1 * core_algos.agg_loss(kl, tokens.mask, tokens.aggregate, **tokens.info)

        def ours(logp):
            return aggregated(tokens, beta=0.1, **kl_settings(kind))(
                logp, token_advantages=zeros, ref_logp=tokens.ref_logp)

        tokens.close(record, "kl_penalty", kind, ours, theirs, seed,
                     cancels=kind.startswith(("kl", "k1")))


def ppo_data(tokens):
    """The data of a micro-batch as verl's engine hands it to ppo_loss; prompts have 2 tokens."""
    rows, width = tokens.shape
    prompts = torch.ones(rows, 2, dtype=torch.int64)
    arrays = {name: widened(array) for name, array in (
        ("old_log_probs", tokens.old_logp), ("advantages", tokens.advantages),
        ("ref_log_prob", tokens.ref_logp), ("rollout_is_weights", tokens.weights))
        if array is not None}
    data = TensorDict({
        "prompts": prompts, "responses": torch.ones(rows, width, dtype=torch.int64),
        "attention_mask": torch.cat((prompts, tokens.mask.long()), 1),
        "response_mask": tokens.mask.long(), **arrays}, batch_size=rows)
    for name in ("dp_size", "batch_num_tokens", "global_batch_size"):
        tensordict_utils.assign_non_tensor(
            data, **{name: tokens.info.get(name, 1 if name == "dp_size" else None)})
    return data


def model_output(values, mask):
    """Values at the tokens as a model gives them: packed, with prompts, one place to the left."""
    rows = []
    for row, length in zip(values, mask.sum(-1).tolist()):
        rows.append(torch.cat((row.new_zeros(1), row[:length], row.new_zeros(1))))
    return torch.cat(rows)


def ppo_loss_of(tokens, config):
    """verl's ppo_loss as a function of log-probs; with an entropy where it has a coefficient."""
    def loss(logp):
        output = {"log_probs": model_output(logp, tokens.mask)}
        if config.entropy_coeff:
            output["entropy"] = model_output(torch.exp(-logp.detach()), tokens.mask)
        total, metrics = ppo_loss(config, output, ppo_data(tokens))
        return total, {name: value.aggregate() if isinstance(value, Metric) else value
                       for name, value in metrics.items()}
    return loss


def kl_config(tokens):
    """Settings of the actor with one of verl's KL terms, and its kind."""
    kind = tokens.choose.choice([kl + plus for kl in KLS for plus in ("", "+")])
    return {"use_kl_loss": True, "kl_loss_type": kind, "kl_loss_coef": 0.05,
            "loss_scale_factor": tokens.info.get("loss_scale_factor")}


def test_ppo_loss(record, seeds):
    """What the actor calls, with KL term and entropy bonus: with verl's loss, and with ours in it.

    verl computes KL and entropy beside both losses, so both get the widened values.
    """
    for seed in seeds:
        tokens = Tokens(seed)
        tokens.widen()
        theirs = tokens.actor("vanilla", entropy_coeff=0.01, **kl_config(tokens))
        ours = dataclasses.replace(theirs, policy_loss=PolicyLossConfig(loss_mode="gdpo"))
        tokens.close(record, "ppo_loss", "verl::vanilla (loss) in it", ppo_loss_of(tokens, ours),
                     ppo_loss_of(tokens, theirs), seed)


def test_ppo_loss_with_our_kl(record, seeds):
    """ppo_loss beside one of our losses with its KL term, which is one pass over the tokens."""
    for seed in seeds:
        tokens = Tokens(seed)
        config = tokens.actor("vanilla", **kl_config(tokens))
        low, high = (config.clip_ratio if bound is None else bound
                     for bound in (config.clip_ratio_low, config.clip_ratio_high))
        ours = aggregated(tokens, low=low, high=high, dual=config.clip_ratio_c, beta=0.05,
                          **kl_settings(config.kl_loss_type))
        arrays = {"old_logp": tokens.old_logp, "ref_logp": tokens.ref_logp,
                  "token_advantages": tokens.advantages, "weights": tokens.weights}
        tokens.close(record, "ppo_loss", "verl::vanilla (loss) with its KL",
                     lambda logp: ours(logp, **arrays),
                     lambda logp: ppo_loss_of(tokens, config)(logp)[0], seed)


def configured(tokens, config):
    """What gdpo.from_config makes of the actor's configuration, as a function of log-probs."""
    given = gdpo.from_config("verl", {"algorithm.adv_estimator": "grpo",
                                      "actor_rollout_ref.actor": config}, strict=True)
    info, own = tokens.info, gdpo.count(mask=tokens.mask)
    counts = own.clone()
    if info.get("batch_num_tokens") is not None:
        counts[0] = info["batch_num_tokens"]
    if info.get("global_batch_size") is not None:
        counts[1:3] = info["global_batch_size"]
    mean_of_micro_batch = given.counts.get("rows") == "the rows of the micro-batch"
    arrays = {"old_logp": tokens.old_logp, "token_advantages": tokens.advantages,
              "ref_logp": tokens.ref_logp, "mask": tokens.mask}
    weights = {"weights": tokens.weights}
    if given.loss.line.startswith("verl::dro"):
        weights["kl_weights"] = tokens.weights

    def loss(logp):
        more = dict(weights)
        if given.corrections:
            prepared = gdpo.prepare(given.corrections, logp=logp.detach(), mask=tokens.mask,
                                    weights=tokens.weights, old_logp=tokens.old_logp,
                                    token_advantages=tokens.advantages)
            more = {"weights": prepared.weights}
        total = given.loss(logp, counts=own if mean_of_micro_batch else counts, **arrays,
                           **more).loss
        ranks = info.get("dp_size", 1)
        total = total if mean_of_micro_batch else total * ranks
        return total + sum(term(logp, counts=counts, **arrays).loss * ranks
                           for term in given.more_losses)
    return loss


@pytest.mark.parametrize("mode", [*plugin.OF_VERL, "gpg", "dppo_tv", "dppo_kl"])
def test_ppo_loss_from_config(record, seeds, mode):
    """All that the actor computes, and what from_config makes of its configuration."""
    for seed in seeds:
        tokens = Tokens(seed)
        tokens.widen()
        if mode == "sapo":  # the gradient of verl's sigmoid has few digits in float32
            for name in tokens.ARRAYS:
                array = getattr(tokens, name)
                setattr(tokens, name, None if array is None else array.double())
        if mode == "geo_mean":  # which takes weights of rows
            tokens.weights = None
        if mode == "dppo_kl":  # of a probability above 1 verl's binary KL is NaN
            tokens.logp = tokens.logp.clamp(max=-0.001)
        config = tokens.actor(mode, **kl_config(tokens))
        tokens.close(record, "ppo_loss", f"from_config: verl::{mode} (loss)",
                     configured(tokens, config),
                     lambda logp: ppo_loss_of(tokens, config)(logp)[0], seed)
