"""Advantages of rewards, from arrays of any library that speaks DLPack."""
import functools
import hashlib
import math
import operator
import sys
import uuid
import warnings
from typing import (TYPE_CHECKING, Any, Callable, Dict, List, Literal, NamedTuple, Optional,
                    Protocol, Sequence, Tuple, TypeVar, Union, overload)

import torch

from ._library import check_tensors
from ._load import ops
from ._names import names, our_errors, raise_ours
from ._numbers import NumbersByName
from ._settings import line, takes_settings

if TYPE_CHECKING:
    import numpy
    from typing_extensions import Unpack

    from ._keywords import EstimatorSettings
    from ._ranks import Ranks


class Report(NumbersByName):
    """What a call of `advantages` saw of the whole batch, a mapping.

    `report["rows"]` is one number, `dict(report)` has all, and `names()` lists them; they are
    members of the library's GroupReport: counts of rows, groups and missing rewards, and the
    moments of the reward sums, of the groups' standard deviations and of each reward.

        advantages, report = gdpo.advantages(rewards, group_size=8, report=True)
        print(report["groups"], report["rewards.0.values.mean"])
        logged = report.to_dict("train/", ["right", "short"])
    """

    _such_as = "rows"

    def __init__(self, numbers: Union[torch.Tensor, Callable[[], torch.Tensor]],
                 rewards: int) -> None:
        self._numbers = numbers
        #: How many rewards a row has.
        self.rewards = rewards

    @classmethod
    def of_numbers(cls, numbers: torch.Tensor) -> "Report":
        """The report whose numbers these are."""
        rewards = 0
        while len(names("report", rewards)) < len(numbers):
            rewards += 1
        return cls(numbers, rewards)

    @property
    def numbers(self) -> torch.Tensor:
        """The numbers, float64 on the CPU, in the order of names().

        For rewards on a device they are computed when they are first asked for, which waits for it.
        """
        if callable(self._numbers):
            self._numbers = self._numbers()
        return self._numbers

    def names(self) -> List[str]:
        """The names of the numbers, in their order."""
        return list(names("report", self.rewards))

    def _tensor(self) -> torch.Tensor:
        return self.numbers

    def __repr__(self) -> str:
        first = self.names().index("reward_sums.n")
        means = [f"rewards.{k}.values.mean" for k in range(self.rewards)]
        return self._shown([*self.names()[:first], "reward_sums.mean", "group_stds.mean", *means])

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
        """The report of this micro-batch or rank and of the other's."""
        if not isinstance(other, Report):
            raise ValueError(f"gdpo.Report.merge: other: given a {type(other).__name__}; needed: a "
                             "gdpo.Report")
        with our_errors():
            return Report(ops.merge_reports(self.numbers, other.numbers), self.rewards)


class AdvantagesAndReport(NamedTuple):
    """What `advantages` returns with report=True."""

    advantages: Any  #: (rows)
    report: Report


def _plain(array: Any) -> Any:
    """The array of what wraps one, such as a pandas.Series; one of Python's objects as a list."""
    if not isinstance(array, torch.Tensor) and hasattr(array, "to_numpy"):
        array = array.to_numpy()
    if getattr(getattr(array, "dtype", None), "kind", "") in ("O", "U", "S"):
        return array.tolist()
    return array


def _with_nan(rewards: Any) -> Any:
    """The rewards with NaN for None in lists: a reward function has not scored the completion."""
    rewards = _plain(rewards)
    if not isinstance(rewards, (list, tuple)):
        return rewards
    return [math.nan if entry is None else _with_nan(entry) for entry in rewards]


_NAMES_OF_ROWS = (str, bytes, uuid.UUID)


def names_rows(array: Any) -> bool:
    """Whether ids are strings, bytes or UUIDs."""
    array = _plain(array)
    return isinstance(array, (list, tuple)) and any(isinstance(i, _NAMES_OF_ROWS) for i in array)


def _hashed(entry: Any) -> int:
    """63 bits that are the same in every process."""
    word = entry if isinstance(entry, bytes) else str(entry).encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(word, digest_size=8, person=type(entry).__name__.encode()[:16])
    return int.from_bytes(digest.digest(), "big") >> 1


def _ids(function: str, name: str, array: Any, device: torch.device,
         everywhere: bool = False) -> Optional[torch.Tensor]:
    """Integers that say which rows belong together.

    Strings, bytes and UUIDs are numbered by their first appearance: equal ones have equal numbers.
    everywhere: by hashes instead, because other processes have some of the rows.
    """
    array = _plain(array)
    if everywhere and isinstance(array, (list, tuple)) and not array:
        return torch.empty(0, dtype=torch.int64, device=device)  # of a rank without rows
    if isinstance(array, (list, tuple)) and any(isinstance(i, _NAMES_OF_ROWS) for i in array):
        for row, entry in enumerate(array):
            if not isinstance(entry, _NAMES_OF_ROWS):
                raise ValueError(f"{function}: {name}: given {entry!r} in row {row}, among "
                                 "strings; needed: integers or strings, one for each row")
        numbers: Dict[Any, int] = {}
        array = [_hashed(entry) if everywhere else numbers.setdefault(entry, len(numbers))
                 for entry in array]
    return _tensor(name, array, device, function)


def _tensor(name: str, array: Any, device: Optional[torch.device] = None,
            function: str = "gdpo::advantages") -> Optional[torch.Tensor]:
    """The argument `name` as a tensor, without a copy where PyTorch can read its memory.

    device: where a list goes. function: what messages call the call.
    """
    if array is None or isinstance(array, torch.Tensor):
        return array.detach() if array is not None else None
    array = _plain(array)
    try:
        if hasattr(array, "__dlpack__"):
            # PyTorch has no tensors with negative strides.
            backwards = any(step < 0 for step in getattr(array, "strides", None) or ())
            return torch.from_dlpack(array.copy() if backwards else array)
        tensor = torch.as_tensor(array, device=device)  # makes float32 of Python's floats
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{function}: {name}: {error}; needed: an array of numbers") from None
    if not tensor.is_floating_point():
        return tensor
    return torch.as_tensor(array, dtype=torch.float64, device=device)


def grouping(function: str, device: torch.device, group_size: Any, group_ids: Any,
             group_offsets: Any, everywhere: bool = False
             ) -> Tuple[int, Optional[torch.Tensor], Optional[torch.Tensor]]:
    """What says which rows belong together, as the operators take it; lists go to the device.

    everywhere: other processes have some of the rows.
    """
    try:
        group_size = operator.index(group_size)
        if not -2**63 <= group_size < 2**63:
            raise TypeError
    except TypeError:
        raise ValueError(f"{function}: group_size: given {group_size!r}; needed: an integer"
                         ) from None
    return (group_size, _ids(function, "group_ids", group_ids, device, everywhere),
            _tensor("group_offsets", group_offsets, device, function))


def batch_of(function: str, rewards: Any, groups: Tuple[Any, Any, Any], *,
             by_reward: bool = True, everywhere: bool = False, **columns: Any) -> Tuple[
        torch.Tensor, Tuple[int, Optional[torch.Tensor], Optional[torch.Tensor]],
        List[Optional[torch.Tensor]]]:
    """The rewards, what says who belongs together, and the columns, as the operators take them.

    by_reward: the call has something for each reward, such as weights, so that a second axis of the
      rewards cannot be meant as completions. everywhere: other processes have some of the rows.
    """
    values = _tensor("rewards", _with_nan(rewards), None, function)
    if values is None:
        raise ValueError(f"{function}: rewards: given None; needed: an array of numbers")
    device = values.device
    group_size, ids, offsets = grouping(function, device, *groups, everywhere)
    if (not by_reward and values.dim() == 2 and values.shape[1] == group_size > 1
            and len(values) % group_size == 0 and not torch.compiler.is_compiling()):
        warnings.warn(f"{function}: rewards: shape {tuple(values.shape)} is read as {len(values)} "
                      f"rows with {group_size} rewards each; if it is {len(values)} prompts with "
                      f"{group_size} completions each, give rewards.reshape(-1), else "
                      f"weights=[1] * {group_size}, which says so", stacklevel=3)
    tensors = {name: _ids(function, name, array, device) if name.endswith("_ids") else
               _tensor(name, array, device, function) for name, array in columns.items()}
    check_tensors(function, {"rewards": values, "group_ids": ids, "group_offsets": offsets,
                             **tensors})
    return values, (group_size, ids, offsets), list(tensors.values())


def of_rows(rewards: torch.Tensor) -> Callable[[str], str]:
    """Puts behind a message about rows what the rows of these rewards are, where there may be
    doubt: a second axis is that of rewards, not of completions."""
    def translate(message: str) -> str:
        shape = tuple(rewards.shape)
        if len(shape) < 2 or shape[-1] < 2 or not (" rows" in message or "(rows)" in message):
            return message
        if len(shape) == 2:
            return (f"{message}; rewards of shape {shape} are {shape[0]} rows with {shape[1]} "
                    f"rewards each, and rewards.reshape(-1) are {rewards.numel()} rows with one")
        return f"{message}; rewards.flatten(0, {len(shape) - 2}) makes rows of completions"
    return translate


def check_keys(function: str, keys: Any, ranks: Optional["Ranks"]) -> None:
    """Raises ValueError for keys without ranks."""
    if keys is not None and ranks is None:
        raise ValueError(f"{function}: keys: given, without ranks; needed: keys beside ranks only, "
                         "over which they order the rows")


def weights_of(function: str, weights: Optional[Sequence[float]]) -> Optional[List[float]]:
    """The weights of the rewards as numbers."""
    try:
        return None if weights is None else [float(weight) for weight in weights]
    except (TypeError, ValueError):
        raise ValueError(f"{function}: weights: given {weights!r}; needed: a number for each "
                         "reward") from None


def _like(array: Any, result: torch.Tensor) -> Any:
    """The result as an array of the library that `array` is of."""
    if isinstance(array, torch.Tensor) or not hasattr(array, "__dlpack__"):
        return result
    if type(array).__module__ == "numpy":  # before 2.0 it has no __array_namespace__
        return result.numpy()
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__().from_dlpack(result)
    return sys.modules[type(array).__module__.split(".")[0]].from_dlpack(result)


def flat(function: str, gates: Sequence[Tuple[int, int, float]]) -> Optional[List[float]]:
    """The numbers of all gates in one list; None where there are none."""
    try:
        return [float(number) for reward, condition, threshold in gates
                for number in (reward, condition, threshold)] if gates else None
    except (TypeError, ValueError):
        raise ValueError(f"{function}: gates: given {gates!r}; needed: for each gate (reward, "
                         "condition, threshold), the first two by their numbers") from None


def _limits_of(constraints: Sequence[Tuple[int, float, float, float, str]]
               ) -> Optional[List[float]]:
    """The numbers of all constraints in one list; None where there are none."""
    numbers: List[float] = []
    try:
        for reward, multiplier, limit, scale, bound in constraints:
            if bound not in ("at_least", "at_most"):
                raise ValueError
            numbers += [float(reward), float(multiplier), float(limit), float(scale),
                        float(bound == "at_least")]
    except (TypeError, ValueError):
        raise ValueError(f"gdpo::advantages: constraints: given {constraints!r}; needed: for each "
                         "constraint (reward, multiplier, limit, scale, bound), the reward by its "
                         "number and the bound at_least or at_most") from None
    return numbers or None


def _call(values: torch.Tensor, estimator: str, arguments: tuple
          ) -> Tuple[torch.Tensor, torch.Tensor]:
    """The operator. It has no `with our_errors()`, which takes longer than a small batch."""
    try:
        return ops.advantages(values, estimator, *arguments)
    except (RuntimeError, ValueError) as error:
        raise_ours(error, of_rows(values))
        raise


def _on_cpu(estimator: str, values: torch.Tensor, arguments: tuple
            ) -> Tuple[torch.Tensor, torch.Tensor]:
    """The operator on the CPU: the kernels for devices have no constraints and no report."""
    return _call(values.cpu(), estimator, tuple(
        a.cpu() if isinstance(a, torch.Tensor) else a for a in arguments))


def _report_on_cpu(estimator: str, values: torch.Tensor, arguments: tuple) -> torch.Tensor:
    return _on_cpu(estimator, values, arguments)[1]


if TYPE_CHECKING:
    class _Arguments(EstimatorSettings, total=False):
        estimator: str
        group_size: int
        group_ids: Any
        group_offsets: Any
        weights: Optional[Sequence[float]]
        gates: Sequence[Tuple[int, int, float]]
        constraints: Sequence[Tuple[int, float, float, float, str]]
        tokens: Any
        valid: Any
        baseline: Any
        row_weights: Any
        penalty: Any
        rollout_ids: Any
        take: str
        ranks: Optional[Ranks]
        keys: Any

    _Array = TypeVar("_Array", bound="_HasDlpack")

    _Numpy = numpy.ndarray[Any, numpy.dtype[numpy.floating[Any]]]

    class _HasDlpack(Protocol):
        def __dlpack__(self, *arguments: Any, **keywords: Any) -> Any: ...


@overload
def advantages(rewards: torch.Tensor, *, report: Literal[False] = ...,
               **arguments: "Unpack[_Arguments]") -> torch.Tensor: ...


@overload
def advantages(rewards: "numpy.ndarray[Any, Any]", *, report: Literal[False] = ...,
               **arguments: "Unpack[_Arguments]"
               ) -> "numpy.ndarray[Any, numpy.dtype[numpy.floating[Any]]]": ...


@overload
def advantages(rewards: Sequence[Any], *, report: Literal[False] = ...,
               **arguments: "Unpack[_Arguments]") -> torch.Tensor: ...


@overload
def advantages(rewards: "_Array", *, report: Literal[False] = ...,
               **arguments: "Unpack[_Arguments]") -> "_Array": ...


@overload
def advantages(rewards: Any, *, report: Literal[True],
               **arguments: "Unpack[_Arguments]") -> AdvantagesAndReport: ...


@overload
def advantages(rewards: Any, *, report: bool, **arguments: "Unpack[_Arguments]") -> Any: ...


@takes_settings("estimator")
def advantages(rewards: Any, *, estimator: str = "gdpo", group_size: int = 0, group_ids: Any = None,
               group_offsets: Any = None, weights: Optional[Sequence[float]] = None,
               gates: Sequence[Tuple[int, int, float]] = (),
               constraints: Sequence[Tuple[int, float, float, float, str]] = (),
               tokens: Any = None, valid: Any = None, baseline: Any = None,
               row_weights: Any = None, penalty: Any = None, rollout_ids: Any = None,
               take: str = "last", report: bool = False, ranks: Optional["Ranks"] = None,
               keys: Any = None, **settings: "Unpack[EstimatorSettings]") -> Any:
    """Group-relative advantages: one number for each row (completion).

        advantages = gdpo.advantages(rewards, group_size=8)
        advantages = gdpo.advantages(rewards, group_ids=tasks, estimator="trl::gdpo",
                                     weights=[1.0, 0.5], scale_eps=1e-6)

    rewards: (rows) or (rows, rewards); a NaN is a reward that is missing, as is None in a list. Of
      (prompts, completions) give rewards.reshape(-1).
      Tensors, NumPy arrays, JAX and CuPy arrays (by DLPack, without copies) and lists. Those on a
      CUDA device are computed there, without waiting for it; with `constraints` or `rollout_ids` on
      the CPU, which waits.
    estimator: one of `gdpo.estimators()`: "gdpo" (arXiv 2601.05242), "grpo", "dr_grpo", "rloo", or
      a trainer's such as "trl::gdpo". It brings its settings; what you give replaces one of them,
      as a keyword or behind the name, as in "trl::gdpo scale.eps=1e-6".
    One of these says who belongs together: group_size (that many rows in a row), group_ids (rows),
      integers or strings in any order, or group_offsets (groups + 1), where each group begins.
    weights: one for each reward. gates: (reward, condition, threshold): the reward counts only
      where the reward `condition` is at least `threshold`.
    constraints: (reward, multiplier, limit, scale, "at_least" or "at_most"), as
      `PidLagrangian.constraints` gives them: the reward is not maximized, but its violations
      (limit - reward) / scale, or their opposite, are subtracted, centered in the group:
      (A - sum of multiplier (v - mean v)) / (1 + sum of multipliers). Where you give weights, give
      it 0.
    tokens: (rows) lengths, for "verl::gdpo". valid: (rows) 0 leaves a row out of the statistics;
      its advantage is that of one more member, or 0 with unused="exclude", for placeholders.
    baseline: (rows) your own. row_weights: (rows) for estimators of your own.
    penalty: (rows) the KL of each row in nats, which penalty_coef times is taken off the reward:
      off the sum, or off that of the number penalty_reward, of estimators that scale each reward by
      itself.
    rollout_ids: (rows) integers or strings; rows with the same one are one rollout, such as its
      turns. It counts once in every statistic and in the report, and its rows share its advantage.
      take: "last" or "first" of its rows counts; or their "sum", "mean" or "max" of each reward.
      Computed on the CPU. The whole of it: include/gdpo/advantage/rollouts.hpp.
    ranks: a `gdpo.Ranks`; the other arguments are then those of this rank's rows, and the
      advantages those of one process that has the rows of all. keys: (rows) integers, only beside
      group_ids and ranks: see `Ranks.gather_rows`. The report is that of all ranks.
    settings: what an estimator has of these, which `gdpo.estimator_settings(name)` lists with its
      values; each also by its whole name, and by the end of that where the estimator has no other
      that ends so: trl::grpo has one eps, scale.eps, and trl::gdpo two, scale_eps and renorm_eps.
      "reject" and "error" raise, and are for the CPU. The formulas of eps_at:
      include/gdpo/advantage/multiplier.hpp; of missing rewards: include/gdpo/advantage/missing.hpp.
      {settings}

    Returns the advantages (rows), float32 for rewards of float32 and narrower, else float64, as an
    array of the library that `rewards` is of (a tensor for a list); with report=True also a Report.

    Errors: ValueError for unknown names and for types, shapes and settings that do not fit.
    """
    if ranks is not None:
        from ._ranks import over  # which imports this module
        return over("gdpo::advantages", ranks)._advantages(
            rewards, dict(group_size=group_size, group_ids=group_ids, group_offsets=group_offsets,
                          tokens=tokens, valid=valid, baseline=baseline, row_weights=row_weights,
                          penalty=penalty, keys=keys),
            dict(settings, estimator=estimator, weights=weights, gates=gates,
                 constraints=constraints, report=report), rollout_ids)
    check_keys("gdpo::advantages", keys, ranks)
    text = line("gdpo::advantages", (estimator,), settings)
    values, groups, columns = batch_of(
        "gdpo::advantages", rewards, (group_size, group_ids, group_offsets), tokens=tokens,
        valid=valid, baseline=baseline, row_weights=row_weights, penalty=penalty,
        rollout_ids=rollout_ids,
        by_reward=bool(weights is not None or gates or constraints))
    of_rollouts = rollout_ids is not None
    limits = _limits_of(constraints)
    arguments = (*groups, weights_of("gdpo::advantages", weights),
                 flat("gdpo::advantages", gates), limits, *columns, take, report)

    numbers: Union[torch.Tensor, Callable[[], torch.Tensor]]
    if values.is_cpu:
        result, numbers = _call(values, text, arguments)
    elif limits or of_rollouts:
        result, numbers = _on_cpu(text, values, arguments)
        result = result.to(values.device)
    else:
        result, numbers = _call(values, text, arguments)
        if report:  # of what the rewards are now, whatever becomes of them before it is read
            numbers = functools.partial(_report_on_cpu, text, values.clone(), arguments)
    result = _like(rewards, result)
    if not report:
        return result
    return AdvantagesAndReport(
        result, Report(numbers, values.shape[1] if values.dim() == 2 else 1))
