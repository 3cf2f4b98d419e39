"""An optimizer step of several micro-batches and ranks: its counts, and the sum of its losses."""
import types
import weakref
from typing import Any, Iterable, List, Optional, Tuple, Type

import torch

from ._library import check_type
from ._load import ops
from ._measured import Metrics, Report
from ._names import number
from ._ranks import CommunicationError, Ranks, errors_of_ranks, failure, over


class Step:
    """The counts of an optimizer step before its first loss, and the sum of what its losses return.

        policy_loss = gdpo.PolicyLoss("dapo")
        halves = [slice(0, 16), slice(16, 32)]                      # two micro-batches
        with gdpo.Step(gdpo.count(mask=mask[half]) for half in halves) as step:
            for k, half in enumerate(halves):
                loss, metrics = policy_loss(logp[half], advantages=advantages[half],
                                            mask=mask[half], counts=step.counts)
                loss.backward()
                step.add(k, metrics)
        print(step.metrics.to_dict())

    A loss is divided by the counts of the whole step, which have to be known before the first
    backward. Losses and gradients of the micro-batches then only have to be added. This class makes
    the counts, and refuses a micro-batch that is missing, comes twice, was divided by other counts,
    or has other counts than the one that was counted. Each of these would give a wrong gradient
    without an error.

    counts: of each micro-batch of this rank, in order, what `gdpo.count` returned, after
      `gdpo.prepare`. A generator is run by the class, which tells the other ranks of its errors.
    ranks: `gdpo.Ranks` of the processes with other rows; None for one process. They may have
      different numbers of micro-batches, also none. Making a Step and leaving its block are then
      collectives. What a rank raises in the block, all ranks raise at its end, each with the
      message of the rank that failed. Where backward is a collective of an engine itself, call the
      loss in `ranks.agree()`.

    Gradients stay where they are: their sum over micro-batches and ranks is that of the step;
    `gdpo.grad_scale` has the factor for engines that average. Where backward is a collective of the
    engine (DDP without no_sync(), FSDP), or the block calls `ranks.agree()`, all ranks need the
    same number of micro-batches. Metrics of a CUDA device are looked at when the block ends, so
    that nothing waits for it before.
    """

    def __init__(self, counts: Iterable[torch.Tensor], *, ranks: Optional[Ranks] = None) -> None:
        own: Optional[BaseException] = None
        table: Optional[torch.Tensor] = None
        device = torch.device("cpu")
        try:
            listed = list(counts)
            for k, each in enumerate(listed):
                check_type("gdpo.Step", f"counts[{k}]", each)
                if each.dtype != torch.float64 or each.shape != (4,):
                    raise ValueError(
                        f"gdpo.Step: counts[{k}]: given {each.dtype} of shape {tuple(each.shape)};"
                        " needed: what gdpo.count returns, float64 of shape (4,)")
            device = listed[0].device if listed else device
            table = torch.stack([each.detach().cpu() for each in listed]) if listed else (
                torch.empty((0, 4), dtype=torch.float64))
        except CommunicationError:  # the others cannot be told
            raise
        except Exception as error:
            own = error
        self._ranks = over("gdpo.Step", ranks)
        with errors_of_ranks(own):
            self._number, of_step = ops.step_open(*self._ranks._arguments(own), table)
        self._close = weakref.finalize(self, ops.step_close, self._number)
        self._pending: List[Tuple[int, torch.Tensor, Optional[torch.Tensor]]] = []
        self._metrics: Optional[Metrics] = None
        self._report: Optional[Report] = None
        #: The counts of all micro-batches and ranks: the argument of every loss of the step.
        self.counts: torch.Tensor = of_step.to(device)

    def set_given(self, given: float) -> None:
        """Sets counts[3], a count of your own that "trl::dapo" and its kind divide by.

        given: finite, above 0, and the same on all ranks. Without this call it is the sum of what
          `gdpo.count(given=...)` had.
        Errors: ValueError after the first `add`, whose loss was divided without it.
        """
        with errors_of_ranks():
            of_step = ops.step_given(self._number, number("gdpo::Step.set_given", "given", given))
            self.counts = of_step.to(self.counts.device)

    def add(self, k: int, metrics: Metrics, report: Optional[Report] = None) -> None:
        """Adds what the loss of micro-batch k returned.

        k: its number, from 0, in any order. report: of `gdpo.advantages` of groups that are whole
          in this micro-batch; one of rows that `ranks` gathered is that of all already.
        Errors: ValueError for a number out of range or added before, and for metrics of a loss
        that was divided by other counts, or whose tokens and rows are not those that were counted.
        The step is then as before.
        """
        if not isinstance(metrics, Metrics):
            raise ValueError(f"gdpo.Step.add: metrics: given a {type(metrics).__name__}; needed: "
                             "gdpo.Metrics, the second of what a loss returns")
        if not (report is None or isinstance(report, Report)):
            raise ValueError(f"gdpo.Step.add: report: given a {type(report).__name__}; needed: a "
                             "gdpo.Report")
        entry = (k, metrics.result.detach(), None if report is None else report.numbers)
        if entry[1].device.type == "cpu":
            self._add(*entry)
        else:
            self._pending.append(entry)

    def _add(self, k: int, result: torch.Tensor, report: Optional[torch.Tensor]) -> None:
        with errors_of_ranks():
            ops.step_add(self._number, k, result, report)

    def finish(self) -> Metrics:
        """The metrics of all micro-batches and ranks, with the same bits on every rank.

        The end of the block calls it. Errors, which all ranks raise: ValueError for micro-batches
        with rows that were not added, for ranks with different `given`, and a second call.
        """
        return self._finish(None)

    def _finish(self, own: Optional[BaseException]) -> Metrics:
        try:
            for k, result, report in self._pending:
                self._add(k, result.cpu(), report)
        except Exception as error:
            own = own or error
        self._pending = []
        with errors_of_ranks(own):
            result, numbers = ops.step_finish(self._number, *failure(own))
        self._metrics = Metrics(result)
        if numbers.numel() > 0:
            self._report = Report.of_numbers(numbers)
        return self._metrics

    @property
    def metrics(self) -> Metrics:
        """What `finish` returned. Errors: ValueError before it."""
        if self._metrics is None:
            raise ValueError("gdpo.Step.metrics: given a call before finish(); needed: one after "
                             "the block, or after finish(), which merges them")
        return self._metrics

    @property
    def report(self) -> Optional[Report]:
        """The report of all micro-batches and ranks; None where none was added."""
        return self._report

    def __enter__(self) -> "Step":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[types.TracebackType]) -> None:
        if self._metrics is not None or isinstance(error, CommunicationError):
            return
        if isinstance(error, Exception):
            self._finish(error)  # raises it, after the other ranks have been told
        elif error is None:
            self.finish()

    def __reduce__(self) -> Any:
        raise TypeError("gdpo.Step cannot be pickled or copied: it is one step, which happens once")

    def __repr__(self) -> str:
        tokens, rows, non_empty, given = self.counts.tolist()
        return (f"gdpo.Step({tokens:g} tokens, {rows:g} rows, {non_empty:g} non-empty rows"
                f"{f', given {given:g}' if given else ''})")
