"""What the objective costs in a whole training step: time and memory, beside plain PyTorch.

    cmake/dev python bench step [--rounds N] [--layers 6] [--width 512] [--vocabulary 32768]
                                [--batch 8x256]

A step is the forward pass of a transformer, the DAPO loss of its logits with the metrics that TRL
logs, and the backward pass, on the CPU. "The model alone" has a loss that costs nothing,
whose gradient is the logits. What a row needs beyond it is its objective. Steps are timed in turns,
whose order rotates; the peak of memory is that of a process of its own for each row.
"""
import argparse
import multiprocessing
import pathlib
import re
import statistics
import time

import torch

import gdpo

from cost import batch, plain


class Model(torch.nn.Module):
    """A causal transformer with random weights."""

    def __init__(self, layers: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        layer = torch.nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0,
                                                 batch_first=True, norm_first=True)
        self.body = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        causal = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.body(self.embedding(tokens), mask=causal, is_causal=True))


class Given(torch.autograd.Function):
    """A loss that costs nothing: the logits' gradient is the logits, in the same memory."""

    @staticmethod
    def forward(ctx, logits: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(logits)
        return logits.new_zeros(())

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return ctx.saved_tensors[0]


def steps(options) -> dict:
    """The functions that make one step each, by the name of their row."""
    torch.manual_seed(0)
    rows, width = map(int, options.batch.split("x"))
    model = Model(options.layers, options.width, options.vocabulary)
    tokens = torch.randint(options.vocabulary, (rows, width))
    _, old, mask, advantages = batch(rows, width)
    old = old - 9  # near the log-probs of a model that knows nothing
    counts = gdpo.count(mask=mask)
    loss = gdpo.PolicyLoss("dapo")
    arrays = dict(old_logp=old, mask=mask, advantages=advantages, counts=counts)

    def model_alone():
        Given.apply(model(tokens)).backward()

    def plain_pytorch():
        logp = torch.log_softmax(model(tokens).float(), -1).gather(-1, tokens[..., None])[..., 0]
        plain(logp, old, mask, advantages, counts[0].float())[0].backward()

    def from_logp():
        loss(gdpo.token_logprobs(model(tokens), tokens, mask=mask).logp, **arrays).loss.backward()

    def from_logits():
        loss.from_logits(model(tokens), tokens, in_place=True, **arrays).loss.backward()

    def timed(step):
        def call():
            model.zero_grad(set_to_none=True)
            step()
        return call

    return {"the model alone": timed(model_alone), "plain PyTorch": timed(plain_pytorch),
            "`token_logprobs`, then the loss": timed(from_logp),
            "`from_logits`, in place": timed(from_logits)}


def peak(options, row: str, result) -> None:
    """The most memory that a process has held that makes a step twice, in MiB."""
    torch.set_num_threads(options.threads)
    step = steps(options)[row]
    step(), step()
    # Not getrusage, whose peak a process inherits from the one that has started it.
    status = pathlib.Path("/proc/self/status").read_text()
    result.put(int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) / 1024)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--batch", default="8x256")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    made = steps(options)
    times = {row: [] for row in made}
    for step in made.values():
        step()
    order = list(made)
    for _ in range(options.rounds):
        order.append(order.pop(0))  # no row always comes after the same one
        for row in order:
            begin = time.perf_counter()
            made[row]()
            times[row].append(time.perf_counter() - begin)
    memory, context = {}, multiprocessing.get_context("spawn")
    for row in made:
        result = context.Queue()
        process = context.Process(target=peak, args=(options, row, result))
        process.start()
        memory[row] = result.get()
        process.join()
    alone, base = times.pop("the model alone"), memory.pop("the model alone")
    print(f"{options.layers} layers of width {options.width}, vocabulary {options.vocabulary}, "
          f"{options.batch} tokens, {options.threads} threads, PyTorch {torch.__version__}; the "
          f"model alone takes {statistics.median(alone):.2f} s\n")
    print("| objective | time, of the model's (quartiles) | memory beyond the model's |")
    print("|---|---|---|")
    for row, list_ in times.items():
        low, share, high = statistics.quantiles((a / b - 1 for a, b in zip(list_, alone)), n=4)
        print(f"| {row} | {100 * share:.1f} % ({100 * low:.1f} to {100 * high:.1f}) | "
              f"{memory[row] - base:.0f} MiB |")


if __name__ == "__main__":
    main()
