"""What the operators cost beside plain PyTorch, as ratios that are taken in turn in one run.

    cmake/dev python bench [--rounds N] [--shapes 64x2048,512x4096] [--logits 4x256x32000]
                           [--rewards 512x3,65536x4] [--only TEXT]

Prints four tables. The first has the cost of a call on one token, in microseconds: the operator
beside an operator of the same arguments that does nothing, and the module with backward beside an
autograd function that does nothing. The second has the operators, each beside the same in plain
PyTorch, eager and under torch.compile, and beside its call in C++ (calls.cpp), on one thread; the
functions of PyTorch compute what a trainer would, without checks and metrics. The third has the
DAPO loss with its gradient and the metrics that TRL logs, and the fourth that loss from logits, in
place. --only prints the rows of the second whose names contain a text, and no other table.
"""
import argparse
import ctypes
import pathlib
import statistics
import subprocess
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
RESULTS policy_loss(PARAMETERS) { return {VALUES}; }
STABLE_TORCH_LIBRARY(gdpo_empty, library) { library.def("SCHEMA"); }
STABLE_TORCH_LIBRARY_IMPL(gdpo_empty, CPU, library) {
  library.impl("policy_loss", TORCH_BOX(&policy_loss));
}
"""


def empty_operator():
    """An operator with the arguments of gdpo::policy_loss that returns one of them."""
    schema = torch.ops.gdpo.policy_loss.default._schema
    types = {"str": "const std::string&", "bool": "bool", "Tensor": "const Tensor&",
             "Optional[Tensor]": "const Array&"}
    parameters = [f"{types[str(argument.type)]} {argument.name}" for argument in schema.arguments]
    results = len(schema.returns)
    source = EMPTY.replace("PARAMETERS", ", ".join(parameters))
    source = source.replace("RESULTS", f"std::tuple<{', '.join(['Tensor'] * results)}>")
    source = source.replace("VALUES", ", ".join(["counts"] * results))
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
        return lambda: operator("dapo", counts, True, False, detached, **arrays)

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


def native():
    """The calls of calls.cpp, compiled for this machine: functions of tensors and numbers."""
    here = pathlib.Path(__file__).parent
    library = pathlib.Path(tempfile.mkdtemp()) / "calls.so"
    subprocess.run(["g++", "-std=c++17", "-O3", "-march=native", "-DNDEBUG", "-shared", "-fPIC",
                    f"-I{here.parents[2] / 'include'}", here / "calls.cpp", "-o", library],
                   check=True)
    loaded = ctypes.CDLL(str(library))

    def bind(name, *arguments):
        function = getattr(loaded, name)
        function.restype = None
        passed = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor)
                  else ctypes.c_ssize_t(a) for a in arguments]
        return lambda kept=arguments: function(*passed)  # which keeps the tensors

    return bind


class Plain:
    """What the operators compute, as a trainer writes it in PyTorch."""

    @staticmethod
    def gdpo(rewards, size):
        grouped = rewards.view(-1, size, rewards.shape[1])
        centered = grouped - grouped.mean(1, keepdim=True)
        std = grouped.std(1, keepdim=True)
        sums = torch.where(std > 0, centered / std, 0).sum(-1).flatten()
        return (sums - sums.mean()) / sums.std()

    @staticmethod
    def grpo(rewards, size):
        sums = rewards.sum(-1).view(-1, size)
        std = sums.std(1, keepdim=True)
        return torch.where(std > 0, (sums - sums.mean(1, keepdim=True)) / std, 0).flatten()

    @staticmethod
    def report(rewards, size):
        sums = rewards.sum(-1)
        stds = sums.view(-1, size).std(1)
        return Plain.gdpo(rewards, size), torch.stack([
            sums.mean(), sums.std(), sums.min(), sums.max(), stds.mean(), stds.std(),
            (stds == 0).float().mean()]), rewards.mean(0), rewards.std(0)

    @staticmethod
    def count(mask):
        tokens = mask.sum(1)
        return torch.stack([tokens.sum(), (tokens > 0).sum()])

    @staticmethod
    def importance(old, rollout, mask):
        weights = torch.exp((old - rollout).clamp(-20, 20)).clamp(max=3)
        return torch.where(mask, weights, 1)

    @staticmethod
    def gate(old, rollout, mask):
        p = rollout.exp()
        kl = p * (rollout - old) + (1 - p) * (torch.log1p(-p) - torch.log1p(-old.exp()))
        mean = torch.where(mask, kl, 0).sum(1) / mask.sum(1)
        return mask & (mean <= 0.01)[:, None]

    @staticmethod
    def top_entropy(entropies, mask):
        threshold = torch.quantile(entropies[mask], 0.8)
        return torch.where(mask, (entropies >= threshold).float(), 1)

    @staticmethod
    def mismatch(old, rollout, mask):
        tokens = mask.sum()
        log_ratio = torch.where(mask, old - rollout, 0)
        ratio = log_ratio.exp()
        of_rows = log_ratio.sum(1) / mask.sum(1)
        return torch.stack([
            -log_ratio.sum() / tokens, ((ratio - 1 - log_ratio) * mask).sum() / tokens,
            (ratio * ratio * mask).sum() / tokens - 1, (ratio * mask).max(),
            torch.where(mask, ratio, 1).min(), ((ratio > 2) & mask).sum() / tokens,
            ((ratio < 0.5) & mask).sum() / tokens, of_rows.exp().mean(), of_rows.min(),
            of_rows.max(), (ratio * mask).sum() ** 2 / (ratio * ratio * mask).sum() / tokens])

    @staticmethod
    def gae(scores, values, mask):
        rows, tokens = values.shape
        rewards = torch.zeros_like(values)
        rewards[torch.arange(rows), mask.sum(1) - 1] = scores
        last, following, steps = torch.zeros(rows), torch.zeros(rows), []
        for t in reversed(range(tokens)):
            valid = mask[:, t].float()
            delta = rewards[:, t] + 0.99 * following - values[:, t]
            step = delta + 0.99 * 0.95 * last
            last = torch.where(mask[:, t], step, last)
            following = values[:, t] * valid + (1 - valid) * following
            steps.append(last)
        advantages = torch.stack(steps[::-1], 1)
        returns = advantages + values
        used = advantages[mask]
        return (advantages - used.mean()) * torch.rsqrt(used.var() + 1e-8) * mask, returns

    @staticmethod
    def outcome(scores, mask, size):
        grouped = scores.view(-1, size)
        baseline = (grouped.sum(1, keepdim=True) - grouped) / (size - 1)
        rewards = torch.zeros(mask.shape)
        rewards[torch.arange(len(mask)), mask.sum(1) - 1] = (grouped - baseline).flatten()
        returns = rewards.flip(1).cumsum(1).flip(1)
        used = returns[mask]
        return (returns - used.mean()) * torch.rsqrt(used.var() + 1e-8) * mask, returns

    @staticmethod
    def token_baseline(returns, logp, squares, mask, size):
        weights = ((1 - 2 * logp.exp() + squares) * mask).cumsum(1)
        grouped = weights.view(-1, size, weights.shape[1]) * mask.view(-1, size, mask.shape[1])
        of_groups = returns.view(grouped.shape)
        baseline = (grouped * of_groups).sum(1, keepdim=True) / grouped.sum(1, keepdim=True)
        return torch.where(mask, returns - baseline.expand_as(of_groups).reshape(mask.shape), 0)


def of_rewards(bind, rows, count):
    """The operators of rewards: name, numbers, ours, the same in plain PyTorch, that in C++."""
    rewards = torch.rand(rows, count, generator=torch.Generator().manual_seed(0))
    size = 16
    out = torch.empty(rows)
    numbers = rows * count
    shape = f"{rows} x {count}"
    for name in ("gdpo", "grpo"):
        yield (f"advantages {name}, {shape}", numbers,
               lambda name=name: gdpo.advantages(rewards, estimator=name, group_size=size),
               (getattr(Plain, name), rewards, size),
               bind(f"{name}_advantages", rewards, rows, count, size, out))
    yield (f"advantages gdpo with report, {shape}", numbers,
           lambda: gdpo.advantages(rewards, group_size=size, report=True),
           (Plain.report, rewards, size), bind("gdpo_report", rewards, rows, count, size, out))


def of_tokens(bind, rows, tokens):
    """The operators of tokens, likewise."""
    g = torch.Generator().manual_seed(1)
    logp, old, mask, advantages = batch(rows, tokens)
    logp = logp.detach()
    rollout = old + 0.02 * torch.randn(old.shape, generator=g)
    old, rollout = (array.clamp(max=-1e-3) for array in (old, rollout))
    entropies, squares, values = (torch.rand(old.shape, generator=g) for _ in range(3))
    scores = torch.rand(rows, generator=g)
    out, other, number = torch.empty_like(old), torch.empty_like(old), torch.empty(4).double()
    counts = gdpo.count(mask=mask)
    operator = torch.ops.gdpo.policy_loss.default
    size, numbers, shape = 8, rows * tokens, f"{rows} x {tokens}"

    def plain_dapo(needed, *arguments):
        needed.grad = None
        plain(needed, *arguments)[0].backward()

    needed = logp.clone().requires_grad_()
    yield (f"policy_loss dapo, {shape}", numbers,
           lambda: operator("dapo", counts, True, False, logp, advantages=advantages, old_logp=old,
                            mask=mask),
           (plain_dapo, needed, old, mask, advantages, counts[0].float()),
           bind("dapo", logp, old, mask, advantages, rows, tokens, counts, out))
    yield (f"count, {shape}", numbers, lambda: gdpo.count(mask=mask), (Plain.count, mask),
           bind("count", mask, rows, tokens, number))
    arrays = dict(old_logp=old, rollout_logp=rollout, mask=mask)
    yield (f"prepare token_truncate, {shape}", numbers,
           lambda: gdpo.prepare("trl::token_truncate", **arrays),
           (Plain.importance, old, rollout, mask),
           bind("importance", old, rollout, mask, rows, tokens))
    line = "gate estimator=binary_kl statistic=sequence_mean max=0.01 reach=mask"
    yield (f"prepare gate, {shape}", numbers, lambda: gdpo.prepare(line, **arrays),
           (Plain.gate, old, rollout, mask), bind("gate", old, rollout, mask, rows, tokens))
    yield (f"prepare top_entropy, {shape}", numbers,
           lambda: gdpo.prepare("top_entropy 0.8", entropies=entropies, mask=mask),
           (Plain.top_entropy, entropies, mask),
           bind("top_entropy", entropies, mask, rows, tokens))
    yield (f"mismatch, {shape}", numbers, lambda: gdpo.mismatch(**arrays),
           (Plain.mismatch, old, rollout, mask),
           bind("mismatch", old, rollout, mask, rows, tokens, number))
    yield (f"token_advantages gae, {shape}", numbers,
           lambda: gdpo.token_advantages(estimator="verl::gae gamma=0.99 lambda=0.95",
                                         row_rewards=scores, values=values, mask=mask),
           (Plain.gae, scores, values, mask),
           bind("gae", scores, values, mask, rows, tokens, out, other))
    yield (f"outcome_advantages rloo, {shape}", numbers,
           lambda: gdpo.outcome_advantages(scores, group_size=size, mask=mask),
           (Plain.outcome, scores, mask, size),
           bind("outcome", scores, mask, rows, tokens, size, out, other))
    yield (f"optimal_token_baseline, {shape}", numbers,
           lambda: gdpo.optimal_token_baseline(values, logp=old, sum_pi_squared=squares,
                                               group_size=size, mask=mask),
           (Plain.token_baseline, values, old, squares, mask, size),
           bind("token_baseline", values, old, squares, mask, rows, tokens, size, out))


def operators(rewards, shapes, rounds, only):
    """The table of operators: ns a number, and ratios that were taken in turn."""
    bind = native()
    print("\n| operator, shape | gdpo, ns a number | eager / gdpo | compiled / gdpo | gdpo / C++ |")
    print("|---|---|---|---|---|")
    cases = [case for shape in rewards for case in of_rewards(bind, *shape)]
    cases += [case for shape in shapes for case in of_tokens(bind, *shape)]
    for name, numbers, ours, (function, *arguments), ours_in_cpp in cases:
        if only not in name:
            continue
        calls = [ours, ours_in_cpp, lambda: function(*arguments)]
        if function not in (Plain.gae, Plain.top_entropy):  # a loop, a shape that depends on data
            compiled = torch.compile(function, dynamic=False)
            calls.append(lambda: compiled(*arguments))
        slow = function is Plain.gae
        repetitions = 1 if slow else max(1, 2 ** 18 // numbers)
        mine, cpp, eager, *fused = in_turn(calls, min(rounds, 5) if slow else rounds, repetitions)
        print(f"| {name} | {statistics.median(mine) / numbers * 1e9:.3f} | {ratio(eager, mine)} | "
              f"{ratio(fused[0], mine) if fused else '-'} | {ratio(mine, cpp)} |", flush=True)


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
            logits.requires_grad_()

            def ours():
                logits.grad = None
                made = logits.clone()  # the model makes logits for each step
                module.from_logits(made, targets, counts=counts, advantages=advantages,
                                   old_logp=old, mask=mask, in_place=True).loss.backward()

            def plainly(function):
                def call():
                    logits.grad = None
                    function(logits.clone(), targets, old, mask, advantages, total)[0].backward()
                return call

            mine, eager, fused = in_turn([ours, plainly(theirs), plainly(compiled)], rounds, 1)
            print(f"| {rows} x {tokens} x {vocabulary}, {str(dtype)[6:]} | "
                  f"{statistics.median(mine) * 1e3:.0f} ms | {ratio(eager, mine)} | "
                  f"{ratio(fused, mine)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shapes", default="64x2048,512x4096")
    parser.add_argument("--rewards", default="512x3,65536x4")
    parser.add_argument("--logits", default="4x256x32000,2x64x151936")
    parser.add_argument("--only", default="")
    options = parser.parse_args()

    def sizes(text):
        return [tuple(map(int, shape.split("x"))) for shape in text.split(",") if shape]

    torch.set_num_threads(1)
    print(f"PyTorch {torch.__version__}, {gdpo.instruction_set()}, one thread; medians of "
          f"{options.rounds} rounds in turn, ratios with quartiles\n")
    if not options.only:
        calls(options.rounds)
    operators(sizes(options.rewards), sizes(options.shapes), options.rounds, options.only)
    if not options.only:
        losses(sizes(options.shapes), options.rounds)
        from_logits(sizes(options.logits), options.rounds)


if __name__ == "__main__":
    main()
