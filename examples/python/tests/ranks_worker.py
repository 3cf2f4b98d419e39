"""What each process of a group runs for test_ranks.py: scenarios, and what became of each."""
import datetime
import pathlib
import sys
import time
from typing import Any, Callable, Dict

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

import gdpo

SCENARIOS: Dict[str, Callable[[gdpo.Ranks], Any]] = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


# The rows of one process, and those of each rank: uneven, prompts are split, and of three ranks
# the last has none.
ROWS = 24


def whole_batch():
    random = torch.Generator().manual_seed(3)
    rewards = torch.randint(0, 3, (ROWS, 2), generator=random).float()
    prompts = torch.arange(ROWS) // 4 * 7 - 5
    keys = torch.randperm(ROWS, generator=random)
    return rewards, prompts, keys


def own_rows(ranks):
    random = torch.Generator().manual_seed(11)
    order = torch.randperm(ROWS, generator=random)
    cuts = {1: [0, ROWS], 2: [0, 5, ROWS], 3: [0, 17, ROWS, ROWS]}[ranks.size]
    return order[cuts[ranks.rank]:cuts[ranks.rank + 1]]


def tokens(rows=ROWS, width=7):
    random = torch.Generator().manual_seed(5)
    logp = -torch.rand(rows, width, generator=random, dtype=torch.float64)
    old_logp = logp + 0.3 * torch.randn(rows, width, generator=random, dtype=torch.float64)
    mask = torch.arange(width) < torch.randint(1, width + 1, (rows, 1), generator=random)
    return logp, old_logp, mask


@scenario
def advantages(ranks):
    rewards, prompts, keys = whole_batch()
    mine = own_rows(ranks)
    found = {}
    for name in ("gdpo", "trl::grpo", "rloo", "verl::gdpo", "dr_grpo"):
        columns = {"tokens": torch.arange(ROWS)[mine] % 5 + 1} if name == "verl::gdpo" else {}
        result, report = gdpo.advantages(
            rewards[mine], group_ids=prompts[mine], keys=keys[mine], estimator=name, ranks=ranks,
            report=True, weights=[1.0, 0.5], **columns)
        found[name] = (mine, result, report.numbers)
    return found


@scenario
def words_as_ids(ranks):
    rewards, prompts, keys = whole_batch()
    mine = own_rows(ranks)
    uids = [f"uid-{prompts[i].item()}" for i in mine]
    return mine, gdpo.advantages(rewards[mine], group_ids=uids, keys=keys[mine], ranks=ranks)


@scenario
def arrays_of_numpy(ranks):
    rewards, prompts, keys = whole_batch()
    mine = own_rows(ranks)
    result = gdpo.advantages(rewards[mine].numpy(), group_ids=prompts[mine].numpy(), ranks=ranks,
                             keys=keys[mine].numpy())
    assert type(result).__module__ == "numpy"
    return mine, torch.from_numpy(result)


def critic_batch():
    random = torch.Generator().manual_seed(21)
    scores = torch.randint(0, 3, (ROWS,), generator=random).double()
    values = torch.randn(ROWS, 6, generator=random, dtype=torch.float64)
    mask = torch.arange(6) < torch.randint(0, 7, (ROWS, 1), generator=random)
    return scores, values, mask


@scenario
def returns_of_tokens(ranks):
    """GAE and the REINFORCE family, whitened over the tokens of all ranks."""
    scores, values, mask = critic_batch()
    _, prompts, keys = whole_batch()
    mine = own_rows(ranks)
    found = {"mine": mine}
    for dtype in (torch.float64, torch.float32):
        gae = gdpo.token_advantages(
            estimator="verl::gae", row_rewards=scores[mine], values=values[mine].to(dtype),
            mask=mask[mine], gamma=0.9, ranks=ranks)
        rloo = gdpo.outcome_advantages(
            scores[mine].to(dtype), estimator="openrlhf::rloo", group_ids=prompts[mine],
            keys=keys[mine], mask=mask[mine], tokens_renorm="tokens", report=True, ranks=ranks)
        found[dtype] = (*gae, *rloo[:2], rloo.report.numbers)
    return found


@scenario
def no_values_on_one_rank(ranks):
    gdpo.token_advantages(
        estimator="verl::gae", row_rewards=torch.ones(2), mask=torch.ones(2, 3), ranks=ranks,
        values=None if ranks.rank == 0 else torch.ones(2, 3))


@scenario
def groups_of_one_size(ranks):
    """Groups that are whole on a rank; those of rank 0 come first."""
    random = torch.Generator().manual_seed(ranks.rank)
    rewards = torch.rand(4 * (ranks.rank + 1), 2, generator=random)
    by_size = gdpo.advantages(rewards, group_size=4, ranks=ranks)
    offsets = torch.arange(0, len(rewards) + 1, 4)
    by_offsets = gdpo.advantages(rewards, group_offsets=offsets, ranks=ranks)
    return rewards, by_size, by_offsets


@scenario
def one_step(ranks):
    """Counts, losses, metrics and gradients of a step, over micro-batches and ranks."""
    logp, old_logp, mask = tokens()
    mine = own_rows(ranks)
    advantages = torch.linspace(-1, 1, ROWS, dtype=torch.float64)
    logp = logp.requires_grad_()
    parts = mine.split(4)
    loss_of = gdpo.PolicyLoss("dapo")
    with gdpo.Step((gdpo.count(mask=mask[rows]) for rows in parts), ranks=ranks) as step:
        for k, rows in reversed(list(enumerate(parts))):
            loss, metrics = loss_of(logp[rows], old_logp=old_logp[rows], mask=mask[rows],
                                    advantages=advantages[rows], counts=step.counts)
            loss.backward()
            step.add(k, metrics)
    gradient = torch.zeros_like(logp) if logp.grad is None else logp.grad
    return step.counts, step.metrics.result, ranks.merge(gradient.reshape(-1))


@scenario
def records(ranks):
    """What is merged: counts, metrics, mismatch reports, numbers; of functions too."""
    logp, old_logp, mask = tokens()
    mine = own_rows(ranks)
    counts = ranks.merge(lambda: gdpo.count(mask=mask[mine]))
    _, metrics = gdpo.PolicyLoss("dapo")(
        logp[mine], old_logp=old_logp[mine], mask=mask[mine], counts=counts,
        advantages=torch.ones(len(mine), dtype=torch.float64))
    report = gdpo.mismatch(rollout_logp=old_logp[mine], old_logp=logp[mine], mask=mask[mine])
    return (counts, ranks.merge(metrics).result, ranks.merge(report).data,
            ranks.merge(torch.tensor([1.0, ranks.rank], dtype=torch.float64)))


@scenario
def critic(ranks):
    """Whitened values and the value loss, with its metrics merged."""
    values, returns, mask = tokens()
    mine = own_rows(ranks)
    whitened = gdpo.whiten(values[mine], mask[mine], name="verl::masked_whiten", ranks=ranks)
    counts = ranks.merge(gdpo.count(mask=mask[mine]))
    loss, metrics = gdpo.ValueLoss(clip=0.3)(
        values[mine], returns=returns[mine], old_values=returns[mine], mask=mask[mine],
        counts=counts)
    return mine, whitened, float(loss), ranks.merge(metrics).result


@scenario
def bad_values_of_one_rank(ranks):
    gdpo.whiten(torch.ones(2, 3), torch.ones(3, 2 if ranks.rank == 0 else 3)[:2], ranks=ranks)


@scenario
def reports(ranks):
    random = torch.Generator().manual_seed(ranks.rank)
    rewards = torch.rand(8, 2, generator=random)
    report = gdpo.advantages(rewards, group_size=4, report=True).report
    return rewards, ranks.merge(report).numbers


@scenario
def an_error_of_one_rank(ranks):
    with ranks.agree():
        if ranks.rank == ranks.size - 1:
            gdpo.PolicyLoss("no such loss")


@scenario
def a_fault_of_one_rank(ranks):
    with ranks.agree():
        if ranks.rank == 0:
            raise ZeroDivisionError("a fault of the caller's own")


@scenario
def words_that_are_no_utf8(ranks):
    """As in the name of a file."""
    with ranks.agree():
        if ranks.rank == 0:
            raise OSError("no file a\udc80")


@scenario
def long_words(ranks):
    with ranks.agree():
        if ranks.rank == 0:
            raise ValueError("a" + "é" * 3000)


@scenario
def settings_of_long_characters(ranks):
    ranks.agree_on(("y" if ranks.rank else "x") + "é" * 50)


@scenario
def words_and_integers(ranks):
    """One prompt, which is "0" on rank 0 and 0 on the others."""
    gdpo.advantages([1.0], group_ids=["0"] if ranks.rank == 0 else [0], ranks=ranks)


@scenario
def an_error_after_a_step(ranks):
    said = None
    try:
        with gdpo.Step([], ranks=ranks) as step:
            step.finish()
            if ranks.rank == 0:
                raise ValueError("late")
    except ValueError as error:
        said = str(error)
    return said, int(ranks.merge(torch.ones(1, dtype=torch.float64)))


@scenario
def an_error_while_counting(ranks):
    def counts():
        yield torch.zeros(4, dtype=torch.float64)
        if ranks.rank == 0:
            yield gdpo.count(mask=[[1]])
    gdpo.Step(counts(), ranks=ranks)


@scenario
def an_error_in_a_step(ranks):
    with gdpo.Step([torch.ones(4, dtype=torch.float64)], ranks=ranks):
        if ranks.rank == 0:
            raise KeyError("labels")


@scenario
def a_missing_micro_batch(ranks):
    with gdpo.Step([gdpo.count(mask=torch.ones(1, 2))], ranks=ranks) as step:
        if ranks.rank == 0:
            _, metrics = gdpo.PolicyLoss("dapo")(-torch.ones(1, 2), counts=step.counts,
                                                 advantages=torch.ones(1))
            step.add(0, metrics)


@scenario
def bad_rewards_of_one_rank(ranks):
    gdpo.advantages(["x"] if ranks.rank == 0 else [1.0], group_ids=[0], ranks=ranks)


@scenario
def other_rewards(ranks):
    gdpo.advantages(torch.ones(2, 1 + (ranks.rank > 0)), group_ids=[0, 0], ranks=ranks)


@scenario
def other_settings(ranks):
    gdpo.advantages([1.0], group_ids=[0], ranks=ranks,
                    estimator="gdpo" if ranks.rank == 0 else "trl::grpo")


@scenario
def settings_that_differ(ranks):
    ranks.agree_on(gdpo.PolicyLoss("dapo"), "run 17", 3e-6 * (1 + (ranks.rank == 1)))


@scenario
def settings_that_are_the_same(ranks):
    ranks.agree_on(gdpo.PolicyLoss("dapo"), "run 17", 3e-6)


@scenario
def another_call(ranks):
    if ranks.rank == 0:
        ranks.merge(torch.zeros(4, dtype=torch.float64))
    else:
        ranks.agree_on("x")


@scenario
def counts_of_one_rank_alone(ranks):
    """Losses that each rank has divided by its own counts."""
    mask = torch.ones(1 + ranks.rank, 3)
    _, metrics = gdpo.PolicyLoss("dapo")(-mask, mask=mask, advantages=torch.ones(len(mask)),
                                         counts=gdpo.count(mask=mask))
    ranks.merge(metrics)


@scenario
def keys_twice(ranks):
    gdpo.advantages([1.0], group_ids=[0], keys=[4], ranks=ranks)


@scenario
def parts_of_rows(ranks):
    """Context parallelism: each rank has some tokens of every row, of a loss by sequences."""
    logp, old_logp, mask = tokens(width=6 * ranks.size)
    advantages = torch.linspace(-1, 1, ROWS, dtype=torch.float64)
    loss_of = gdpo.PolicyLoss("verl::gspo")
    found = {}
    wide = logp.shape[1]
    for name, places in {
            "consecutive": torch.arange(wide).chunk(ranks.size)[ranks.rank],
            "ring": torch.cat([torch.arange(3 * ranks.rank, 3 * ranks.rank + 3),
                               torch.arange(wide - 3 * ranks.rank - 3, wide - 3 * ranks.rank)]),
    }.items():
        mine = logp[:, places].clone().requires_grad_()
        positions = None if name == "consecutive" else places.expand(ROWS, -1)
        whole = ranks.gather_tokens(logp=mine, old_logp=old_logp[:, places], mask=mask[:, places],
                                    positions=positions)
        loss, metrics = loss_of(**whole.arrays, advantages=advantages,
                                counts=gdpo.count(mask=whole.arrays["mask"]))
        loss.backward()
        found[name] = places, mine.grad, metrics.result
    return found


@scenario
def packed_parts(ranks):
    """The same of packed tokens: row i has i + rank + 1 of them on each rank."""
    lengths = [torch.arange(5) + r + 1 for r in range(ranks.size)]
    parts = [[-torch.rand(int(n), generator=torch.Generator().manual_seed(100 * r + i),
                          dtype=torch.float64) for i, n in enumerate(row)]
             for r, row in enumerate(lengths)]
    mine = torch.cat(parts[ranks.rank]).requires_grad_()
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths[ranks.rank].cumsum(0)])
    whole = ranks.gather_tokens(logp=mine, offsets=offsets)
    loss, _ = gdpo.PolicyLoss("dapo sequence")(
        **whole.arrays, advantages=torch.linspace(-1, 1, 5, dtype=torch.float64),
        counts=gdpo.count(logp=whole.arrays["logp"], offsets=whole.arrays["offsets"]))
    loss.backward()
    rows = [torch.cat([parts[r][i] for r in range(ranks.size)]) for i in range(5)]
    return torch.cat(rows), whole.arrays["logp"].detach(), mine.grad


@scenario
def tokens_of_other_rows(ranks):
    ranks.gather_tokens(logp=torch.zeros(2 + ranks.rank, 3))


@scenario
def clipped_shards(ranks):
    whole = [torch.linspace(-2, 3, 12).reshape(6, 2), torch.linspace(0, 5, 7).double()]
    shards = [part.chunk(ranks.size)[ranks.rank].clone() for part in whole]
    bias = torch.linspace(1, 2, 3)
    of_one_rank = [bias.clone()] if ranks.rank == 0 else []
    clipped = gdpo.clip_grad_norm([*shards, *of_one_rank], 1.5, ranks=ranks)
    in_full = [part.clone() for part in whole]
    same = gdpo.clip_grad_norm(in_full, 1.5, ranks=ranks, replicated=True)
    return clipped, same, [*whole, bias], shards, in_full


def small_model():
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 5)
                               ).double()


def engine(ranks, wrap, name, accumulation):
    """The gradient of a step by an engine that averages, in micro-batches of different sizes."""
    states = torch.randn(12, 4, 3, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    targets = torch.randint(5, (12, 4), generator=torch.Generator().manual_seed(9))
    mask = torch.arange(4) < torch.arange(12)[:, None] % 4 + 1
    advantages = torch.linspace(-1, 2, 12, dtype=torch.float64)
    model = wrap(small_model())
    cuts = torch.tensor([0, 1, 4] if ranks.size == 2 else [0, 1, 2])
    rows = torch.arange(12)[ranks.rank::ranks.size]
    parts = [rows[:int(cuts[1])], rows[int(cuts[1]):]]
    with gdpo.Step((gdpo.count(mask=mask[part]) for part in parts), ranks=ranks) as step:
        for k, part in enumerate(parts):
            logp = torch.log_softmax(model(states[part]), -1).gather(
                -1, targets[part][..., None])[..., 0]
            with ranks.agree():
                loss, metrics = gdpo.PolicyLoss("dapo")(
                    logp, mask=mask[part], advantages=advantages[part], counts=step.counts)
                step.add(k, metrics)
            factor = gdpo.grad_scale(name, ranks=ranks, accumulation=accumulation)
            (loss * factor / accumulation).backward()  # such engines divide by it themselves
    return {n: p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
            for n, p in model.named_parameters()}


@scenario
def gradient_of_ddp(ranks):
    return engine(ranks, torch.nn.parallel.DistributedDataParallel, "ddp", 1)


@scenario
def gradient_of_fsdp(ranks):
    mesh = init_device_mesh("cpu", (ranks.size,))

    def wrap(model):
        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    return engine(ranks, wrap, "fsdp", 1)


@scenario
def gradient_of_deepspeed_arithmetic(ranks):
    """DeepSpeed's engine divides each loss by the micro-batches, and averages over the ranks."""
    return engine(ranks, torch.nn.parallel.DistributedDataParallel, "deepspeed", 2)


@scenario
def fsdp_clips_its_shards(ranks):
    model = small_model()
    whole = {n: torch.linspace(-1, 1, p.numel(), dtype=p.dtype).reshape(p.shape)
             for n, p in model.named_parameters()}
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks.size,)))
    for n, p in model.named_parameters():
        p.grad = distribute_tensor(whole[n].clone(), p.device_mesh, p.placements)
    clipped = gdpo.clip_grad_norm([p.grad for p in model.parameters()], 0.5, ranks=ranks)
    return clipped, {n: p.grad.full_tensor() for n, p in model.named_parameters()}, whole


@scenario
def a_rank_that_does_not_come(ranks):
    """The last one: after it the group is of no use."""
    impatient = gdpo.Ranks(dist.new_group(timeout=datetime.timedelta(seconds=20)), deadline=1.0)
    if ranks.rank > 0:
        time.sleep(4)
        return
    with impatient.agree():
        pass


def main(rank, size, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                            world_size=size, timeout=datetime.timedelta(seconds=60))
    torch.set_num_threads(1)
    ranks = gdpo.Ranks(deadline=60)
    found = {}
    for name, function in SCENARIOS.items():
        try:
            found[name] = function(ranks)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        print(f"rank {rank}: {name}", file=sys.stderr, flush=True)
    torch.save(found, pathlib.Path(folder) / f"rank{rank}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
