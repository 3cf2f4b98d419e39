#!/usr/bin/env python3
"""gdpo's kernels beside PyTorch, eager and torch.compile, on the same tensors of one GPU.

    torch_bench.py --library build/cuda/bench/libgdpo_cuda_torch.so
                   [--gates] [--json FILE] [--rounds N] [--divide N]

In every round each contender has its turn, in random order; a ratio is the median of the ratios of
all rounds. Results are compared with those of eager PyTorch before anything is timed. The loss is
GRPO with KL, with its gradient by the log-probs and the means of KL, clip fraction, approx_kl_k3
and ratio. All contenders leave the metrics on the device. Needs PyTorch and nothing else.

Exit status: 0; 1 if results differ, a call fails, or with --gates a gate is missed; 2 for bad
usage; 77 without PyTorch or a GPU.
"""
import argparse
import ctypes
import json
import os
import random
import statistics
import sys

try:
    import torch
except ImportError:
    torch = None

BETA, LOW, HIGH = 0.04, 0.2, 0.2
GATES = {"eager": 10.0, "compile": 1.3}  # speed over each, at the gated size of the loss


# ---- the code that trainers write ----


def grpo(logp, old_logp, ref_logp, mask, advantages):
    log_ratio = logp - old_logp
    ratio = torch.exp(log_ratio)
    a = advantages.unsqueeze(1)
    clipped = torch.clamp(ratio, 1 - LOW, 1 + HIGH)
    x = ref_logp - logp
    kl = torch.exp(x) - x - 1
    token_loss = BETA * kl - torch.min(ratio * a, clipped * a)
    loss = ((token_loss * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()
    with torch.no_grad():
        tokens = mask.sum().clamp(min=1)
        is_clipped = ((ratio < 1 - LOW) & (a < 0)) | ((ratio > 1 + HIGH) & (a > 0))
        of_tokens = (kl, is_clipped.float(), ratio - 1 - log_ratio, ratio)
        metrics = torch.stack([(v * mask).sum() / tokens for v in of_tokens])
    return loss, metrics


def grpo_from_logits(logits, targets, old_logp, ref_logp, mask, advantages):
    all_logp = torch.log_softmax(logits.float(), -1)
    logp = all_logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return grpo(logp, old_logp, ref_logp, mask, advantages)


def gdpo(rewards, group):
    grouped = rewards.view(-1, group, rewards.shape[1])
    normalized = (grouped - grouped.mean(1, keepdim=True)) / grouped.std(1, keepdim=True)
    sums = normalized.sum(-1).flatten()
    return (sums - sums.mean()) / sums.std()


# ---- the library ----


class Library:
    def __init__(self, path):
        self.calls = ctypes.CDLL(path)
        self.calls.gdpo_message.restype = ctypes.c_char_p
        self.calls.gdpo_results_bytes.restype = ctypes.c_longlong

    def run(self, name, *arguments):
        """Calls a function of the library: tensors go as pointers, ints as long long."""

        def converted(a):
            if hasattr(a, "data_ptr"):
                return ctypes.c_void_p(a.data_ptr())
            return ctypes.c_longlong(a) if isinstance(a, int) else a

        if getattr(self.calls, name)(*map(converted, arguments)) != 0:
            raise RuntimeError(name + ": " + self.calls.gdpo_message().decode())

    def prepare(self, name, *arguments):
        """Allocates the scratch of a call, and returns the call as a function without arguments."""
        size = ctypes.c_longlong(0)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.run(name, stream, *arguments, None, ctypes.byref(size))
        scratch = torch.empty(max(size.value, 1), dtype=torch.uint8, device="cuda")
        return lambda: self.run(name, stream, *arguments, scratch, ctypes.byref(size))

    def results(self):
        return torch.zeros(self.calls.gdpo_results_bytes(), dtype=torch.uint8, device="cuda")

    def read(self, results):
        torch.cuda.synchronize()
        numbers = (ctypes.c_double * 5)()
        self.run("gdpo_read_results", results, numbers)
        return list(numbers)


# ---- measuring ----


def seconds(step, calls, before):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if before is not None:
        before()
    begin.record()
    for _ in range(calls):
        step()
    end.record()
    end.synchronize()
    return 1e-3 * begin.elapsed_time(end) / calls


class Report:
    def __init__(self, options):
        self.options, self.device, self.figures = options, torch.cuda.get_device_name(), []
        self.failures, self.missed, self.not_measured = [], [], []

    def measure(self, name, contenders, calls=1, before=None, gated=False):
        """Times the contenders, {name: step} with "gdpo" among them, and prints the figure.

        `before` runs before each turn and is not timed.
        """
        # The first calls compile, allocate and load.
        for who, step in list(contenders.items()):
            try:
                for _ in range(3):
                    if before is not None:
                        before()
                    step()
            except Exception as e:  # torch.compile fails where there is no Triton or no compiler
                if who != "compile":
                    raise
                reason = (str(e) or "no message").splitlines()[0]
                self.not_measured.append(f"{name}: torch.compile: {type(e).__name__}: {reason}")
                del contenders[who]
        torch.cuda.synchronize()
        times = {who: [] for who in contenders}
        for _ in range(self.options.rounds):
            order = list(contenders)
            random.shuffle(order)
            for who in order:
                times[who].append(seconds(contenders[who], calls, before))
        figure = {"name": name,
                  "us": {who: 1e6 * statistics.median(t) for who, t in times.items()},
                  "speed_over": {}}
        for who in contenders:
            if who == "gdpo":
                continue
            ratio = statistics.median(a / b for a, b in zip(times[who], times["gdpo"]))
            figure["speed_over"][who] = ratio
            if gated and self.options.divide == 1 and ratio < GATES[who]:
                self.missed.append(
                    f"{name}: {ratio:.2f} times the speed of {who}, not {GATES[who]:g}")
        if gated and self.options.divide == 1:
            figure["gates"] = GATES
        self.figures.append(figure)
        cells = [f"{figure['us'][who]:.1f}" if who in times else ""
                 for who in ("gdpo", "eager", "compile")]
        cells += [f"{figure['speed_over'][who]:.2f}" if who in times else ""
                  for who in ("eager", "compile")]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
        self.write()

    def write(self):
        """Writes the figures so far. The file is complete whenever this program is stopped."""
        if not self.options.json:
            return
        unfinished = self.options.json + ".new"
        with open(unfinished, "w") as file:
            json.dump({"device": self.device, "torch": torch.__version__,
                       "divide": self.options.divide,
                       "figures": self.figures, "wrong": self.failures, "missed": self.missed,
                       "not_measured": self.not_measured}, file, indent=2)
        os.replace(unfinished, self.options.json)

    def fail(self, what):
        self.failures.append(what)
        print("WRONG: " + what, flush=True)
        self.write()

    def compare(self, name, what, got, want, within):
        if not abs(got - want) <= within:
            self.fail(f"{name}: {what} is {got:.9g}, PyTorch's {want:.9g}")

    def compare_tensors(self, name, what, got, want, within, exceptions=0):
        """Fails if more than `exceptions` entries are off by more than `within` x the largest."""
        limit = within * want.abs().max()
        different = int((~((got - want).abs() <= limit)).sum())
        if different > exceptions:
            self.fail(f"{name}: {different} entries of {what} differ")

    def compare_losses(self, name, library, results, loss, metrics):
        got = library.read(results)
        want = [loss.item()] + metrics.tolist()
        for what, g, w in zip(("loss", "kl", "clip_fraction", "approx_kl_k3", "ratio"), got, want):
            self.compare(name, what, g, w, 1e-5 + 1e-4 * abs(w))


def with_backward(function, leaf, *arguments):
    def step():
        leaf.grad = None
        loss, metrics = function(leaf, *arguments)
        loss.backward()
        return loss, metrics

    return step


def bench_loss(report, library, rows, width, gated):
    rows = max(rows // report.options.divide, 2)
    name = f"loss, gradient, metrics: {rows} x {width} tokens"
    logp = -7 * torch.rand(rows, width, device="cuda")
    old_logp = logp + 0.1 * torch.randn(rows, width, device="cuda")
    ref_logp = logp + 0.1 * torch.randn(rows, width, device="cuda")
    lengths = width - torch.randint(0, max(width // 16, 1), (rows, 1), device="cuda")
    mask = torch.arange(width, device="cuda").unsqueeze(0) < lengths
    advantages = 0.5 + torch.randn(rows, device="cuda")
    gradient = torch.full((rows, width), float("nan"), device="cuda")
    leaf = logp.clone().requires_grad_(True)

    arguments = (old_logp, ref_logp, mask, advantages)
    contenders = {"eager": with_backward(grpo, leaf, *arguments),
                  "compile": with_backward(torch.compile(grpo, dynamic=False), leaf, *arguments)}
    results = library.results()
    call = library.prepare("gdpo_grpo_loss", rows, width, logp, *arguments, gradient, results)

    call()
    loss, metrics = contenders["eager"]()
    report.compare_losses(name, library, results, loss, metrics)
    # A ratio at an edge of the clip range may fall to either side.
    report.compare_tensors(name, "the gradient", gradient, leaf.grad, 1e-5,
                           2 + rows * width // 100000)
    calls = max(4, min(50, (1 << 24) // (rows * width)))
    report.measure(name, {"gdpo": call, **contenders}, calls, gated=gated)


def bench_advantages(report, library, rows, columns, group):
    rows = max(rows // report.options.divide // group, 2) * group
    name = f"GDPO advantages: {rows} x {columns}, groups of {group}"
    rewards = torch.rand(rows, columns, device="cuda")
    advantages = torch.full((rows,), float("nan"), device="cuda")
    call = library.prepare("gdpo_gdpo_advantages", rows, columns, group, rewards, advantages)
    compiled = torch.compile(gdpo, dynamic=False)

    call()
    torch.cuda.synchronize()
    report.compare_tensors(name, "the advantages", advantages, gdpo(rewards, group), 1e-4)
    contenders = {"eager": lambda: gdpo(rewards, group),
                  "compile": lambda: compiled(rewards, group)}
    report.measure(name, {"gdpo": call, **contenders}, calls=10)


def bench_logits(report, library, sequences, width, vocabulary):
    width = max(width // report.options.divide, 2)
    name = f"logits to dlogits: {sequences * width} x {vocabulary}, bfloat16"
    logits = (2 * torch.randn(sequences, width, vocabulary, device="cuda")).to(torch.bfloat16)
    targets = torch.randint(0, vocabulary, (sequences, width), device="cuda")
    with torch.no_grad():
        logp = torch.log_softmax(logits.float(), -1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    old_logp = logp + 0.1 * torch.randn(sequences, width, device="cuda")
    ref_logp = logp + 0.1 * torch.randn(sequences, width, device="cuda")
    mask = torch.ones(sequences, width, dtype=torch.bool, device="cuda")
    advantages = 0.5 + torch.randn(sequences, device="cuda")
    work = logits.clone()
    leaf = logits.clone().requires_grad_(True)

    arguments = (targets, old_logp, ref_logp, mask, advantages)
    contenders = {"eager": with_backward(grpo_from_logits, leaf, *arguments),
                  "compile": with_backward(torch.compile(grpo_from_logits, dynamic=False), leaf,
                                           *arguments)}
    results = library.results()
    call = library.prepare("gdpo_grpo_from_logits", sequences, width, vocabulary, work, targets,
                           old_logp, ref_logp, advantages, results)

    call()
    loss, metrics = contenders["eager"]()
    report.compare_losses(name, library, results, loss, metrics)
    # Entries have 16 bits, and the largest is that of a target. A token whose ratio stands at an
    # edge of the clip range may be clipped on one side only: that makes up to 50 entries differ.
    report.compare_tensors(name, "dlogits", work.float(), leaf.grad.float(), 0.01, 50)
    # The call writes over its logits. They are copied again before every turn, PyTorch's as well.
    report.measure(name, {"gdpo": call, **contenders}, before=lambda: work.copy_(logits))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="libgdpo_cuda_torch.so")
    parser.add_argument("--json", help="writes the figures there")
    parser.add_argument("--gates", action="store_true", help="exit status 1 where a gate is missed")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--divide", type=int, default=1,
                        help="sizes divided by it: no gate counts")
    options = parser.parse_args()
    if options.rounds < 1 or options.divide < 1:
        parser.error("--rounds and --divide are at least 1")
    if torch is None:
        print("PyTorch is not installed: nothing is compared with it")
        return 77
    if not torch.cuda.is_available():
        print("no GPU that PyTorch can use: nothing is measured")
        return 77

    torch.manual_seed(1)
    random.seed(1)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}\n")
    print("| | gdpo, us | eager, us | compile, us | speed over eager | over compile |\n"
          "|---|---|---|---|---|---|", flush=True)
    library, report = Library(options.library), Report(options)
    benches = [(bench_loss, 64, 1024, False), (bench_loss, 512, 4096, False),
               (bench_loss, 16384, 4096, True),
               (bench_advantages, 1 << 20, 8, 8), (bench_advantages, 1 << 20, 8, 64),
               (bench_logits, 8, 512, 152064)]
    for bench, *sizes in benches:
        try:
            bench(report, library, *sizes)
        except torch.cuda.OutOfMemoryError as e:
            report.not_measured.append(f"{bench.__name__}{tuple(sizes)}: {str(e).splitlines()[0]}")
        except Exception as e:  # the other figures are still measured
            report.fail(f"{bench.__name__}{tuple(sizes)}: {type(e).__name__}: {e}")
        torch.cuda.empty_cache()

    print()
    for what in report.not_measured:
        print("NOT MEASURED: " + what)
    for failure in report.failures:
        print("WRONG: " + failure)
    for missed in report.missed:
        print("MISSED: " + missed)
    report.write()
    return 1 if report.failures or (options.gates and report.missed) else 0


if __name__ == "__main__":
    sys.exit(main())
