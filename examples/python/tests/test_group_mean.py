"""Means over groups of rows: the column of their tokens, and losses that are divided by it."""
import dataclasses

import pytest
import torch

import gdpo
import reference
from batches import call, expected, random_batch

# REINFORCE without a ratio: the gradient at a token is minus its advantage times its weight.
NAMES = ("logp", "advantages")
GROUPS = "verl::reinforce aggregate.mode=group-mean-token-mean aggregate.over=given"
ROWS = "verl::reinforce aggregate.mode=seq-mean-token-mean aggregate.over=rows"


def gradient(line, batch, mask, counts, dtype=torch.float64, **arrays):
    logp = batch.arrays["logp"].to(dtype, copy=True).requires_grad_()
    loss, _ = gdpo.PolicyLoss(line)(logp, advantages=batch.arrays["advantages"], mask=mask,
                                    counts=counts, **arrays)
    loss.backward()
    return logp.grad


@pytest.mark.parametrize("seed", range(10))
def test_weights_of_tokens(seed):
    """Each token weighs 1 / (groups x tokens of its group)."""
    batch = random_batch(seed, rows=6)
    for groups in (dict(group_size=3), dict(group_ids=torch.tensor([5, 2, 5, 5, 2, 9])),
                   dict(group_offsets=torch.tensor([0, 1, 4, 6]))):
        column = gdpo.count_group_tokens(mask=batch.mask, **groups)
        counts = gdpo.count(mask=batch.mask, **groups)
        ids = groups.get("group_ids")
        if ids is None:
            ends = groups.get("group_offsets", torch.tensor([0, 3, 6]))
            ids = torch.bucketize(torch.arange(6), ends[1:], right=True)
        expected = torch.stack([batch.mask[ids == name].sum() for name in ids]).double()
        assert torch.equal(column, expected)
        assert counts[3] == len(ids.unique())
        got = gradient(GROUPS, batch, batch.mask, counts, group_tokens=column)
        weights = batch.mask / (counts[3] * column.clamp(min=1))[:, None]
        torch.testing.assert_close(got, -weights * batch.arrays["advantages"][:, None],
                                   rtol=1e-12, atol=0)


@pytest.mark.parametrize("level", ("token", "sequence", "sequence_token"))
@pytest.mark.parametrize("seed", range(10))
def test_definition(seed, level):
    """GRPO with this mean against the reference; 1e-9 is rounding with room to spare."""
    batch = random_batch(seed, rows=6)
    groups = dict(group_ids=torch.tensor([5, 2, 5, 5, 2, 9]))
    batch.arrays["group_tokens"] = gdpo.count_group_tokens(mask=batch.mask, **groups)
    counts = reference.Counts(*gdpo.count(mask=batch.mask, **groups).tolist())
    names = ("old_logp", "ref_logp", "advantages", "row_weights", "group_tokens")
    loss = gdpo.PolicyLoss("grpo", level, aggregate_mode="group-mean-token-mean", over="given",
                           row_count_eps=0.5)
    settings = dataclasses.replace(
        reference.Settings(), level=level, aggregate="group-mean-token-mean", over="given",
        row_count_eps=0.5)
    got = call(loss, counts, {**{name: batch.arrays[name] for name in (*names, "logp")},
                              "mask": batch.mask})
    want = expected(settings, counts, batch, names)
    torch.testing.assert_close(got[0], want[0], rtol=0, atol=1e-9 * max(want[2], 1e-300))
    torch.testing.assert_close(got[1], want[1], rtol=1e-9, atol=1e-12, msg=lambda text: (
        f"seed {seed}: {text}"))


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_a_row_each_is_the_mean_over_rows(dtype):
    batch = random_batch(3, rows=5)
    column = gdpo.count_group_tokens(mask=batch.mask, group_size=1)
    counts = gdpo.count(mask=batch.mask, group_size=1)
    assert torch.equal(gradient(GROUPS, batch, batch.mask, counts, dtype, group_tokens=column),
                       gradient(ROWS, batch, batch.mask, counts, dtype))


def test_packed_rows_have_the_same_column():
    offsets = torch.tensor([0, 2, 3, 3, 6])
    column = gdpo.count_group_tokens(offsets=offsets, group_size=2)
    assert column.tolist() == [3, 3, 3, 3] and column.dtype == torch.float64
    assert gdpo.count_group_tokens(logp=torch.zeros(4, 3), group_ids=[7, 9, 7, 7]).tolist() == [
        9, 3, 9, 9]


def test_mistakes():
    batch = random_batch(1, rows=4, width=3, full=True)
    counts = gdpo.count(mask=batch.mask, group_size=2)
    for column, message in ((None, "batch.group_tokens: given no array"),
                            (torch.tensor([6.0, 6, 6, 2]), r"batch.group_tokens\(3\): given 2"),
                            (torch.ones(3), "batch.group_tokens: given 3 entries")):
        with pytest.raises(ValueError, match="gdpo::PolicyLoss: " + message):
            gradient(GROUPS, batch, batch.mask, counts, group_tokens=column)
    for groups, message in ((dict(group_size=3), "groups: given 4 rows"), (dict(), "none of them")):
        with pytest.raises(ValueError, match="gdpo::count_group_tokens: .*" + message):
            gdpo.count_group_tokens(mask=batch.mask, **groups)
    with pytest.raises(ValueError, match="gdpo::count_group_tokens: batch: given no array"):
        gdpo.count_group_tokens(group_size=2)
