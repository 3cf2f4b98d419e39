"""The operators for tensors of a device against those for the CPU.

They run on a simulated grid (grid/grid.cpp), whose library `cmake/dev python` builds and names in
GDPO_GRID, and on a CUDA device where there is one. Bits of gradients by log-probs and of
advantages are those of the CPU; at levels of sequences gradients are within 2 ulp of float32.
Losses and metrics are sums of the same terms in another order: 1e-6 of the sum of the absolute
terms, here of at most a few. What comes from logits is within 2e-6
(cuda/logits/device_logprobs.hpp).
"""
import dataclasses
import os
from typing import Any

import pytest
import torch

import gdpo
from batches import packed, random_batch
from gdpo._load import CUDA_MISSING
from gdpo._names import ARRAYS, VALUE_ARRAYS
from gdpo._settings import values_of

cpu = torch.ops.gdpo
HAS_CUDA = not CUDA_MISSING and torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason=CUDA_MISSING or "no CUDA device")
#: The bits of the CPU are those of a processor with FMA.
HAS_FMA = gdpo.instruction_set() != "baseline"


@dataclasses.dataclass
class Device:
    """Operators for tensors of a device, and where those are."""

    ops: Any
    where: torch.device

    def to(self, value: Any) -> Any:
        """The value there, tensors with the strides that they have."""
        if isinstance(value, torch.Tensor):
            if value.device.type == self.where.type or not value.numel():
                return value.to(self.where)
            first = value.storage_offset()
            whole = value.as_strided((value.untyped_storage().nbytes() // value.element_size(),),
                                     (1,), 0)
            return whole.to(self.where).as_strided(value.shape, value.stride(), first)
        return [self.to(v) for v in value] if isinstance(value, list) else value

    def call(self, name: str, *arguments: Any, **named: Any) -> tuple:
        """What an operator returns, on the CPU. It must leave its results on the device."""
        result = getattr(self.ops, name)(*map(self.to, arguments),
                                         **{key: self.to(value) for key, value in named.items()})
        result = (result,) if isinstance(result, torch.Tensor) else result
        assert all(r.device.type == self.where.type for r in result)
        return tuple(r.cpu() for r in result)


@pytest.fixture(scope="module", params=["grid", "cuda"] if HAS_CUDA else ["grid"])
def device(request) -> Device:
    if request.param == "cuda":
        return Device(cpu, torch.device("cuda"))
    if "GDPO_GRID" not in os.environ:
        pytest.skip("GDPO_GRID names no library: cmake/dev python builds it")
    torch.ops.load_library(os.environ["GDPO_GRID"])
    return Device(torch.ops.gdpo_grid, torch.device("cpu"))


def close(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> None:
    assert one.dtype == other.dtype
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> None:
    if not HAS_FMA:
        return close(one, other, 1e-6)
    assert one.dtype == other.dtype
    assert torch.equal(one.nan_to_num(7, 8, 9), other.nan_to_num(7, 8, 9))


LAYOUTS = ("padded", "packed", "rank 3", "strided")


def loss_arrays(layout: str, dtype: torch.dtype, seed: int = 5, rows: int = 6) -> dict:
    batch = random_batch(seed, rows, 41)
    names = ("logp", "old_logp", "ref_logp", "rollout_logp", "teacher_logp", "advantages",
             "weights", "kl_weights", "row_weights", "entropies", "entropy_weights")
    arrays = {name: batch.arrays[name].to(dtype) for name in names}
    arrays["mask"] = batch.mask
    if layout == "packed":
        batch.arrays = arrays
        lengths = torch.randint(0, 42, (rows,), generator=torch.Generator().manual_seed(seed))
        arrays = packed(batch, lengths, torch.int32)
    elif layout == "rank 3":
        arrays = {name: array.reshape(2, rows // 2, *array.shape[1:])
                  for name, array in arrays.items()}
    elif layout == "strided":
        arrays = {name: array.mT.contiguous().mT if array.dim() == 2 else array
                  for name, array in arrays.items()}
    return arrays


def listed(arrays: dict) -> list:
    return [arrays.get(name) for name in ARRAYS]


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16), ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", gdpo.losses())
def test_losses(device, name, layout, dtype):
    arrays = loss_arrays(layout, dtype)
    counts = cpu.count(*listed({key: arrays.get(key) for key in ("mask", "offsets")}))
    counts[3] = 50
    needs = {"aggregate.constant": 40} if "dr_grpo" in name else {}
    line = gdpo.PolicyLoss(name, kl="k3", beta=0.1, entropy_coef=0.2, **needs).line
    of_tokens = values_of(line)["level"] == "token"
    for gradient in (True, False):
        want = cpu.policy_loss(line, counts, gradient, gradient, *listed(arrays))
        got = device.call("policy_loss_forward", line, counts, gradient, gradient, *listed(arrays))
        close(got[0], want[0], 1e-6)
        if of_tokens:
            same_bits(got[1], want[1])
        else:  # of sequences: 2 ulp
            close(got[1], want[1], 2.0 ** -22 if dtype != torch.float64 else 1e-10)
        same_bits(got[2], want[2])
        close(got[3], want[3], 1e-5)
    assert gradient is False and got[1].shape == got[2].shape == (0,)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16), ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", gdpo.value_losses())
def test_value_losses(device, name, layout, dtype):
    arrays = loss_arrays(layout, dtype)
    given = {"values": arrays["logp"], "old_values": arrays["old_logp"],
             "returns": arrays["ref_logp"], "mask": arrays["mask"],
             "offsets": arrays.get("offsets"), "row_weights": arrays["row_weights"]}
    counts = cpu.count(*listed({key: arrays.get(key) for key in ("mask", "offsets")}))
    line = gdpo.ValueLoss(name, clip=0.2).line
    given = [given.get(key) for key in VALUE_ARRAYS]
    for gradient in (True, False):
        want = cpu.value_loss(line, counts, gradient, *given)
        got = device.call("value_loss", line, counts, gradient, *given)
        close(got[0], want[0], 1e-6)
        same_bits(got[1], want[1])
        close(got[2], want[2], 1e-5)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16), ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_prepare(device, layout, dtype):
    arrays = loss_arrays(layout, dtype)
    arrays["tags"] = -arrays["entropies"]
    arrays["truncated"] = torch.arange(6) % 2
    if layout == "rank 3":
        arrays["truncated"] = arrays["truncated"].reshape(2, 3)
    degenerate, groups = torch.arange(6) % 3, torch.arange(6) // 2
    lines = [f"{name} 0.7" if name == "top_entropy" else name for name in gdpo.prepasses()]
    lines += ["gate estimator=k2 statistic=segment_mean max=0.1", "mean_one of=rows",
              "importance statistic=group_mean", "covariance pick=top share=0.1 keep=picked",
              "importance reach=level", "trl::sequence_truncate reach=level"]
    together = [["trl::sequence_truncate", "mean_one", "overlong", "top_entropy 0.5"], [],
                ["overlong", "areal::m2po", "verl::clip_cov", "trl::token_truncate"]]
    for passes in [[line] for line in lines] + together:
        want = cpu.prepare(passes, degenerate, groups, *listed(arrays))
        got = device.call("prepare", passes, degenerate, groups, *listed(arrays))
        assert torch.equal(got[0], want[0]), passes
        # Where the processor has no FMA, e^x may be off by an ulp or two.
        for one, other in zip(got[1:], want[1:]):
            close(one, other, 1e-14 if one.dtype == torch.float64 else 2.0 ** -22)


@pytest.mark.parametrize("setting", ["sequence", "sequence_token", "token kl=k1+ kl.against=old",
                                     "token kl=k2 kl.against=rollout", "token surrogate.dual=1.5",
                                     "sequence level.bounds.lo=-0.1 level.bounds.hi=0.1"])
def test_settings(device, setting):
    arrays = loss_arrays("padded", torch.float32, 7)
    counts = cpu.count(*listed({"mask": arrays["mask"]}))
    line = f"grpo {setting} kl.beta=0.3"
    want = cpu.policy_loss(line, counts, True, False, *listed(arrays))
    got = device.call("policy_loss", line, counts, True, False, *listed(arrays))
    for one, other, tolerance in zip(got, want, (1e-6, 2.0 ** -22, 0, 1e-5)):
        close(one, other, tolerance)


@pytest.mark.parametrize("arrays", [
    dict(mask=torch.rand(5, 9) > 0.4), dict(mask=torch.randint(0, 2, (5, 9)).float()),
    dict(logp=torch.zeros(5, 9)), dict(token_advantages=torch.zeros(5, 9)),
    dict(mask=torch.rand(11) > 0.4, offsets=torch.tensor([0, 3, 3, 11])),
    dict(offsets=torch.tensor([0, 1, 4], dtype=torch.int32)), dict(mask=torch.ones(0, 3)),
], ids=lambda arrays: " ".join(arrays))
def test_counts(device, arrays):
    assert torch.equal(device.call("count", **arrays)[0], cpu.count(**arrays))


def some_groups(rows: int) -> list:
    g = torch.Generator().manual_seed(rows)
    ids = torch.randint(-3, 4, (rows,), generator=g)
    offsets = torch.tensor([0, 3, 3, 7, rows])
    return [dict(group_size=4), dict(group_ids=ids), dict(group_ids=ids.int()),
            dict(group_offsets=offsets), dict(group_offsets=offsets.int()),
            dict(group_ids=torch.arange(rows).flip(0) // 2 * 2 ** 40)]


@pytest.mark.parametrize("estimator", gdpo.estimators())
def test_advantages(device, estimator):
    """Of every estimator, with every kind of groups and rewards."""
    rows = 24
    g = torch.Generator().manual_seed(1)
    rewards = torch.randn(rows, 3, generator=g, dtype=torch.float64)
    rewards[4:8] = 1  # a group without a signal
    columns = dict(tokens=torch.randint(1, 90, (rows,), generator=g),
                   baseline=torch.randn(rows, generator=g))
    missing = rewards.clone()
    missing[torch.rand(rows, 3, generator=g) < 0.2] = float("nan")
    valid = torch.arange(rows) % 5 != 3
    for groups in some_groups(rows):
        for given in (rewards, rewards.float(), rewards[:, 0].bfloat16(), (3 * rewards).long(),
                      rewards.mT.contiguous().mT[::1, :2], missing):
            for more in ({}, {"valid": valid}):
                want, report = cpu.advantages(given, estimator, **groups, **columns, **more)
                got, empty = device.call("advantages", given, estimator, **groups, **columns,
                                         **more)
                if "group_ids" in groups or more or given is missing:
                    # Sums over the batch are added in another order: 2^-44 in double, and less
                    # than an ulp of float32.
                    close(got, want, 2.0 ** -43 if want.dtype == torch.float64 else 2.0 ** -23)
                else:
                    same_bits(got, want)
                assert empty.shape == report.shape and empty.isnan().all()


def test_weights_and_gates(device):
    rewards = torch.randn(16, 3, generator=torch.Generator().manual_seed(2))
    arguments = (rewards, "gdpo", 4, None, None, [1.0, 0.5, 0.0], [1.0, 0.0, 0.2])
    same_bits(device.call("advantages", *arguments)[0], cpu.advantages(*arguments)[0])


@pytest.mark.parametrize("line", ["grpo scale.of=batch", "grpo scale.of=within scale.eps=0.1",
                                  "gdpo missing.entry=zero renorm.eps=0.2", "grpo singleton=raw",
                                  "grpo penalty.coef=0.3"])
def test_estimator_settings(device, line):
    rewards = torch.randn(16, 2, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    rewards[3, 1] = float("nan")
    groups = dict(group_offsets=torch.tensor([0, 4, 5, 16]), penalty=torch.arange(16.0))
    close(device.call("advantages", rewards, line, **groups)[0],
          cpu.advantages(rewards, line, **groups)[0], 2.0 ** -43)


def test_many_rows_by_id(device):
    """More ids than a block has threads, one group of which is large."""
    g = torch.Generator().manual_seed(3)
    ids = torch.where(torch.rand(3000, generator=g) < 0.3, 5,
                      torch.randint(0, 700, (3000,), generator=g))
    rewards = torch.randn(3000, 2, generator=g, dtype=torch.float64)
    for estimator in ("grpo", "gdpo", "rloo"):
        close(device.call("advantages", rewards, estimator, group_ids=ids)[0],
              cpu.advantages(rewards, estimator, group_ids=ids)[0], 2.0 ** -43)


@pytest.mark.parametrize("rows", (0, 1))
def test_few_rows(device, rows):
    for groups in (dict(group_size=1), dict(group_ids=torch.zeros(rows, dtype=torch.int64)),
                   dict(group_offsets=torch.tensor([0, rows]))):
        rewards = torch.ones(rows, 2)
        assert torch.equal(device.call("advantages", rewards, "grpo", **groups)[0],
                           cpu.advantages(rewards, "grpo", **groups)[0])


def logits_of(layout: str, dtype: torch.dtype, vocabulary: int = 61) -> tuple:
    arrays = {name: array for name, array in loss_arrays(layout, torch.float32, 9).items()
              if name != "entropies"}
    shape = arrays.pop("logp").shape
    g = torch.Generator().manual_seed(4)
    logits = (3 * torch.randn(*shape, vocabulary, generator=g)).to(dtype)
    return logits, torch.randint(vocabulary, shape, generator=g), arrays


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16, torch.float16),
                         ids=str)
@pytest.mark.parametrize("layout", ("padded", "packed"))
def test_token_logprobs(device, layout, dtype):
    logits, targets, arrays = logits_of(layout, dtype)
    mask = arrays["mask"]
    want = cpu.token_logprobs(logits, targets, mask, 0.8)
    got = device.call("token_logprobs", logits, targets, mask, 0.8)
    for one, other in zip(got, want):
        close(one, other, 2e-6)
    of_logp, of_entropy = torch.randn(2, *targets.shape)
    for gradients in ((of_logp, of_entropy), (of_logp, None), (None, of_entropy)):
        arguments = (*gradients, logits, targets, mask, 0.8, want[2], want[1])
        one = device.call("token_logprobs_backward", *arguments)[0]
        other = cpu.token_logprobs_backward(*arguments)
        close(one.double(), other.double(), 1e-5 + torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16, torch.float16),
                         ids=str)
@pytest.mark.parametrize("layout", ("padded", "packed"))
@pytest.mark.parametrize("name", ("dapo", "gspo", "gspo_token", "verl::vanilla",
                                  "dapo entropy.coef=0.3", "gspo entropy.coef=0.3"))
def test_loss_from_logits(device, name, layout, dtype):
    logits, targets, arrays = logits_of(layout, dtype)
    counts = cpu.count(*listed({key: arrays.get(key) for key in ("mask", "offsets")}))
    arguments = (f"{name} kl=k3 kl.beta=0.1", counts, logits, targets, 1.1, *listed(arrays))
    want = cpu.policy_loss_from_logits(*arguments)
    got = device.call("policy_loss_from_logits", *arguments)
    for one, other, tolerance in zip(got, want, (1e-5, 1e-5, 1e-4, 2e-6, 2e-6)):
        if other.dtype in (torch.bfloat16, torch.float16):
            tolerance = torch.finfo(other.dtype).eps
        close(one, other, tolerance)
    # In place it gives the same bits.
    on_device = [device.to(argument) for argument in arguments]
    on_device[2] = on_device[2].clone()
    rest = device.ops.policy_loss_from_logits_(*on_device)
    for one, other in zip((rest[0], on_device[2], *rest[1:]), got):
        assert torch.equal(one.cpu().nan_to_num(), other.nan_to_num())


COUNTS, LOGP = torch.ones(4, dtype=torch.float64), torch.zeros(2, 3)


@pytest.mark.parametrize("words, name, arguments, arrays", [
    ("batch.logp: given no array", "policy_loss", ("grpo", COUNTS, True, False), {}),
    ("'grop'", "policy_loss", ("grop", COUNTS, True, False), dict(logp=LOGP)),
    ("counts: given another tensor", "policy_loss", ("dapo", COUNTS[:3], True, False),
     dict(logp=LOGP, advantages=torch.zeros(2))),
    ("batch.advantages, batch.token_advantages", "policy_loss", ("dapo", COUNTS, True, False),
     dict(logp=LOGP)),
    ("batch.segments: given float32", "policy_loss", ("dapo", COUNTS, True, False),
     dict(logp=LOGP, segments=LOGP)),
    ("surrogate.low", "policy_loss", ("dapo surrogate.low=-1", COUNTS, True, False),
     dict(logp=LOGP, advantages=torch.zeros(2))),
    ("given none of them; needed: one of them", "advantages", (torch.zeros(4), "gdpo"), {}),
    ("'gdop'", "advantages", (torch.zeros(4), "gdop", 2), {}),
    ("a last group", "advantages", (torch.zeros(5), "gdpo", 2), {}),
    ("groups_of: K: given -2", "advantages", (torch.zeros(5), "gdpo", -2), {}),
    ("groups: given 4 ids", "advantages", (torch.zeros(5), "gdpo"),
     dict(group_ids=torch.zeros(4, dtype=torch.int64))),
    ("group_ids: given float32", "advantages", (torch.zeros(5), "gdpo"),
     dict(group_ids=torch.zeros(5))),
    ("no entries", "advantages", (torch.zeros(5), "gdpo"),
     dict(group_offsets=torch.zeros(0, dtype=torch.int64))),
    ("weights: given 3", "advantages", (torch.zeros(4, 2), "gdpo", 2, None, None, [1.0, 1, 1]), {}),
    ("batch.tokens", "advantages", (torch.zeros(4, 2), "verl::gdpo", 2), {}),
    ("batch.old_logp", "policy_loss", ("dapo", COUNTS, True, False),
     dict(logp=LOGP, advantages=torch.zeros(2), old_logp=torch.zeros(2, 4))),
    ("which repeat elements", "policy_loss_from_logits_",
     ("dapo", COUNTS, torch.zeros(1, 4).expand(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64),
      1.0), dict(advantages=torch.zeros(2))),
    ("(rows) or (rows, rewards)", "advantages", (torch.zeros(2, 2, 2), "gdpo", 2), {}),
    ("targets", "token_logprobs", (torch.zeros(3, 4), torch.zeros(2, dtype=torch.int64)), {}),
    ("logits: given int32", "token_logprobs",
     (torch.zeros(3, 4).int(), torch.zeros(3, dtype=torch.int64)), {}),
    ("batch.logp: given an array", "policy_loss_from_logits",
     ("dapo", COUNTS, torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64), 1.0),
     dict(logp=LOGP)),
], ids=lambda value: value if isinstance(value, str) else "")
def test_errors(device, words, name, arguments, arrays):
    """Mistakes that shapes and settings show are refused in the words of the CPU."""
    messages = []
    for call in (device.call, lambda name, *rest, **named: getattr(cpu, name)(*rest, **named)):
        with pytest.raises((RuntimeError, ValueError)) as refused:
            call(name, *arguments, **arrays)
        messages.append(str(refused.value).split("\nException raised from")[0])
    assert words in messages[0]
    if device.where.type == "cpu":
        assert messages[0] == messages[1]


def test_constraints_are_for_the_cpu(device):
    with pytest.raises((RuntimeError, ValueError),
                       match="constraints: given some, with rewards on a device"):
        device.call("advantages", torch.zeros(4, 2), "gdpo", 2, None, None, None, None,
                    [0.0, 1, 0, 1, 1])


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16, torch.float16),
                         ids=str)
@pytest.mark.parametrize("factor", (1.0, 1 / 3))
def test_scaled(device, dtype, factor):
    by = torch.tensor(factor)
    for shape in ((3, 700), (4, 5, 31)):
        table = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        for view in (table, table.transpose(0, -2)):
            want = cpu.scaled(view, by)
            assert torch.equal(device.call("scaled", view, by)[0], want)
            written = device.to(view).clone()
            device.ops.scale_(written, device.to(by))
            assert torch.equal(written.cpu(), want)


# On a CUDA device, through the surface.

def step_on(where: str, loss: gdpo.PolicyLoss, *, in_place: bool = False) -> list:
    """A step of training: advantages, counts, log-probs, and the loss in both ways."""
    logits, targets, arrays = logits_of("padded", torch.float32)
    arrays = {name: array.to(where) for name, array in arrays.items()}
    rewards = torch.randn(6, 2, generator=torch.Generator().manual_seed(6)).to(where)
    targets, mask = targets.to(where), arrays["mask"]
    weight = torch.eye(logits.shape[-1], device=where, requires_grad=True)
    states = logits.to(where)
    if where != "cpu":
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
    try:
        arrays["advantages"] = gdpo.advantages(rewards, group_size=3)
        counts = gdpo.count(mask=mask)
        logp = gdpo.token_logprobs(states @ weight, targets, mask=mask).logp
        one, metrics = loss(logp, counts=counts, **arrays)
        other = loss.from_logits(states @ weight, targets, counts=counts, in_place=in_place,
                                 **arrays)
        (one + other.loss).backward()
    finally:
        if where != "cpu":
            torch.cuda.set_sync_debug_mode("default")
    return [arrays["advantages"], counts, one.detach(), other.loss.detach(), metrics.result,
            other.metrics.result, weight.grad]


@needs_cuda
@pytest.mark.parametrize("in_place", (False, True))
@pytest.mark.parametrize("name", ("dapo", "gspo"))
def test_cuda_step(name, in_place):
    """No call waits for the device."""
    for got, want in zip(step_on("cuda", gdpo.PolicyLoss(name), in_place=in_place),
                         step_on("cpu", gdpo.PolicyLoss(name), in_place=in_place)):
        close(got.cpu(), want, 1e-4)


@needs_cuda
def test_cuda_side_stream():
    """Work is enqueued on the current stream."""
    want = step_on("cuda", gdpo.PolicyLoss("dapo"))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = step_on("cuda", gdpo.PolicyLoss("dapo"))
    torch.cuda.current_stream().wait_stream(stream)
    for one, other in zip(got, want):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())


@needs_cuda
def test_cuda_graph():
    """Captured once and replayed on other numbers."""
    logits, targets, arrays = logits_of("padded", torch.float32)
    arrays = {name: array.cuda() for name, array in arrays.items()}
    rewards, states, targets = torch.randn(6, 2).cuda(), logits.cuda(), targets.cuda()

    def step() -> list:
        arrays["advantages"] = gdpo.advantages(rewards, group_ids=torch.arange(6).cuda() // 3
                                               if not torch.cuda.is_current_stream_capturing()
                                               else ids)
        counts = cpu.count(mask=arrays["mask"])
        return list(cpu.policy_loss_from_logits("dapo", counts, states, targets, 1.0,
                                                *listed(arrays)))

    ids = torch.arange(6).cuda() // 3
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    rewards.normal_()
    states.normal_()
    graph.replay()
    torch.cuda.synchronize()
    for got, want in zip(captured, step()):
        assert torch.equal(got.nan_to_num(), want.nan_to_num())


@needs_cuda
def test_cuda_counts_of_the_cpu():
    """Counts may stay on the CPU, where they are checked."""
    arrays = {name: array.cuda() for name, array in loss_arrays("padded", torch.float32).items()}
    logp = arrays.pop("logp")
    counts = gdpo.count(mask=arrays["mask"])
    loss = gdpo.PolicyLoss("dapo")
    want = loss(logp, counts=counts, **arrays)
    got = loss(logp, counts=counts.cpu(), **arrays)
    assert torch.equal(got.loss, want.loss)
    with pytest.raises(ValueError, match="normalizer"):
        loss(logp, counts=torch.full((4,), -1.0, dtype=torch.float64), **arrays)
    with pytest.raises(ValueError, match="mask: given a tensor on cpu; needed: one on cuda"):
        loss(logp, counts=counts, **{**arrays, "mask": arrays["mask"].cpu()})


@needs_cuda
def test_cuda_what_is_computed_on_the_cpu():
    """Report and constraints: the numbers of the CPU, tensors on the device."""
    rewards = torch.randn(8, 2)
    constraint = [(1, 0.5, 0.1, 1.0, "at_least")]
    for constraints in ((), constraint):
        want = gdpo.advantages(rewards, group_size=4, constraints=constraints, report=True)
        got = gdpo.advantages(rewards.cuda(), group_size=4, constraints=constraints, report=True)
        assert got.advantages.is_cuda and torch.equal(got.advantages.cpu(), want.advantages)
        assert got.report.to_dict() == want.report.to_dict()


@needs_cuda
def test_cuda_tokens_and_steps_are_computed_on_the_cpu():
    rewards, ids, mask = torch.randn(8), torch.arange(8) // 2, torch.arange(3) < torch.arange(8)[
        :, None]
    arrays = {name: torch.rand(8, 3) for name in ("logp", "sum_pi_squared")}

    def outputs(device):
        given = {name: array.to(device) for name, array in arrays.items()}
        on = {"group_size": 4, "mask": mask.to(device)}
        return [*gdpo.outcome_advantages(rewards.to(device), **on),
                *gdpo.token_advantages(row_rewards=rewards.to(device), values=given["logp"],
                                       mask=on["mask"]),
                gdpo.step_advantages(rewards.to(device), group_size=4, episode_ids=ids.to(device),
                                     state_ids=ids.to(device) % 2),
                gdpo.optimal_token_baseline(given["logp"], **given, **on)]

    for ours, want in zip(outputs("cuda"), outputs("cpu")):
        assert ours.is_cuda and torch.equal(ours.cpu(), want)


@needs_cuda
def test_cuda_prepare_does_not_wait():
    arrays = loss_arrays("padded", torch.float32)
    given = {name: arrays[name].cuda() for name in ("old_logp", "rollout_logp", "mask")}
    gdpo.prepare("trl::token_truncate", **given)  # loads the kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        prepared = gdpo.prepare(["trl::sequence_truncate", "areal::m2po"], **given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(tensor.is_cuda for tensor in prepared)


def mismatch_arrays(layout: str, dtype: torch.dtype) -> dict:
    names = ("logp", "old_logp", "rollout_logp", "weights", "mask", "offsets")
    arrays = loss_arrays(layout, dtype, 9)
    arrays = {name: array for name, array in arrays.items() if name in names}
    arrays["rollout_logp"].view(-1)[3] = float("nan")
    arrays["completion_mask"] = torch.ones_like(arrays["mask"])
    return arrays


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16), ids=str)
@pytest.mark.parametrize("layout", ("padded", "packed", "rank 3"))
def test_mismatch(device, layout, dtype):
    """Counts and places are those of the CPU. Its operator is compiled without FMA: terms are
    within a few ulp of each other, and differences of them within 1e-12."""
    arrays = mismatch_arrays(layout, dtype)
    for keys, settings, first_row in (("", "", 0), ("verl", "clamp=0.2 empty_rows=true", 7)):
        want = cpu.mismatch(keys, 2.0, settings, first_row, *listed(arrays))
        got, = device.call("mismatch", keys, 2.0, settings, first_row, *listed(arrays))
        assert got.shape == want.shape and got.dtype == torch.uint8
        names, wanted = cpu.mismatch_map(want, "", "", 0)
        same_names, numbers = cpu.mismatch_map(got, "", "", 0)
        assert same_names == names
        close(numbers, wanted, 1e-12)
        merged = cpu.merge_mismatch(want, got)  # the settings are the same
        assert cpu.mismatch_map(merged, "", "", 0)[0] == names
    with pytest.raises((RuntimeError, ValueError), match="rollout_logp"):
        device.call("mismatch", "", 2.0, "", 0, *listed({**arrays, "rollout_logp": None}))
    with pytest.raises((RuntimeError, ValueError), match="clmp"):
        device.call("mismatch", "", 2.0, "clmp=1", 0, *listed(arrays))


@needs_cuda
def test_mismatch_stays_on_the_device():
    arrays = mismatch_arrays("padded", torch.float32)
    on = {name: array.cuda() for name, array in arrays.items()}
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        report = gdpo.mismatch(**on)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert report.data.is_cuda
    want = gdpo.mismatch(**arrays)
    assert report["scored"] == want["scored"]
    assert report["k3_kl"] == pytest.approx(want["k3_kl"], rel=1e-9)
    assert report.merge(want)["scored"] == 2 * want["scored"]
