"""gdpo.whiten beside its formula in plain PyTorch.

Tolerances: in float64 1e-12 of numbers of about 1, in float32 the rounding of the result, 1e-6.
Laws of bits are held to the bit.
"""
import inspect
import math

import pytest
import torch

import gdpo
from gdpo._settings import keywords

ops = torch.ops.gdpo


def batch(seed, rows=7, width=19, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, width, generator=g) > 0.3
    mask[2] = False
    return 3 + 2 * torch.randn(rows, width, generator=g, dtype=torch.float64).to(dtype), mask


def formula(values, mask, ddof=1, eps=1e-8, eps_at="var", count_eps=0.0, keep_mean=False):
    x = values.double()[mask]
    n = len(x)
    mean = x.sum() / (n + count_eps)
    var = ((x - mean) ** 2).sum() / (n + count_eps) * n / (n - ddof)
    divisor = {"var": (var + eps).sqrt(), "std": var.sqrt() + eps, "none": 1.0,
               "clamp_var": var.clamp(min=eps).sqrt()}[eps_at]
    out = torch.zeros_like(values, dtype=torch.float64)
    out[mask] = (x - mean) / divisor + (mean if keep_mean else 0.0)
    return out


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16, torch.float16))
@pytest.mark.parametrize("settings", [
    {}, {"ddof": 0}, {"eps": 0.3}, {"eps": 0.3, "eps_at": "std"}, {"keep_mean": True},
    {"count_eps": 0.5}, {"eps": 9.0, "eps_at": "clamp_var"}, {"eps_at": "none"}], ids=str)
def test_formula(settings, dtype):
    for seed in range(5):
        values, mask = batch(seed, dtype=dtype)
        got = gdpo.whiten(values, mask, **settings)
        assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        tolerance = 1e-12 if dtype == torch.float64 else 1e-6
        torch.testing.assert_close(got.double(), formula(values, mask, **settings),
                                   rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name, settings", [
    ("tokens", {}), ("verl::masked_whiten", {"count_eps": 1e-8}), ("nvlabs::masked_whiten", {}),
    ("openrlhf::batch_norm", {"ddof": 0, "eps_at": "clamp_var"}),
    ("nemo_rl::batch_norm", {"ddof": 0, "eps_at": "clamp_var"}), ("slime::whiten", {}),
    ("areal::masked_normalization", {"ddof": 0, "eps": 1e-5, "eps_at": "std"}),
    ("areal::adv_norm", {"eps": 1e-5, "eps_at": "std"})])
def test_names(name, settings):
    values, mask = batch(11)
    torch.testing.assert_close(gdpo.whiten(values, mask, name=name),
                               formula(values, mask, **settings), rtol=1e-12, atol=1e-12)


def test_names_are_all():
    listed = [mark.args[1] for mark in test_names.pytestmark if mark.name == "parametrize"][0]
    assert [name for name, _ in listed] == gdpo.whitenings()
    for name in gdpo.whitenings():
        values = {s.name: s.value for s in gdpo.estimator_settings(name, "whiten")}
        assert values["over"] == "tokens"
        # The same word sets the normalization of an estimator over tokens.
        scores, mask = torch.arange(4.0), torch.ones(4, 3)
        own = gdpo.token_advantages(estimator="verl::reinforce_plus_plus", row_rewards=scores,
                                    mask=mask, renorm=name).advantages
        plain = gdpo.token_advantages(estimator="verl::reinforce_plus_plus", row_rewards=scores,
                                      mask=mask, renorm="none").advantages
        torch.testing.assert_close(own, gdpo.whiten(plain, mask, name=name), rtol=1e-6, atol=1e-6)


def test_affine_maps():
    """Of a positive factor only the sign is left, and of a shift nothing, without eps."""
    values, mask = batch(1)
    want = gdpo.whiten(values, mask, eps=0)
    for factor, shift in ((4.0, 0.0), (0.25, 0.0)):  # powers of 2 change no bit
        assert torch.equal(gdpo.whiten(factor * values + shift, mask, eps=0), want)
    for factor, shift in ((3.7, -11.0), (1e-6, 5.0), (-2.0, 1.0)):
        torch.testing.assert_close(gdpo.whiten(factor * values + shift, mask, eps=0),
                                   math.copysign(1, factor) * want, rtol=1e-8, atol=1e-8)
    assert float(want[mask].mean()) == pytest.approx(0, abs=1e-14)
    assert float(want[mask].std()) == pytest.approx(1, rel=1e-14)


def test_masked_places_are_0_and_not_read():
    values, mask = batch(2)
    want = gdpo.whiten(values, mask)
    assert not want[~mask].any()
    for poison in (float("nan"), float("inf"), 1e300):
        assert torch.equal(gdpo.whiten(torch.where(mask, values, poison), mask), want)
    for other in (mask.float(), mask.to(torch.int64), mask.to(torch.uint8), 7 * mask.double()):
        assert torch.equal(gdpo.whiten(values, other), want)
    everything = torch.ones_like(mask)
    assert torch.equal(gdpo.whiten(values), gdpo.whiten(values, everything))


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16))
def test_equal_values_are_exactly_0(dtype):
    mask = batch(3)[1]
    for value in (0.1, 1 / 3, -7e4):
        values = torch.full(mask.shape, value, dtype=dtype)
        for settings in ({}, {"eps": 0}, {"eps": 0, "ddof": 0}):
            assert not gdpo.whiten(values, mask, **settings).any()
    assert not gdpo.whiten(values[:1, :1]).any()  # one value alone
    assert not gdpo.whiten(values, torch.zeros_like(mask)).any()  # and none


def test_a_nan_makes_all_nan():
    values, mask = batch(4)
    mask[0, 0] = True
    values[0, 0] = float("nan")
    got = gdpo.whiten(values, mask)
    assert got[mask].isnan().all() and not got[~mask].any()


def test_layouts_have_the_same_bits():
    values, mask = batch(5, 6, 19)
    want = gdpo.whiten(values, mask)
    strided = values.mT.contiguous().mT
    assert torch.equal(gdpo.whiten(strided, mask.mT.contiguous().mT), want)
    assert torch.equal(gdpo.whiten(values.reshape(2, 3, 19), mask.reshape(2, 3, 19)),
                       want.reshape(2, 3, 19))
    assert torch.equal(gdpo.whiten(values[mask]), want[mask])  # packed
    lengths = torch.tensor([4, 19, 0, 7, 1, 3])
    keep = torch.arange(19)[None] < lengths[:, None]
    offsets = torch.cat([torch.zeros(1), lengths.cumsum(0)]).long()
    nested = [torch.nested.nested_tensor_from_jagged(a[keep], offsets) for a in (values, mask)]
    assert torch.equal(gdpo.whiten(*nested), gdpo.whiten(values, mask & keep)[keep])
    integers = (10 * values).long()
    assert torch.equal(gdpo.whiten(integers, mask), gdpo.whiten(integers.double(), mask))


def test_nothing_is_changed_and_nothing_gets_a_gradient():
    values, mask = batch(6)
    before = values.clone()
    assert not gdpo.whiten(values.requires_grad_(), mask).requires_grad
    assert torch.equal(values, before)


def test_keywords():
    known = keywords("whitening")
    assert {"ddof", "eps", "eps_at", "count_eps", "keep_mean"} <= known.keys()
    assert known.keys() <= inspect.signature(gdpo.whiten).parameters.keys()
    text = " ".join(gdpo.whiten.__doc__.split())
    assert all(f"{keyword} ({s.name}): {s.meaning}" in text for keyword, s in known.items())


@pytest.mark.parametrize("call, words", [
    (lambda v, m: gdpo.whiten(v, m, name="verl::whiten"), "name: given 'verl::whiten'; needed: "),
    (lambda v, m: gdpo.whiten(v, m, over="batch"), "renorm.over: given batch; needed: tokens"),
    (lambda v, m: gdpo.whiten(v, m, eps=-1), "eps: given -1"),
    (lambda v, m: gdpo.whiten(v, m, low=1), "the setting 'low'; needed: one of over, ddof"),
    (lambda v, m: gdpo.whiten(v, m[:2]), "mask: given (2, 19); needed: (7, 19), the shape"),
    (lambda v, m: gdpo.whiten(v, m[0]), "mask: given another rank"),
    (lambda v, m: gdpo.whiten([[1.0]]), "values: given a list; needed: a torch.Tensor"),
    (lambda v, m: gdpo.whiten(v[0, 0]), "values: given "),
    (lambda v, m: gdpo.whiten(v, torch.full_like(v, -math.inf)), "mask: given infinities"),
])
def test_refusals(call, words):
    with pytest.raises(ValueError) as error:
        call(*batch(8))
    assert words in str(error.value) and "gdpo" in str(error.value)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
def test_opcheck(dtype):
    values, mask = batch(9, dtype=dtype)
    moments = ops.token_moments(values, mask)
    torch.library.opcheck(ops.token_moments.default, (values, mask))
    torch.library.opcheck(ops.whiten.default, (values, "tokens", mask))
    torch.library.opcheck(ops.whiten.default, (values, "verl::masked_whiten", mask, moments))
    assert torch.equal(ops.whiten(values, "tokens", mask, moments), gdpo.whiten(values, mask))
