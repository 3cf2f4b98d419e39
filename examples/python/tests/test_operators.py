"""torch.ops.gdpo inside of PyTorch's machinery: opcheck, torch.compile, export, tracing.

Compiled code calls the same operators, so losses and gradients have the bits of eager mode.
"""
import shutil

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import gdpo
from batches import packed, random_batch
from gdpo._names import ARRAYS

ops = torch.ops.gdpo
#: What opcheck can test of operators that return text, which it cannot compare.
TEXT = ("test_schema", "test_autograd_registration", "test_faketensor")


def checked(operator, arguments, **kwargs) -> None:
    torch.library.opcheck(operator.default, arguments, **kwargs)


def loss_arguments(layout: str, dtype: torch.dtype, gradient: bool) -> tuple:
    """Arguments of policy_loss in their order, with all arrays that "grpo" reads."""
    batch = random_batch(51, 4, 7)
    arrays = {name: batch.arrays[name] for name in (
        "logp", "old_logp", "ref_logp", "advantages", "weights", "kl_weights", "row_weights",
        "entropies")}
    if layout == "packed":
        batch.arrays = arrays
        arrays = packed(batch, torch.tensor([7, 7, 3, 7]), torch.int32)
    else:
        arrays["mask"] = batch.mask
    if layout == "rank 3":
        arrays = {name: array.reshape(2, 2, *array.shape[1:]) for name, array in arrays.items()}
    arrays = {name: array.to(dtype) if array.is_floating_point() else array
              for name, array in arrays.items()}
    for name in ("logp", "entropies"):
        arrays[name].requires_grad_(gradient)
    counts = torch.tensor(batch.counts(), dtype=torch.float64)
    return ("grpo entropy.coef=0.5", counts, gradient, gradient,
            *[arrays.get(name) for name in ARRAYS])


# opcheck: schema, autograd registration, fake tensors and AOT dispatch with dynamic shapes.

@pytest.mark.parametrize("layout", ("padded", "packed", "rank 3"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
@pytest.mark.parametrize("gradient", (True, False))
def test_policy_loss(layout, dtype, gradient):
    checked(ops.policy_loss, loss_arguments(layout, dtype, gradient))


@pytest.mark.skipif(not hasattr(ops, "policy_loss_forward"), reason="not in this version")
@pytest.mark.parametrize("gradient", (True, False))
def test_policy_loss_forward(gradient):
    """The operator without a derivative of its own, which eager mode calls."""
    arguments = loss_arguments("padded", torch.float32, False)
    checked(ops.policy_loss_forward, (*arguments[:2], gradient, gradient, *arguments[4:]))


@pytest.mark.skipif(not hasattr(ops, "prepare"), reason="not in this version")
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
def test_prepare(dtype):
    batch = random_batch(53, 4, 7)
    arrays = {name: batch.arrays[name].to(dtype) for name in ("old_logp", "rollout_logp")}
    for mask in (batch.mask, None):
        checked(ops.prepare, (["trl::token_truncate"],), kwargs={**arrays, "mask": mask})
        checked(ops.prepare, (["trl::sequence_truncate reach=level", "mean_one reach=entropy"],),
                kwargs={**arrays, "mask": mask})


@pytest.mark.parametrize("arrays", [
    dict(mask=torch.ones(2, 3, dtype=torch.bool)), dict(logp=torch.zeros(2, 3)),
    dict(mask=torch.ones(4), offsets=torch.tensor([0, 1, 4])),
    dict(offsets=torch.tensor([0, 1, 4], dtype=torch.int32)),
], ids=lambda arrays: " ".join(arrays))
def test_count(arrays):
    checked(ops.count, (), kwargs=arrays)


@pytest.mark.parametrize("rewards", [torch.rand(8), torch.rand(8, 2), torch.rand(8, 3).double(),
                                     torch.rand(8, 2).bfloat16(), torch.arange(8)], ids=str)
def test_advantages(rewards):
    checked(ops.advantages, (rewards, "gdpo", 4))
    checked(ops.advantages, (rewards, "gdpo", 4), kwargs=dict(report=False))
    checked(ops.advantages, (rewards, "verl::gdpo"),
            kwargs=dict(group_ids=torch.tensor([0, 1] * 4), tokens=torch.arange(8)))


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
@pytest.mark.parametrize("shape", [(3, 7), (2, 3, 7)])
@pytest.mark.parametrize("gradient", (True, False))
def test_token_logprobs(dtype, shape, gradient):
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    targets = torch.arange(logits[..., 0].numel()).reshape(shape[:-1])
    mask = targets != 1
    checked(ops.token_logprobs, (logits.clone().requires_grad_(gradient), targets))
    checked(ops.token_logprobs, (logits.clone().requires_grad_(gradient), targets, mask, 0.7))
    _, entropy, logsumexp = ops.token_logprobs(logits, targets, mask)
    ones = torch.ones(shape[:-1])
    for gradients in ((ones, ones), (ones, None), (None, ones)):
        checked(ops.token_logprobs_backward,
                (*gradients, logits, targets, mask, 1.0, logsumexp, entropy))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("layout", ("padded", "packed"))
@pytest.mark.parametrize("gradient", (True, False))
def test_policy_loss_from_logits(layout, dtype, gradient):
    line, counts, _, _, logp, *arrays = loss_arguments(layout, torch.float32, False)
    arrays[ARRAYS.index("entropies") - 1] = None  # those of the logits
    logits = torch.randn(*logp.shape, 5, generator=torch.Generator().manual_seed(2)).to(dtype)
    targets = torch.zeros(logp.shape, dtype=torch.int64)
    arguments = (targets, 0.9, None, *arrays)
    checked(ops.policy_loss_from_logits, (line, counts, logits.requires_grad_(gradient),
                                          *arguments))
    # Whoever calls the form in place gives the derivative himself, as gdpo.PolicyLoss does.
    checked(ops.policy_loss_from_logits_, (line, counts, logits.detach().clone(), *arguments))


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
def test_scaled(dtype):
    for shape in ((3, 5), (2, 3, 5)):
        table, by = torch.randn(shape).to(dtype), torch.tensor(0.3)
        checked(ops.scaled, (table, by))
        checked(ops.scale_, (table, by))


def test_text():
    """Lists of names, the instruction set and the check of a loss: text in, text out."""
    for arguments in (("losses",), ("estimators",), ("result",), ("report", 3)):
        checked(ops.names, arguments, test_utils=TEXT)
    checked(ops.instruction_set, (), test_utils=TEXT)
    checked(ops.settings, ("loss", "grpo"), test_utils=TEXT)
    checked(ops.configure, ("loss", "grpo low=0.1"), test_utils=TEXT)
    checked(ops.loss_over, ("grpo",), test_utils=TEXT)


def result_numbers() -> torch.Tensor:
    """Those of a micro-batch, half of a step."""
    line, counts, *arguments = loss_arguments("padded", torch.float32, False)
    return ops.policy_loss(line, 2 * counts, *arguments)[3]


def report_numbers() -> torch.Tensor:
    return ops.advantages(torch.rand(8, 2), "gdpo", 4)[1]


def test_maps_and_merges():
    """Schemas of the operators for logs, which run outside of compiled code."""
    result, report = result_numbers(), report_numbers()
    schema = dict(test_utils=("test_schema", "test_autograd_registration"))
    checked(ops.merge_results, (result, result), **schema)
    checked(ops.merge_reports, (report, report), **schema)
    checked(ops.metrics_map, (result, "a/"), **schema)
    checked(ops.report_map, (report, "a/", ["one", "two"], "groups", "batch"), **schema)


@pytest.mark.parametrize("operator, numbers", [(ops.merge_results, result_numbers),
                                               (ops.merge_reports, report_numbers)], ids=str)
def test_merges_with_fake_tensors(operator, numbers):
    checked(operator, (numbers(), numbers()), test_utils=("test_faketensor",))


def test_every_operator_is_checked():
    """A new operator needs its line above."""
    known = {"policy_loss", "policy_loss_forward", "policy_loss_from_logits",
             "policy_loss_from_logits_", "scaled", "scale_", "settings", "configure",
             "loss_over", "count",
             "count_groups", "count_group_tokens", "contrastive_loss",  # test_contrastive.py
             "value_loss", "value_metrics_map", "explained_variance",
             "merge_value_results",  # test_value_loss.py
             "whiten", "token_moments",  # test_whiten.py
             "token_logprobs", "token_logprobs_backward", "advantages",
             "explain",  # test_explain.py
             "prepare", "names", "mismatch", "merge_mismatch", "mismatch_map",
             "metrics_map", "merge_results", "report_map", "merge_reports", "diagnose", "pid",
             "adaptive_entropy",  # test_entropy.py
             "token_advantages", "outcome_advantages", "step_advantages",
             "optimal_token_baseline",  # test_token_advantages.py
             "shape_rewards", "measure", "merge_moments", "running_moments", "ema_baseline",
             "observe_returns", "return_scale",  # test_running.py
             "agree", "all_merge", "gather_rows", "gather_tokens", "grad_scale", "step_open",
             "step_given", "step_add", "step_finish", "step_close", "token_advantages_of_ranks",
             "outcome_advantages_of_ranks",  # test_ranks.py
             "plan", "pack", "select_groups", "clip_grad_norm", "polyak",  # test_update.py
             "instruction_set", "version", "near"}  # test_library.py
    registered = {name.split("::")[1].split(".")[0]
                  for name in torch._C._dispatch_get_all_op_names() if name.startswith("gdpo::")}
    assert registered - known == set()


def test_arrays_are_those_of_the_schema():
    """policy_loss takes its arrays in the order in which count does: _arrays relies on it."""
    names = [argument.name for argument in ops.policy_loss.default._schema.arguments]
    assert tuple(names) == ("loss", "counts", "gradient", "by_entropies", *ARRAYS)
    if hasattr(ops, "prepare"):
        names = [argument.name for argument in ops.prepare.default._schema.arguments]
        assert tuple(names[3:]) == ARRAYS


# torch.compile.

LOSS, DAPO = gdpo.PolicyLoss("grpo"), gdpo.PolicyLoss("trl::dapo")


def step(logits, counts, mask, advantages, old_logp, ref_logp):
    """A small training step: something before the loss, and something after it."""
    logp = torch.log_softmax(logits, -1)[..., 0]
    loss, metrics = LOSS(logp, counts=counts, mask=mask, advantages=advantages, old_logp=old_logp,
                         ref_logp=ref_logp)
    return 2 * loss, metrics.result


def step_arguments(rows: int, width: int, seed: int = 61) -> list:
    batch = random_batch(seed, rows, width)
    logits = batch.arrays["logp"].float()[..., None] * torch.tensor([1.0, 0.3])
    return [logits, torch.tensor(batch.counts(), dtype=torch.float64), batch.mask] + [
        batch.arrays[name].float() for name in ("advantages", "old_logp", "ref_logp")]


def run(function, arguments) -> list:
    logits = arguments[0].clone().requires_grad_()
    loss, result = function(logits, *arguments[1:])
    loss.backward()
    return [loss.detach(), logits.grad, result]


@pytest.fixture(autouse=True)
def no_compiled_code():
    """Each test compiles for itself."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_compiled_in_aot_eager():
    """Loss, gradient and metrics, without a graph break: bits of eager mode."""
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    arguments = step_arguments(5, 11)
    for got, want in zip(run(compiled, arguments), run(step, arguments)):
        assert torch.equal(got, want)


@pytest.mark.skipif(not shutil.which("c++"), reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("mode", (None, "max-autotune-no-cudagraphs"))
def test_compiled_by_inductor(mode):
    """Inductor's own kernels for log_softmax may differ by a few ulp of float32: 1e-6."""
    compiled = torch.compile(step, fullgraph=True, mode=mode)
    arguments = step_arguments(5, 11)
    for got, want in zip(run(compiled, arguments), run(step, arguments)):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


def test_compiled_without_a_gradient():
    """A graph that was compiled for training is not used for evaluation, and the reverse."""
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    arguments = step_arguments(4, 6)
    with torch.no_grad():
        quiet = compiled(*arguments)[0]
    loss, gradient, _ = run(compiled, arguments)
    assert torch.equal(quiet, loss) and gradient.abs().sum() > 0 and not quiet.requires_grad


def test_counts_and_advantages_compile():
    """The calls around the loss are part of the same graph."""
    def whole(logp, rewards, mask):
        counts = gdpo.count(mask=mask, given=5.0)
        advantages = gdpo.advantages(rewards, group_size=2)
        return DAPO(logp, counts=counts, mask=mask, advantages=advantages).loss

    compiled = torch.compile(whole, fullgraph=True, backend="aot_eager")
    batch = random_batch(67, 6, 8)
    arguments = [batch.arrays["logp"], torch.rand(6, 2, dtype=torch.float64), batch.mask]
    assert torch.equal(compiled(*arguments), whole(*arguments))


def test_dynamic_shapes():
    """One compilation for all widths and numbers of rows."""
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, fullgraph=True, backend=counter, dynamic=True)
    for rows, width in ((5, 11), (4, 9), (7, 30), (2, 3)):
        arguments = step_arguments(rows, width)
        for got, want in zip(run(compiled, arguments), run(step, arguments)):
            assert torch.equal(got, want), (rows, width)
    assert counter.frame_count == 1


def test_shapes_that_change_compile_twice():
    """Without dynamic=True PyTorch compiles for one shape, then once for all."""
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, fullgraph=True, backend=counter)
    for rows, width in ((5, 11), (4, 9), (7, 30), (3, 8)):
        run(compiled, step_arguments(rows, width))
    assert counter.frame_count <= 3  # rows and widths may become dynamic one after the other


def test_losses_of_one_shape_are_not_mixed_up():
    """Two losses in one compiled function keep their settings: text is a constant of the graph."""
    one, other = gdpo.PolicyLoss("grpo", beta=0), gdpo.PolicyLoss("gspo")

    def both(logp, counts, advantages, old_logp):
        return [loss(logp, counts=counts, advantages=advantages, old_logp=old_logp).loss
                for loss in (one, other)]

    batch = random_batch(71, 5, 9, full=True)
    arguments = [batch.arrays["logp"], torch.tensor(batch.counts(), dtype=torch.float64),
                 batch.arrays["advantages"], batch.arrays["old_logp"]]
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")(*arguments)
    assert [float(x) for x in compiled] == [float(x) for x in both(*arguments)]
    assert compiled[0] != compiled[1]


def test_errors_of_compiled_code():
    """The operator itself is called there, of whose errors PyTorch makes RuntimeError; 2.10 leaves
    the function that makes ValueError of it in place."""
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    arguments = step_arguments(4, 6)
    arguments[3] = arguments[3][:2]
    with pytest.raises((RuntimeError, ValueError),
                       match="gdpo::PolicyLoss: batch.advantages: given 2 entries"):
        compiled(*arguments)


# Tracing and export.

def test_make_fx():
    """A trace with symbolic shapes runs with other shapes."""
    def loss_of(logp, counts, mask, advantages):
        return DAPO(logp, counts=counts, mask=mask, advantages=advantages).loss

    def arguments(rows, width):
        batch = random_batch(73, rows, width)
        return (batch.arrays["logp"], torch.tensor(batch.counts(9), dtype=torch.float64),
                batch.mask, batch.arrays["advantages"])

    traced = make_fx(loss_of, tracing_mode="symbolic")(*arguments(4, 6))
    assert "gdpo.policy_loss" in traced.code
    assert torch.equal(traced(*arguments(7, 3)), loss_of(*arguments(7, 3)))


def test_export():
    """A module with the loss exports, and the program gives the same bits for another width."""
    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.loss = gdpo.PolicyLoss("dapo")

        def forward(self, logp, counts, advantages):
            return self.loss(logp, counts=counts, advantages=advantages).loss

    counts = torch.tensor([36.0, 4, 4, 0], dtype=torch.float64)
    width = torch.export.Dim("width", min=2, max=100)
    program = torch.export.export(Step(), (torch.zeros(4, 6), counts, torch.ones(4)),
                                  dynamic_shapes=({1: width}, None, None))
    logp = torch.linspace(-3, -1, 4 * 9).reshape(4, 9)
    advantages = torch.tensor([1.0, -1, 0.5, 2])
    assert torch.equal(program.module()(logp, counts, advantages),
                       Step()(logp, counts, advantages))
