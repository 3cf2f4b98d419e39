"""What the operators cost beside plain PyTorch, as ratios that are taken in turn in one run.

    cmake/dev python bench [--rounds N] [--shapes 64x2048,512x4096] [--logits 4x256x32000]

Prints three tables. The first has the cost of a call on one token, in microseconds: the operator
beside an operator of the same arguments that does nothing, and the module with backward beside an
autograd function that does nothing. The second has the DAPO loss with its gradient and the metrics
that TRL logs, beside the same in plain PyTorch, eager and under torch.compile, on one thread. The
third has that loss with its gradient from logits, in place.
"""
import argparse
import pathlib
import statistics
import tempfile
import time

import torch
import torch.utils.cpp_extension

import gdpo

EMPTY = r"""
#include <optional>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
using torch::stable::Tensor;
using Array = std::optional<Tensor>;
std::tuple<Tensor, Tensor, Tensor> policy_loss(const std::string&, const Tensor& counts, bool,
                                               PARAMETERS) {
  return {counts, counts, counts};
}
STABLE_TORCH_LIBRARY(gdpo_empty, library) { library.def("SCHEMA"); }
STABLE_TORCH_LIBRARY_IMPL(gdpo_empty, CPU, library) {
  library.impl("policy_loss", TORCH_BOX(&policy_loss));
}
"""


def empty_operator():
    """An operator with the arguments of gdpo::policy_loss that returns one of them."""
    schema = torch.ops.gdpo.policy_loss.default._schema
    arrays = len(gdpo._library.ARRAYS)
    source = EMPTY.replace("PARAMETERS", ", ".join(["const Array&"] * arrays))
    source = source.replace("SCHEMA", str(schema).replace("gdpo::", ""))
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "empty.cpp").write_text(source)
    torch.utils.cpp_extension.load(
        "gdpo_empty", [str(folder / "empty.cpp")], build_directory=str(folder),
        extra_cflags=["-O2", "-DTORCH_TARGET_VERSION=0x020a000000000000"],
        is_python_module=False)
    return torch.ops.gdpo_empty.policy_loss


class Nothing(torch.autograd.Function):
    """The smallest autograd function: a scalar out, a gradient that was there before."""

    @staticmethod
    def forward(ctx, logp, gradient, loss):
        ctx.save_for_backward(gradient)
        return loss.clone()

    @staticmethod
    def backward(ctx, of_loss):
        return ctx.saved_tensors[0], None, None


def seconds(call, repetitions):
    """The time of one call, as the mean of some."""
    begin = time.perf_counter()
    for _ in range(repetitions):
        call()
    return (time.perf_counter() - begin) / repetitions


def in_turn(calls, rounds, repetitions):
    """The times of calls that are made in turn: one list for each."""
    for call in calls:
        seconds(call, 3)
    times = [[] for _ in calls]
    for _ in range(rounds):
        for call, list_ in zip(calls, times):
            list_.append(seconds(call, repetitions))
    return times


def ratio(times, others):
    """The median ratio of times that were taken in turn, with the quartiles."""
    ratios = sorted(a / b for a, b in zip(times, others))
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


def batch(rows, tokens):
    """Log-probs of a policy a few steps after the rollout; a quarter of the tokens are masked."""
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(rows, tokens, generator=generator) * 3
    logp = (old + 0.2 * torch.randn(rows, tokens, generator=generator)).requires_grad_()
    lengths = torch.randint(tokens // 2, tokens + 1, (rows, 1), generator=generator)
    mask = torch.arange(tokens) < lengths
    return logp, old, mask, torch.randn(rows, generator=generator)


def plain(logp, old, mask, advantages, total):
    """DAPO's loss in plain PyTorch, with the metrics that TRL logs."""
    ratios = torch.exp(logp - old)
    a = advantages[:, None]
    clipped = ratios.clamp(0.8, 1.28)
    loss = (torch.max(-a * ratios, -a * clipped) * mask).sum() / total
    with torch.no_grad():
        low = ((ratios < 0.8) & (a < 0)) * mask
        high = ((ratios > 1.28) & (a > 0)) * mask
        k1 = (old - logp) * mask
        k3 = (ratios - 1 - (logp - old)) * mask
        lengths = mask.sum(1)
        metrics = torch.stack([low.sum() / total, high.sum() / total, (low + high).sum() / total,
                               k1.sum() / total, k3.sum() / total,
                               (ratios * mask).sum() / total, lengths.float().mean(),
                               lengths.min(), lengths.max()])
    return loss, metrics


def calls(rounds):
    logp, old, mask, advantages = batch(1, 2)
    counts = gdpo.count(mask=mask)
    module = gdpo.PolicyLoss("dapo")
    op, empty = torch.ops.gdpo.policy_loss.default, empty_operator().default
    detached = logp.detach()
    gradient, loss = torch.ones_like(detached), torch.ones(())
    arrays = dict(advantages=advantages, old_logp=old, mask=mask)

    def run(operator):
        return lambda: operator("dapo", counts, True, detached, **arrays)

    def forward_backward():
        logp.grad = None
        module(logp, counts=counts, **arrays).loss.backward()

    def nothing():
        logp.grad = None
        Nothing.apply(logp, gradient, loss).backward()

    times = in_turn([run(op), run(empty), forward_backward, nothing], rounds, 500)
    micro = [statistics.median(t) * 1e6 for t in times]
    print("| one call on two tokens | gdpo | nothing | more |")
    print("|---|---|---|---|")
    for name, ours, least in (("the operator, with gradient", *micro[:2]),
                              ("module, forward and backward", *micro[2:])):
        print(f"| {name} | {ours:.1f} us | {least:.1f} us | {ours - least:.1f} us |")


def losses(shapes, rounds):
    module = gdpo.PolicyLoss("dapo")
    compiled = torch.compile(plain, dynamic=False)
    print("\n| DAPO with gradient and metrics | gdpo | eager / gdpo | compiled / gdpo |")
    print("|---|---|---|---|")
    for rows, tokens in shapes:
        logp, old, mask, advantages = batch(rows, tokens)
        counts = gdpo.count(mask=mask)
        total = counts[0].float()

        def ours():
            logp.grad = None
            module(logp, counts=counts, advantages=advantages, old_logp=old,
                   mask=mask).loss.backward()

        def theirs(function):
            def call():
                logp.grad = None
                function(logp, old, mask, advantages, total)[0].backward()
            return call

        repetitions = max(1, 2 ** 20 // (rows * tokens))
        mine, eager, fused = in_turn([ours, theirs(plain), theirs(compiled)], rounds, repetitions)
        print(f"| {rows} x {tokens} | {statistics.median(mine) * 1e3:.2f} ms | "
              f"{ratio(eager, mine)} | {ratio(fused, mine)} |")


def from_logits(shapes, rounds):
    module = gdpo.PolicyLoss("dapo")

    def theirs(logits, targets, *arguments):
        logp = torch.log_softmax(logits.float(), -1).gather(-1, targets[..., None])[..., 0]
        return plain(logp, *arguments)

    compiled = torch.compile(theirs, dynamic=False)
    print("\n| from logits, with their gradient | gdpo | eager / gdpo | compiled / gdpo |")
    print("|---|---|---|---|")
    for rows, tokens, vocabulary in shapes:
        _, old, mask, advantages = batch(rows, tokens)
        generator = torch.Generator().manual_seed(1)
        targets = torch.randint(vocabulary, (rows, tokens), generator=generator)
        counts = gdpo.count(mask=mask)
        total = counts[0].float()
        for dtype in (torch.float32, torch.bfloat16):
            logits = torch.randn(rows, tokens, vocabulary, generator=generator).to(dtype)

            def ours():
                made = logits.clone().requires_grad_()  # the model makes logits for each step
                module.from_logits(made, targets, counts=counts, advantages=advantages,
                                   old_logp=old, mask=mask, in_place=True).loss.backward()

            def plainly(function):
                def call():
                    made = logits.clone().requires_grad_()
                    function(made, targets, old, mask, advantages, total)[0].backward()
                return call

            mine, eager, fused = in_turn([ours, plainly(theirs), plainly(compiled)], rounds, 1)
            print(f"| {rows} x {tokens} x {vocabulary}, {str(dtype)[6:]} | "
                  f"{statistics.median(mine) * 1e3:.0f} ms | {ratio(eager, mine)} | "
                  f"{ratio(fused, mine)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shapes", default="64x2048,512x4096")
    parser.add_argument("--logits", default="4x256x32000,2x64x151936")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"PyTorch {torch.__version__}, {gdpo.instruction_set()}, one thread; medians of "
          f"{options.rounds} rounds in turn, ratios with quartiles\n")
    calls(options.rounds)
    losses([tuple(map(int, shape.split("x"))) for shape in options.shapes.split(",")],
           options.rounds)
    from_logits([tuple(map(int, shape.split("x"))) for shape in options.logits.split(",")],
                options.rounds)


if __name__ == "__main__":
    main()
