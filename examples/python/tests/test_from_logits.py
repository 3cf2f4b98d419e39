"""PolicyLoss.from_logits: the bits of token_logprobs and the loss one after the other."""
import contextlib
import shutil

import pytest
import torch

import gdpo
from batches import packed, random_batch

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
#: A loss for each level, one with a map, and those with a detached factor.
NAMES = ("dapo", "gspo", "gspo_token", "verl::vanilla", "grpo", "cispo", "verl::cispo")
VOCABULARY = 37


def random_step(seed: int, layout: str, dtype: torch.dtype = torch.float32) -> tuple:
    """Logits, targets, arrays and counts of one batch."""
    batch = random_batch(seed, 4, 9)
    arrays = {name: batch.arrays[name].float()
              for name in ("logp", "old_logp", "ref_logp", "advantages", "weights", "kl_weights")}
    if layout == "packed":
        batch.arrays = arrays
        arrays = packed(batch, torch.tensor([9, 2, 9, 5]), torch.int32)
    else:
        arrays["mask"] = batch.mask
    shape = arrays.pop("logp").shape
    g = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(*shape, VOCABULARY, generator=g)).to(dtype)
    targets = torch.randint(VOCABULARY, shape, generator=g)
    counts = gdpo.count(mask=arrays["mask"], offsets=arrays.get("offsets"))
    return logits, targets, arrays, counts


def loss_named(name: str) -> gdpo.PolicyLoss:
    bounds = dict(min_ratio=0.9, max_ratio=1.2) if name.endswith("cispo") else {}
    return gdpo.PolicyLoss(name, beta=0.1, kl="k3", level_map=(-0.2, 0.3)
                           if name.startswith("verl::") else None, **bounds)


def one_by_one(loss, logits, targets, arrays, counts, temperature=1.0) -> tuple:
    logits = logits.clone().requires_grad_()
    out = gdpo.token_logprobs(logits, targets, mask=arrays["mask"], temperature=temperature)
    value, metrics = loss(out.logp, counts=counts, entropies=out.entropy.detach(), **arrays)
    value.backward()
    return value.detach(), logits.grad, metrics.result, out.logp.detach(), out.entropy.detach()


def together(loss, logits, targets, arrays, counts, temperature=1.0, **options) -> tuple:
    leaf = logits.clone().requires_grad_()
    out = loss.from_logits(leaf * 1, targets, counts=counts, temperature=temperature, **options,
                           **arrays)
    out.loss.backward()
    assert not out.logp.requires_grad and not out.entropies.requires_grad
    return out.loss.detach(), leaf.grad, out.metrics.result, out.logp, out.entropies


def same(one: tuple, other: tuple) -> None:
    for x, y in zip(one, other):
        assert x.dtype == y.dtype and torch.equal(x.nan_to_num(), y.nan_to_num())


@pytest.mark.parametrize("in_place", (False, True))
@pytest.mark.parametrize("layout", ("padded", "packed"))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_bits(name, dtype, layout, in_place):
    step = random_step(11, layout, dtype)
    for temperature in (1.0, 0.7):
        want = one_by_one(loss_named(name), *step, temperature)
        same(together(loss_named(name), *step, temperature, in_place=in_place), want)
    assert want[1].abs().sum() > 0


def test_against_plain_pytorch():
    """DAPO's formula by torch.log_softmax in float64: 1e-5 of the largest entry."""
    logits, targets, arrays, counts = random_step(13, "padded")
    out = together(gdpo.PolicyLoss("dapo", beta=0), logits, targets, arrays, counts)
    double = logits.double().requires_grad_()
    logp = torch.log_softmax(double, -1).gather(-1, targets[..., None])[..., 0]
    ratio = torch.exp(logp - arrays["old_logp"].double())
    a = arrays["advantages"].double()[:, None]
    term = torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.28)) * arrays["weights"].double()
    loss = term[arrays["mask"]].sum() / arrays["mask"].sum()
    loss.backward()
    torch.testing.assert_close(out[0].double(), loss.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(out[1].double(), double.grad, rtol=1e-5,
                               atol=1e-5 * float(double.grad.abs().max()))


@pytest.mark.parametrize("in_place", (False, True))
def test_nested(in_place):
    """Jagged logits and targets are the packed ones."""
    logits, targets, arrays, counts = random_step(17, "packed")
    offsets = arrays["offsets"].long()

    def nested(values):
        return torch.nested.nested_tensor_from_jagged(values, offsets)

    want = one_by_one(loss_named("dapo"), logits, targets, arrays, counts)
    leaf = logits.clone().requires_grad_()
    out = loss_named("dapo").from_logits(
        nested(leaf * 1), nested(targets), counts=counts, advantages=arrays["advantages"],
        in_place=in_place, **{name: nested(arrays[name]) for name in (
            "old_logp", "ref_logp", "weights", "kl_weights", "mask")})
    out.loss.backward()
    same((out.loss.detach(), leaf.grad, out.metrics.result, out.logp, out.entropies), want)


@pytest.mark.parametrize("name", ("dapo", "gspo"))
def test_without_a_gradient(name):
    """Evaluation reads the logits and keeps them, in place or not."""
    logits, targets, arrays, counts = random_step(19, "padded")
    loss, kept = loss_named(name), logits.clone()
    out = loss.from_logits(logits, targets, counts=counts, in_place=True, **arrays)
    with torch.no_grad():
        quiet = loss.from_logits(logits.clone().requires_grad_(), targets, counts=counts, **arrays)
    want = one_by_one(loss, logits, targets, arrays, counts)
    for got in (out, quiet):
        same((got.loss, got.metrics.result, got.logp, got.entropies),
             (want[0], *want[2:]))
    assert torch.equal(logits, kept) and not out.loss.requires_grad


@pytest.mark.parametrize("in_place", (False, True))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scaled(dtype, in_place):
    """A factor of the loss is one of the gradient, and is not rounded to the type of the logits.

    One rounding more than that of the calls one by one: an ulp. The whole gradient keeps its size
    within eps / 8; with a factor of bfloat16 it would be off by eps / 4."""
    logits, targets, arrays, counts = random_step(23, "padded", dtype)
    loss = loss_named("dapo")
    leaf = logits.clone().requires_grad_()
    out = loss.from_logits(leaf * 1, targets, counts=counts, in_place=in_place, **arrays)
    (out.loss / 7).backward()
    exact = one_by_one(loss, logits.double(), targets, arrays, counts)[1] / 7
    got = leaf.grad.double()
    eps = max(torch.finfo(dtype).eps, 2.0 ** -20)
    least = torch.finfo(dtype).tiny if dtype == torch.float16 else 0
    torch.testing.assert_close(got, exact, rtol=2 * eps, atol=max(1e-9, least))
    assert abs(float((got * exact).sum() / exact.square().sum()) - 1) < max(eps / 8, 1e-6)


@pytest.mark.parametrize("in_place", (False, True))
def test_scaled_float16_does_not_underflow(in_place):
    """Loss scaling, as of torch.amp.GradScaler, which begins with a factor of 65536."""
    logits, targets, arrays, counts = random_step(23, "padded", torch.float16)
    counts *= 4096  # a small share of a large step
    loss = loss_named("dapo")
    leaf = logits.clone().requires_grad_()
    out = loss.from_logits(leaf * 1, targets, counts=counts, in_place=in_place, **arrays)
    (out.loss * 65536).backward()
    exact = one_by_one(loss, logits.double(), targets, arrays, counts)[1] * 65536
    torch.testing.assert_close(leaf.grad.double(), exact, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 4)])
def test_scaled_tables(shape, dtype):
    """The operators alone: strides, and one rounding of the exact product."""
    wide = torch.randn(*shape[:-1], shape[-1] + 2, dtype=torch.float64).to(dtype)
    table = wide.transpose(0, -2)[..., :shape[-1]]
    by = torch.tensor(1 / 3)
    want = (table.float() * by if dtype != torch.float64 else table * by.double()).to(dtype)
    assert torch.equal(torch.ops.gdpo.scaled(table, by), want)
    copy = wide.clone()
    torch.ops.gdpo.scale_(copy.transpose(0, -2)[..., :shape[-1]], by)
    assert torch.equal(copy.transpose(0, -2)[..., :shape[-1]], want)
    assert torch.equal(copy[..., shape[-1]:], wide[..., shape[-1]:])


def test_in_place_needs_no_second_table():
    """The gradient is in the memory of the logits, and goes to what made them."""
    logits, targets, arrays, counts = random_step(29, "padded")
    weight = torch.eye(VOCABULARY, requires_grad=True)
    made = logits @ weight
    seen = []
    made.register_hook(lambda gradient: seen.append(gradient.data_ptr()))
    out = loss_named("dapo").from_logits(made, targets, counts=counts, in_place=True, **arrays)
    address = made.data_ptr()
    out.loss.backward()
    assert seen == [address] and weight.grad.abs().sum() > 0


@pytest.mark.parametrize("hooks", (False, True))
def test_in_place_backward_runs_once(hooks):
    """Also where hooks keep what is saved, and with it its version."""
    logits, targets, arrays, counts = random_step(31, "padded")
    leaf = logits.clone().requires_grad_()
    keep = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
    with keep if hooks else contextlib.nullcontext():
        out = loss_named("dapo").from_logits(leaf * 1, targets, counts=counts, in_place=True,
                                             **arrays)
    (2 * out.loss).backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="given a second backward; needed: one"):
        (2 * out.loss).backward()


def test_backward_twice_out_of_place():
    logits, targets, arrays, counts = random_step(31, "padded")
    leaf = logits.clone().requires_grad_()
    out = loss_named("dapo").from_logits(leaf * 1, targets, counts=counts, **arrays)
    (2 * out.loss).backward(retain_graph=True)
    once = leaf.grad.clone()
    (2 * out.loss).backward()
    assert torch.equal(leaf.grad, 2 * once)


def test_in_place_notices_a_change_of_the_gradient():
    """What holds the gradient is not to be used for anything else before backward."""
    logits, targets, arrays, counts = random_step(31, "padded")
    made = logits.clone().requires_grad_() * 1
    out = loss_named("dapo").from_logits(made, targets, counts=counts, in_place=True, **arrays)
    made.detach().mul_(2)
    with pytest.raises(RuntimeError, match="have been modified by an inplace operation since"):
        out.loss.backward()


def test_in_place_refuses_what_the_user_owns():
    """A leaf or a view of one would be overwritten, and its gradient be its own memory."""
    logits, targets, arrays, counts = random_step(31, "padded")
    leaf, kept = logits.clone().requires_grad_(), logits.clone()
    flat = logits.reshape(-1).clone().requires_grad_()
    for owned in (leaf, leaf[:], flat.view(logits.shape)):
        with pytest.raises(ValueError, match="in_place: given logits that are a leaf"):
            loss_named("dapo").from_logits(owned, targets, counts=counts, in_place=True, **arrays)
    assert torch.equal(leaf.detach(), kept)


def test_in_place_refuses_rows_that_share_memory():
    logits, targets, arrays, counts = random_step(31, "padded")
    made = logits.clone().requires_grad_() * 1
    for shared in (made[:1].expand_as(made), made[:, :1].expand_as(made),
                   made.as_strided(made.shape, (9 * VOCABULARY, VOCABULARY - 1, 1)),
                   made.as_strided(made.shape, (8 * VOCABULARY, VOCABULARY, 1))):
        with pytest.raises(ValueError, match="logits: given strides .*, which repeat elements"):
            loss_named("dapo").from_logits(shared, targets, counts=counts, in_place=True, **arrays)


def test_in_place_parts_of_a_table():
    """Slices and transposed tables are written where they lie, and nothing beside them."""
    logits, targets, arrays, counts = random_step(31, "padded")
    want = one_by_one(loss_named("dapo"), logits, targets, arrays, counts)
    wide = torch.cat([logits, logits[:, :1]], 1)
    for view, table in ((lambda x: x[:, :-1], wide),
                        (lambda x: x.transpose(0, 1), logits.transpose(0, 1).contiguous())):
        leaf = table.clone().requires_grad_()
        out = loss_named("dapo").from_logits(view(leaf * 1), targets, counts=counts, in_place=True,
                                             **arrays)
        out.loss.backward()
        assert torch.equal(view(leaf.grad), want[1])
    assert leaf.grad.shape == table.shape


def test_transforms_are_refused():
    """Within torch.func the loss would silently have no gradient."""
    logits, targets, arrays, counts = random_step(31, "padded")

    def loss(x):
        return loss_named("dapo").from_logits(x, targets, counts=counts, **arrays).loss

    for transform, of in ((torch.func.grad, logits), (torch.func.vmap, logits[None])):
        with pytest.raises(RuntimeError, match="not for the transforms of torch.func"):
            transform(loss)(of)


def test_in_place_tells_those_who_saved_the_logits():
    """A function that needs the logits for its backward does not get their gradient instead."""
    logits, targets, arrays, counts = random_step(37, "padded")
    made = logits.clone().requires_grad_() * 1
    other = (made * made).sum()
    out = loss_named("dapo").from_logits(made, targets, counts=counts, in_place=True, **arrays)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (out.loss + other).backward()


def test_no_second_derivative():
    logits, targets, arrays, counts = random_step(41, "padded")
    for in_place in (False, True):
        leaf = logits.clone().requires_grad_()
        out = loss_named("dapo").from_logits(leaf * 1, targets, counts=counts, in_place=in_place,
                                             **arrays)
        with pytest.raises(RuntimeError, match="no second derivative"):
            torch.autograd.grad(out.loss, leaf, create_graph=True)


def test_masked_tokens_are_not_read():
    """Their logits may be NaN and their targets no tokens; their gradient is 0."""
    logits, targets, arrays, counts = random_step(43, "padded")
    want = together(loss_named("dapo"), logits, targets, arrays, counts)
    masked = ~arrays["mask"]
    logits[masked], targets[masked] = float("nan"), -100
    leaf = logits.clone().requires_grad_()
    out = loss_named("dapo").from_logits(leaf, targets, counts=counts, **arrays)
    out.loss.backward()
    same((out.loss.detach(), leaf.grad, out.metrics.result, out.logp, out.entropies), want)
    assert leaf.grad[masked].abs().sum() == 0


@pytest.mark.parametrize("slip, error, words", [
    (dict(logp=torch.zeros(4, 9)), TypeError, "logp: given, and not an array of from_logits"),
    (dict(advantage=torch.zeros(4)), TypeError, "needed: one of"),
    (dict(targets=[1]), ValueError, "targets: given a list"),
    (dict(counts=torch.zeros(3)), ValueError, "counts"),
    (dict(temperature="1"), ValueError, "temperature: given '1'; needed: a number"),
    (dict(counts=None), ValueError, "counts: given a NoneType"),
], ids=str)
def test_slips(slip, error, words):
    logits, targets, arrays, counts = random_step(47, "padded")
    given = {"targets": targets, "counts": counts, **arrays, **slip}
    with pytest.raises(error) as refused:
        loss_named("dapo").from_logits(logits.requires_grad_(), given.pop("targets"), **given)
    assert words in str(refused.value)
    assert str(refused.value).startswith("gdpo::PolicyLoss.from_logits: ")


@pytest.mark.skipif(not shutil.which("c++"), reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("backend", ("aot_eager", "inductor"))
@pytest.mark.parametrize("in_place", (False, True))
def test_compiled(backend, in_place):
    """Traced whole; inductor's own product may differ by a few ulp of float32: 1e-6."""
    torch._dynamo.reset()
    logits, targets, arrays, counts = random_step(53, "padded")
    loss = loss_named("grpo")

    def step(states, weight, targets, counts, arrays):
        out = loss.from_logits(states @ weight, targets, counts=counts, in_place=in_place, **arrays)
        return out.loss, out.logp, out.metrics.result

    results = []
    for function in (step, torch.compile(step, fullgraph=True, backend=backend)):
        weight = torch.eye(VOCABULARY, requires_grad=True)
        value, logp, result = function(logits, weight, targets, counts, arrays)
        value.backward()
        results.append((value.detach(), logp, result, weight.grad))
    for one, other in zip(*results):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
