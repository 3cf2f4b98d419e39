"""gdpo.numpy beside the calls for PyTorch: the same bits, and the same words of errors.

All comparisons are of bits, because both are the same object code; PyTorch's is held to formulas by
the other tests.
"""
import concurrent.futures
import ctypes
import inspect
import os
import pathlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch

import gdpo
import gdpo.numpy as gn
from gdpo import _ndarrays
from gdpo._names import ARRAYS

TYPES = (torch.float32, torch.float64, torch.bfloat16)
# Ways to lay the same numbers out in memory: dense, from the end, by columns, with gaps, at odd
# places, and at distances that are no whole number of elements.
def _field(a):
    table = np.zeros(a.shape, [("first", np.uint8), ("own", a.dtype)])
    table["own"] = a
    return table["own"]


LAYOUTS = {
    "dense": lambda a: a,
    "backwards": lambda a: a[::-1].copy()[::-1],
    "columns": lambda a: np.asfortranarray(a),
    "gaps": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(
        a.dtype).reshape(a.shape),
    "field": _field}


def array(tensor, layout="dense"):
    """The tensor as an array of NumPy of that layout."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    if tensor.dtype == torch.bfloat16:
        return LAYOUTS[layout](tensor.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return LAYOUTS[layout](tensor.detach().numpy())


def arrays(tensors, layout="dense"):
    return {name: array(tensor, layout) for name, tensor in tensors.items()}


def outcome(call):
    """What a call returns, or the words of its ValueError."""
    try:
        return call()
    except ValueError as error:
        return str(error)


def flat(result):
    """The arrays of a result, one after the other."""
    if isinstance(result, tuple):
        return [each for part in result for each in flat(part)]
    if isinstance(result, gdpo.Report):
        return [array(result.numbers)]
    return [array(getattr(result, "result", result))]


def same(ours, torchs):
    """The same type, shape and bits, or the same words."""
    if isinstance(torchs, str) or isinstance(ours, str):
        assert ours == torchs
        return
    for mine, other in zip(flat(ours), flat(torchs), strict=True):
        assert isinstance(mine, np.ndarray) and mine.dtype == other.dtype
        assert mine.shape == other.shape and mine.tobytes() == other.tobytes()


def of_rows(seed, dtype, rows=24, rewards=2):
    g = torch.Generator().manual_seed(seed)
    numbers = torch.rand(rows, rewards, generator=g, dtype=torch.float64).round(decimals=1)
    return numbers.to(dtype), {
        "tokens": torch.randint(1, 50, (rows,), generator=g), "baseline": torch.rand(
            rows, generator=g), "penalty": torch.rand(rows, generator=g),
        "valid": torch.rand(rows, generator=g) > 0.1}


def of_tokens(seed, dtype, rows=8, width=21, poison=False):
    """Arrays of tokens; with `poison` NaN where the mask is 0."""
    g = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)
    mask = torch.rand(rows, width, generator=g) > 0.25
    mask[2] = False
    logp = -1.5 + 0.3 * normal(rows, width)
    named = {"logp": logp, **{name: logp + 0.3 * normal(rows, width) for name in (
        "old_logp", "ref_logp", "rollout_logp", "teacher_logp")},
        "entropies": normal(rows, width).abs()}
    named = {name: tensor.to(dtype) for name, tensor in named.items()}
    if poison:
        named = {name: torch.where(mask, t, float("nan")) for name, t in named.items()}
    return {**named, "mask": mask, "advantages": normal(rows).to(dtype)}


# Rows.

@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_estimator(dtype):
    """Over layouts, with and without a report and the columns."""
    refused = set()
    for number, name in enumerate(gdpo.estimators()):
        rewards, columns = of_rows(number, dtype)
        columns = {key: columns[key] for key in ("tokens", "baseline", "valid")[:number % 4]}
        for layout in LAYOUTS:
            ours = outcome(lambda: gn.advantages(array(rewards, layout), estimator=name,
                                                 group_size=4, weights=[1.0, 0.5],
                                                 report=number % 2 == 0, **arrays(columns)))
            same(ours, outcome(lambda: gdpo.advantages(rewards, estimator=name, group_size=4,
                                                       weights=[1.0, 0.5], report=number % 2 == 0,
                                                       **columns)))
            refused |= {name} if isinstance(ours, str) else set()
    assert len(refused) < 10, refused


@pytest.mark.parametrize("arguments", [
    {"group_ids": list("abab") * 6}, {"group_ids": np.arange(24) // 3},
    {"group_offsets": [0, 5, 12, 24]}, {"group_size": 4, "gates": [(0, 1, 0.5)]},
    {"group_size": 4, "constraints": [(1, 0.5, 0.7, 1.0, "at_least")], "weights": [1.0, 0.0]},
    {"group_size": 4, "rollout_ids": list(range(12)) * 2, "take": "sum"},
    {"group_size": 4, "estimator": "trl::gdpo scale.eps=1e-3", "renorm_eps": 0.1},
    {"group_size": 4, "estimator": "gdpoo"}, {"group_size": 5}, {"group_size": "x"},
    {"group_ids": ["a", 1] * 12}, {"group_size": 4, "weights": ["x"]},
    {"group_size": 4, "gates": [0]}, {"group_size": 4, "constraints": [(1, 2)]},
    {"group_size": 4, "scale_epss": 1}, {"group_size": 4, "tokens": [1, 2]}], ids=str)
def test_arguments_of_rows(arguments):
    rewards, _ = of_rows(0, torch.float64)
    same(outcome(lambda: gn.advantages(rewards.numpy(), report=True, **arguments)),
         outcome(lambda: gdpo.advantages(rewards, report=True, **arguments)))


def test_types_of_rewards():
    """Integers of any width, lists with None, other byte orders, and what NumPy reads."""
    numbers = np.arange(8) % 3
    for dtype in (bool, "i1", "i2", "i4", "i8", "u1", "f2", "f4", "f8"):
        given = numbers.astype(dtype)
        same(gn.advantages(given, group_size=4), gdpo.advantages(torch.tensor(given), group_size=4))
        if given.itemsize > 1:
            same(gn.advantages(given.astype(given.dtype.newbyteorder(">")), group_size=4),
                 gn.advantages(given, group_size=4))
    listed = [1.0, None, 0.5, 1.0]
    same(gn.advantages(listed, group_size=2), gdpo.advantages(listed, group_size=2))
    same(gn.advantages(torch.tensor([1.0, 0.0]), group_size=2),
         gdpo.advantages(torch.tensor([1.0, 0.0]), group_size=2))
    same(gn.advantages([], group_size=2), gdpo.advantages([], group_size=2))
    for refused, words in ((np.array(["a", "b"]), "given dtype <U1"), ([[1], [1, 2]], "inhomogen"),
                           (np.ma.masked_array([1.0]), "given a masked array"),
                           (None, "given None"), (np.zeros(2, "u4"), "given dtype UInt32"),
                           (np.zeros(2, np.longdouble), f"given dtype {np.dtype(np.longdouble)}"),
                           (object(), "given a object")):
        with pytest.raises(ValueError, match=f"^gdpo::advantages: rewards: .*{words}.*; needed: "):
            gn.advantages(refused, group_size=1)


def test_warns_of_completions():
    with pytest.warns(UserWarning, match="rewards: shape .4, 2. is read as 4 rows") as warned:
        gn.advantages(np.zeros((4, 2)), group_size=2)
    assert warned[0].filename == __file__


# Tokens and steps.

@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("layout", ("dense", "backwards", "columns"))
def test_every_estimator_of_tokens(dtype, layout):
    for number, name in enumerate(gdpo.token_estimators()):
        of = of_tokens(number, dtype)
        given = {"values": of["old_logp"], "logp": of["logp"], "ref_logp": of["ref_logp"],
                 "mask": of["mask"], "row_rewards": of["advantages"]}
        same(outcome(lambda: gn.token_advantages(estimator=name, **arrays(given, layout))),
             outcome(lambda: gdpo.token_advantages(estimator=name, **given)))
    for number, name in enumerate(gdpo.outcome_estimators()):
        of, (rewards, _) = of_tokens(number, dtype), of_rows(number, dtype, 8, 1)
        given = {"values": of["old_logp"], "logp": of["logp"], "ref_logp": of["ref_logp"],
                 "mask": of["mask"]}
        same(outcome(lambda: gn.outcome_advantages(
                array(rewards[:, 0]), estimator=name, group_size=4, report=True,
                **arrays(given, layout))),
             outcome(lambda: gdpo.outcome_advantages(
                 rewards[:, 0], estimator=name, group_size=4, report=True, **given)))
    for number, name in enumerate(gdpo.step_estimators()):
        rewards, columns = of_rows(number, dtype)
        given = {"group_size": 12, "episode_ids": [str(row // 4) for row in range(24)],
                 "state_ids": [row % 3 for row in range(24)]}
        same(gn.step_advantages(array(rewards, layout), estimator=name, **given),
             gdpo.step_advantages(rewards, estimator=name, **given))


def test_arguments_of_tokens():
    """Packed tokens, settings, and mistakes."""
    of = of_tokens(1, torch.float32)
    keep, lengths = of["mask"], of["mask"].sum(1)
    given = {"values": of["logp"][keep], "row_rewards": of["advantages"],
             "offsets": torch.cat([torch.zeros(1), lengths.cumsum(0)]).int()}
    same(gn.token_advantages(**arrays(given), gamma=0.9, returns_lambda=0.8),
         gdpo.token_advantages(**given, gamma=0.9, returns_lambda=0.8))
    for wrong in ({"values": given["values"][:-1]}, {"gamma": 2.0}, {"estimator": "gaee"},
                  {"values": None}, {"bootstrap": [1.0]}, {"mask": torch.ones(3)},
                  {"mask": torch.full((len(given["values"]),), float("nan"))}):
        words = outcome(lambda: gn.token_advantages(**arrays({**given, **wrong})))
        assert isinstance(words, str) and words.startswith("gdpo::token_advantages: ")
        same(words, outcome(lambda: gdpo.token_advantages(**{**given, **wrong})))
    with pytest.raises(ValueError, match="state_ids: given None"):
        gn.step_advantages([1.0], episode_ids=[0], state_ids=None, group_size=1)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_whitening_and_counts(dtype):
    of = of_tokens(5, dtype, poison=True)
    values, mask = of["logp"], of["mask"]
    for name in gdpo.whitenings():
        for layout in LAYOUTS:
            for valid in (mask, mask.double(), mask.to(torch.int8)):
                same(gn.whiten(array(values, layout), array(valid, layout), name=name),
                     gdpo.whiten(values, valid, name=name))
    cube = torch.where(mask, values, 1.0).reshape(2, 4, -1)
    same(gn.whiten(array(cube)), gdpo.whiten(cube))
    same(gn.whiten(np.arange(6)), gdpo.whiten(torch.arange(6)))
    for given in ({"mask": mask}, {"logp": values}, {"mask": mask, "given": 3.0},
                  {"mask": mask, "group_size": 4}, {"mask": mask, "group_ids": list("aabbaabb")},
                  {"offsets": torch.tensor([0, 3, 7])}, {"mask": mask, "group_size": 3}, {},
                  {"mask": mask, "group_size": 4, "given": 1.0}, {"mask": mask, "given": None},
                  {"mask": torch.full((2, 2), -100)}):
        same(outcome(lambda: gn.count(**arrays(given))), outcome(lambda: gdpo.count(**given)))
    for given in ("x", [1.0, 2.0]):
        with pytest.raises(ValueError, match="gdpo::count: given: given .*; needed: a number"):
            gn.count(mask=array(mask), given=given)
    for door, numbers in ((gn, np.ones((2, 3), "c8")), (gdpo, torch.ones(2, 3).cfloat())):
        with pytest.raises(ValueError, match="gdpo::whiten: values: given dtype ComplexFloat"):
            door.whiten(numbers)
    same(gn.count_group_tokens(mask=array(mask), group_size=4),
         gdpo.count_group_tokens(mask=mask, group_size=4))


# Losses.

def in_torch(loss, by, given, counts, **others):
    """Loss, gradients and metrics of the call for PyTorch; gradients as they are computed."""
    given = dict(given)
    leaves = {name: given.pop(name).detach().clone().requires_grad_() for name in by}
    first, *rest = by
    result = loss(leaves[first], **{name: leaves[name] for name in rest}, **given, counts=counts,
                  **others)
    result.loss.backward()
    return (result.loss, *(leaves[name].grad for name in by), result.metrics)


def compare(ours, torchs):
    """The bits; gradients of PyTorch are rounded to the type of what they are by."""
    loss, *gradients, metrics = ours
    other, *others, measured = torchs
    same((loss, metrics), (other.detach(), measured))
    for mine, theirs in zip(gradients, others):
        same(mine.astype(array(theirs).dtype), theirs)
    assert metrics.to_dict("a/") == measured.to_dict("a/") and repr(metrics) == repr(measured)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_loss(dtype, layout):
    """With NaN at masked tokens."""
    given = of_tokens(3, dtype, poison=True)
    counts = gdpo.count(mask=given["mask"], given=0.0)
    counts[3] = 40.0
    for name in gdpo.losses():
        settings = {"constant": 5} if name.endswith("dr_grpo") else {}
        of_numpy, of_torch = (door.PolicyLoss(name, **settings) for door in (gn, gdpo))
        assert of_numpy.line == of_torch.line
        # Some losses have no entropy bonus, and others no gradient by entropies.
        ours = of_numpy(**arrays(given, layout), counts=counts.numpy())
        by = ("logp",) if ours.by_entropies is None else ("logp", "entropies")
        torchs = in_torch(of_torch, by, given, counts)
        compare((ours.loss, *ours[1:1 + len(by)], ours.metrics), torchs)


def test_bonus_of_entropies():
    """A gradient by entropies where the loss has a bonus and they are given."""
    given = of_tokens(4, torch.float32)
    counts = gdpo.count(mask=given["mask"])
    settings = {"entropy_coef": 0.1, "kl": "k2", "beta": 0.2}
    ours = gn.PolicyLoss("dapo", "sequence", **settings)(**arrays(given), counts=counts.numpy())
    compare(ours, in_torch(gdpo.PolicyLoss("dapo", "sequence", **settings), ("logp", "entropies"),
                           given, counts))
    assert np.abs(ours.by_entropies).max() > 0
    del given["entropies"]
    assert gn.PolicyLoss("dapo", entropy_coef=0.0)(
        **arrays(given), counts=counts.numpy()).by_entropies is None


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_contrastive_and_value_losses(dtype):
    given = of_tokens(6, dtype, poison=True)
    counts = gdpo.count(mask=given["mask"], group_size=4)
    groups = {"group_ids": list("aabbaabb")}
    for name in gdpo.contrastive_losses():
        ours = gn.ContrastiveLoss(name)(**arrays(given), counts=counts.numpy(), **groups)
        compare(ours, in_torch(gdpo.ContrastiveLoss(name), ("logp",), given, counts, **groups))
    of_values = {"values": given["logp"], "old_values": given["old_logp"],
                 "returns": given["ref_logp"], "mask": given["mask"]}
    for name in gdpo.value_losses():
        ours = gn.ValueLoss(name)(**arrays(of_values), counts=counts.numpy())
        compare(ours, in_torch(gdpo.ValueLoss(name), ("values",), of_values, counts))
        assert ours.metrics.explained_variance() == in_torch(
            gdpo.ValueLoss(name), ("values",), of_values, counts)[-1].explained_variance()


def test_metrics_merge():
    """Micro-batches of one step; the metrics and reports of both kinds are the same classes."""
    given, counts = of_tokens(7, torch.float32), None
    counts = gn.count(mask=array(given["mask"]))
    halves = [{name: array(tensor)[half] for name, tensor in given.items()}
              for half in (slice(0, 4), slice(4, 8))]
    first, second = (gn.PolicyLoss("dapo")(**half, counts=counts).metrics for half in halves)
    merged = first.merge(second)
    assert type(merged) is gdpo.Metrics and isinstance(merged.result, np.ndarray)
    whole = gn.PolicyLoss("dapo")(**arrays(given), counts=counts).metrics
    assert merged["ratio.count"] == whole["ratio.count"]
    tensors = [gdpo.Metrics(torch.tensor(m.result)) for m in (first, second)]
    same(merged, tensors[0].merge(tensors[1]))
    assert gdpo.Metrics(dict(merged)) == merged
    rewards, _ = of_rows(0, torch.float64)
    reports = [gn.advantages(rewards.numpy()[half], group_size=4, report=True).report
               for half in (slice(0, 8), slice(8, 24))]
    both = reports[0].merge(reports[1])
    assert both["rows"] == 24 and both.to_dict("x/")


@pytest.mark.parametrize("wrong", [
    {"old_logp": torch.zeros(3)}, {"advantages": torch.zeros(3)}, {"mask": torch.zeros(2, 2)},
    {"logp": torch.zeros(8, 21, dtype=torch.int64)}, {"counts": torch.zeros(3)},
    {"counts": torch.tensor([1.0, 1, 1, 1], dtype=torch.float64)}, {"advantages": None},
    {"counts": torch.ones(4, dtype=torch.complex128)},
    {"mask": torch.full((8, 21), float("-inf"))}], ids=lambda wrong: next(iter(wrong)))
def test_mistakes_in_calls(wrong):
    """The same words; the type of counts is PyTorch's alone to refuse."""
    given = {**of_tokens(8, torch.float32), **wrong}
    counts = given.pop("counts", gdpo.count(mask=torch.ones(8, 21)))
    words = outcome(lambda: gn.PolicyLoss("dapo")(**arrays(given), counts=counts.numpy()))
    assert isinstance(words, str) and words.startswith("gdpo::PolicyLoss: ")
    said = outcome(lambda: gdpo.PolicyLoss("dapo")(**given, counts=counts))
    assert words == said.replace("torch.int64", "int64")


@pytest.mark.parametrize("kind, arguments, settings", [
    ("PolicyLoss", ("dapoo",), {}), ("PolicyLoss", ("dapo",), {"loww": 1}),
    ("PolicyLoss", ("dapo",), {"low": -1}), ("PolicyLoss", ("dapo", "rows"), {}),
    ("PolicyLoss", ("dapo",), {"kl": "k2"}), ("PolicyLoss", (3,), {}),
    ("ContrastiveLoss", ("real",), {"tau": "x"}), ("ValueLoss", (), {"clip": -1})], ids=str)
def test_mistakes_in_settings(kind, arguments, settings):
    words = outcome(lambda: getattr(gn, kind)(*arguments, **settings))
    assert isinstance(words, str)
    same(words, outcome(lambda: getattr(gdpo, kind)(*arguments, **settings)))


def test_a_loss_shows_what_makes_it_again():
    for made in (gn.PolicyLoss("dapo", low=0.1), gn.ContrastiveLoss(), gn.ValueLoss(clip=0.3)):
        again = eval(repr(made), {**vars(gn), "inf": float("inf")})
        assert again.line.split()[0] == made.line.split()[0] and repr(again) == repr(made)
        with pytest.raises(AttributeError, match="is set when the loss is made"):
            made.name = "other"


def test_same_names_and_keywords():
    """Each call has the arguments of that for PyTorch in their order, but for ranks and keys."""
    for name in gn.__all__:
        ours = getattr(gn, name)
        if not hasattr(gdpo, name) or ours is getattr(gdpo, name) or not callable(ours) or (
                issubclass(type(ours), type) and issubclass(ours, tuple)):
            continue
        pairs = [(ours, getattr(gdpo, name))]
        if inspect.isclass(ours):
            pairs = [(ours.__init__, pairs[0][1].__init__), (ours.__call__, pairs[0][1].forward)]
        for mine, other in pairs:
            kept = [p for p in inspect.signature(other).parameters if p not in ("ranks", "keys")]
            assert list(inspect.signature(mine).parameters) == kept, name


# The library.

def run(script):
    """Runs lines in a process of their own, without PyTorch, which takes long to import."""
    subprocess.run([sys.executable, "-c", f"import sys\nsys.modules['torch'] = None\n{script}"],
                   check=True, timeout=60, env={
                       **os.environ, "PYTHONPATH": str(pathlib.Path(gdpo.__file__).parents[1])})


def test_operators():
    """`ops` lists what torch.ops.gdpo does; arguments by name or place; mistakes in words."""
    assert set(vars(_ndarrays.ops)) >= {"advantages", "policy_loss", "names", "version"}
    for name, operator in vars(_ndarrays.ops).items():
        schema = getattr(torch.ops.gdpo, name).default._schema
        assert [a.name for a in operator.arguments] == [a.name for a in schema.arguments]
        assert len(operator.results) == len(schema.returns)
    count = _ndarrays.ops.count
    assert count(None, mask=np.ones((2, 3)))[0] == 6
    with pytest.raises(TypeError, match="gdpo::count: masks: given, and no argument"):
        count(masks=1)
    with pytest.raises(TypeError, match="takes 20 arguments, and 21 were given"):
        count(*[None] * 21)
    with pytest.raises(TypeError, match="gdpo::near: known: needed, and not given"):
        _ndarrays.ops.near("a")
    for word, kind in ((1, "int"), ("\ud800", "str")):
        with pytest.raises(ValueError, match=f"gdpo::near: name: given a {kind}; needed: a word"):
            _ndarrays.ops.near(word, "a")
    with pytest.raises(ValueError, match="gdpo::names: rewards: given a str; needed: an integer"):
        _ndarrays.ops.names("report", "x")


def test_types_of_values():
    """Each type of the stable ABI goes in and comes out: lists, numbers, words, empty arrays."""
    ops = _ndarrays.ops
    assert ops.grad_scale(4, 2, "fsdp") == torch.ops.gdpo.grad_scale(4, 2, "fsdp")
    steps, others = ops.plan(8, ""), torch.ops.gdpo.plan(8, "")
    for mine, other in zip(steps, others, strict=True):
        same(mine, other)
    weights = [np.ones(3, np.float32), np.zeros((0, 2), np.float32)]
    ops.polyak(weights, [np.zeros(3, np.float32), np.zeros((0, 2), np.float32)], 0.25)
    assert weights[0].tolist() == [0.75] * 3  # written where they lie
    words = "gdp\u00f6 \U0001f600"
    assert ops.near(words, f"{words}\nother") == words


def test_memory_is_given_back():
    """Results own their memory, and mistakes leak nothing: 160 MB pass through less than 50."""
    run(
        "import os, numpy as np, gdpo.numpy as gn\n"
        "def resident():\n"
        "    pages = int(open('/proc/self/statm').read().split()[1])\n"
        "    return pages * os.sysconf('SC_PAGE_SIZE')\n"
        "values, loss = np.ones((64, 32768), 'f4'), gn.PolicyLoss('dapo')\n"
        "counts, ones = gn.count(logp=values), np.ones(64, 'f4')\n"
        "def step():\n"
        "    kept = loss(values, counts=counts, advantages=ones).by_logp\n"
        "    try: loss(values, counts=counts, advantages=ones[1:])\n"
        "    except ValueError: pass\n"
        "    return kept\n"
        "for _ in range(4): step()\n"
        "before = resident()\n"
        "for _ in range(20):\n"
        "    kept = step()\n"
        "assert kept.base is not None and kept[3, 5] == step()[3, 5]\n"
        "assert resident() < before + 50e6\n")


def big():
    g = np.random.default_rng(0)
    logp = g.normal(-1.5, 0.3, (64, 2048)).astype(np.float32)
    return {"logp": logp, "old_logp": logp + 0.1, "advantages": np.ones(64, np.float32)}


def test_number_of_threads():
    """No result depends on it; calls from many threads at once give the same, too."""
    given, loss = big(), gn.PolicyLoss("dapo")
    counts = gn.count(logp=given["logp"])
    before = gn.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            gn.set_num_threads(threads)
            assert gn.get_num_threads() == threads
            results.append(loss(**given, counts=counts))
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            def call(number):
                if number % 8 == 0:
                    gn.set_num_threads(1 + number // 8)
                return loss(**given, counts=counts)
            results += pool.map(call, range(32))
    finally:
        gn.set_num_threads(before)
    for result in results[1:]:
        for mine, first in zip(flat(result[:2]), flat(results[0][:2])):
            assert mine.tobytes() == first.tobytes()
        assert result.metrics == results[0].metrics
    gn.set_num_threads(np.int64(before))
    for number in (0, -1, 1.5, True, "2"):
        with pytest.raises(ValueError, match="set_num_threads: number: given"):
            gn.set_num_threads(number)


def test_fork():
    """A process that is forked from one that has threads makes its own."""
    run("import os, numpy as np, gdpo.numpy as gn\n"
        "gn.set_num_threads(3)\n"
        "values, loss = np.full((64, 4096), -1.0, 'f4'), gn.PolicyLoss('dapo')\n"
        "call = lambda: loss(values, counts=gn.count(logp=values),\n"
        "                    advantages=np.arange(64.0)).loss.item()\n"
        "want = call()\n"
        "for _ in range(3):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        same = call() == want and gn.get_num_threads() == 3\n"
        "        os._exit(0 if same and len(os.listdir('/proc/self/task')) == 3 else 1)\n"
        "    assert os.waitpid(child, 0)[1] == 0 and call() == want\n")


def test_nothing_else_is_visible():
    """Of the library with the functions of PyTorch's names, so that PyTorch keeps its own."""
    library = ctypes.CDLL(str(pathlib.Path(gdpo.__file__).parent / "_arrays.so"))
    assert library.gdpo_arrays_threads() >= 1
    for name in ("aoti_torch_get_dim", "torch_parallel_for", "aoti_torch_empty_strided"):
        assert not hasattr(library, name)
    assert len(ARRAYS) == len(_ndarrays.ops.count.arguments)
