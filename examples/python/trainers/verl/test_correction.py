"""verl's rollout correction beside ours: recorded numbers, random batches, and how it is reached.

verl adds 1e-8 to the number of tokens in its means. So a weight that is divided by such a mean
differs from ours by 1e-8 of it for one token, and metrics by as much.
"""
import json
import math
import pathlib
import random
import shlex

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser

import gdpo.integrations.verl as plugin
import verl
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo import rollout_corr_helper as helper
from verl.workers.config import ActorConfig, PolicyLossConfig

TRAINER = f"verl {verl.__version__}"
GOLDEN = pathlib.Path(__file__).parents[4] / "tests" / "golden" / "released"
EPS = 2e-8
DTYPES = (torch.float32, torch.float64)


def recorded(kind, function):
    """The recorded cases of a function."""
    cases = json.loads((GOLDEN / f"verl_0.9.1.{kind}.json").read_text(encoding="utf-8"))["cases"]
    return [pytest.param(case, id=case["name"].split("/")[1]) for case in cases
            if case["function"] == function]


def numbers(rows):
    return torch.tensor(rows, dtype=torch.float64)


def correction(case, names):
    """Ours of a recorded case."""
    inputs = {name: numbers(rows) for name, rows in case["inputs"].items()}
    return plugin.rollout_correction(
        inputs["old_logp"], inputs["rollout_logp"], inputs["response_mask"],
        **{name: case["params"][name] for name in names})


def close_metrics(record, key, ours, theirs, context, tolerance=1e-7):
    """Holds the metrics together that both log; verl takes fractions as means of float32.

    verl's variance is a difference of two means, whose rounding a root magnifies: of standard
    deviations the squares are compared.
    """
    statistics = {name for name in theirs
                  if "rollout_rs_" in name and "masked_fraction" not in name}
    assert set(theirs) - statistics <= set(ours), set(theirs) - statistics - set(ours)
    if theirs.get("rollout_corr/rollout_is_mean", 1) < 1e-5:  # verl adds 1e-8 to it
        statistics.add("rollout_corr/rollout_is_eff_sample_size")
    for name in set(theirs) - statistics:
        power = 2 if name.endswith("_std") else 1
        record.close(*key, "metrics", numbers([ours[name]]) ** power,
                     numbers([theirs[name]]) ** power, tolerance, f"{name} {context}")


@pytest.mark.parametrize("case", recorded("aggregate", "compute_rollout_correction_weights"))
def test_recorded_weights(record, case):
    names = ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize")
    result = correction(case, names)
    normalized = case["params"]["rollout_is_batch_normalize"]
    key = (f"{TRAINER}, recorded", "compute_rollout_correction_weights",
           "importance" + (", mean_one" if normalized else ""))
    record.batch(*key)
    record.close(*key, "metrics", result.weights, numbers(case["expected"]["weights"]),
                 EPS if normalized else 1e-9, case["name"])
    theirs = {f"rollout_corr/{name}": value for name, value in case["expected"]["metrics"].items()}
    close_metrics(record, key, result.metrics, theirs, case["name"])


@pytest.mark.parametrize("case", recorded("aggregate", "compute_rollout_rejection_mask"))
def test_recorded_rejections(record, case):
    result = correction(case, ("rollout_rs", "rollout_rs_threshold"))
    assert result.weights is None
    key = (f"{TRAINER}, recorded", "compute_rollout_rejection_mask", "gate")
    record.batch(*key)
    assert torch.equal(result.mask, numbers(case["expected"]["mask"]))
    theirs = {f"rollout_corr/{name}": value for name, value in case["expected"]["metrics"].items()}
    close_metrics(record, key, result.metrics, theirs, case["name"])


def actor(options, mode="gdpo:bypass", **settings):
    """A configuration of the actor in bypass mode."""
    return ActorConfig(strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=4,
                       policy_loss=PolicyLossConfig(loss_mode=mode, rollout_correction=options),
                       **settings)


@pytest.mark.parametrize("case", recorded("loss", "compute_policy_loss_bypass_mode"))
def test_recorded_bypass_mode(record, case):
    params, inputs = case["params"], {n: numbers(v) for n, v in case["inputs"].items()}
    config = actor(params["rollout_correction"], **{
        name: params[name] for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high")},
        clip_ratio_c=float(params["clip_ratio_c"]))
    logp = inputs["logp"].requires_grad_()
    if inputs["advantages"].dim() == 1:
        inputs["advantages"] = inputs["advantages"][:, None].expand_as(logp)
    loss, metrics = core_algos.get_policy_loss_fn("gdpo:bypass")(
        old_log_prob=inputs["old_logp"], log_prob=logp, advantages=inputs["advantages"],
        response_mask=inputs["response_mask"], loss_agg_mode=params["loss_agg_mode"],
        config=config)
    loss.backward()
    expected = case["expected"]
    key = (f"{TRAINER}, recorded", "compute_policy_loss_bypass_mode",
           params["rollout_correction"]["loss_type"])
    record.batch(*key)
    tolerance = EPS if params["rollout_correction"].get("rollout_is_batch_normalize") else 1e-9
    scale = numbers(expected["grad_logp"]).abs().sum().item()
    record.close(*key, "loss", numbers([loss.item(), scale]), numbers([expected["loss"], scale]),
                 tolerance, case["name"])
    record.close(*key, "gradient", logp.grad, numbers(expected["grad_logp"]), tolerance,
                 case["name"])
    close_metrics(record, key, metrics, expected["metrics"], case["name"])
    assert set(expected["metrics"]) & {"actor/ppo_kl"} <= set(metrics)


REJECTIONS = sorted(helper.SUPPORTED_ROLLOUT_RS_OPTIONS)


class Batch:
    """Log-probs of two policies, a mask with rows of no token, and options of verl."""

    def __init__(self, seed):
        self.choose = choose = random.Random(seed)
        torch.manual_seed(seed)
        shape = choose.randint(1, 7), choose.randint(2, 12)
        lengths = torch.randint(0 if choose.random() < 0.5 else 1, shape[1] + 1, shape[:1])
        lengths[choose.randrange(shape[0])] = shape[1]
        self.mask = (torch.arange(shape[1]) < lengths[:, None]).to(
            choose.choice((torch.bool, torch.int64, torch.float32)))
        dtype = DTYPES[seed % 2]
        spread = choose.choice((0.02, 0.3, 3.0))
        self.rollout = (-3 * torch.rand(shape).double()).to(dtype)
        x = spread * torch.randn(shape).double()
        x[torch.rand(shape) < 0.02] = choose.choice((25.0, -25.0))
        self.logp = (self.rollout.double() + x).to(dtype)
        self.advantages = torch.randn(shape).to(dtype)
        self.options = {"rollout_is": choose.choice((None, "token", "sequence"))}
        if self.options["rollout_is"]:
            self.options["rollout_is_threshold"] = choose.choice((1.1, 2.0, "1.7", "0.5_2.5"))
            self.options["rollout_is_batch_normalize"] = choose.random() < 0.5
        names = choose.sample(REJECTIONS, choose.choice((0, 1, 1, 2, 11)))
        if names:
            self.options["rollout_rs"] = ",".join(names)
            self.options["rollout_rs_threshold"] = ",".join(
                choose.choice(("0.7_1.5", "1.3")) if name.endswith("k1") else
                str(spread * choose.choice((0.1, 1.0))) for name in names)

    def far_from_thresholds(self):
        """Whether no statistic is so near its threshold that the rounding of verl decides."""
        mask, x = self.mask != 0, (self.logp.double() - self.rollout.double()).clamp(-20, 20)
        estimates = {"k1": -x, "k2": x * x / 2, "k3": x.expm1() - x}
        thresholds = self.options.get("rollout_rs_threshold", "").split(",")
        for name, threshold in zip(self.options.get("rollout_rs", "").split(","), thresholds):
            if not name:
                continue
            of, _, kind = name.rpartition("_")
            value = torch.where(mask, estimates[kind], 0.0)
            value = {"token": value, "seq_sum": value.sum(-1), "seq_max": torch.where(
                mask, estimates[kind], -1.0).amax(-1), "seq_mean": value.sum(-1) / mask.sum(-1)}[of]
            bounds = [float(bound) for bound in threshold.split("_")]
            if kind == "k1":
                bounds = [sign * torch.tensor(b).log().item() for b in bounds for sign in (1, -1)]
            # of float32: x has the rounding of log-probs near 3, and exp(x) - 1 - x that of exp(x)
            limits = 1e-5 * (1 + value.abs()) if self.logp.dtype == torch.float32 else 1e-7
            if any(((value - bound).abs() < limits).any() for bound in bounds):
                return False
        if isinstance(self.options.get("rollout_is_threshold"), str):
            x = (self.logp - self.rollout).double()
            for value in (x, torch.where(mask, x, 0.0).sum(-1)):
                for bound in self.options["rollout_is_threshold"].split("_"):
                    if ((value.exp() - float(bound)).abs() < 1e-5).any():
                        return False
        return True


@pytest.fixture
def batches(seeds):
    return [batch for seed in seeds if (batch := Batch(seed)).far_from_thresholds()]


def test_correction(record, batches):
    """Weights, masks and metrics of all options, from verl's helper and ours."""
    name = "compute_rollout_correction_and_rejection_mask"
    assert len(batches) > 100
    for batch in batches:
        verls = helper.compute_rollout_correction_and_rejection_mask.__wrapped__
        ours = plugin.rollout_correction(batch.logp, batch.rollout, batch.mask, **batch.options)
        if ours.weights is not None and not ours.weights.any():  # verl divides by 0
            with pytest.raises(ZeroDivisionError):
                verls(batch.logp, batch.rollout, batch.mask, **batch.options)
            assert ours.metrics["rollout_corr/rollout_is_eff_sample_size"] == 0
            continue
        weights, mask, metrics = verls(batch.logp, batch.rollout, batch.mask, **batch.options)
        key = (TRAINER, name, "importance, gate, mean_one")
        record.batch(*key)
        context = str((batch.options, batch.logp.dtype))
        assert torch.equal(ours.mask, mask) and ours.mask.dtype == mask.dtype, context
        assert (weights is None) == (ours.weights is None)
        if weights is not None:
            record.close(*key, "metrics", ours.weights, weights.batch["rollout_is_weights"], 5e-6,
                         context)
        # k3 of float32 log-probs is a difference of numbers near 1 in verl's arithmetic.
        close_metrics(record, key, ours.metrics, metrics, context, 1e-5)


@pytest.mark.parametrize("kind", ["ppo_clip", "reinforce"])
def test_bypass_mode(record, batches, kind):
    """verl's loss of bypass mode and ours: loss, gradient and metrics."""
    key = (TRAINER, "compute_policy_loss_bypass_mode", f"gdpo:bypass, {kind}")
    for batch in batches:
        config = actor({**batch.options, "loss_type": kind}, clip_ratio_low=0.2,
                       clip_ratio_high=0.28)
        mode = batch.choose.choice(("token-mean", "seq-mean-token-sum", "seq-mean-token-mean"))
        results = []
        weights = plugin.rollout_correction(batch.logp, batch.rollout, batch.mask,
                                            **batch.options).weights
        if weights is not None and not weights.any():  # verl divides by 0
            continue
        for name in ("gdpo:bypass", "bypass_mode"):
            logp = batch.logp.clone().requires_grad_()
            loss, metrics = core_algos.get_policy_loss_fn(name)(
                old_log_prob=batch.rollout, log_prob=logp, advantages=batch.advantages,
                response_mask=batch.mask, loss_agg_mode=mode, config=config)
            loss.backward()
            results.append((loss.detach(), logp.grad, metrics))
        (loss, gradient, metrics), (own, own_gradient, own_metrics) = results
        context = str((batch.options, batch.logp.dtype, mode))
        if own.isnan():  # verl divides by 0 where nothing is left; ours is 0
            assert loss == 0 and not gradient.any(), context
            continue
        record.batch(*key)
        scale = own_gradient.double().abs().sum().item() * 3 + 1e-3
        record.close(*key, "loss", numbers([loss, scale]), numbers([own, scale]), 1e-5, context)
        record.close(*key, "gradient", gradient, own_gradient, 1e-5, context)
        close_metrics(record, key, metrics, own_metrics, context, 1e-5)
        assert kind == "reinforce" or "actor/pg_clipfrac" in metrics


@pytest.mark.parametrize("name", [name for name in REJECTIONS if not name.endswith("k3")])
def test_at_the_bound(name):
    """A statistic that is its bound stays.

    verl adds 1e-8 to the tokens of a mean, which a count of float32 rounds off.
    """
    of_k1 = name.endswith("k1")
    value = -math.log(2) if of_k1 else 0.5
    if name == "seq_mean_k1":
        value *= 1 + 1e-8
    logp = torch.full((1, 1), value, dtype=torch.float64)
    bound = "2_8" if of_k1 else "0.125"
    arrays = logp, torch.zeros_like(logp), torch.ones(1, 1, dtype=torch.float64)
    _, theirs, _ = helper.compute_rollout_correction_and_rejection_mask(
        *arrays, rollout_rs=name, rollout_rs_threshold=bound)
    ours = plugin.rollout_correction(*arrays, rollout_rs=name, rollout_rs_threshold=bound).mask
    assert theirs.item() == 1 and ours.item() == 1


def trainers_batch(batch):
    """What verl's trainer corrects."""
    return DataProto.from_dict(tensors={"old_log_probs": batch.logp, "response_mask": batch.mask,
                                        "rollout_log_probs": batch.rollout})


def test_the_trainer_reaches_it_by_names_with_gdpo():
    """Names that begin with gdpo: are ours, with the numbers of the plain ones; others verl's."""
    batch = Batch(1)
    options = {"rollout_is": "sequence", "rollout_is_threshold": 2.0, "rollout_rs": "token_k3",
               "rollout_rs_threshold": 0.05, "rollout_is_batch_normalize": True}
    theirs, metrics = helper.compute_rollout_correction_and_add_to_batch(
        trainers_batch(batch), options)
    assert "rollout_corr/rollout_rs_token_k3_std" in metrics  # verl's own
    for ours in ({"rollout_is": "gdpo:sequence"}, {"rollout_rs": "gdpo:token_k3"}):
        corrected, metrics = helper.compute_rollout_correction_and_add_to_batch(
            trainers_batch(batch), {**options, **ours})
        assert "rollout_corr/rollout_rs_token_k3_std" not in metrics
        for name in ("rollout_is_weights", "response_mask"):
            torch.testing.assert_close(corrected.batch[name], theirs.batch[name])


def test_the_lines_of_the_page_are_what_hydra_reads():
    page = pathlib.Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    block = next(block for block in page.split("```")[1::2] if "rollout_rs=" in block)
    lines = [word for word in shlex.split(block.replace("\\\n", " ")) if "=" in word]
    options = {line.split("=")[0].rpartition(".")[2]: override.value() for line, override in zip(
        lines, OverridesParser.create().parse_overrides(lines))}
    assert set(options) == {"rollout_is", "rollout_is_threshold", "rollout_rs",
                            "rollout_rs_threshold"}
    corrected, _ = helper.compute_rollout_correction_and_add_to_batch(
        trainers_batch(Batch(1)), options)
    assert "rollout_is_weights" in corrected.batch
    assert plugin.is_ours(options["rollout_is"]) and plugin.is_ours(options["rollout_rs"])


def test_lines_of_the_library():
    """A correction that verl does not have, by a line in place of a name."""
    batch = Batch(3)
    ours = plugin.rollout_correction(
        batch.logp, batch.rollout, batch.mask,
        rollout_is="gdpo:masked_importance importance.clip.hi=2 gate.max=3",
        rollout_rs=["gate estimator=binary_total_variation statistic=sequence_max max=0.5",
                    "token_k2"], rollout_rs_threshold=0.5)
    valid, x = batch.mask != 0, (batch.logp - batch.rollout).double()
    ratio = x.exp()
    expected = torch.where(valid & (ratio <= 3), ratio.clamp(max=2), torch.zeros_like(ratio))
    torch.testing.assert_close(ours.weights.double(), expected, rtol=1e-6, atol=0)
    apart = (batch.logp.double().exp() - batch.rollout.double().exp()).abs()
    kept = (torch.where(valid, apart, 0.0).amax(-1, keepdim=True) <= 0.5) & (x * x / 2 <= 0.5)
    assert torch.equal(ours.mask != 0, valid & kept)


def test_the_trainers_bypass_mode():
    """verl's trainer sets loss_mode=bypass_mode; the options say whose loss it is."""
    batch = Batch(4)
    for name, ours in (("gdpo:token", True), ("token", False)):
        config = actor({"rollout_is": name, "loss_type": "reinforce"}, mode="bypass_mode")
        _, metrics = core_algos.get_policy_loss_fn("bypass_mode")(
            batch.rollout, batch.logp, batch.advantages, batch.mask, config=config)
        assert ("gdpo/non_finite" in metrics) == ours


def test_bypass_mode_with_another_loss():
    batch = Batch(6)
    arguments = {"log_prob": batch.logp, "advantages": batch.advantages, "config": actor(
        {"rollout_rs": "token_k2", "rollout_rs_threshold": 0.1})}
    loss, _ = core_algos.get_policy_loss_fn("gdpo:bypass dapo own high=0.5")(
        batch.rollout, response_mask=batch.mask, **arguments)
    mask = plugin.rollout_correction(batch.logp, batch.rollout, batch.mask, rollout_rs="token_k2",
                                     rollout_rs_threshold=0.1).mask
    expected, _ = core_algos.get_policy_loss_fn("gdpo:dapo own high=0.5")(
        batch.rollout, response_mask=mask, **arguments)
    assert torch.equal(loss, expected)


def test_masked_tokens_change_nothing():
    """NaN and infinities at masked tokens, of whatever option."""
    for seed in range(40):
        batch = Batch(seed)
        clean = plugin.rollout_correction(batch.logp, batch.rollout, batch.mask, **batch.options)
        for poison in (float("nan"), float("inf")):
            logp, rollout = (torch.where(batch.mask != 0, array, poison)
                             for array in (batch.logp, batch.rollout))
            dirty = plugin.rollout_correction(logp, rollout, batch.mask, **batch.options)
            assert torch.equal(dirty.mask, clean.mask) and dirty.metrics == clean.metrics
            assert clean.weights is None or torch.equal(dirty.weights, clean.weights)


@pytest.mark.parametrize("kind", ["token", "sequence"])
def test_the_mean_of_all_ranks(monkeypatch, kind):
    """Two halves of a batch on two ranks have the weights of the whole."""
    batch = Batch(8)
    arrays = [torch.cat((array, array * 0.5)) if array is not batch.mask else
              torch.cat((array, array.roll(1, -1))) for array in
              (batch.logp, batch.rollout, batch.mask)]
    rows = len(batch.mask)
    options = {"rollout_is": kind, "rollout_is_threshold": 1.2, "rollout_is_batch_normalize": True}
    whole = plugin.rollout_correction(*arrays, **options).weights
    halves = [[array[part] for array in arrays] for part in (slice(rows), slice(rows, None))]
    sent = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda total: sent.append(total.clone()))
    for half in halves:
        plugin.rollout_correction(*half, **options)
    sums = sent[0] + sent[1]
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda total: total.copy_(sums))
    got = torch.cat([plugin.rollout_correction(*half, **options).weights for half in halves])
    torch.testing.assert_close(got, whole, rtol=1e-6, atol=0)


def test_a_batch_of_nothing():
    """No rows, and rows without a token."""
    for shape in ((0, 3), (2, 3)):
        logp, mask = torch.zeros(shape), torch.zeros(shape)
        ours = plugin.rollout_correction(
            logp, logp, mask, rollout_is="token", rollout_is_batch_normalize=True,
            rollout_rs="token_k2", rollout_rs_threshold=1)
        assert ours.weights.shape == ours.mask.shape == shape
        assert not ours.weights.any() and not ours.mask.any()


def test_a_threshold_below_1():
    batch = Batch(2)
    ours = plugin.rollout_correction(batch.logp, batch.rollout, batch.mask, rollout_is="token",
                                     rollout_is_threshold=0.9)
    ratio = (batch.logp - batch.rollout).exp().clamp(max=0.9)
    torch.testing.assert_close(ours.weights, torch.where(batch.mask != 0, ratio, 0.0), rtol=1e-6,
                               atol=0)


@pytest.mark.parametrize("drift", [-25.0, -10.0])
def test_a_mean_of_nearly_0_divides_nothing(drift):
    """As in verl, whose smallest weight is e^-20."""
    logp, zeros, mask = torch.full((2, 3), drift), torch.zeros(2, 3), torch.ones(2, 3)
    options = {"rollout_is": "token", "rollout_is_batch_normalize": True}
    theirs, _, metrics = helper.compute_rollout_correction_and_rejection_mask(
        logp, zeros, mask, **options)
    ours = plugin.rollout_correction(logp, zeros, mask, **options)
    torch.testing.assert_close(ours.weights, theirs.batch["rollout_is_weights"], rtol=1e-6, atol=0)
    name = "rollout_corr/rollout_is_batch_norm_factor"
    assert ours.metrics[name] == pytest.approx(metrics[name], rel=1e-6)


@pytest.mark.parametrize("options, message", [
    ({"rollout_is": "tokens"}, "rollout_is: given 'tokens'; needed: one of token, sequence"),
    ({"rollout_is": "token", "rollout_is_threshold": "2_1"}, "rollout_is_threshold: given '2_1'"),
    ({"rollout_is": "token", "rollout_is_threshold": True}, "rollout_is_threshold: given True"),
    ({"rollout_is": "token", "rollout_is_threshold": -1}, "needed: a number above 0"),
    ({"rollout_rs": "seq_max_k1", "rollout_rs_threshold": 1.1}, "given 'seq_max_k1'; needed: some"),
    ({"rollout_rs": "token_k1"}, "rollout_rs_threshold: given None; needed: one number"),
    ({"rollout_rs": "token_k1,token_k2,token_k3", "rollout_rs_threshold": "1,2"}, "one for each"),
    ({"rollout_rs": "token_k2", "rollout_rs_threshold": "1_2"}, "the largest k2, for token_k2"),
    ({"rollout_rs": "gate mox=2"}, "mox"),
    ({"rollout_is": "importance reach=level"}, "rollout_is: given 'importance reach=level'; needed:"
     " a line without reach=level"),
    ({"rollout_is": "gdpo:trl::token_mask importance.reach=level"}, "without reach=level"),
    ({"rollout_rs": "token_k2,gate max=2 reach=level", "rollout_rs_threshold": 2},
     "rollout_rs: given 'gate max=2 reach=level'; needed: a line without reach=level")])
def test_mistakes(options, message):
    with pytest.raises(ValueError, match=message):
        plugin.rollout_correction(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2), **options)


def test_mistakes_of_bypass_mode():
    batch = Batch(0)
    run = (batch.rollout, batch.logp, batch.advantages, batch.mask)
    for mode, options, message in (
            ("gdpo:bypass", {"loss_type": "sft"}, "loss_type: given 'sft'"),
            ("gdpo:bypass dapo", {"loss_type": "reinforce"}, "a loss by its name"),
            ("gdpo:bypass", None, "policy_loss.rollout_correction: given none")):
        with pytest.raises(ValueError, match=message):
            core_algos.get_policy_loss_fn(mode)(*run, config=actor(options))
    with pytest.raises(ValueError, match="needed: one of grpo"):
        core_algos.get_policy_loss_fn("gdpo:bypass dapoo")


def test_a_helper_of_another_signature(monkeypatch):
    def changed(old_log_prob, rollout_log_prob, response_mask):
        """Another helper."""

    monkeypatch.setattr(helper, "compute_rollout_correction_and_rejection_mask", changed)
    with pytest.warns(UserWarning, match="verl 0.9.1.*verl's own rollout correction is used"):
        plugin._install_correction()
    assert helper.compute_rollout_correction_and_rejection_mask is changed
