"""Metrics of a loss call against means in plain PyTorch.

Tolerances: float64 batches 1e-12; float32 ones 1e-6 of the mean of the absolute terms, as the
header loss/policy_loss.hpp documents.
"""
import collections.abc
import copy
import math
import pickle
import struct

import pytest
import torch

import gdpo
from batches import random_batch

NAMES = ("old_logp", "ref_logp", "advantages", "entropies")


def measured(name="grpo", level=None, seed=81, dtype=torch.float64, rows=slice(None), counts=None,
             **settings):
    """The batch, and the metrics of its rows."""
    batch = random_batch(seed, 7, 30, dtype=dtype)
    batch.mask[3] = False
    batch.arrays["advantages"][1] = 0
    arrays = {key: batch.arrays[key].to(dtype)[rows] for key in NAMES}
    counts = gdpo.count(mask=batch.mask) if counts is None else counts
    loss, metrics = gdpo.PolicyLoss(name, level, **settings)(
        batch.arrays["logp"].to(dtype)[rows], counts=counts, mask=batch.mask[rows],
        truncated=(torch.arange(7) % 3 == 0)[rows], **arrays)
    assert loss.item() == pytest.approx(metrics["loss"], rel=1e-6)
    return batch, metrics


def rows_mean(values, mask) -> torch.Tensor:
    """The mean of each row over its valid tokens; 0 for a row without any."""
    return (values * mask).sum(1) / mask.sum(1).clamp(min=1)


@pytest.mark.parametrize("dtype, rel", [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_means_over_tokens(dtype, rel):
    """Each metric of the log ratio x = logp - old_logp, over the valid tokens."""
    batch, metrics = measured(dtype=dtype)
    a, mask = batch.arrays, batch.mask
    x = a["logp"] - a["old_logp"]
    ratio, d = x.exp(), a["logp"] - a["ref_logp"]
    advantage = a["advantages"][:, None].expand_as(x)
    low, high = (advantage < 0) & (ratio < 0.8), (advantage > 0) & (ratio > 1.2)
    surrogate = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
    kl = torch.expm1(-d) + d
    want = {"approx_kl_k1": -x, "approx_kl_k3": ratio - 1 - x, "ratio": ratio, "kl": kl,
            "surrogate": surrogate, "loss": surrogate + 0.04 * kl, "entropy": a["entropies"],
            "clip_fraction": (low | high).double(), "clip_fraction_low": low.double(),
            "clip_fraction_high": high.double()}
    for name, values in want.items():
        size = values[mask].abs().mean().item()
        assert abs(metrics.mean(name) - values[mask].mean().item()) <= rel * size, name
        assert metrics[name + ".count"] == mask.sum() and metrics[name + ".rows"] == 7, name
        means = rows_mean(values, mask)
        assert abs(metrics[name + ".row_sum"] - means.sum().item()) <= 10 * rel * size, name
        assert metrics[name + ".row_max"] == pytest.approx(means.max().item(), rel=10 * rel), name
    assert 0 < metrics.mean("clip_fraction") < 1


@pytest.mark.parametrize("level", ("token", "sequence"))
def test_clipped_tokens_of_cispo(level):
    """Beyond the upper bound with A > 0, and beyond the lower one with A < 0."""
    least, most = 0.98, 1.02
    batch, metrics = measured("cispo", level, seed=89, min_ratio=least, max_ratio=most)
    mask, x = batch.mask, batch.arrays["logp"] - batch.arrays["old_logp"]
    if level == "sequence":
        x = rows_mean(x, mask)[:, None].expand_as(x)
    ratio, advantage = x.exp(), batch.arrays["advantages"][:, None].expand_as(x)
    low, high = (advantage < 0) & (ratio < least), (advantage > 0) & (ratio > most)
    for name, values in {"clip_fraction_low": low, "clip_fraction_high": high,
                         "clip_fraction": low | high}.items():
        assert metrics[name + ".sum"] == values[mask].sum() > 0, name
    surrogate = -advantage * ratio.clamp(least, most) * batch.arrays["logp"]
    assert metrics.mean("surrogate") == pytest.approx(surrogate[mask].mean().item(), rel=1e-12)


def test_counts_and_losses():
    """What the loss is made of, and the rows that say nothing."""
    batch, metrics = measured()
    assert metrics["loss"] == pytest.approx(metrics["policy_loss"] + metrics["kl_loss"], rel=1e-14)
    assert [metrics["normalizer." + name] for name in ("tokens", "rows", "non_empty_rows", "given")
            ] == list(batch.counts())
    assert metrics["rows"] == 7
    assert metrics["empty_rows"] == 7 - batch.mask.any(1).sum()
    assert metrics["degenerate_rows"] == 1  # row 1 has advantage 0 at all of its tokens
    assert math.isinf(metrics["entropy_threshold"])
    advantage = batch.arrays["advantages"][:, None].expand_as(batch.mask)[batch.mask]
    assert metrics["advantage.mean"] == pytest.approx(advantage.mean().item(), rel=1e-12)
    assert metrics["advantage.m2"] == pytest.approx(
        ((advantage - advantage.mean()) ** 2).sum().item(), rel=1e-12)


def test_completion_lengths():
    """Valid tokens of each row; with a completion_mask, its tokens."""
    batch, metrics = measured()
    lengths = batch.mask.sum(1)
    assert metrics["completion_length.row_sum"] == lengths.sum()
    assert metrics["completion_length.row_max"] == lengths.max()
    assert metrics["completion_length.row_min"] == 0
    loss, counts = gdpo.PolicyLoss("dapo"), gdpo.count(mask=batch.mask)
    whole = loss(batch.arrays["logp"], counts=counts, advantages=batch.arrays["advantages"],
                 mask=batch.mask, completion_mask=torch.ones_like(batch.mask)).metrics
    assert whole["completion_length.row_sum"] == 7 * 30


def test_keys():
    """Those of TRL and ms-swift, each after the prefix, and the means that they stand for."""
    batch, metrics = measured()
    got = metrics.to_dict("train/")
    mask = batch.mask
    lengths = mask.sum(1).double()
    entropy = rows_mean(batch.arrays["entropies"], mask)
    want = {
        "kl": metrics.mean("kl"), "entropy": batch.arrays["entropies"][mask].mean().item(),
        "entropy/mean": entropy.mean().item(), "entropy/max": entropy.max().item(),
        "entropy/min": entropy.min().item(),
        "clip_ratio/low_mean": metrics.mean("clip_fraction_low"),
        "clip_ratio/low_min": metrics["clip_fraction_low.row_min"],
        "clip_ratio/high_mean": metrics.mean("clip_fraction_high"),
        "clip_ratio/high_max": metrics["clip_fraction_high.row_max"],
        "clip_ratio/region_mean": metrics.mean("clip_fraction"),
        "completions/mean_length": lengths.mean().item(), "completions/min_length": 0,
        "completions/max_length": lengths.max().item(), "completions/clipped_ratio": 3 / 7}
    assert got == pytest.approx({"train/" + key: value for key, value in want.items()}, rel=1e-12)
    assert list(metrics.to_dict()) == [key[len("train/"):] for key in got]


def test_what_was_not_measured_has_no_key():
    """No KL, no entropies, no truncated rows."""
    loss = gdpo.PolicyLoss("dapo")
    metrics = loss(torch.zeros(2, 3), counts=gdpo.count(mask=torch.ones(2, 3)),
                   advantages=torch.ones(2)).metrics
    assert not {"kl", "entropy", "entropy/mean", "completions/clipped_ratio"} & set(
        metrics.to_dict())
    assert metrics.mean("kl") == 0 and metrics["kl.count"] == 0
    assert gdpo.Metrics.names() == metrics.names() and len(metrics.names()) == len(metrics.result)


def test_one_ratio_a_row():
    """GSPO clips whole rows, so its clip fractions in logs are shares of rows, as in TRL."""
    _, metrics = measured("gspo", beta=0.1)
    assert metrics["one_ratio_a_row"] == 1
    assert metrics.to_dict()["clip_ratio/region_mean"] == pytest.approx(
        metrics["clip_fraction.row_sum"] / 7)
    assert measured("gspo_token", beta=0.1)[1]["one_ratio_a_row"] == 0


@pytest.mark.parametrize("level", ("token", "sequence"))
def test_micro_batches_merge(level):
    """Metrics of the parts of a step, with the counts of the step: those of the whole.

    Counts and ranges are exact, sums to rounding (merge in loss/loss_result.hpp).
    """
    batch, whole = measured(level=level)
    counts = gdpo.count(mask=batch.mask)
    parts = [measured(level=level, rows=rows, counts=counts)[1]
             for rows in (slice(0, 2), slice(2, 3), slice(3, 7))]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    assert merged.to_dict() == pytest.approx(whole.to_dict(), rel=1e-12)
    for name in whole.names():
        if not name.endswith(".mean_low"):  # what is left of the mean's rounding
            assert merged[name] == pytest.approx(whole[name], rel=1e-12, abs=1e-14), name


def test_merge_of_other_counts_is_refused():
    """Parts that were each divided by their own counts are not one step."""
    counts = torch.tensor([900.0, 200, 200, 0], dtype=torch.float64)
    with pytest.raises(ValueError, match="b.normalizer"):
        measured()[1].merge(measured(counts=counts)[1])


def test_unknown_names():
    _, metrics = measured()
    for call in (metrics.__getitem__, metrics.mean):
        with pytest.raises(KeyError, match="nothing"):
            call("nothing")
    assert "clip_ratio/region_mean" in repr(metrics) and repr(metrics).startswith("gdpo.Metrics(")


def test_the_set_of_metrics():
    """metrics::Means: ranges over tokens and the rarer shares are not measured, and say so."""
    _, metrics = measured("verl::vanilla", beta=0.1)
    for name in ("clip_fraction_any", "dual_clip_fraction", "log_ratio_bounded", "kl_bounded"):
        assert metrics[name + ".count"] == 0
    assert metrics["ratio.min"] == math.inf and metrics["ratio.max"] == -math.inf


@pytest.mark.parametrize("name", ["Metrics", "Report", "Mismatch"])
def test_mappings(name):
    """What is measured is a mapping: of the same numbers one by one, at once, copied, pickled."""
    logp = torch.linspace(-2, -1, 6, dtype=torch.float64).reshape(2, 3)
    mapping = {
        "Metrics": lambda: gdpo.PolicyLoss("dapo")(
            logp, old_logp=logp - 0.1, advantages=torch.tensor([1.0, -1.0]),
            counts=gdpo.count(logp=logp)).metrics,
        "Report": lambda: gdpo.advantages([[1.0, 2], [0, 1], [1, 1], [0, 0]], report=True,
                                          group_ids=[0, 0, 1, 1]).report,
        "Mismatch": lambda: gdpo.mismatch(rollout_logp=logp, old_logp=logp - 0.1)}[name]()
    assert isinstance(mapping, collections.abc.Mapping) and type(mapping).__name__ == name
    numbers = dict(mapping)
    assert list(numbers) == list(mapping) == list(mapping.keys()) == mapping.names()
    assert len(mapping) == len(numbers) > 10
    assert all(type(number) is float for number in mapping.values())
    for key, number in mapping.items():
        assert key in mapping and mapping.get(key) is mapping[key] is number is numbers[key]
    assert "lost" not in mapping and None not in mapping and mapping.get("lost", 3) == 3
    with pytest.raises(KeyError, match=f"lost: not among the names.* of gdpo.{name}, such as "):
        mapping["lost"]
    with pytest.raises(KeyError, match="0: not among"):
        mapping[0]
    # As dicts are, except that NaN is equal to nothing: the numbers are others after a copy.
    bits = {key: struct.pack("d", number) for key, number in mapping.items()}
    for other in (copy.copy(mapping), copy.deepcopy(mapping), pickle.loads(pickle.dumps(mapping))):
        assert type(other) is type(mapping)
        assert {key: struct.pack("d", number) for key, number in other.items()} == bits
    assert mapping == numbers and mapping != {} and mapping
    with pytest.raises(TypeError, match="unhashable"):
        hash(mapping)


def test_numbers_are_read_once(monkeypatch):
    """All of them by one copy, however many are asked for, and anew of another tensor."""
    metrics = gdpo.Metrics(measured()[1].result)
    calls, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: calls.append(1) or tolist(self))
    monkeypatch.setattr(torch.Tensor, "item", lambda self: pytest.fail("one number was read"))
    first = dict(metrics)
    assert metrics["loss"] == first["loss"] and metrics.mean("kl") and len(calls) == 1
    metrics.result = 2 * metrics.result
    assert metrics["loss"] == 2 * first["loss"] and len(calls) == 2


def test_metrics_from_a_mapping():
    """Trainers that rebuild what a module returns call type(mapping)(items)."""
    _, metrics = measured()
    again = gdpo.Metrics({name: torch.tensor(number) for name, number in metrics.items()})
    assert again.result.dtype == torch.float64 and gdpo.Metrics(dict(metrics)) == metrics
    with pytest.raises(KeyError, match="loss"):
        gdpo.Metrics({})
