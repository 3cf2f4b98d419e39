"""A whole training loop on one page: sampling, rewards, GDPO, packs, DAPO, clipping, a reference.

    python loop.py                              # one process
    torchrun --nproc-per-node 2 loop.py         # two, with the same lines

A small policy learns to repeat the word that it is told, and to stop in time. Completions of a
prompt are on all ranks, so that every call that crosses them is here.
"""
import argparse
import copy
import os

import torch
import torch.distributed as dist

import gdpo

WORDS, WIDTH, PROMPTS, COMPLETIONS = 9, 8, 7, 8  # word 0 ends a completion
ROWS = PROMPTS * COMPLETIONS


class Policy(torch.nn.Module):
    """Log-probs of the next word, from the prompt and the word before."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = torch.nn.Embedding(PROMPTS, 16)
        self.before = torch.nn.Embedding(WORDS, 16)
        self.head = torch.nn.Linear(16, WORDS)

    def forward(self, prompts: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(torch.tanh(self.prompt(prompts) + self.before(before)))
        return logits


@torch.no_grad()
def sample(policy: Policy, prompts: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Words of completions (rows, WIDTH). A row's random numbers follow from its number alone."""
    words = torch.zeros(len(prompts), WIDTH, dtype=torch.int64)
    for i, (prompt, number) in enumerate(zip(prompts, numbers)):
        random, before = torch.Generator().manual_seed(int(number)), torch.tensor(0)
        for t in range(WIDTH):
            before = torch.softmax(policy(prompt, before).double(), -1).multinomial(
                1, generator=random)[0]
            words[i, t] = before
            if before == 0:
                break
    return words


def shifted(words: torch.Tensor) -> torch.Tensor:
    """The word before each."""
    return torch.nn.functional.pad(words[:, :-1], (1, 0))


def train(steps: int, ranks: gdpo.Ranks) -> None:
    torch.manual_seed(0)
    policy = Policy().double()
    reference = copy.deepcopy(policy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.05)
    policy_loss = gdpo.PolicyLoss("dapo", low=0.2, high=0.28, kl="k3", beta=0.01)
    ranks.agree_on(policy_loss, optimizer.defaults)

    # Which rows each rank samples and trains on: two optimizer steps for each batch of rollouts.
    plan = gdpo.plan(ROWS, mini_batches=2, ranks=ranks.size, remainder="spread", shuffle="once")
    own = torch.cat([plan.rows(update, ranks.rank) for update in range(plan.steps)])
    place = {int(row): i for i, row in enumerate(own)}  # among the own rows
    prompts = own // COMPLETIONS

    for step_number in range(steps):
        numbers = own + ROWS * step_number
        words = sample(policy, prompts, numbers)
        ends = words == 0
        lengths = torch.where(ends.any(1), ends.int().argmax(1) + 1, WIDTH)
        mask = torch.arange(WIDTH) < lengths[:, None]
        said = (words == prompts[:, None] + 1) & mask
        spoken = (lengths - ends.any(1).int()).clamp(min=1)
        rewards = torch.stack([said.sum(1) / spoken, ends.any(1)], 1).double()

        # Groups of all ranks: which of them teach something, and the advantages of the own rows.
        rows = ranks.gather_rows(rewards, group_ids=prompts, keys=numbers)
        chosen = gdpo.select_groups(**rows.arguments)
        taught = torch.isin(rows.own_rows, chosen.rows)
        advantages, report = gdpo.advantages(rewards, group_ids=prompts, keys=numbers, ranks=ranks,
                                             report=True)
        with torch.no_grad():
            old_logp, ref_logp = (
                gdpo.token_logprobs(model(prompts[:, None], shifted(words)), words, mask=mask).logp
                for model in (policy, reference))

        for update in range(plan.steps):
            mine = torch.tensor([place[int(row)] for row in plan.rows(update, ranks.rank)])
            mine = mine[taught[mine]]
            packs = gdpo.pack(lengths[mine], 4 * WIDTH)
            optimizer.zero_grad()
            with gdpo.Step((gdpo.count(offsets=packs.offsets(p)) for p in range(len(packs))),
                           ranks=ranks) as step:
                for p, members in enumerate(packs):
                    batch = mine[members]
                    inside = mask[batch]
                    logits = policy(prompts[batch][:, None].expand_as(inside)[inside],
                                    shifted(words)[batch][inside])
                    logp = gdpo.token_logprobs(logits, words[batch][inside]).logp
                    loss, metrics = policy_loss(
                        logp, old_logp=old_logp[batch][inside], ref_logp=ref_logp[batch][inside],
                        advantages=advantages[batch], offsets=packs.offsets(p), counts=step.counts)
                    loss.backward()
                    step.add(p, metrics)
            for parameter in policy.parameters():  # their sum over the ranks is the step's gradient
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                if ranks.size > 1:
                    dist.all_reduce(parameter.grad)
            clipped = gdpo.clip_grad_norm([p.grad for p in policy.parameters()], 1.0, ranks=ranks,
                                          replicated=True)
            if clipped.take_step and step.counts[0] > 0:  # some group teaches something
                optimizer.step()
        gdpo.polyak(list(reference.parameters()), list(policy.parameters()), 0.05)
        if ranks.rank == 0:
            print(f"step {step_number + 1:3}  word {report['rewards.0.values.mean']:.3f}  "
                  f"end {report['rewards.1.values.mean']:.3f}  groups {len(chosen.groups)}  "
                  f"kl {step.metrics.mean('kl'):.4f}  clipped "
                  f"{step.metrics.mean('clip_fraction'):.3f}  norm {clipped.norm:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30, help="batches of rollouts (30)")
    steps = parser.parse_args().steps
    if "RANK" in os.environ:  # by torchrun
        dist.init_process_group("gloo")
    train(steps, gdpo.Ranks())
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
