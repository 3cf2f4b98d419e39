"""Advantages of rewards, from arrays of any library that speaks DLPack."""
import operator
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from ._library import check_tensors, names, ops, our_errors


class Report:
    """What a call of `advantages` saw of the whole batch.

    `report["rows"]` is one number, and `names()` lists them; they are members of the library's
    GroupReport: counts of rows, groups and missing rewards, and the moments of the reward sums, of
    the groups' standard deviations and of each reward.
    """

    def __init__(self, numbers: Union[torch.Tensor, Callable[[], torch.Tensor]],
                 rewards: int) -> None:
        self._numbers = numbers
        #: How many rewards a row has.
        self.rewards = rewards

    @property
    def numbers(self) -> torch.Tensor:
        """The numbers, float64 on the CPU, in the order of names().

        For rewards on a device they are computed when they are first asked for, which waits for it.
        """
        if callable(self._numbers):
            self._numbers = self._numbers()
        return self._numbers

    def names(self) -> list:
        """The names of the numbers, in their order."""
        return list(names("report", self.rewards))

    def __getitem__(self, name: str) -> float:
        try:
            at = names("report", self.rewards).index(name)
        except ValueError:
            raise KeyError(name) from None
        return float(self.numbers[at])

    def to_dict(self, prefix: str = "", reward_names: Sequence[str] = (), *,
                zero_std: str = "groups", std: str = "batch") -> Dict[str, float]:
        """The rewards under the keys that TRL and ms-swift log, each after `prefix`.

        reward_names: one for each reward; without them they are numbered. zero_std: what has no
        spread counts by "groups", "batch" or "sum". std: "batch" or "mean_of_groups". Which trainer
        logs what: GroupReport::to_map in include/gdpo/advantage/report.hpp.
        """
        with our_errors():
            keys, values = ops.report_map(self.numbers, prefix, list(reward_names), zero_std, std)
        return dict(zip(keys.split("\n"), values.tolist())) if keys else {}

    def merge(self, other: "Report") -> "Report":
        """The report of two micro-batches or ranks together."""
        with our_errors():
            return Report(ops.merge_reports(self.numbers, other.numbers), self.rewards)


class AdvantagesAndReport(NamedTuple):
    """What `advantages` returns with report=True."""

    advantages: Any  #: (rows)
    report: Report


def _tensor(array: Any) -> Optional[torch.Tensor]:
    """The array as a tensor, without a copy where PyTorch can read its memory."""
    if array is None or isinstance(array, torch.Tensor):
        return array.detach() if array is not None else None
    if hasattr(array, "__dlpack__"):
        # PyTorch has no tensors with negative strides.
        backwards = any(step < 0 for step in getattr(array, "strides", None) or ())
        return torch.from_dlpack(array.copy() if backwards else array)
    tensor = torch.as_tensor(array)  # makes float32 of Python's floats
    return torch.as_tensor(array, dtype=torch.float64) if tensor.is_floating_point() else tensor


def _like(array: Any, result: torch.Tensor) -> Any:
    """The result as an array of the library that `array` is of."""
    if isinstance(array, torch.Tensor) or not hasattr(array, "__dlpack__"):
        return result
    if type(array).__module__ == "numpy":  # before 2.0 it has no __array_namespace__
        return result.numpy()
    return array.__array_namespace__().from_dlpack(result)


def _flat(entries: Sequence[Sequence[float]]) -> Optional[List[float]]:
    """The numbers of all entries in one list; None where there are none."""
    return [float(number) for entry in entries for number in entry] if entries else None


def advantages(rewards: Any, *, estimator: str = "gdpo", group_size: int = 0, group_ids: Any = None,
               group_offsets: Any = None, weights: Optional[Sequence[float]] = None,
               gates: Sequence[Tuple[int, int, float]] = (),
               constraints: Sequence[Tuple[int, float, float, float, str]] = (),
               tokens: Any = None, valid: Any = None, baseline: Any = None,
               row_weights: Any = None, report: bool = False) -> Any:
    """Group-relative advantages: one number for each row (completion).

    rewards: (rows) or (rows, rewards); a NaN is a reward that is missing. Tensors, NumPy arrays,
      JAX and CuPy arrays (by DLPack, without copies) and lists. Those on a CUDA device are computed
      there, without waiting for it; with `constraints` on the CPU, which waits.
    estimator: one of `gdpo.estimators()`: "gdpo" (arXiv 2601.05242), "grpo", "dr_grpo", "rloo", or
      a trainer's such as "trl::gdpo".
    One of these says who belongs together: group_size (that many rows in a row), group_ids (rows),
      integers in any order, or group_offsets (groups + 1), where each group begins.
    weights: one for each reward. gates: (reward, condition, threshold): the reward counts only
      where the reward `condition` is at least `threshold`.
    constraints: (reward, multiplier, limit, scale, "at_least" or "at_most"), as
      `PidLagrangian.constraints` gives them: the reward is not maximised, but its violations
      (limit - reward) / scale, or their opposite, are subtracted, centred in the group:
      (A - sum of multiplier (v - mean v)) / (1 + sum of multipliers).
    tokens: (rows) lengths, for "verl::gdpo". valid: (rows) 0 leaves a row out of the statistics.
    baseline: (rows) your own. row_weights: (rows) for estimators of your own.

    Returns the advantages (rows), float32 for rewards of float32 and narrower, else float64, as an
    array of the library that `rewards` is of (a tensor for a list); with report=True also a Report.

    Errors: ValueError for unknown names and for types, shapes and settings that do not fit.
    """
    try:
        values, group_size = _tensor(rewards), operator.index(group_size)
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"gdpo::advantages: rewards, group_size: {error}; needed: an array of "
                         "numbers (NaN where a reward is missing), and an integer") from None
    ids, offsets = _tensor(group_ids), _tensor(group_offsets)
    columns = {"tokens": _tensor(tokens), "valid": _tensor(valid), "baseline": _tensor(baseline),
               "row_weights": _tensor(row_weights)}
    check_tensors("gdpo::advantages", {"rewards": values, "group_ids": ids,
                                       "group_offsets": offsets, **columns})
    limits = [(*c[:4], float(c[4] == "at_least")) for c in constraints]
    if any(c[4] not in ("at_least", "at_most") for c in constraints):
        raise ValueError("gdpo::advantages: constraints: given another bound; needed: at_least or "
                         "at_most")
    arguments = (estimator, group_size, ids, offsets,
                 None if weights is None else [float(weight) for weight in weights], _flat(gates),
                 _flat(limits), *columns.values())

    def on_cpu() -> Tuple[torch.Tensor, torch.Tensor]:
        # The kernels for devices have no constraints and no report.
        with our_errors():
            return ops.advantages(values.cpu(), *(a.cpu() if isinstance(a, torch.Tensor) else a
                                                  for a in arguments))

    if values.device.type == "cpu" or limits:
        result, numbers = on_cpu()
        result = result.to(values.device)
    else:
        with our_errors():
            result, _ = ops.advantages(values, *arguments)
        def numbers() -> torch.Tensor:
            return on_cpu()[1]
    result = _like(rewards, result)
    if not report:
        return result
    return AdvantagesAndReport(
        result, Report(numbers, values.shape[1] if values.dim() == 2 else 1))
