"""Training over several processes: rows gathered, records merged, errors told to all ranks."""
import contextlib
import ctypes
import datetime
import re
import time
from typing import (Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple,
                    TypeVar, Union, cast)

import torch

from ._advantages import _like, advantages, batch_of
from ._library import check_type
from ._load import ops
from ._measured import AdvantagesAndReport, Measured, Report
from ._mismatch import Mismatch
from ._names import ARRAYS, TOKEN_ARRAYS, number, raise_ours
from ._policy_loss import batch_arrays
from ._rows import names_rows

_Record = TypeVar("_Record", bound=Union[torch.Tensor, Measured, Report, Mismatch])

# torch_stable::Ranks::Gather of include/gdpo/with/torch_stable/ranks.hpp.
_GATHER = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p,
                           ctypes.c_void_p, ctypes.c_int64)


class CommunicationError(RuntimeError):
    """Other ranks do not answer: one of them is dead or stuck, or the network has failed.

    Nothing that crosses the ranks will succeed any more: end the process, and go on from a
    checkpoint.

        try:
            counts = gdpo.Ranks(deadline=60.0).merge(gdpo.count(mask=mask))
        except gdpo.CommunicationError as error:
            raise SystemExit(f"start again from the checkpoint: {error}")
    """


def failure(error: Optional[BaseException]) -> Tuple[str, bool]:
    """What other ranks are told of an error: words, and whether a mistake was refused."""
    if error is None:
        return "", False
    try:
        words = str(error) or type(error).__name__
    except Exception:
        words = type(error).__name__
    if not words.startswith(("gdpo::", "gdpo.")):
        words = f"{type(error).__name__}: {words}"
    return (words.encode("utf-8", "replace").decode(), isinstance(error, (ValueError, TypeError)))


# What has interrupted a transfer, and is no error of it.
_interrupts: List[BaseException] = []

# What the library's messages call these, and what they are in Python.
_WORDS = (("gdpo::update::", "gdpo::"), ("gdpo::dist::", "gdpo::"),
          ("another Remainder than Refuse", 'another remainder than "refuse"'),
          ("plan(rows, groups, settings)", "groups"), ("normalizer() of", "counts of"),
          ("set_given()", "set_given"), ("all_merge(comm, count)", "Ranks.merge(counts)"),
          ("on_non_finite is Throw", 'on_non_finite is "throw"'),
          ("give_up is Refuse", 'give_up is "refuse"'))


def in_python(message: str) -> str:
    """A message of the library in the words of Python: remainder="spread" for Remainder::Spread."""
    for theirs, ours in _WORDS:
        message = message.replace(theirs, ours)
    return re.sub(r"\b(Remainder|Whole|Oversize)::(\w)(\w*)", lambda found: (
        f'{found[1].lower()}="{found[2].lower()}' + re.sub(
            "[A-Z]", lambda letter: "_" + letter[0].lower(), found[3]) + '"'), message)


def in_call(function: str) -> Callable[[str], str]:
    """Messages of the collectives of a call in its name."""
    def translate(message: str) -> str:
        message = re.sub(r"^gdpo::[\w:]+?(?=: )", function, message)
        return re.sub(rf"^({function}: rank \d+ of \d+: )gdpo::[\w:]+: ", r"\1", message)
    return translate


@contextlib.contextmanager
def errors_of_ranks(own: Optional[BaseException] = None,
                    translate: Callable[[str], str] = str) -> Iterator[None]:
    """Raises what all ranks raise together as the error that it is on one.

    own: the error of this rank, which it raises itself. translate: changes a message further.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        words = translate(in_python(str(error).split("\nException raised from")[0]))
        kind, _, rest = words.partition(": ")
        if kind == "communication_error":
            if _interrupts:  # Ctrl-C while this rank waited for the others, say
                raise _interrupts.pop() from None
            raise CommunicationError(rest) from None
        if own is not None:
            raise own from (own.__cause__ or own.__context__)
        if kind == "runtime_error":
            raise RuntimeError(rest) from None
        raise_ours(error, lambda message: translate(in_python(message)))
        raise


class GatheredRows(NamedTuple):
    """The rows of all ranks, which `Ranks.gather_rows` returns; the same on every rank.

        gathered = gdpo.Ranks().gather_rows(rewards, group_size=8)
        all_rows, report = gdpo.advantages(**gathered.arguments, report=True)
        advantages = gathered.own(all_rows)
    """

    arguments: Dict[str, Any]  #: Rewards, groups and columns of all rows, for `gdpo.advantages`.
    own_rows: torch.Tensor  #: Where the rows of this rank stand among all, int64.
    rank_of: torch.Tensor  #: The rank that each row came from, int64.

    def own(self, all_rows: torch.Tensor) -> torch.Tensor:
        """The entries of the own rows, in the order in which this rank has them.

        all_rows: (rows of all ranks, ...), such as what `gdpo.advantages(**arguments)` returned.
        Errors: ValueError for another number of rows.
        """
        if not isinstance(all_rows, torch.Tensor) or len(all_rows) != len(self.rank_of):
            given = (f"{len(all_rows)} rows" if isinstance(all_rows, torch.Tensor)
                     else f"a {type(all_rows).__name__}")
            raise ValueError(f"gdpo.GatheredRows.own: all_rows: given {given}; needed: a tensor of "
                             f"the {len(self.rank_of)} rows of all ranks")
        return all_rows[self.own_rows.to(all_rows.device)]


class WholeTokens(NamedTuple):
    """Whole rows of tokens, which `Ranks.gather_tokens` returns; the same on every rank.

        whole = gdpo.Ranks().gather_tokens(logp=logp, old_logp=old_logp, mask=mask)
        counts = gdpo.count(mask=whole.arrays["mask"])
    """

    arrays: Dict[str, torch.Tensor]  #: Keywords for `gdpo.count`, `gdpo.prepare` and a loss.
    own_places: torch.Tensor  #: Where the own tokens stand in an array that is read row after row.


class _OwnGradient(torch.autograd.Function):
    """The tokens of all ranks, with the gradient of the own ones.

    Every rank computes the same loss of the same rows, so that the gradient of its own tokens is
    there already: nothing is added over the ranks.
    """

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, places: torch.Tensor, whole: torch.Tensor
                ) -> torch.Tensor:
        ctx.save_for_backward(places)
        ctx.shape, ctx.dtype = own.shape, own.dtype
        return whole.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        places, = ctx.saved_tensors
        of_own = gradients[0].reshape(-1)[places].reshape(ctx.shape)
        return of_own.to(ctx.dtype), None, None


def over(function: str, ranks: Optional["Ranks"]) -> "Ranks":
    """The ranks that are given, or one process by itself."""
    if ranks is None:
        return Ranks.single()
    if not isinstance(ranks, Ranks):
        raise ValueError(f"{function}: ranks: given {ranks!r}; needed: a gdpo.Ranks")
    return ranks


class Ranks:
    """The processes of a group of torch.distributed, which train on different rows together.

        ranks = gdpo.Ranks()                     # the default group; or one of a device mesh
        advantages = gdpo.advantages(rewards, group_ids=tasks, keys=torch.arange(rows), ranks=ranks)
        counts = ranks.merge(gdpo.count(mask=mask))
        policy_loss = gdpo.PolicyLoss("dapo")
        with ranks.agree():                      # what one rank raises, all raise
            loss, metrics = policy_loss(logp, advantages=advantages, counts=counts, mask=mask)
        (loss * gdpo.grad_scale("ddp", ranks=ranks)).backward()
        metrics = ranks.merge(metrics)

    Every call is a collective: all ranks make the same calls in the same order, those without rows
    too. If ranks do not fit together (other settings, other rewards, another call), all of them
    raise the same error, which names the ranks. The rules: include/gdpo/dist/README.md.

    group: a process group; None: the default one, or one process by itself where
      torch.distributed is not initialized.
    deadline: seconds that a call waits for the other ranks, after which it raises
      `gdpo.CommunicationError`.
    device: where the group wants its tensors, such as that of this rank for NCCL; by default the
      current CUDA device for a group of NCCL, else the CPU.

    What crosses the ranks is small, a few bytes for each row or record. Errors: ValueError for a
    deadline that is not above 0.
    """

    def __init__(self, group: Optional["torch.distributed.ProcessGroup"] = None, *,
                 deadline: float = 300.0, device: Optional[torch.device] = None) -> None:
        if not 0 < number("gdpo.Ranks", "deadline", deadline) <= 1e9:
            raise ValueError(f"gdpo.Ranks: deadline: given {deadline!r}; needed: seconds, above 0")
        if not (group is None or hasattr(group, "rank")):
            raise ValueError(f"gdpo.Ranks: group: given {group!r}; needed: a process group of "
                             "torch.distributed")
        there = torch.distributed.is_available() and torch.distributed.is_initialized()
        if group is not None and not there:
            raise ValueError("gdpo.Ranks: group: given one, before "
                             "torch.distributed.init_process_group; needed: a call after it")
        self._group = group
        self._deadline = datetime.timedelta(seconds=float(deadline))
        #: The number of this rank in the group.
        self.rank: int = 0
        #: How many ranks the group has.
        self.size: int = 1
        self._numbers: List[int] = []
        self._device = torch.device("cpu") if device is None else torch.device(device)
        self._calls = 0
        if not there:
            return
        self.rank = torch.distributed.get_rank(group)
        self.size = torch.distributed.get_world_size(group)
        if self.rank < 0:
            raise ValueError("gdpo.Ranks: group: given one that this process is not in; needed: a "
                             "group of this process")
        if device is None and "nccl" in torch.distributed.get_backend(group):
            self._device = torch.device("cuda", torch.cuda.current_device())
        self._gather = _GATHER(self._all_gather)  # kept as long as its address
        address = ctypes.cast(self._gather, ctypes.c_void_p).value
        assert address is not None
        self._numbers = [self.rank, self.size, address]

    @classmethod
    def single(cls) -> "Ranks":
        """One process by itself, whatever torch.distributed has."""
        ranks = cls.__new__(cls)
        ranks.rank, ranks.size, ranks._numbers = 0, 1, []
        return ranks

    def __repr__(self) -> str:
        return f"gdpo.Ranks(rank {self.rank} of {self.size})"

    def __reduce__(self) -> Any:
        raise TypeError("gdpo.Ranks cannot be pickled or copied: make one in each process")

    def _all_gather(self, send: int, count: int, receive: int, words: int, room: int) -> int:
        """The function that the library calls to reach the other ranks; it may not raise."""
        begin = time.monotonic()
        self._calls += 1
        try:
            # A transfer may go on after the deadline, when the library's memory is gone.
            mine = torch.frombuffer((ctypes.c_uint8 * count).from_address(send),
                                    dtype=torch.uint8).clone().to(self._device)
            everything = torch.empty(self.size * count, dtype=torch.uint8, device=self._device)
            work = torch.distributed.all_gather_into_tensor(everything, mine, group=self._group,
                                                            async_op=True)
            if work is not None and work.wait(self._deadline) is False:
                raise RuntimeError("torch.distributed has aborted it")
            ctypes.memmove(receive, everything.cpu().data_ptr(), self.size * count)
            return 1
        except BaseException as error:  # whatever it is, it may not cross the library
            if not isinstance(error, Exception):
                _interrupts.append(error)
            told = (f"gdpo.Ranks: rank {self.rank} of {self.size} waited "
                    f"{time.monotonic() - begin:.1f} s in its transfer number {self._calls}, of "
                    f"{count} bytes: {str(error).splitlines()[0] if str(error) else error!r}")
            text = told.encode("ascii", "replace")[:room - 1] + b"\0"
            ctypes.memmove(words, text, len(text))
            return 2

    def _arguments(self, own: Optional[BaseException] = None) -> Tuple[List[int], str, bool]:
        """What an operator over ranks takes first. own: the error of this rank."""
        return (self._numbers, *failure(own))

    @contextlib.contextmanager
    def agree(self) -> Iterator[None]:
        """What a rank raises in the block, all ranks raise at its end.

            with ranks.agree():
                loss, metrics = policy_loss(logp, advantages=advantages, counts=counts, mask=mask)
            loss.backward()                     # a collective of the engine, which all come to

        Without it a rank that refuses its input never comes to the next collective, and the others
        wait there. The rank that failed raises its own error, and the others a ValueError or
        RuntimeError with its message and the number of the rank. No other call of `ranks` may be
        in the block.
        """
        own: Optional[BaseException] = None
        try:
            yield
        except CommunicationError:  # the others cannot be told
            raise
        except Exception as error:
            own = error
        with errors_of_ranks(own):
            ops.agree(*self._arguments(own), [])

    def agree_on(self, *settings: object) -> None:
        """Raises on all ranks unless the settings are the same on each: losses, names, numbers.

            ranks.agree_on(policy_loss, "trl::gdpo", 1e-6, "run 17")

        settings: compared by their repr. The message shows where they first differ. Call it once
        before training, and after each change.
        """
        own: Optional[BaseException] = None
        words: List[str] = []
        try:
            if not settings:
                raise TypeError("gdpo.Ranks.agree_on: needed: settings")
            words = [repr(each) for each in settings]
        except Exception as error:
            own = error
        with errors_of_ranks(own):
            ops.agree(*self._arguments(own), words or ["nothing"])

    def merge(self, record: Union[_Record, Callable[[], _Record]]) -> _Record:
        """The sum of what all ranks have, with the same bits on each.

            counts = ranks.merge(lambda: gdpo.count(mask=mask))     # before the first loss
            metrics = ranks.merge(metrics)                           # of the step, to log them

        record: counts of `gdpo.count`, `gdpo.Metrics`, `gdpo.ValueMetrics`, a `gdpo.Report` of
          groups that are whole on their rank (the report of `gdpo.advantages(..., ranks=ranks)` is
          that of all already), a `gdpo.Mismatch`, or numbers to be added, a tensor (n), such as the
          sums of `gdpo.PidLagrangian.update`. Or a function that returns one: what it raises all
          ranks raise.
        Counts are a tensor of four float64 numbers. Set counts[3], where you know it, on the
        result.

        Returns the record of all, on the CPU; counts and numbers on the device that they had.
        Errors: ValueError on all ranks for losses that were divided by other counts than those of
        all their rows, and for records that do not belong together.
        """
        own: Optional[BaseException] = None
        what, numbers, found = "numbers", None, None
        try:
            found = record() if callable(record) else record
            what, numbers = self._numbers_of(found)
        except CommunicationError:
            raise
        except Exception as error:
            own = error
        with errors_of_ranks(own):
            merged = ops.all_merge(*self._arguments(own), what, numbers)
        of_all: Any = merged
        if isinstance(found, (Measured, Mismatch)):
            of_all = type(found)(merged)
        elif isinstance(found, Report):
            of_all = Report(merged, found.rewards)
        elif isinstance(found, torch.Tensor):
            of_all = merged.to(found.device)
        return cast(_Record, of_all)

    def _numbers_of(self, record: object) -> Tuple[str, torch.Tensor]:
        """What kind of record it is, and its numbers."""
        if isinstance(record, Measured):
            return record.kind, record.result.detach().cpu()
        if isinstance(record, Report):
            return "report", record.numbers
        if isinstance(record, Mismatch):
            return "mismatch", record.cpu()
        if not isinstance(record, torch.Tensor) or record.dim() != 1:
            raise ValueError(f"gdpo.Ranks.merge: record: given a {type(record).__name__}; needed: "
                             "counts, Metrics or ValueMetrics, a Report, a Mismatch, or numbers in "
                             "a tensor with one axis")
        if record.dtype == torch.float64 and len(record) == 4:
            return "counts", record.detach().cpu()
        return "numbers", record.detach().to("cpu", torch.float64).contiguous()

    def _moments(self, own: Optional[torch.Tensor], function: str, settings: str,
                 error: Optional[BaseException]) -> torch.Tensor:
        """The moments of all ranks' numbers, from those of this rank, in a call of `function`.

        settings: must be the same on all ranks. error: of this rank, in place of its moments; all
        ranks raise it.
        """
        with errors_of_ranks(error, in_call(function)):
            ops.agree(*self._arguments(error), [f"{function} {settings}"])
            return ops.all_merge(*self._arguments(), "moments", own)

    def gather_rows(self, rewards: Any, *, group_size: int = 0, group_ids: Any = None,
                    group_offsets: Any = None, keys: Any = None, tokens: Any = None,
                    valid: Any = None, baseline: Any = None, row_weights: Any = None,
                    penalty: Any = None, settings: Sequence[str] = ()) -> GatheredRows:
        """The rows of all ranks on each of them: rewards, groups and columns.

            gathered = ranks.gather_rows(rewards, group_ids=tasks, keys=torch.arange(rows))
            all_rows, report = gdpo.advantages(**gathered.arguments, report=True)
            advantages = gathered.own(all_rows)

        `gdpo.advantages(..., ranks=ranks)` is all of this. Every estimator is exact so, also where
        it reads the whole batch, and has the bits of one process.

        rewards, group_size, group_ids, group_offsets, tokens, valid, baseline, row_weights,
          penalty: those of this rank's rows, also none, as in `gdpo.advantages`. With group_ids a
          prompt may have rows on any of the ranks; words are such ids too, by a hash of 63 bits.
          With group_size and group_offsets a group is whole on one rank, and those of rank 0 come
          first.
        keys: (rows) integers, only beside group_ids: a number for each row that no other row of any
          rank has, such as its number in the sampler. With keys the result does not depend on how
          rows are spread over ranks, in every bit.
        settings: words that must be the same on all ranks.

        Errors: ValueError on all ranks for what one rank refuses, ranks with other rewards or
        columns, and two rows of one key.
        """
        return self._gather_rows("gdpo::gather_rows", rewards, {
            "group_size": group_size, "group_ids": group_ids, "group_offsets": group_offsets,
            "tokens": tokens, "valid": valid, "baseline": baseline, "row_weights": row_weights,
            "penalty": penalty, "keys": keys}, settings, None)[0]

    def _gather_rows(self, function: str, rewards: Any, rows: Dict[str, Any],
                     settings: Sequence[str], own: Optional[BaseException]
                     ) -> Tuple[GatheredRows, torch.dtype]:
        """gather_rows in a call of `function`, and the type of this rank's rewards.

        own: what this rank has to raise, if anything.
        """
        values: Optional[torch.Tensor] = None
        groups: Tuple[Any, ...] = (0, None, None)
        columns: List[Optional[torch.Tensor]] = []
        try:
            given = dict(rows)
            groups_given = (given.pop("group_size"), given.pop("group_ids"),
                            given.pop("group_offsets"))
            values, groups, columns = batch_of(function, rewards, groups_given, everywhere=True,
                                               **given)
        except Exception as error:
            own = own or error
            columns = [None] * 6
        self._check_ids(function, rows["group_ids"], own)
        with errors_of_ranks(own, in_call(function)):
            table, all_groups, own_rows, rank_of, *all_columns = ops.gather_rows(
                *self._arguments(own), list(settings), None if values is None else values.cpu(),
                groups[0], *(None if a is None else a.cpu() for a in (*groups[1:], *columns)))
        assert values is not None
        table = table.to(values.device)
        one = values.dim() == 1 and table.shape[1] == 1
        arguments: Dict[str, Any] = {"rewards": table[:, 0] if one else table}
        if groups[1] is not None:
            arguments["group_ids"] = all_groups.to(values.device)
        elif groups[2] is not None:
            arguments["group_offsets"] = all_groups.to(values.device)
        else:
            arguments["group_size"] = groups[0]
        names = ("tokens", "valid", "baseline", "row_weights", "penalty")
        arguments.update((name, column.to(values.device)) for name, column, given in
                         zip(names, all_columns, columns) if given is not None)
        return GatheredRows(arguments, own_rows, rank_of), values.dtype

    def _check_ids(self, function: str, ids: Any, own: Optional[BaseException]) -> None:
        """Raises ValueError on all ranks where some of them have words for ids, and others
        integers: equal ones would not be equal."""
        if ids is None:
            return
        words = names_rows(ids)
        kinds = torch.tensor([words, not words and len(ids) > 0], dtype=torch.float64)
        with errors_of_ranks(own, in_call(function)):
            of_words, of_integers = ops.all_merge(*self._arguments(own), "numbers", kinds).tolist()
        if of_words and of_integers:
            raise ValueError(f"{function}: group_ids: given words on {of_words:g} ranks and "
                             f"integers on {of_integers:g}; needed: one of the two on all ranks")

    def _advantages(self, rewards: Any, rows: Dict[str, Any], call: Dict[str, Any],
                   rollout_ids: Any = None) -> Any:
        """`gdpo.advantages(..., ranks=ranks)`: rows has the arrays of this rank, call the rest.

        rollout_ids: None, because rows are gathered before.
        """
        own: Optional[BaseException] = None
        if rollout_ids is not None:
            own = ValueError("gdpo::advantages: rollout_ids: given, with ranks; needed: none: "
                             "gather the rows before (gdpo.Ranks.gather_rows)")
        same: List[str] = []
        try:
            same = [f"{name} {call[name]!r}" for name in sorted(call)]
        except Exception as error:
            own = own or error
        gathered, dtype = self._gather_rows("gdpo::advantages", rewards, rows, same, own)
        result = advantages(**gathered.arguments, **call)
        mine = gathered.own(result.advantages if call["report"] else result)
        if dtype in (torch.float32, torch.bfloat16, torch.float16):
            mine = mine.float()
        mine = _like(rewards, mine)
        return AdvantagesAndReport(mine, result.report) if call["report"] else mine

    def gather_tokens(self, *, positions: Optional[torch.Tensor] = None,
                      **arrays: Optional[torch.Tensor]) -> WholeTokens:
        """Whole rows on every rank, where each has some tokens of every row: context parallelism.

            context = gdpo.Ranks()   # mesh.get_group("cp"): ranks that share their rows
            data = gdpo.Ranks()      # mesh.get_group("dp"): ranks that have different rows
            whole = context.gather_tokens(logp=logp, old_logp=old_logp, mask=mask)
            counts = data.merge(gdpo.count(mask=whole.arrays["mask"]))
            loss, metrics = policy_loss(**whole.arrays, advantages=advantages, counts=counts)
            loss.backward()                                  # reaches the own tokens of logp

        The ratio of a sequence, the mean over a row and every pre-pass that decides by row need the
        whole row. All ranks of the group then have the same loss and metrics: merge them over the
        data-parallel ranks only. The gradient by the own tokens needs no communication, and is that
        of the whole loss.

        arrays: those of a loss that have one number for each token, with the same names on all
          ranks, and offsets for packed ones. Padded parts lie side by side. Columns of rows
          (advantages, row_weights) are the same on all ranks: give them to the loss as they are.
        positions: in the shape of the tokens, int64: the place of each in its whole row, for ranks
          whose parts are not consecutive (ring attention). Absent: the tokens of rank 0 come first.

        Returns the arrays of the whole rows, float64 where logp is and else float32, on their
        device; logp and entropies with a gradient where the own ones have one. Errors: ValueError
        on all ranks, for ranks that do not share their rows, and positions that are not all
        different.
        """
        own: Optional[BaseException] = None
        function = "gdpo::gather_tokens"
        given: Dict[str, Optional[torch.Tensor]] = {}
        dense: List[Optional[torch.Tensor]] = [None] * len(ARRAYS)
        sent: List[Optional[torch.Tensor]] = [None] * (1 + len(ARRAYS))
        try:
            unknown = [name for name in arrays if name not in (*TOKEN_ARRAYS, "offsets")]
            if unknown:
                raise ValueError(f"{function}: {unknown[0]}: given, and not an array of tokens; "
                                 f"needed: one of {', '.join(TOKEN_ARRAYS)}, offsets")
            given = dict(arrays)
            dense = batch_arrays(function, given)
            if positions is not None:
                check_type(function, "positions", positions)
            sent = [None if a is None else a.detach().cpu() for a in (positions, *dense)]
        except Exception as error:
            own = error
        with errors_of_ranks(own):
            places, *wholes, offsets = ops.gather_tokens(*self._arguments(own), *sent)
        first = next(a for a in dense if a is not None)
        found: Dict[str, torch.Tensor] = {}
        for name, whole in zip(TOKEN_ARRAYS, wholes):
            array = given.get(name)
            if array is None:
                continue
            whole = whole.to(first.device)
            if array.requires_grad and torch.is_grad_enabled():
                whole = _OwnGradient.apply(array, places.to(first.device), whole)
            found[name] = whole
        if offsets.numel() > 0:
            found["offsets"] = offsets.to(first.device)
        return WholeTokens(found, places)


def grad_scale(engine: str, *, ranks: Union[int, Ranks], accumulation: int = 1) -> float:
    """The factor that takes back what a training engine divides gradients by.

        (loss * gdpo.grad_scale("fsdp", ranks=8)).backward()

    A loss is divided by the counts of the whole step, so that the gradients of its calls only have
    to be added, over micro-batches and ranks. An engine that averages divides once more. Multiply
    each loss by the factor before backward, once.

    engine: "sum", "ddp", "fsdp", "accelerate", "deepspeed", "deepspeed_unscaled", "deepspeed_sum",
      "huggingface", "huggingface_scaled", "huggingface_items", "megatron", "megatron_tokens",
      "megatron_per_token" or "verl". What each divides by, with file and release:
      include/gdpo/dist/README.md.
    ranks: a `gdpo.Ranks`, or the number of ranks that the engine averages over: those with
      different rows, and for most engines the context-parallel ones too.
    accumulation: the number of micro-batches that the engine divides by.

    Errors: ValueError for an unknown engine and for numbers below 1.
    """
    world = ranks.size if isinstance(ranks, Ranks) else ranks
    with errors_of_ranks(translate=lambda message: message.replace(": world:", ": ranks:")):
        return ops.grad_scale(world, accumulation, engine)
