"""What the loss accepts, what it refuses, and what it leaves alone.

Unless a test says otherwise it compares bits: the same numbers in another form are the same sum in
the same order.
"""
import copy
import multiprocessing
import os
import pickle
import time
import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gdpo
from batches import call, packed, random_batch

ARRAYS = ("logp", "old_logp", "ref_logp", "advantages", "weights", "kl_weights", "row_weights")


def arrays_of(batch, dtype=torch.float32) -> dict:
    """The arrays of a padded call in that type, all of them read by "grpo"."""
    return {name: batch.arrays[name].to(dtype) for name in ARRAYS} | {"mask": batch.mask}


def same(one, other) -> bool:
    """Whether loss, gradient and metrics have the same bits."""
    return (torch.equal(one[0], other[0]) and torch.equal(one[1], other[1]) and
            torch.equal(one[2].result.nan_to_num(), other[2].result.nan_to_num()))


@pytest.fixture
def batch():
    return random_batch(41, 6, 17, dtype=torch.bfloat16)


@pytest.fixture
def loss():
    return gdpo.PolicyLoss("grpo")


# Memory layout.

def transposed(array):
    return array.t().contiguous().t() if array.dim() == 2 else array


def every_second(array):
    wide = torch.full((*array.shape[:-1], 2 * array.shape[-1]), 3).to(array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def in_the_middle(array):
    wide = torch.zeros([extent + 3 for extent in array.shape]).to(array.dtype)
    inner = wide[tuple(slice(1, extent + 1) for extent in array.shape)]
    inner.copy_(array)
    return inner


@pytest.mark.parametrize("form", (transposed, every_second, in_the_middle))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
def test_strides_change_no_bit(batch, loss, form, dtype):
    """Arrays may lie anywhere in memory; offsets and columns too."""
    arrays = arrays_of(batch, dtype)
    plain = call(loss, batch.counts(), arrays)
    logp = form(arrays["logp"]).detach().requires_grad_()
    others = {name: form(array) for name, array in arrays.items() if name != "logp"}
    counts = torch.tensor(batch.counts(), dtype=torch.float64)
    result = loss(logp, counts=counts, **others)
    result.loss.backward()
    assert same(plain, (result.loss.detach(), logp.grad, result.metrics))


def test_expanded_arrays(batch, loss):
    """One number for all tokens, with stride 0, as torch.expand makes it."""
    arrays = arrays_of(batch)
    shape = arrays["logp"].shape
    arrays["old_logp"] = torch.tensor(-1.5).expand(shape)
    arrays["advantages"] = torch.tensor(0.5).expand(shape[0])
    written = dict(arrays, old_logp=torch.full(shape, -1.5), advantages=torch.full(shape[:1], 0.5))
    assert same(call(loss, batch.counts(), arrays), call(loss, batch.counts(), written))


def test_negative_views(batch, loss):
    """A tensor with PyTorch's negative bit is resolved before it is read."""
    arrays = arrays_of(batch)
    negated = dict(arrays, old_logp=torch._neg_view(-arrays["old_logp"]))
    assert same(call(loss, batch.counts(), arrays), call(loss, batch.counts(), negated))


def test_offsets_with_strides():
    """Offsets may be a slice of a larger array."""
    wide = torch.tensor([0, 9, 2, 9, 5, 9], dtype=torch.int32)
    values = torch.linspace(-2, -1, 5, dtype=torch.float64)
    arrays = {"logp": values, "advantages": torch.ones(2)}
    loss = gdpo.PolicyLoss("dapo")
    assert same(call(loss, (5, 2, 2, 0), {**arrays, "offsets": wide[::2]}),
                call(loss, (5, 2, 2, 0), {**arrays, "offsets": torch.tensor([0, 2, 5])}))


# Empty batches.

@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (2, 0, 5), (0, 2, 5), (2, 2, 0)])
def test_empty_batches(shape):
    """No rows or no tokens: the loss is 0, as the share of a rank that has none."""
    logp = torch.zeros(shape, requires_grad=True)
    rows = shape[0] if len(shape) == 2 else shape[0] * shape[1]
    result = gdpo.PolicyLoss("dapo")(logp, counts=torch.zeros(4, dtype=torch.float64),
                                     advantages=torch.zeros(rows))
    result.loss.backward()
    assert result.loss.item() == 0 and logp.grad.shape == logp.shape
    assert torch.equal(gdpo.count(mask=torch.ones(shape)),
                       torch.tensor([0, rows, 0, 0], dtype=torch.float64))


@pytest.mark.parametrize("rows", (0, 3))
def test_empty_packed_batches(rows):
    logp = torch.zeros(0, requires_grad=True)
    result = gdpo.PolicyLoss("dapo")(
        logp, counts=torch.zeros(4, dtype=torch.float64), advantages=torch.zeros(rows),
        offsets=torch.zeros(rows + 1, dtype=torch.int32))
    result.loss.backward()
    assert result.loss.item() == 0 and logp.grad.shape == (0,)


# Counts.

@pytest.mark.parametrize("seed", range(4))
def test_counts(seed):
    """Tokens, rows, rows with a token, and the count of the caller's own: padded and packed."""
    batch = random_batch(seed)
    want = list(batch.counts(given=7.5))
    assert gdpo.count(mask=batch.mask, given=7.5).tolist() == want, f"seed {seed}"
    assert gdpo.count(mask=batch.mask, logp=batch.arrays["logp"]).tolist() == want[:3] + [0]
    width = batch.mask.shape[1]
    lying = packed(batch, torch.full((len(batch.mask),), width))
    assert gdpo.count(mask=lying["mask"], offsets=lying["offsets"]).tolist() == want[:3] + [0]
    rows = float(len(batch.mask))
    for whole in (dict(logp=batch.arrays["logp"]), dict(offsets=lying["offsets"])):
        assert gdpo.count(**whole).tolist() == [rows * width, rows, rows, 0]


# Whether there is a gradient.

class Gradients(TorchDispatchMode):
    """Records whether the loss was asked for its gradient, and the gradient's shape."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if str(func) in ("gdpo.policy_loss.default", "gdpo.policy_loss_forward.default"):
            self.seen.append((args[2], tuple(result[1].shape)))
        return result


def test_no_gradient_where_none_is_wanted(batch, loss):
    """Neither without requires_grad nor under no_grad is the gradient computed."""
    arrays = arrays_of(batch)
    logp = arrays.pop("logp")
    counts = torch.tensor(batch.counts(), dtype=torch.float64)
    with Gradients() as gradients:
        plain = loss(logp, counts=counts, **arrays).loss
        with torch.no_grad():
            quiet = loss(logp.clone().requires_grad_(), counts=counts, **arrays).loss
        with torch.inference_mode():
            loss(logp.clone(), counts=counts, **arrays)
        wanted = loss(logp.clone().requires_grad_(), counts=counts, **arrays).loss
    assert gradients.seen == [(False, (0,))] * 3 + [(True, tuple(logp.shape))]
    assert not plain.requires_grad and not quiet.requires_grad and wanted.requires_grad
    assert torch.equal(plain, quiet) and torch.equal(plain, wanted.detach())


def test_only_logp_gets_a_gradient(batch, loss):
    """The ratio's other log-probs and the weights are constants, even where they require one."""
    arrays = arrays_of(batch)
    counts = torch.tensor(batch.counts(), dtype=torch.float64)
    logp = arrays.pop("logp").requires_grad_()
    others = {name: array.requires_grad_() if array.is_floating_point() else array
              for name, array in arrays.items()}
    loss(logp, counts=counts, **others).loss.backward()
    assert logp.grad is not None
    assert all(array.grad is None for array in others.values())


def test_loss_of_a_constant_logp_is_a_constant():
    """A backward that would change nothing has to be an error of PyTorch's, as for any constant."""
    advantages = torch.ones(3, requires_grad=True)
    logp, counts = torch.zeros(3, 4), torch.tensor([12.0, 3, 3, 0], dtype=torch.float64)
    loss = gdpo.PolicyLoss("dapo")(logp, counts=counts, advantages=advantages).loss
    assert not loss.requires_grad


def test_metrics_have_no_gradient(batch, loss):
    arrays = arrays_of(batch)
    logp = arrays.pop("logp").requires_grad_()
    result = loss(logp, counts=torch.tensor(batch.counts(), dtype=torch.float64), **arrays)
    assert result.loss.requires_grad and not result.metrics.result.requires_grad


def test_counts_have_no_gradient():
    """Counts are constants of the step."""
    logp = torch.zeros(2, 3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        counts = gdpo.count(logp=logp)
        gdpo.PolicyLoss("dapo")(logp, counts=counts, advantages=torch.ones(2)).loss.backward()
    assert not counts.requires_grad


def test_no_second_derivative(batch, loss):
    """It is refused, because the gradient has no graph and would silently be a constant."""
    arrays = arrays_of(batch)
    logp = arrays.pop("logp").requires_grad_()
    value = loss(logp, counts=torch.tensor(batch.counts(), dtype=torch.float64), **arrays).loss
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(value, logp, create_graph=True)


def test_no_forward_mode():
    """A derivative that is not there has to be refused, not to be 0."""
    logp, tangent = torch.zeros(2, 3), torch.ones(2, 3)
    loss, counts = gdpo.PolicyLoss("dapo"), torch.tensor([6.0, 2, 2, 0], dtype=torch.float64)
    with warnings.catch_warnings(), pytest.raises((RuntimeError, NotImplementedError)):
        warnings.simplefilter("ignore")
        torch.func.jvp(lambda x: loss(x, counts=counts, advantages=torch.ones(2)).loss, (logp,),
                       (tangent,))


# Types.

@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_narrow_logp(batch, loss, dtype):
    """16 bits are read as float32, and the gradient is rounded once, to the type of logp."""
    narrow = arrays_of(batch, dtype)
    wide = {name: array.float() if array.is_floating_point() else array
            for name, array in narrow.items()}
    got, want = call(loss, batch.counts(), narrow), call(loss, batch.counts(), wide)
    assert got[1].dtype == dtype and got[0].dtype == torch.float32
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1].to(dtype))


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_mixed_types(batch, loss, dtype):
    """Each array has a type of its own; numbers are computed in that of logp.

    The log-probs fit in bfloat16 (see the fixture), so that no array is rounded.
    """
    arrays = arrays_of(batch, dtype)
    mixed = dict(arrays, old_logp=arrays["old_logp"].bfloat16(),
                 ref_logp=arrays["ref_logp"].float(),
                 advantages=arrays["advantages"].double(), weights=arrays["weights"].bfloat16(),
                 row_weights=arrays["row_weights"].float(), mask=batch.mask.to(torch.int16))
    got, want = call(loss, batch.counts(), mixed), call(loss, batch.counts(), arrays)
    assert same(got, want) and got[1].dtype == dtype


@pytest.mark.parametrize("dtype", (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32,
                                   torch.int64, torch.float32, torch.float64, torch.bfloat16,
                                   torch.float16))
def test_masks_of_any_type(batch, loss, dtype):
    """A mask is read as 0 or not 0, also where it is 0.5 or -1."""
    arrays = arrays_of(batch)
    marks = 0.5 if dtype.is_floating_point else {torch.bool: True, torch.uint8: 255}.get(dtype, -1)
    mask = torch.zeros(batch.mask.shape, dtype=dtype)
    mask[batch.mask] = marks
    assert same(call(loss, batch.counts(), dict(arrays, mask=mask)),
                call(loss, batch.counts(), arrays))
    assert gdpo.count(mask=mask).tolist() == list(batch.counts())


def test_autocast_changes_nothing(batch, loss):
    """The call computes in the type of logp, whatever autocast would have."""
    arrays = arrays_of(batch)
    plain = call(loss, batch.counts(), arrays)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = call(loss, batch.counts(), arrays)
    assert same(plain, under) and under[0].dtype == torch.float32


# Masked tokens.

@pytest.mark.parametrize("level", ("token", "sequence", "sequence_token"))
@pytest.mark.parametrize("filler", (float("nan"), float("inf"), -1e30))
def test_masked_tokens_may_hold_anything(batch, level, filler):
    loss = gdpo.PolicyLoss("grpo", level)
    arrays = arrays_of(batch)
    arrays["token_advantages"] = batch.arrays["token_advantages"].float()
    del arrays["advantages"]
    filled = {name: array.masked_fill(~batch.mask, filler)
              if array.shape == batch.mask.shape and name != "mask" else array
              for name, array in arrays.items()}
    assert same(call(loss, batch.counts(), arrays), call(loss, batch.counts(), filled))


def test_nan_of_a_valid_token_shows(batch, loss):
    """It flows into the loss, and the metrics say in which array and where it was."""
    arrays = arrays_of(batch)
    row, token = batch.mask.nonzero()[7].tolist()
    arrays["old_logp"][row, token] = float("nan")
    value, _, metrics = call(loss, batch.counts(), arrays)
    assert torch.isnan(value)
    assert [metrics[f"non_finite.old_logp.{what}"] for what in ("count", "row", "token")] == [
        1, row, token]


def test_inputs_are_not_modified(batch, loss):
    arrays = arrays_of(batch)
    counts = torch.tensor(batch.counts(), dtype=torch.float64)
    kept = {name: (array.clone(), array._version) for name, array in arrays.items()}
    logp = arrays["logp"].requires_grad_()
    loss(counts=counts, **arrays).loss.backward()
    gdpo.count(mask=arrays["mask"])
    assert torch.equal(logp.detach(), kept["logp"][0])
    for name, (values, version) in kept.items():
        assert torch.equal(arrays[name], values) and arrays[name]._version == version, name
    assert counts.tolist() == list(batch.counts())


# Nested tensors.

def test_nested_gradient_is_nested():
    """A leaf of jagged layout gets a gradient of the same layout."""
    rows = [torch.linspace(-2, -1, n) for n in (2, 4)]
    logp = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
    counts = gdpo.count(logp=logp.detach())
    assert counts.tolist() == [6, 2, 2, 0]
    gdpo.PolicyLoss("dapo")(logp, counts=counts, advantages=torch.ones(2)).loss.backward()
    assert logp.grad.is_nested and torch.equal(logp.grad.offsets(), logp.offsets())
    torch.testing.assert_close(logp.grad.values(), torch.full((6,), -1 / 6))


def test_nested_tensors_of_other_lengths():
    """log-probs of other rows than those of logp would be compared with the wrong tokens."""
    values = torch.linspace(-2, -1, 6)
    logp, other = (torch.nested.nested_tensor_from_jagged(values, torch.tensor(offsets))
                   for offsets in ([0, 2, 6], [0, 3, 6]))
    with pytest.raises(ValueError, match="old_logp"):
        gdpo.PolicyLoss("dapo")(logp, counts=gdpo.count(logp=logp), advantages=torch.ones(2),
                                old_logp=other)


def test_nested_tensors_with_holes():
    """torch.nested.narrow keeps the memory between the rows, which is not part of the batch."""
    base = torch.arange(10.0).reshape(2, 5) / 10
    holes = torch.nested.narrow(base, 1, torch.tensor([0, 1]), torch.tensor([2, 4]),
                                layout=torch.jagged)
    loss, counts = gdpo.PolicyLoss("dapo"), torch.tensor([6.0, 2, 2, 0], dtype=torch.float64)
    advantages = torch.tensor([1.0, 3.0])
    values = torch.cat([base[0, :2], base[1, 1:5]])
    want = loss(values, counts=counts, advantages=advantages, offsets=torch.tensor([0, 2, 6])).loss
    assert torch.equal(loss(holes, counts=counts, advantages=advantages).loss, want)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_of_strided_layout():
    logp = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(4)])
    with pytest.raises(ValueError, match="jagged"):
        gdpo.PolicyLoss("dapo")(logp, counts=torch.ones(4, dtype=torch.float64),
                                advantages=torch.ones(2))


# Errors: each is a ValueError that names its argument. Most are in test_refusals.py.

NAMES = [
    (("nope",), {}, "name"), (("grpo", "nope"), {}, "level"), (("grpo",), {"kl": "k9"}, "kl"),
    (("grpo",), {"aggregate": "x"}, "aggregate: given"), (("grpo",), {"over": "x"}, "over: given"),
    (("grpo",), {"against": "x"}, "against: given"),
]


@pytest.mark.parametrize("words, settings, argument", NAMES, ids=str)
def test_unknown_names_are_refused(words, settings, argument):
    """With a list of the known ones."""
    with pytest.raises(ValueError, match=f"{argument}.*needed: one of .*,"):
        gdpo.PolicyLoss(*words, **settings)


@pytest.mark.parametrize("counts", (torch.ones(4), torch.ones(3, dtype=torch.float64),
                                    torch.ones(8, dtype=torch.float64)[::2]), ids=str)
def test_counts_that_do_not_fit_are_refused(counts):
    with pytest.raises(ValueError, match="gdpo::PolicyLoss: counts: given "):
        gdpo.PolicyLoss("dapo")(torch.zeros(3, 4), advantages=torch.ones(3), counts=counts)


@pytest.mark.parametrize("name", ("logp", "advantages", "counts"))
def test_tensors_of_another_device_are_refused(name):
    """PolicyLoss promises a ValueError for devices that do not fit."""
    arguments = {"logp": torch.zeros(3, 4), "advantages": torch.ones(3),
                 "counts": torch.tensor([12.0, 3, 3, 0], dtype=torch.float64)}
    arguments[name] = arguments[name].to("meta")
    with pytest.raises(ValueError, match=name):
        gdpo.PolicyLoss("dapo")(**arguments)


def test_sparse_tensors_are_refused():
    """PolicyLoss promises a ValueError for types that do not fit."""
    with pytest.raises(ValueError, match="logp"):
        gdpo.PolicyLoss("dapo")(torch.ones(3, 4).to_sparse(), advantages=torch.ones(3),
                                counts=torch.ones(4, dtype=torch.float64))


# Threads and processes.

@pytest.mark.parametrize("name", ("grpo", "gspo", "verl::gspo"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
def test_threads_change_no_bit(name, dtype):
    """The number of rows alone decides what is added first."""
    batch = random_batch(43, 300, 150)
    arrays = arrays_of(batch, dtype)
    loss = gdpo.PolicyLoss(name, beta=0.1)
    results = []
    for threads in (1, 2, 2):
        torch.set_num_threads(threads)
        results.append(call(loss, batch.counts(), arrays))
    assert same(results[0], results[1]) and same(results[0], results[2])


def loss_of_ones(loss: gdpo.PolicyLoss) -> float:
    """What a child process computes; it is -1."""
    logp = torch.zeros(3, 4, requires_grad=True)
    value = loss(logp, counts=gdpo.count(mask=torch.ones(3, 4)), advantages=torch.ones(3)).loss
    value.backward()
    return value.item()


def test_after_fork():
    """A forked process, such as one of a data loader, can call the loss.

    On one thread: after a parallel region PyTorch's own operators hang in a forked process, too.
    """
    loss = gdpo.PolicyLoss("dapo")
    loss_of_ones(loss)
    child = os.fork()
    if child == 0:  # no assert in here: the child must not run the rest of the tests
        good = False
        try:
            logp = torch.zeros(3, 4)
            counts = gdpo.count(logp=logp)
            good = loss(logp, counts=counts, advantages=torch.ones(3)).loss.item() == -1
        finally:
            os._exit(0 if good else 1)
    for _ in range(200):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.05)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 0


def test_after_spawn():
    """A new process gets the loss by pickle and loads the library itself."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(loss_of_ones, (gdpo.PolicyLoss("dapo"),)).get(60) == -1


# The module.

def test_copies_and_pickles():
    """Both keep the settings, so that a trainer can send and copy its modules."""
    loss = gdpo.PolicyLoss("dapo", "sequence", low=1e-3, beta=0.1)
    for copied in (copy.copy(loss), copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert copied.line == loss.line and isinstance(copied, gdpo.PolicyLoss)
        assert repr(copied) == repr(loss)


def test_state_dict_is_empty():
    """A loss has no parameters, so a checkpoint of a model with it is that of the model."""
    module = torch.nn.ModuleDict({"loss": gdpo.PolicyLoss("grpo")})
    assert module.state_dict() == {} and list(module.parameters()) == []
    module.load_state_dict({})
    assert module.to(torch.float64).eval()["loss"].line == "grpo"


def test_settings_have_all_their_digits():
    """Text is how settings travel: a float must come back with its bits."""
    third = 1 / 3
    batch = random_batch(47, 4, 9)
    arrays = arrays_of(batch, torch.float64)
    one = call(gdpo.PolicyLoss("grpo", scale=third), batch.counts(), arrays)[0]
    other = call(gdpo.PolicyLoss("grpo"), batch.counts(), arrays)[0]
    torch.testing.assert_close(one, third * other, rtol=1e-15, atol=0)
    assert float(gdpo.PolicyLoss("grpo", scale=third).line.split("=")[1]) == third
