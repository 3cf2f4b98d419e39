"""gdpo.ContrastiveLoss beside its formula in plain PyTorch, with autograd in float64.

Tolerances as in test_losses.py: float64 1e-9 of the terms, float32 1e-6 of the loss and of the
largest gradient, which is rounding with room to spare.
"""
import random

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import gdpo
from batches import Batch, packed, random_batch
from gdpo._names import ARRAYS

ops = torch.ops.gdpo
LAYOUTS = ("padded", "rank 3", "packed", "nested")


def formula(logp, old_logp, advantages, mask, groups, *, tau, count_empty_rows=False, beta=0.0,
            ref_logp=None, kl_weights=None, scale=1.0, counted=None, tokens=None):
    """The loss. groups: the rows of each; counted, tokens: of the step, without those of these."""
    lengths = mask.sum(1)
    score = torch.where(mask, logp - old_logp, 0.0).sum(1) / lengths.clamp(min=1) / tau
    there = (lengths > 0) | torch.tensor(count_empty_rows)
    good = there & (lengths > 0) & (advantages > 0)
    bad = there & ((lengths == 0) | (advantages <= 0))
    total = logp.new_zeros(())
    for rows in groups:
        rows = torch.as_tensor(rows, dtype=torch.int64)
        positive, negative = -score[rows[good[rows]]], score[rows[bad[rows]]]
        if len(positive) and len(negative):
            for side in (positive, negative):
                total = total + torch.logsumexp(torch.cat([side, side.new_zeros(1)]), 0)
    loss = total / (counted or len(groups))
    if beta:
        apart = ref_logp - logp
        kl = apart.exp() - apart - 1
        if kl_weights is not None:
            kl = kl * kl_weights
        loss = loss + beta * torch.where(mask, kl, 0.0).sum() / (tokens or mask.sum().clamp(min=1))
    return scale * loss


def random_groups(choose: random.Random, rows: int):
    """The groups as the call takes them, and the rows of each."""
    kind = choose.choice(("size", "ids", "offsets"))
    if kind == "size":
        size = choose.choice([n for n in range(1, rows + 1) if rows % n == 0])
        return {"group_size": size}, [range(at, at + size) for at in range(0, rows, size)]
    if kind == "ids":
        ids = [choose.randrange(-2, 3) for _ in range(rows)]
        return ({"group_ids": torch.tensor(ids, dtype=choose.choice((torch.int32, torch.int64)))},
                [[i for i in range(rows) if ids[i] == name] for name in sorted(set(ids))])
    cuts = sorted(choose.randrange(rows + 1) for _ in range(choose.randrange(4)))
    offsets = [0, *cuts, rows]
    return ({"group_offsets": torch.tensor(offsets)},
            [range(a, b) for a, b in zip(offsets, offsets[1:])])


def call(loss, arrays, **named):
    """The loss, its gradient by logp and its metrics."""
    arrays = dict(arrays)
    logp = arrays.pop("logp").detach().clone().requires_grad_()
    result = loss(logp, **arrays, **named)
    result.loss.backward()
    return result.loss.detach(), logp.grad, result.metrics


def plain(batch: Batch, *names: str) -> dict:
    arrays = {name: batch.arrays[name] for name in ("logp", "old_logp", "advantages", *names)}
    return {**arrays, "mask": batch.mask}


# Laws.

@pytest.mark.parametrize("seed", range(120))
def test_formula(seed):
    """Random shapes, groups, settings, layouts and types."""
    choose = random.Random(seed)
    dtype = choose.choice((torch.float64, torch.float32))
    batch = random_batch(seed, rows=choose.randint(1, 12), dtype=dtype)
    rows, width = batch.mask.shape
    if choose.random() < 0.3:
        batch.arrays["advantages"][choose.randrange(rows)] = 0.0
    groups, members = random_groups(choose, rows)
    settings = {"tau": choose.choice((0.1, 0.5, 2.0)),
                "count_empty_rows": choose.random() < 0.5,
                "beta": choose.choice((0.0, 0.04, 1.5)), "scale": choose.choice((1.0, 3.0))}
    names = ["ref_logp"] if settings["beta"] else []
    if settings["beta"] and choose.random() < 0.4:
        names.append("kl_weights")
    arrays = {name: array.to(dtype) if array.is_floating_point() else array
              for name, array in plain(batch, *names).items()}
    of_tokens = choose.random() < 0.3
    if of_tokens:  # whose mean over the tokens is that of the row
        arrays["token_advantages"] = arrays.pop("advantages")[:, None].expand(rows, width)
    layout = choose.choice(LAYOUTS)
    back = lambda gradient: gradient
    if layout == "rank 3":
        prompts = choose.choice([p for p in (1, 2, 3) if rows % p == 0])
        arrays = {name: array.reshape(prompts, rows // prompts, *array.shape[1:])
                  for name, array in arrays.items()}
        back = lambda gradient: gradient.reshape(rows, width)
    elif layout in ("packed", "nested"):
        lengths = torch.tensor([choose.randint(int(row.nonzero().max()) + 1, width)
                                if row.any() else choose.randint(0, width) for row in batch.mask])
        if int(lengths.sum()) == 0:
            lengths[0] = width
        keep = torch.arange(width)[None] < lengths[:, None]
        arrays = packed(Batch(batch.mask, {n: a for n, a in arrays.items() if n != "mask"}),
                        lengths)
        def back(gradient):
            table = torch.zeros(rows, width, dtype=gradient.dtype)
            table[keep] = gradient
            return table
    logp = batch.arrays["logp"].clone().requires_grad_()
    want = formula(logp, batch.arrays["old_logp"], batch.arrays["advantages"], batch.mask, members,
                   **settings, **{name: batch.arrays[name] for name in names})
    wanted = torch.zeros_like(logp)
    if want.requires_grad:
        (wanted,) = torch.autograd.grad(want, logp)
    counts = gdpo.count(**{n: arrays[n] for n in ("mask", "offsets") if n in arrays}, **groups)
    assert counts.tolist() == [float(batch.mask.sum()), rows, float(batch.mask.any(1).sum()),
                               len(members)]
    loss = gdpo.ContrastiveLoss("real", **settings)
    if layout == "nested":
        offsets = arrays.pop("offsets")
        nested = lambda a: torch.nested.nested_tensor_from_jagged(a, offsets)
        flat = arrays["logp"].detach().clone().requires_grad_()
        tokens = {n: nested(a) for n, a in arrays.items() if n not in ("logp", "advantages")}
        result = loss(nested(flat), counts=counts, **groups, **tokens,
                      **({} if of_tokens else {"advantages": arrays["advantages"]}))
        result.loss.backward()
        got, gradient, metrics = result.loss.detach(), flat.grad, result.metrics
    else:
        got, gradient, metrics = call(loss, arrays, counts=counts, **groups)
    assert got.dtype == gradient.dtype == dtype
    close = 1e-9 if dtype == torch.float64 else 1e-6
    want = want.detach()
    torch.testing.assert_close(got.double(), want, rtol=close, atol=close)
    torch.testing.assert_close(back(gradient).double(), wanted, rtol=10 * close,
                               atol=close * float(wanted.abs().max()))
    assert metrics["policy_loss"] + metrics["kl_loss"] == pytest.approx(float(want), rel=1e-6,
                                                                       abs=1e-12)
    assert metrics["normalizer.given"] == len(members)


def mixed(seed: int = 3, groups: int = 3, size: int = 4) -> Batch:
    """A batch whose groups all have rows of both signs, all with tokens."""
    batch = random_batch(seed, groups * size, 9)
    batch.mask[:, 0] = True
    batch.arrays["advantages"] = torch.tensor([1.0, -1.0] * (groups * size // 2),
                                              dtype=torch.float64)
    return batch


def test_gradient_is_that_of_the_loss():
    batch = mixed()
    loss = gdpo.ContrastiveLoss("real", beta=0.3)
    counts = gdpo.count(mask=batch.mask, group_size=4)
    arrays = plain(batch, "ref_logp")
    logp = arrays.pop("logp").clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: loss(x, counts=counts, group_size=4, **arrays).loss, (logp,), eps=1e-6,
        atol=1e-8, rtol=1e-6)


def test_gradient_of_sums_and_multiples():
    """The chain rule: a multiple of the loss, and its sum with another loss of the same logp."""
    batch = mixed()
    arrays = plain(batch)
    logp = arrays.pop("logp").clone().requires_grad_()
    of = lambda: gdpo.ContrastiveLoss("real", beta=0)(
        logp, counts=gdpo.count(mask=batch.mask, group_size=4), group_size=4, **arrays).loss
    (own,) = torch.autograd.grad(of(), logp)
    (both,) = torch.autograd.grad(-2.5 * of() + (logp ** 2).sum(), logp)
    torch.testing.assert_close(both, -2.5 * own + 2 * logp.detach(), rtol=1e-14, atol=1e-15)
    twice = of()
    twice.backward(retain_graph=True)
    twice.backward()
    assert torch.equal(logp.grad, 2 * own) and own.abs().sum() > 0


@pytest.mark.parametrize("name", gdpo.contrastive_losses())
def test_micro_batches_add_up(name):
    """Losses and gradients of parts, divided by the counts of the step, are those of the step."""
    batch = mixed(groups=5)
    arrays = plain(batch, "ref_logp")
    loss = gdpo.ContrastiveLoss(name)
    counts = gdpo.count(mask=batch.mask, group_size=4)
    whole = call(loss, arrays, counts=counts, group_size=4)
    rows = (slice(0, 8), slice(8, 20))
    parts = [{key: value[part] for key, value in arrays.items()} for part in rows]
    summed = sum(gdpo.count(mask=part["mask"], group_size=4) for part in parts)
    assert torch.equal(summed, counts)
    first, second = (call(loss, part, counts=summed, group_size=4) for part in parts)
    torch.testing.assert_close(first[0] + second[0], whole[0], rtol=1e-13, atol=1e-15)
    assert torch.equal(torch.cat([first[1], second[1]]), whole[1])
    merged = first[2].merge(second[2])
    for number in ("loss", "policy_loss", "kl_loss", "kl.sum", "ratio.sum", "rows"):
        assert merged[number] == pytest.approx(whole[2][number], rel=1e-13)
    with pytest.raises(ValueError, match="normalizer"):
        alone = gdpo.count(mask=parts[0]["mask"], group_size=4)
        call(loss, parts[0], counts=alone, group_size=4)[2].merge(second[2])


def test_groups_in_three_ways():
    """One grouping by its size, by ids and by offsets; the order of ids and lists do not matter."""
    batch = mixed()
    arrays, counts = plain(batch), gdpo.count(mask=batch.mask, group_size=4)
    loss = gdpo.ContrastiveLoss("real", beta=0)
    want = call(loss, arrays, counts=counts, group_size=4)
    for groups in ({"group_offsets": torch.tensor([0, 4, 8, 12])}, {"group_offsets": [0, 4, 8, 12]},
                   {"group_ids": torch.tensor([7] * 4 + [-1] * 4 + [3] * 4, dtype=torch.int32)},
                   {"group_ids": [2] * 4 + [1] * 4 + [0] * 4}):
        assert torch.equal(gdpo.count(mask=batch.mask, **groups), counts)
        got = call(loss, arrays, counts=counts, **groups)
        for ours, theirs in zip(got[:2], want[:2]):
            torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=1e-16)


def test_masked_tokens_change_no_bit():
    batch = mixed()
    arrays = plain(batch, "ref_logp", "entropies", "kl_weights")
    counts = gdpo.count(mask=batch.mask, group_size=4)
    loss = gdpo.ContrastiveLoss("ms_swift::real")
    want = call(loss, arrays, counts=counts, group_size=4)
    for poison in (float("nan"), float("inf"), -float("inf")):
        other = {name: torch.where(batch.mask, array, poison) if array.dim() == 2
                 and array.is_floating_point() else array for name, array in arrays.items()}
        got = call(loss, other, counts=counts, group_size=4)
        assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
        assert torch.equal(got[2].result.nan_to_num(), want[2].result.nan_to_num())
    assert torch.equal(want[1][~batch.mask], torch.zeros_like(want[1][~batch.mask]))


def test_groups_of_one_side_add_exactly_nothing():
    batch = mixed()
    arrays = plain(batch)
    arrays["advantages"] = torch.tensor([1.0] * 4 + [-1.0, 0.0] * 2 + [1.0, -1.0] * 2).double()
    loss = gdpo.ContrastiveLoss("real", beta=0)
    counts = gdpo.count(mask=batch.mask, group_size=4)
    got = call(loss, arrays, counts=counts, group_size=4)
    assert torch.equal(got[1][:8], torch.zeros_like(got[1][:8])) and got[1][8:].abs().sum() > 0
    last = call(loss, {name: array[8:] for name, array in arrays.items()}, counts=counts,
                group_size=4)
    assert torch.equal(got[0], last[0])


def test_a_row_that_is_nan_makes_its_group_nan():
    batch = mixed()
    arrays = plain(batch)
    arrays["logp"] = arrays["logp"].clone()
    arrays["logp"][5, 0] = float("nan")
    counts = gdpo.count(mask=batch.mask, group_size=4)
    loss, gradient, metrics = call(gdpo.ContrastiveLoss("real", beta=0), arrays, counts=counts,
                                   group_size=4)
    assert loss.isnan() and gradient[4:8][batch.mask[4:8]].isnan().all()
    assert gradient[:4].isfinite().all() and metrics["non_finite.logp.count"] == 1


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_log_probs_of_16_bits(dtype):
    """They are read as float32, and their gradient is rounded once."""
    batch = mixed()
    arrays = {name: array.to(dtype) if array.dim() == 2 and array.is_floating_point() else array
              for name, array in plain(batch).items()}
    counts = gdpo.count(mask=batch.mask, group_size=4)
    loss = gdpo.ContrastiveLoss("real", beta=0)
    got = call(loss, arrays, counts=counts, group_size=4)
    wide = {name: array.float() if array.dtype == dtype else array
            for name, array in arrays.items()}
    want = call(loss, wide, counts=counts, group_size=4)
    assert got[0].dtype == torch.float32 and torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1].to(dtype))


def test_threads_change_no_bit():
    batch = random_batch(17, 64, 300)
    arrays = plain(batch, "ref_logp")
    counts = gdpo.count(mask=batch.mask, group_size=8)
    results = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        results.append(call(gdpo.ContrastiveLoss("real"), arrays, counts=counts, group_size=8))
    for one, other in zip(results[0][:2], results[1][:2]):
        assert torch.equal(one, other)


# Names, settings, metrics.

def test_names_and_settings():
    values = lambda name: {s.name: s.value for s in gdpo.loss_settings(name)}
    assert gdpo.contrastive_losses() == ["real", "ms_swift::real"]
    assert values("real")["count_empty_rows"] == "false" and values("real")["tau"] == "0.5"
    ms_swift = values("ms_swift::real")
    assert ms_swift["count_empty_rows"] == "true" and ms_swift["kl.input.lo"] == "-20"
    assert values("real tau=0.25 kl.beta=0")["tau"] == "0.25"
    assert gdpo.ContrastiveLoss("real", tau=0.25).line == "real tau=0.25"
    assert gdpo.ContrastiveLoss("real tau=0.25").line == "real tau=0.25"
    assert gdpo.ContrastiveLoss("real beta=0").line == "real kl.beta=0"
    assert gdpo.ContrastiveLoss().line == "real"
    # The settings act: the KL terms alone are divided as `aggregate` says.
    batch = mixed()
    arrays = {**plain(batch, "ref_logp"), "counts": gdpo.count(mask=batch.mask, group_size=4)}
    kl = [call(gdpo.ContrastiveLoss("real", aggregate=mode), arrays, group_size=4)[2]["kl_loss"]
          for mode in ("token-mean", "token-sum")]
    assert kl[1] == pytest.approx(kl[0] * int(batch.mask.sum()))


def test_metrics():
    batch = mixed()
    arrays = plain(batch, "ref_logp")
    counts = gdpo.count(mask=batch.mask, group_size=4)
    _, _, metrics = call(gdpo.ContrastiveLoss("real"), arrays, counts=counts, group_size=4)
    assert metrics["rows"] == 12 and metrics["over"] == 3 and metrics["surrogate.count"] == 0
    lengths = batch.mask.sum(1)
    ratio = (((arrays["logp"] - arrays["old_logp"]) * batch.mask).sum(1) / lengths).exp()
    assert metrics.mean("ratio") == pytest.approx(float((ratio * lengths).sum() / lengths.sum()))
    assert metrics.to_dict("train/")["train/kl"] > 0


# Mistakes.

def mistake(match: str, settings=None, drop=(), **changes):
    """Calls the loss with those arguments changed, and reads the message."""
    batch = mixed()
    arrays = {**plain(batch), "counts": gdpo.count(mask=batch.mask, group_size=4),
              "group_size": 4, **changes}
    arrays = {name: array for name, array in arrays.items() if name not in drop}
    with pytest.raises(ValueError, match=match):
        gdpo.ContrastiveLoss("real", **{"beta": 0, **(settings or {})})(arrays.pop("logp"),
                                                                        **arrays)


def test_mistakes_in_a_call():
    says = "^gdpo::ContrastiveLoss: "
    three = "group_size, group_ids, group_offsets: given "
    mistake(says + three + "none of them; needed: one of them", drop=["group_size"])
    mistake(says + three + "several of them", group_ids=torch.zeros(12, dtype=torch.int64))
    mistake(says + "group_size: given -4; needed: at least 1", group_size=-4)
    mistake(says + "group_size: given 4.5; needed: an integer", group_size=4.5)
    mistake(says + "groups: given 12 rows, which leaves a last group", group_size=5)
    mistake(says + "groups: given 3 ids; needed: one id for each of the 12 rows", group_size=0,
            group_ids=torch.tensor([1, 2, 3]))
    mistake(says + "group_ids: given ", group_size=0, group_ids=torch.zeros(12))
    mistake(says + "group_offsets: given 2 entries from 0 to 5; needed: entries from 0 to 12",
            group_size=0, group_offsets=[0, 5])
    mistake(says + "batch.advantages: given 3 entries", advantages=torch.zeros(3))
    mistake(says + "batch.logp: given torch.int64", logp=torch.zeros(12, 9, dtype=torch.int64))
    mistake(says + "logp: given a list", logp=[[0.0]])
    mistake(says + "batch.old_logp: given ", old_logp=torch.zeros(12, 3))
    mistake(says + "batch.ref_logp: given no array", {"beta": 0.1})
    mistake(says + "counts: given another tensor", counts=torch.zeros(3, dtype=torch.float64))
    mistake(says + "normalizer.given: given 2, for 3 groups with tokens; needed: the number of",
            counts=torch.tensor([100.0, 12, 12, 2], dtype=torch.float64))
    mistake(says + "aggregate.over: given given; needed: tokens, rows or",
            {"aggregate.over": "given"})
    mistake(says + "old_logp: given a tensor that requires a gradient",
            old_logp=torch.zeros(12, 9).requires_grad_())
    mistake(says + "mask: given infinities", mask=torch.full((12, 9), -float("inf")))
    mistake(says + "group_ids: given a tensor on meta", group_size=0,
            group_ids=torch.zeros(12, dtype=torch.int64, device="meta"))
    for unknown in ("weights", "row_weights", "segments"):
        with pytest.raises(TypeError, match=unknown):
            gdpo.ContrastiveLoss()(torch.zeros(4, 2), counts=torch.ones(4), group_size=4,
                                   **{unknown: torch.ones(4, 2)})


def test_mistakes_in_settings():
    says = "^gdpo::ContrastiveLoss: "
    for given, message in (
            (dict(tau=0), "tau: given 0; needed: a finite number that is more than 0"),
            (dict(name="rael"), "name: given 'rael'; needed: one of real, ms_swift::real"),
            (dict(name="real taus=1"), "line: given the setting 'taus'; needed: one of tau, "),
            (dict(name="real sequence"), "line: given 'sequence'; needed: SETTING=VALUE"),
            (dict(low=0.1), "line: given the setting 'low'; needed: one of tau, "),
            (dict(beta=-1), "beta: given -1; needed: a finite number of at least 0"),
            (dict(kl="k9"), "kl: given 'k9'; needed: one of ")):
        with pytest.raises(ValueError, match=says + message):
            gdpo.ContrastiveLoss(**given)
    with pytest.raises(ValueError, match="gdpo.ContrastiveLoss: name: given 3"):
        gdpo.ContrastiveLoss(3)
    with pytest.raises(ValueError, match="one of grpo"):
        gdpo.PolicyLoss("ms_swift::real")  # it is no loss over tokens
    with pytest.raises(AttributeError, match="tau is set when the loss is made"):
        gdpo.ContrastiveLoss().tau = 3


def test_mistakes_in_counts():
    mask = torch.ones(6, 2)
    for groups, message in (
            (dict(group_size=4), "groups: given 6 rows, which leaves"),
            (dict(group_size=-1), "group_size: given -1; needed: at least 1"),
            (dict(group_size=2, group_ids=[0] * 6), "group_size, group_ids, group_offsets"),
            (dict(group_offsets=[0, 7]), "group_offsets: given 2 entries from 0 to 7"),
            (dict(group_ids=[0.5] * 6), "group_ids: given "),
            (dict(group_size=2, given=3.0), "given: given a number beside groups")):
        with pytest.raises(ValueError, match="^gdpo::count: " + message):
            gdpo.count(mask=mask, **groups)


# Inside of PyTorch's machinery.

def arguments(dtype, gradient: bool, groups: tuple) -> tuple:
    batch = mixed()
    arrays = {name: array.to(dtype) if array.is_floating_point() else array
              for name, array in plain(batch, "ref_logp").items()}
    arrays["logp"].requires_grad_(gradient)
    counts = gdpo.count(mask=batch.mask, group_size=4)
    return ("real", counts, gradient, *[arrays.get(name) for name in ARRAYS], *groups)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
@pytest.mark.parametrize("gradient", (True, False))
def test_opcheck(dtype, gradient):
    for groups in ((4,), (0, torch.arange(12) // 4), (0, None, torch.tensor([0, 4, 8, 12]))):
        torch.library.opcheck(ops.contrastive_loss.default, arguments(dtype, gradient, groups))
        for count in (ops.count_groups.default, ops.count_group_tokens.default):
            torch.library.opcheck(count, (None,) * ARRAYS.index("mask") + (
                torch.ones(12, 3), *(None,) * (len(ARRAYS) - ARRAYS.index("mask") - 1), *groups))


REAL = gdpo.ContrastiveLoss("real")


def step(logp, counts, mask, advantages, old_logp, ref_logp, group_ids):
    loss, metrics = REAL(
        logp * 1.0, counts=counts, mask=mask, advantages=advantages, old_logp=old_logp,
        ref_logp=ref_logp, group_ids=group_ids)
    return 2 * loss, metrics.result


def run(function, arrays) -> list:
    logp = arrays[0].clone().requires_grad_()
    loss, result = function(logp, *arrays[1:])
    loss.backward()
    return [loss.detach(), logp.grad, result]


def test_compiled():
    """Loss, gradient and metrics without a graph break, bits of eager mode; counts too."""
    torch._dynamo.reset()
    batch = mixed()
    given = plain(batch, "ref_logp")
    ids = torch.arange(12) // 4
    arrays = [given["logp"], gdpo.count(mask=batch.mask, group_size=4)] + [
        given[name] for name in ("mask", "advantages", "old_logp", "ref_logp")] + [ids]
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for got, want in zip(run(compiled, arrays), run(step, arrays)):
        assert torch.equal(got, want)
    with torch.no_grad():
        assert torch.equal(compiled(*arrays)[0], step(*arrays)[0])
    counted = torch.compile(lambda mask: gdpo.count(mask=mask, group_size=4), fullgraph=True,
                            backend="aot_eager")
    assert torch.equal(counted(batch.mask), arrays[1])
    torch._dynamo.reset()


def test_transforms_and_second_derivatives_are_refused():
    batch = mixed()
    arrays = plain(batch)
    logp = arrays.pop("logp").clone().requires_grad_()
    of = lambda x: gdpo.ContrastiveLoss("real", beta=0)(
        x, counts=torch.tensor([200.0, 12, 12, 3], dtype=torch.float64), group_size=4,
        **arrays).loss
    with pytest.raises(RuntimeError, match="gdpo.ContrastiveLoss has .* torch.func"):
        torch.func.grad(of)(logp.detach())
    with pytest.raises(RuntimeError, match="gdpo.ContrastiveLoss has .* no second derivative"):
        torch.autograd.grad(of(logp), logp, create_graph=True)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(
            RuntimeError, match="gdpo.ContrastiveLoss has .* forward mode"):
        of(torch.autograd.forward_ad.make_dual(logp.detach(), torch.ones_like(logp)))


class OursOnTheCpu(TorchDispatchMode):
    """Counts the calls of our operators, whose tensors are all on the CPU."""

    calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "gdpo":
            self.calls += 1
            assert {a.device.type for a in args if isinstance(a, torch.Tensor)} == {"cpu"}
        return function(*args, **(kwargs or {}))


def test_tensors_of_a_device():
    """They are copied to the CPU; loss and counts are on the device again, and differentiable."""
    with FakeTensorMode(), OursOnTheCpu() as mode:
        device = "cuda"  # without a driver, so that backward cannot run
        logp = torch.zeros(4, 3, device=device, requires_grad=True)
        groups = {"group_ids": torch.zeros(4, dtype=torch.int64, device=device)}
        counts = gdpo.count(mask=torch.ones(4, 3, device=device), **groups)
        assert counts.device.type == device
        for given in (counts, counts.cpu()):
            loss, metrics = gdpo.ContrastiveLoss("real", beta=0)(
                logp, counts=given, advantages=torch.ones(4, device=device), **groups)
            assert loss.device.type == device and metrics.result.device.type == "cpu"
            assert loss.requires_grad and not metrics.result.requires_grad
    assert mode.calls == 3
