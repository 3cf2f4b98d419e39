"""Around the loss: which rows go where, which groups go in, the gradient's norm, the reference."""
import warnings
from typing import Any, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from ._advantages import batch_of, grouping
from ._load import ops
from ._names import number
from ._ranks import Ranks, errors_of_ranks, over
from ._rows import flat, weights_of
from ._settings import word


def _settings(**given: object) -> str:
    """A line of the settings that are given."""
    return " ".join(f"{name}={word(value)}" for name, value in given.items() if value is not None)


def _at(function: str, name: str, i: int, count: int, things: str) -> int:
    if not 0 <= i < count:
        raise ValueError(f"{function}: {name}: given {i}; needed: at least 0 and below {count}, "
                         f"the number of {things}")
    return i


class Plan:
    """Which rows go into which optimizer step, rank and micro-batch; made by `plan`.

        cut = gdpo.plan(rows, mini_batches=2, ranks=2)
        print(cut.steps, cut.rows(0, rank=1), cut.largest_micro_batch)

    Steps are counted over all epochs. Every rank has the same number of micro-batches in a step, so
    that collective calls match; some are empty where there are fewer rows than micro-batches.
    """

    def __init__(self, parts: Sequence[torch.Tensor]) -> None:
        numbers, self._rows, begins, self._dropped, dropped = parts
        self._begins: List[int] = begins.tolist()
        self._dropped_begins: List[int] = dropped.tolist()
        shape: List[int] = numbers.tolist()
        #: How many times each row is used.
        self.epochs: int = shape[0]
        #: Optimizer steps of an epoch.
        self.mini_batches: int = shape[1]
        #: Micro-batches of each rank in a step.
        self.accumulation: int = shape[2]
        #: Processes with different rows.
        self.ranks: int = shape[3]
        #: The rows of the largest micro-batch.
        self.largest_micro_batch: int = shape[4]
        #: Optimizer steps of all epochs.
        self.steps: int = self.epochs * self.mini_batches

    def rows(self, step: int, rank: Optional[int] = None, micro_batch: Optional[int] = None
             ) -> torch.Tensor:
        """The rows of a step, int64: all, those of a rank, or those of its micro-batch micro_batch.

        They stand in the order of ranks and micro-batches. Errors: ValueError for a number out of
        range, and for a micro-batch without a rank.
        """
        function = "gdpo.Plan.rows"
        each = self.ranks * self.accumulation
        first, count = _at(function, "step", step, self.steps, "steps") * each, each
        if rank is not None:
            first += _at(function, "rank", rank, self.ranks, "ranks") * self.accumulation
            count = self.accumulation
        if micro_batch is not None:
            if rank is None:
                raise ValueError(f"{function}: rank: given none, with micro_batch; needed: the "
                                 "rank whose micro-batch it is")
            first += _at(function, "micro_batch", micro_batch, self.accumulation,
                         "micro-batches of a rank")
            count = 1
        return self._rows[self._begins[first]:self._begins[first + count]]

    def dropped(self, epoch: int) -> torch.Tensor:
        """The rows that an epoch leaves out, int64: none except with remainder="drop"."""
        at = _at("gdpo.Plan.dropped", "epoch", epoch, self.epochs, "epochs")
        return self._dropped[self._dropped_begins[at]:self._dropped_begins[at + 1]]

    def __repr__(self) -> str:
        return (f"gdpo.Plan({self.steps} steps, {self.epochs} epochs, {self.ranks} ranks, "
                f"{self.accumulation} micro-batches a step and rank, of at most "
                f"{self.largest_micro_batch} rows)")


def plan(rows: int, *, epochs: Optional[int] = None, mini_batches: Optional[int] = None,
         accumulation: Optional[int] = None, micro_batch: Optional[int] = None,
         ranks: Union[int, Ranks, None] = None, remainder: Optional[str] = None,
         shuffle: Optional[str] = None, seed: Optional[int] = None, whole: Optional[str] = None,
         group_size: int = 0, group_ids: Any = None, group_offsets: Any = None) -> Plan:
    """Cuts the rows 0 to rows - 1 of a generated batch into optimizer steps, ranks, micro-batches.

        cut = gdpo.plan(512, mini_batches=0, accumulation=8, micro_batch=4, ranks=8)
        for step in range(cut.steps):                       # 2 steps of 256 rows
            for k in range(cut.accumulation):
                print(cut.rows(step, rank=0, micro_batch=k))

    Each epoch uses every row once, except for dropped ones. The rows, in their own order or
    shuffled, are cut into mini-batches, those over the ranks, and those of a rank over its
    micro-batches; all as even as possible. Every rank computes the plan of all, with the same
    result on every platform. What trainers call these numbers: include/gdpo/update/README.md.

    epochs (1): how often each row is used. mini_batches (1): optimizer steps of an epoch.
      accumulation: micro-batches of each rank in a step. micro_batch: rows of one of these, at
      most. Where one of the three is 0 it follows from the others; the last two are 0 unless given.
    ranks (1): processes with different rows, or a `gdpo.Ranks` of them.
    remainder: what happens to rows that do not come out even: "refuse", "drop", "keep" (a shorter
      last mini-batch) or "spread" (mini-batches that differ by one row at most).
    shuffle: "never", "once" or "every_epoch", by std::mt19937_64(seed).
    whole: "rows", "in_step" or "in_micro_batch": where the rows of a group, which group_size,
      group_ids or group_offsets give as in `gdpo.advantages`, stay together.

    Errors: ValueError for numbers that contradict each other or do not fit the rows, with those
    that would do.
    """
    groups = grouping("gdpo::plan", torch.device("cpu"), group_size, group_ids,
                      group_offsets)
    with errors_of_ranks():
        return Plan(ops.plan(rows, _settings(
            epochs=epochs, mini_batches=mini_batches, accumulation=accumulation,
            micro_batch=micro_batch, ranks=ranks.size if isinstance(ranks, Ranks) else ranks,
            remainder=remainder, shuffle=shuffle, seed=seed,
            whole=whole), groups[0], *(None if a is None else a.cpu() for a in groups[1:])))


class Packing:
    """Rows in packs of a bounded number of tokens, made by `pack`; a sequence of their rows.

        packs = gdpo.pack([3, 5, 2, 4], 8)
        print(len(packs), packs.rows(0), packs.offsets(0), packs.tokens(0), packs.waste)
    """

    def __init__(self, order: torch.Tensor, row_offsets: torch.Tensor, offsets: torch.Tensor,
                 waste: float) -> None:
        #: (rows) The row at each packed position: those of pack 0 first.
        self.order = order
        #: (packs + 1) The packed position at which each pack begins.
        self.row_offsets = row_offsets
        #: (rows + 1) Where the tokens of each packed position begin if all packs follow each other.
        self.token_offsets = offsets
        #: The share of padding if every pack is filled up to the budget, from 0 to 1.
        self.waste = waste
        self._begins: List[int] = row_offsets.tolist()

    def _span(self, function: str, pack: int) -> Tuple[int, int]:
        at = _at(f"gdpo.Packing.{function}", "pack", pack, len(self), "packs")
        return self._begins[at], self._begins[at + 1]

    def rows(self, pack: int) -> torch.Tensor:
        """The rows of a pack, int64, ascending, in the order of their tokens in it."""
        begin, end = self._span("rows", pack)
        return self.order[begin:end]

    def offsets(self, pack: int) -> torch.Tensor:
        """(rows of the pack + 1) Where the tokens of each row begin in the pack: the `offsets` of a
        loss (cu_seqlens)."""
        begin, end = self._span("offsets", pack)
        return self.token_offsets[begin:end + 1] - self.token_offsets[begin]

    def tokens(self, pack: int) -> int:
        """How many tokens a pack has."""
        begin, end = self._span("tokens", pack)
        return int(self.token_offsets[end] - self.token_offsets[begin])

    def __len__(self) -> int:
        return len(self._begins) - 1

    def __getitem__(self, pack: int) -> torch.Tensor:
        return self.rows(pack)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self.rows(pack) for pack in range(len(self)))

    def __repr__(self) -> str:
        return (f"gdpo.Packing({len(self)} packs of {len(self.order)} rows, "
                f"{int(self.token_offsets[-1])} tokens, {self.waste:.1%} waste)")


def pack(lengths: Any, budget: int, *, oversize: Optional[str] = None) -> Packing:
    """Puts rows of different lengths into few packs of at most `budget` tokens.

        policy_loss = gdpo.PolicyLoss("dapo")
        packs = gdpo.pack(mask.sum(1), 16)
        for p, members in enumerate(packs):
            packed = logp[members][mask[members]]           # packs.tokens(p) of them
            loss, metrics = policy_loss(packed, offsets=packs.offsets(p), counts=counts,
                                        advantages=advantages[members])

    It is first-fit decreasing: at most 11/9 of the fewest possible packs, and 6/9 of one more. The
    result depends on the arguments alone. Ranks with other rows may get other numbers of packs.

    lengths: (rows) the tokens of each row, integers of at least 0. budget: at least 1.
    oversize: "refuse", or "alone", which gives a row that is longer than the budget a pack of its
      own.
    Errors: ValueError for numbers out of range, and a row longer than the budget.
    """
    function = "gdpo::pack"
    try:
        values = torch.as_tensor(lengths)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{function}: lengths: {error}; needed: an integer for each row") from None
    if values.is_floating_point() and bool((values == values.long()).all()):
        values = values.long()  # such as sums of a mask of floats
    if values.dim() != 1:
        raise ValueError(f"{function}: lengths: given an array of shape {tuple(values.shape)}; "
                         "needed: (rows)")
    with errors_of_ranks():
        return Packing(*ops.pack(values.cpu(), budget, _settings(oversize=oversize)))


class SelectedGroups(NamedTuple):
    """What `select_groups` selected, and why not the rest. Tensors are int64 on the CPU.

        chosen = gdpo.select_groups(rewards, group_size=8)
        print(chosen.groups, chosen.verdicts)
    """

    groups: torch.Tensor  #: The selected groups, ascending.
    rows: torch.Tensor  #: Their rows, group after group.
    offsets: torch.Tensor  #: (selected + 1) Where each begins in `rows`: group_offsets of these.
    verdicts: List[str]  #: (groups of the batch) "kept", or why not: "flat", "small_std", ...
    group_std: torch.Tensor  #: (groups of the batch) The std that was judged, float64.
    flat_in_sum_only: int  #: Groups that only a filter on the sum would drop.
    refill: int  #: How many groups are missing to `wanted`: the prompts to sample.
    gave_up: bool  #: This was the last attempt, and too few groups passed.


def select_groups(rewards: Any, *, group_size: int = 0, group_ids: Any = None,
                  group_offsets: Any = None, weights: Optional[Sequence[float]] = None,
                  gates: Sequence[Tuple[int, int, float]] = (), valid: Any = None,
                  flat_in: Optional[str] = None, given: Any = None, reward: Optional[int] = None,
                  missing: Optional[str] = None, min_std: Optional[float] = None,
                  top_p: Optional[float] = None, wanted: Optional[int] = None,
                  max_attempts: Optional[int] = None, give_up: Optional[str] = None,
                  attempt: int = 0) -> SelectedGroups:
    """Selects the groups to train on, and says how many are missing: dynamic sampling.

        chosen = gdpo.select_groups(rewards, group_size=8, wanted=64)
        if chosen.refill > 0:
            print(f"sample {chosen.refill} prompts more")
        advantages = gdpo.advantages(rewards[chosen.rows], group_offsets=chosen.offsets)

    A group whose rewards do not vary gives no gradient. Which are flat depends on the estimator:
    with several rewards their sum can be flat where one of them varies, and GDPO learns from that
    group. The tests, one after the other: `flat_in`, `min_std`, `top_p`, and the first `wanted`.

    rewards, group_size, group_ids, group_offsets, weights, gates, valid: as in `gdpo.advantages`,
      and those of the estimator.
    flat_in: "every_reward" (GDPO), "sum" (GRPO, DAPO), "reward" (that of the number `reward`), or
      "given" (where `given` (groups) is not 0).
    missing: what a missing reward is, a word of the estimator's missing.entry.
    min_std (0): groups with a std up to this are dropped. top_p (1): of the rest those with the
      largest std, up to this share of all. wanted (0: all that pass): groups to be selected.
    max_attempts (0: no limit), attempt: the last attempt, and which this is, from 1. give_up: what
      follows a last attempt with too few: "keep_short", "keep_first" or "refuse", an error.

    Over ranks give it the rows of all (`Ranks.gather_rows`). What trainers do:
    include/gdpo/update/README.md. Errors: ValueError for settings out of range, and shapes that do
    not fit.
    """
    function = "gdpo::select_groups"
    if flat_in == "reward" and reward is None:
        raise ValueError(f'{function}: reward: given none, with flat_in="reward"; needed: the '
                         "number of the reward that must vary, from 0")
    values, groups, (used, flags) = batch_of(
        function, rewards, (group_size, group_ids, group_offsets), valid=valid, given=given)
    with errors_of_ranks():
        (chosen, rows, offsets, numbers, stds), verdicts = ops.select_groups(
            values.cpu(), _settings(
                flat_in=flat_in, reward=reward, missing=missing, min_std=min_std, top_p=top_p,
                wanted=wanted, max_attempts=max_attempts, give_up=give_up), attempt, groups[0],
            *(None if a is None else a.cpu() for a in groups[1:]), weights_of(function, weights),
            flat(function, gates), *(None if a is None else a.cpu() for a in (used, flags)))
    flat_in_sum_only, refill, gave_up = numbers.tolist()
    return SelectedGroups(chosen, rows, offsets, verdicts.split("\n") if verdicts else [], stds,
                          flat_in_sum_only, refill, bool(gave_up))


class ClippedGradient(NamedTuple):
    """What `clip_grad_norm` saw and did; the same on all ranks.

        clipped = gdpo.clip_grad_norm([torch.ones(4)], 1.0)
        print(clipped.norm, clipped.scale, clipped.take_step)
    """

    norm: float  #: The norm before clipping; NaN or infinite where the gradient is not finite.
    scale: float  #: What the gradient was multiplied by; 1: it is as it was.
    clipped: bool  #: The norm was too large, and the gradient was scaled.
    take_step: bool  #: False: leave the optimizer step out.
    nans: int  #: Elements that are NaN.
    infinities: int  #: Elements that are infinite.
    fault_rank: int  #: The rank of the first array with such an element; -1: none.
    fault_array: int  #: The place of that array in the list of the rank; -1: none.
    differing_ranks: int  #: Ranks whose replicated arrays differ from rank 0's; should be 0.
    equal_ranks: int  #: Ranks whose shards are equal to rank 0's; should be 0.


def _local(function: str, name: str, tensors: Sequence[Any]) -> Tuple[List[torch.Tensor],
                                                                     List[bool]]:
    """What this rank holds of each tensor, and whether all ranks hold it in full."""
    if not isinstance(tensors, Iterable) or isinstance(tensors, torch.Tensor):
        raise ValueError(f"{function}: {name}: given a {type(tensors).__name__}; needed: a list of "
                         "tensors")
    found: List[torch.Tensor] = []
    replicated: List[bool] = []
    for i, tensor in enumerate(tensors):
        whole = False
        if name == "gradients" and getattr(tensor, "is_leaf", False) and tensor.requires_grad:
            raise ValueError(f"{function}: {name}[{i}]: given a parameter; needed: its gradient: "
                             "[p.grad for p in parameters]")
        if hasattr(tensor, "to_local"):  # a DTensor, of FSDP2
            kinds = [placement.is_replicate() for placement in tensor.placements]
            if any(placement.is_partial() for placement in tensor.placements) or (
                    len(set(kinds)) > 1):
                raise ValueError(f"{function}: {name}[{i}]: given a DTensor with the placements "
                                 f"{tuple(tensor.placements)}; needed: one that is sharded, or "
                                 "replicated, in all dimensions of its mesh; of others give the "
                                 "shards (to_local()), and the ranks of the group that shards")
            whole = all(kinds)
            tensor = tensor.to_local()
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu":
            given = (f"a tensor on {tensor.device}" if isinstance(tensor, torch.Tensor)
                     else f"a {type(tensor).__name__}")
            raise ValueError(f"{function}: {name}[{i}]: given {given}; needed: a tensor on the CPU"
                             " (for those of a device PyTorch has torch.nn.utils.clip_grad_norm_ "
                             "and torch._foreach_lerp_)")
        if tensor.layout is not torch.strided:
            raise ValueError(f"{function}: {name}[{i}]: given {tensor.layout}; needed: a dense "
                             "tensor")
        found.append(tensor.detach())
        replicated.append(whole)
    return found, replicated


def clip_grad_norm(gradients: Sequence[Any], max_norm: float, *, ranks: Optional[Ranks] = None,
                   replicated: Optional[bool] = None, norm: Optional[str] = None,
                   on_non_finite: Optional[str] = None, eps: Optional[float] = None
                   ) -> ClippedGradient:
    """Bounds the norm of the whole gradient, over all arrays and ranks, by scaling all of it.

        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(4)).sum().backward()
        clipped = gdpo.clip_grad_norm([p.grad for p in model.parameters()], 1.0)
        if clipped.take_step:
            optimizer.step()

        norm = (sum over arrays and elements of g^2)^(1/2), or the largest |g|
        g'   = g max_norm / (norm + eps)   where norm + eps > max_norm

    gradients: changed in place; tensors on the CPU of float64, float32, bfloat16 or float16, any
      strides, and DTensors of FSDP2, whose shards are read. None is left out.
    max_norm: at least 0; float("inf") bounds nothing.
    ranks: those that hold shards of one gradient (FSDP, ZeRO). replicated: True: every rank holds
      all gradients in full (DDP), after they were reduced; they count once. A DTensor says so
      itself. `equal_ranks` and `differing_ranks` of the result show mistakes.
    norm: "two" or "max". on_non_finite: what becomes of a gradient with NaN or infinity: "skip" (it
      stays, and take_step is False), "zero" or "throw". eps (0): PyTorch's own function has 1e-6.

    Computed in double, in a fixed order. Errors: ValueError for a tensor that is in the list twice
      (a tied weight), and for settings out of range or different on ranks.
    """
    function = "gdpo::clip_grad_norm"
    own: Optional[BaseException] = None
    bound, text = 0.0, ""
    arrays: List[torch.Tensor] = []
    whole: List[bool] = []
    group = over(function, ranks)
    try:
        bound = number(function, "max_norm", max_norm)
        arrays, whole = _local(function, "gradients", [g for g in gradients if g is not None]
                               if isinstance(gradients, Iterable) else gradients)
        if replicated is not None:
            if not isinstance(replicated, bool):
                raise ValueError(f"{function}: replicated: given {replicated!r}; needed: True or "
                                 "False")
            whole = [each or replicated for each in whole]
        text = _settings(norm=norm, on_non_finite=on_non_finite, eps=eps)
    except Exception as error:
        own = error
    with errors_of_ranks(own), torch.no_grad():
        numbers = ops.clip_grad_norm(*group._arguments(own), arrays, bound, text, whole
                                     ).tolist()
    total, scale, clipped, take_step, *found = numbers
    nans, infinities, fault_rank, fault_array, differing, equal = (int(number) for number in found)
    result = ClippedGradient(total, scale, bool(clipped), bool(take_step), nans, infinities,
                             fault_rank, fault_array, differing, equal)
    if result.differing_ranks:
        warnings.warn(f"{function}: replicated gradients differ on {result.differing_ranks} of "
                      f"{group.size} ranks from those of rank 0: they have not been reduced",
                      stacklevel=2)
    if result.equal_ranks:
        warnings.warn(f"{function}: the shards of {result.equal_ranks} of {group.size} ranks are "
                      "those of rank 0: if all ranks hold the whole gradient, give replicated=True",
                      stacklevel=2)
    if result.scale != 1:
        torch.autograd.graph.increment_version(arrays)
    return result


def polyak(reference: Sequence[Any], policy: Sequence[Any], tau: float) -> None:
    """Moves a reference policy towards the policy, in place: reference += tau (policy - reference).

        policy, reference = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
        gdpo.polyak(list(reference.parameters()), list(policy.parameters()), 0.6)

    Source: open-instruct's alpha and TRL's ref_model_mixup_alpha are tau; the beta of OpenRLHF is
    1 - tau.

    reference: tensors on the CPU, of float64, float32, bfloat16 or float16; in bfloat16 small steps
      are lost. policy: as many, in the same order and shapes, of any of these types. Shards of
      FSDP2 (DTensors) move by themselves: no rank needs another.
    tau: 0 leaves the reference as it is, 1 copies the policy.
    Errors: ValueError for a tau that is not in 0 to 1, and for tensors that do not fit.
    """
    function = "gdpo::polyak"
    old, _ = _local(function, "reference", reference)
    new, _ = _local(function, "policy", policy)
    with errors_of_ranks(), torch.no_grad():
        ops.polyak(old, new, number(function, "tau", tau))
    torch.autograd.graph.increment_version(old)
