"""gdpo.ValueLoss beside its formula in plain PyTorch (reference.py), with autograd in float64.

Tolerances: in float64 1e-11 of the loss and of the largest gradient, whose sums are of at most a
few hundred terms; in float32 1e-6 of the loss, which rounds each error and its square, and 1e-6 of
the largest gradient. Where a token changes sides, because rounding moved it over the edge of the
clip, the gradient would jump: values of float32 are compared at the stored numbers, whose errors
are exact to the last bit but one.
"""
import copy
import dataclasses
import math
import pickle
import random

import pytest
import torch

import gdpo
import reference
from gdpo._names import VALUE_ARRAYS

ops = torch.ops.gdpo
INF = math.inf
LAYOUTS = ("padded", "rank 3", "packed", "nested", "strided")
AGGREGATES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean",
              "seq-mean-token-sum-norm")
OF_TOKENS = ("values", "old_values", "returns", "mask")


def random_batch(seed, rows=None, width=None, dtype=torch.float64):
    """A mask (rows, tokens) with holes and empty rows, and arrays, rounded to `dtype`.

    The values are up to twice the clip of 0.5 away from those of the rollout.
    """
    g = torch.Generator().manual_seed(seed)
    rows = int(torch.randint(1, 10, (), generator=g)) if rows is None else rows
    width = int(torch.randint(1, 71, (), generator=g)) if width is None else width
    normal = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)
    mask = torch.rand(rows, width, generator=g) > 0.25
    mask[torch.rand(rows, generator=g) < 0.2] = False
    values = normal(rows, width)
    arrays = {"values": values, "old_values": values + 0.5 * normal(rows, width),
              "returns": values + normal(rows, width), "row_weights": normal(rows).abs()}
    return mask, {name: array.to(dtype) for name, array in arrays.items()}


def call(loss, arrays, **named):
    """The loss, its gradient by the values and its metrics."""
    arrays = dict(arrays)
    values = arrays.pop("values").detach().clone().requires_grad_()
    result = loss(values, **arrays, **named)
    result.loss.backward()
    return result.loss.detach(), values.grad, result.metrics


def expected(mask, arrays, counts, aggregate="token-mean", constant=0.0, scale=1.0, **settings):
    """Loss and gradient of the formula in float64."""
    how = dataclasses.replace(
        reference.with_aggregate(reference.Settings(), aggregate), scale=scale, constant=constant)
    values = arrays["values"].double().clone().requires_grad_()
    loss = reference.value_loss(how, reference.Counts(*counts.tolist()), mask, values,
                                arrays["returns"], arrays.get("old_values"),
                                row_weights_given=arrays.get("row_weights"), **settings).loss
    (gradient,) = torch.autograd.grad(loss, values)
    return loss.detach(), gradient


def close(got, want, tolerance):
    torch.testing.assert_close(got[0].double(), want[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(got[1].double(), want[1], rtol=tolerance,
                               atol=tolerance * float(want[1].abs().max()) if want[1].numel()
                               else tolerance)


def laid_out(layout, mask, arrays, choose):
    """The arrays in a layout, and what brings a gradient back to (rows, tokens)."""
    rows, width = mask.shape
    arrays = {**arrays, "mask": mask}
    if layout == "rank 3":
        prompts = choose.choice([p for p in (1, 2, 3) if rows % p == 0])
        return ({n: a.reshape(prompts, rows // prompts, *a.shape[1:]) for n, a in arrays.items()},
                lambda gradient: gradient.reshape(rows, width))
    if layout == "strided":
        return ({n: a.mT.contiguous().mT if a.dim() == 2 else a for n, a in arrays.items()},
                lambda gradient: gradient)
    if layout == "padded":
        return arrays, lambda gradient: gradient
    lengths = torch.tensor([choose.randint(int(row.nonzero().max()) + 1, width) if row.any()
                            else choose.randint(0, width) for row in mask])
    if int(lengths.sum()) == 0:
        lengths[0] = width
    keep = torch.arange(width)[None] < lengths[:, None]
    offsets = torch.cat([torch.zeros(1), lengths.cumsum(0)]).to(
        choose.choice((torch.int32, torch.int64)))

    def back(gradient):
        table = torch.zeros(rows, width, dtype=gradient.dtype)
        table[keep] = gradient
        return table
    return {**{n: a[keep] if n in OF_TOKENS else a for n, a in arrays.items()},
            "offsets": offsets}, back


# Laws.

@pytest.mark.parametrize("seed", range(150))
def test_formula(seed):
    """Random shapes, settings, layouts and types."""
    choose = random.Random(seed)
    dtype = choose.choice((torch.float64, torch.float32))
    mask, arrays = random_batch(seed, dtype=dtype)
    settings = {"clip": choose.choice((0.0, 0.2, 0.5, INF)), "half": choose.random() < 0.5,
                "delta": choose.choice((INF, 0.7, 10.0))}
    how = {"aggregate": choose.choice(AGGREGATES), "scale": choose.choice((1.0, 3.0))}
    if how["aggregate"] == "seq-mean-token-sum-norm":
        how["constant"] = 40.0
    if choose.random() < 0.5:
        arrays.pop("row_weights")
    if settings["clip"] == INF and choose.random() < 0.5:
        arrays.pop("old_values")
    counts = gdpo.count(mask=mask)
    want = expected(mask, arrays, counts, **settings, **how)
    loss = gdpo.ValueLoss(**settings, **how)
    layout = choose.choice(LAYOUTS)
    given, back = laid_out(layout, mask, arrays, choose)
    if layout == "nested":
        offsets = given.pop("offsets").long()
        flat = given.pop("values").detach().clone().requires_grad_()
        nested = lambda a: torch.nested.nested_tensor_from_jagged(a, offsets)
        result = loss(nested(flat), counts=counts,
                      **{n: nested(a) if n in OF_TOKENS else a for n, a in given.items()})
        result.loss.backward()
        got = result.loss.detach(), flat.grad, result.metrics
    else:
        got = call(loss, given, counts=counts)
    assert got[0].dtype == got[1].dtype == dtype
    close((got[0], back(got[1])), want, 1e-11 if dtype == torch.float64 else 1e-6)
    assert got[2]["loss"] == pytest.approx(float(want[0]), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("name", gdpo.value_losses())
def test_gradient_is_that_of_the_loss(name):
    """Finite differences, away from the edges of clip and delta."""
    mask, arrays = random_batch(3, 4, 9)
    mask[0] = True
    arrays["old_values"] = arrays["values"] + torch.where(
        arrays["returns"] > 0, 0.05, 0.9).to(torch.float64)
    values = arrays.pop("values").requires_grad_()
    counts = gdpo.count(mask=mask)
    loss = gdpo.ValueLoss(name)
    assert torch.autograd.gradcheck(
        lambda x: loss(x, counts=counts, mask=mask, **arrays).loss, (values,), eps=1e-6,
        atol=1e-8, rtol=1e-6)


def test_gradient_of_sums_and_multiples_and_two_backwards():
    """The chain rule, with values that are no leaf."""
    mask, arrays = random_batch(4, 5, 11)
    weights = torch.randn(5, 11, dtype=torch.float64, requires_grad=True)
    counts, values = gdpo.count(mask=mask), arrays.pop("values")
    of = lambda: gdpo.ValueLoss()(weights * values, counts=counts, mask=mask, **arrays).loss
    (own,) = torch.autograd.grad(of(), weights)
    (both,) = torch.autograd.grad(-2.5 * of() + (weights ** 2).sum(), weights)
    torch.testing.assert_close(both, -2.5 * own + 2 * weights.detach(), rtol=1e-13, atol=1e-15)
    twice = of()
    twice.backward(retain_graph=True)
    twice.backward()
    assert torch.equal(weights.grad, 2 * own) and own.abs().sum() > 0


@pytest.mark.parametrize("name", gdpo.value_losses())
def test_micro_batches_add_up(name):
    """Losses and gradients of parts are those of the step, and so are their metrics merged."""
    mask, arrays = random_batch(5, 9, 20)
    loss, counts = gdpo.ValueLoss(name), gdpo.count(mask=mask)
    whole = call(loss, {**arrays, "mask": mask}, counts=counts)
    parts = [{n: a[part] for n, a in {**arrays, "mask": mask}.items()}
             for part in (slice(0, 2), slice(2, 9))]
    assert torch.equal(sum(gdpo.count(mask=part["mask"]) for part in parts), counts)
    first, second = (call(loss, part, counts=counts) for part in parts)
    torch.testing.assert_close(first[0] + second[0], whole[0], rtol=1e-14, atol=1e-15)
    assert torch.equal(torch.cat([first[1], second[1]]), whole[1])
    merged = first[2].merge(second[2])
    assert isinstance(merged, gdpo.ValueMetrics)
    for number in gdpo.ValueMetrics.names():
        assert merged[number] == pytest.approx(whole[2][number], rel=1e-12, abs=1e-14), number
    alone = gdpo.count(mask=parts[0]["mask"])
    with pytest.raises(ValueError, match="normalizer"):
        call(loss, parts[0], counts=alone)[2].merge(second[2])


def test_masked_tokens_change_no_bit():
    mask, arrays = random_batch(6, 7, 33)
    counts = gdpo.count(mask=mask)
    want = call(gdpo.ValueLoss(), {**arrays, "mask": mask}, counts=counts)
    assert not want[1][~mask].any() and want[1].abs().sum() > 0
    for poison in (float("nan"), INF, -INF, 1e300):
        other = {n: torch.where(mask, a, poison) if n in OF_TOKENS else a
                 for n, a in arrays.items()}
        got = call(gdpo.ValueLoss(), {**other, "mask": mask}, counts=counts)
        assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
        assert torch.equal(got[2].result.nan_to_num(), want[2].result.nan_to_num())


def test_rows_in_another_order():
    """The gradient goes with its row, bit for bit; the loss within rounding."""
    mask, arrays = random_batch(7, 9, 33)
    counts, order = gdpo.count(mask=mask), torch.randperm(9, generator=torch.Generator())
    arrays["mask"] = mask
    want = call(gdpo.ValueLoss(), arrays, counts=counts)
    got = call(gdpo.ValueLoss(), {n: a[order] for n, a in arrays.items()}, counts=counts)
    assert torch.equal(got[1], want[1][order])
    torch.testing.assert_close(got[0], want[0], rtol=1e-14, atol=0)


def test_packed_and_padded_have_the_same_bits():
    mask, arrays = random_batch(8, 9, 33, torch.float32)
    counts = gdpo.count(mask=mask)
    want = call(gdpo.ValueLoss(), {**arrays, "mask": mask}, counts=counts)
    given, back = laid_out("packed", mask, arrays, random.Random(8))
    assert torch.equal(gdpo.count(mask=given["mask"], offsets=given["offsets"]), counts)
    got = call(gdpo.ValueLoss(), given, counts=counts)
    assert torch.equal(got[0], want[0]) and torch.equal(back(got[1]), want[1])
    assert torch.equal(got[2].result.nan_to_num(), want[2].result.nan_to_num())


def test_the_clip_stops_what_has_moved_towards_the_return():
    """Four tokens: inside, towards the return and beyond, away from it, and a tie."""
    values = torch.tensor([[0.1, 0.9, -0.9, 0.5]], dtype=torch.float64)
    old, returns = torch.zeros(1, 4).double(), torch.tensor([[2.0, 2.0, 2.0, 0.5]]).double()
    arrays = {"values": values, "old_values": old, "returns": returns,
              "mask": torch.tensor([[1, 1, 1, 1]])}
    loss, gradient, metrics = call(gdpo.ValueLoss(clip=0.5), arrays,
                                   counts=gdpo.count(mask=arrays["mask"]))
    squares = [1.9 ** 2, 1.5 ** 2, 2.9 ** 2, 0.0]
    assert float(loss) == pytest.approx(sum(squares) / 8, rel=1e-15)
    assert gradient[0].tolist() == pytest.approx([-1.9 / 4, 0.0, -2.9 / 4, 0.0], rel=1e-15)
    assert metrics.mean("clip_fraction") == 0.25


def test_a_nan_shows():
    mask, arrays = random_batch(9, 4, 8)
    mask[1, 2] = True
    arrays["returns"][1, 2] = float("nan")
    loss, gradient, metrics = call(gdpo.ValueLoss(), {**arrays, "mask": mask},
                                   counts=gdpo.count(mask=mask))
    assert loss.isnan() and gradient[1, 2].isnan() and gradient.isnan().sum() == 1
    assert [metrics[f"non_finite.returns.{part}"] for part in ("count", "row", "token")] == [
        1, 1, 2]
    assert math.isnan(metrics.explained_variance())


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_values_of_16_bits(dtype):
    """They are read as float32, and their gradient is rounded once."""
    mask, arrays = random_batch(10, 6, 17)
    narrow = {n: a.to(dtype) for n, a in arrays.items()}
    counts = gdpo.count(mask=mask)
    got = call(gdpo.ValueLoss(), {**narrow, "mask": mask}, counts=counts)
    want = call(gdpo.ValueLoss(), {**{n: a.float() for n, a in narrow.items()}, "mask": mask},
                counts=counts)
    assert got[0].dtype == torch.float32 and torch.equal(got[0], want[0])
    assert got[1].dtype == dtype and torch.equal(got[1], want[1].to(dtype))


def test_threads_change_no_bit():
    mask, arrays = random_batch(11, 64, 300)
    results = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        results.append(call(gdpo.ValueLoss(), {**arrays, "mask": mask},
                            counts=gdpo.count(mask=mask)))
    assert all(torch.equal(a, b) for a, b in zip(results[0][:2], results[1][:2]))


def test_means_over_groups():
    """group_tokens divide a row by the tokens of its group."""
    mask, arrays = random_batch(12, 6, 15)
    groups = gdpo.count_group_tokens(mask=mask, group_size=2)
    counts = gdpo.count(mask=mask, group_size=2)
    got = call(gdpo.ValueLoss(clip=INF, **{"aggregate.mode": "group-mean-token-mean",
                                           "aggregate.over": "given"}),
               {**arrays, "mask": mask, "group_tokens": groups}, counts=counts)
    squares = arrays["row_weights"][:, None] * (arrays["values"] - arrays["returns"]) ** 2 / 2
    each = (torch.where(mask, squares, 0.0).sum(1) / groups.clamp(min=1)).sum() / 3
    assert float(got[0]) == pytest.approx(float(each), rel=1e-13)


# Metrics.

@pytest.mark.parametrize("dtype, rel", [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_metrics(dtype, rel):
    """Means over the valid tokens, moments, and verl's keys; in float32 errors are rounded."""
    mask, arrays = random_batch(13, 7, 30, dtype)
    mask[3] = False
    arrays.pop("row_weights")
    counts = gdpo.count(mask=mask)
    loss, _, metrics = call(gdpo.ValueLoss(), {**arrays, "mask": mask}, counts=counts)
    v, old, target = (arrays[n].double()[mask] for n in ("values", "old_values", "returns"))
    one, two = (v - target) ** 2, (torch.minimum(torch.maximum(v, old - 0.5), old + 0.5)
                                   - target) ** 2
    want = {"value_loss": torch.maximum(one, two) / 2, "value": v, "error": v - target,
            "clip_fraction": (two > one).double()}
    for name, each in want.items():
        assert metrics.mean(name) == pytest.approx(float(each.mean()), rel=rel, abs=rel), name
        assert metrics[name + ".count"] == mask.sum()
    assert metrics["rows"] == 7 and metrics["empty_rows"] == 7 - mask.any(1).sum()
    assert [metrics[f"normalizer.{n}"] for n in ("tokens", "rows", "non_empty_rows", "given")
            ] == counts.tolist()
    assert metrics["returns.mean"] == pytest.approx(float(target.mean()), rel=rel)
    explained = 1 - (target - v).var() / target.var()
    assert metrics.explained_variance() == pytest.approx(float(explained), rel=rel)
    with_eps = 1 - (target - v).var() / (target.var() + 1e-5)
    assert metrics.explained_variance(1e-5) == pytest.approx(float(with_eps), rel=rel)
    assert metrics.to_dict("critic/") == pytest.approx({
        "critic/vf_loss": float(want["value_loss"].mean()),
        "critic/vf_clipfrac": float(want["clip_fraction"].mean()),
        "critic/vpred_mean": float(v.mean()), "critic/vf_explained_var": float(explained)},
        rel=rel, abs=rel)
    assert float(loss) == pytest.approx(metrics["value_loss.sum"] / float(counts[0]), rel=1e-6)
    with pytest.raises(ValueError, match="gdpo::explained_variance: eps: given -1"):
        metrics.explained_variance(-1)


def test_metrics_are_a_mapping():
    mask, arrays = random_batch(14, 3, 4)
    metrics = call(gdpo.ValueLoss(), {**arrays, "mask": mask}, counts=gdpo.count(mask=mask))[2]
    assert list(metrics) == gdpo.ValueMetrics.names() == list(dict(metrics))
    assert len(metrics) == len(metrics.result) and "value.sum" in metrics
    assert metrics.get("value.mean") is None and dict(metrics)["rows"] == 3
    with pytest.raises(KeyError, match="of gdpo.ValueMetrics, such as value.sum"):
        metrics["values.sum"]
    assert repr(metrics).startswith("gdpo.ValueMetrics(") and "vf_loss: " in repr(metrics)


# Names, settings, mistakes.

def test_names_and_settings():
    values = lambda name: {s.name: s.value for s in gdpo.loss_settings(name)}
    assert "verl::value_loss" in gdpo.value_losses() and len(gdpo.value_losses()) >= 5
    assert values("verl::value_loss")["clip"] == "0.5"
    assert values("slime::value_loss clip=0.3")["half"] == "false"
    assert gdpo.ValueLoss().line == "verl::value_loss"
    assert repr(gdpo.ValueLoss(clip=0.2)).startswith(
        "ValueLoss(\n  'verl::value_loss', clip=0.2, half=True, aggregate_mode='token-mean', ")
    assert gdpo.ValueLoss("verl::value_loss clip=0.2", delta=3).line == (
        "verl::value_loss clip=0.2 delta=3")
    assert gdpo.ValueLoss(constant=7).line == "verl::value_loss aggregate.constant=7"
    for other in (copy.deepcopy(gdpo.ValueLoss(clip=0.2)),
                  pickle.loads(pickle.dumps(gdpo.ValueLoss(clip=0.2)))):
        assert other.line == "verl::value_loss clip=0.2" and other.state_dict() == {}
    assert "clip (clip): how far a value may move" in gdpo.ValueLoss.__doc__


def test_mistakes_in_settings():
    says = "^gdpo::ValueLoss: "
    for given, message in (
            (dict(clip=-1), "clip: given -1; needed: "), (dict(delta=0), "delta: given 0; needed"),
            (dict(name="verl::valueloss"), "name: given 'verl::valueloss'; needed: one of verl::"),
            (dict(low=0.1), "line: given the setting 'low'; needed: one of clip, half"),
            (dict(aggregate="mean"), "aggregate: given 'mean'; needed: one of token-mean")):
        with pytest.raises(ValueError, match=says.replace("ValueLoss", r"(ValueLoss|runtime::\w+)")
                           + message):
            gdpo.ValueLoss(**given)
    with pytest.raises(ValueError, match="gdpo.ValueLoss: name: given 3"):
        gdpo.ValueLoss(3)
    with pytest.raises(AttributeError, match=r"clip is set when the loss is made: ValueLoss\(\.\."):
        gdpo.ValueLoss().clip = 0.1


def mistake(match, settings=None, drop=(), error=ValueError, **changes):
    mask, arrays = random_batch(15, 4, 6)
    mask[0] = True
    given = {**arrays, "mask": mask, "counts": gdpo.count(mask=mask), **changes}
    given = {n: a for n, a in given.items() if n not in drop}
    with pytest.raises(error, match=match):
        gdpo.ValueLoss(**(settings or {}))(given.pop("values"), **given)


def test_mistakes_in_a_call():
    says = "^gdpo::ValueLoss: "
    mistake(says + "values: given a list", values=[[0.0]])
    mistake(says + "batch.values: given torch.int64", values=torch.zeros(4, 6, dtype=torch.int64))
    mistake(says + r"batch.old_values: given no array; needed: the values at the rollout",
            drop=["old_values"])
    mistake("returns", drop=["returns"], error=TypeError)
    mistake(says + "batch.returns: given .4, 5.; needed: .4, 6., the shape",
            returns=torch.zeros(4, 5))
    mistake(says + "batch.row_weights: given 3 ", row_weights=torch.ones(3))
    mistake(says + "counts: given another tensor", counts=torch.zeros(3, dtype=torch.float64))
    mistake(says + "normalizer.tokens: given 1, for ", counts=torch.ones(4, dtype=torch.float64))
    mistake(says + "returns: given a tensor that requires a gradient, with values that do not",
            returns=torch.zeros(4, 6).requires_grad_())
    mistake(says + "old_values: given a tensor that requires a gradient",
            old_values=torch.zeros(4, 6).requires_grad_())
    mistake(says + "mask: given infinities", mask=torch.full((4, 6), -INF))
    mistake(says + "returns: given a tensor on meta", returns=torch.zeros(4, 6, device="meta"))
    mistake(says + "returns: given torch.sparse_coo", returns=torch.zeros(4, 6).to_sparse())
    mistake(says + "batch.group_tokens: given no array",
            {"aggregate.mode": "group-mean-token-mean", "aggregate.over": "rows"})


# PyTorch's machinery.

@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
@pytest.mark.parametrize("gradient", (True, False))
def test_opcheck(dtype, gradient):
    mask, arrays = random_batch(16, 4, 6, dtype)
    arrays["values"].requires_grad_(gradient)
    listed = [{**arrays, "mask": mask}.get(name) for name in VALUE_ARRAYS]
    torch.library.opcheck(ops.value_loss.default, (
        "verl::value_loss", gdpo.count(mask=mask), gradient, *listed))


def test_opcheck_of_results():
    mask, arrays = random_batch(16, 4, 6)
    result = call(gdpo.ValueLoss(), {**arrays, "mask": mask},
                  counts=2 * gdpo.count(mask=mask))[2].result
    schema = dict(test_utils=("test_schema", "test_autograd_registration"))
    torch.library.opcheck(ops.value_metrics_map.default, (result, "a/"), **schema)
    torch.library.opcheck(ops.explained_variance.default, (result, 0.5), **schema)
    torch.library.opcheck(ops.merge_value_results.default, (result, result), test_utils=(
        "test_schema", "test_autograd_registration", "test_faketensor"))


LOSS = gdpo.ValueLoss(clip=0.2)


def step(values, counts, mask, old_values, returns):
    loss, metrics = LOSS(values * 1.0, counts=counts, mask=mask, old_values=old_values,
                         returns=returns)
    return 2 * loss, metrics.result


def run(function, arguments):
    values = arguments[0].clone().requires_grad_()
    loss, result = function(values, *arguments[1:])
    loss.backward()
    return [loss.detach(), values.grad, result]


def test_compiled():
    """Loss, gradient and metrics without a graph break, with the bits of eager mode."""
    torch._dynamo.reset()
    mask, arrays = random_batch(17, 5, 9, torch.float32)
    arguments = [arrays["values"], gdpo.count(mask=mask), mask, arrays["old_values"],
                 arrays["returns"]]
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for got, want in zip(run(compiled, arguments), run(step, arguments)):
        assert torch.equal(got.nan_to_num(), want.nan_to_num())
    with torch.no_grad():
        assert torch.equal(compiled(*arguments)[0], step(*arguments)[0])
    torch._dynamo.reset()


def test_no_gradient_where_none_is_wanted():
    mask, arrays = random_batch(18, 5, 9)
    values = arrays.pop("values")
    given = dict(counts=gdpo.count(mask=mask), mask=mask, **arrays)
    want = gdpo.ValueLoss()(values, **given).loss
    assert not want.requires_grad
    with torch.no_grad():
        quiet = gdpo.ValueLoss()(values.requires_grad_(), **given).loss
    assert torch.equal(quiet, want) and not quiet.requires_grad
    loud = gdpo.ValueLoss()(values, **given)
    assert loud.loss.requires_grad and not loud.metrics.result.requires_grad
    with pytest.raises(RuntimeError, match="gdpo.ValueLoss has an analytic gradient and no second"):
        torch.autograd.grad(loud.loss, values, create_graph=True)
