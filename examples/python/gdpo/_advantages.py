"""Advantages of rewards, from arrays of any library that speaks DLPack."""
import functools
import sys
from typing import (TYPE_CHECKING, Any, Callable, List, Literal, Optional,
                    Protocol, Sequence, Tuple, TypeVar, Union, overload)

import torch

from ._library import check_tensors
from ._load import ops
from ._measured import AdvantagesAndReport, Report
from ._names import raise_ours
from ._rows import (flat, limits_of, numbered, of_rows, plain, required, reward_count,
                    size_of_groups, warn_of_completions, weights_of, with_nan)
from ._settings import line, takes_settings

if TYPE_CHECKING:
    import numpy
    from typing_extensions import Unpack

    from ._keywords import EstimatorSettings
    from ._ranks import Ranks


def _ids(function: str, name: str, array: Any, device: torch.device,
         everywhere: bool = False) -> Optional[torch.Tensor]:
    """Integers that say which rows belong together, see `numbered`."""
    array = plain(array)
    if everywhere and isinstance(array, (list, tuple)) and not array:
        return torch.empty(0, dtype=torch.int64, device=device)  # of a rank without rows
    array = numbered(function, name, array, everywhere)
    return _tensor(name, array, device, function)


def _tensor(name: str, array: Any, device: Optional[torch.device] = None,
            function: str = "gdpo::advantages") -> Optional[torch.Tensor]:
    """The argument `name` as a tensor, without a copy where PyTorch can read its memory.

    device: where a list goes. function: what messages call the call.
    """
    if array is None or isinstance(array, torch.Tensor):
        return array.detach() if array is not None else None
    array = plain(array)
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
    return (size_of_groups(function, group_size),
            _ids(function, "group_ids", group_ids, device, everywhere),
            _tensor("group_offsets", group_offsets, device, function))


def batch_of(function: str, rewards: Any, groups: Tuple[Any, Any, Any], *,
             by_reward: bool = True, everywhere: bool = False, **columns: Any) -> Tuple[
        torch.Tensor, Tuple[int, Optional[torch.Tensor], Optional[torch.Tensor]],
        List[Optional[torch.Tensor]]]:
    """The rewards, what says who belongs together, and the columns, as the operators take them.

    by_reward: the call has something for each reward, such as weights, so that a second axis of the
      rewards cannot be meant as completions. everywhere: other processes have some of the rows.
    """
    values = required(function, "rewards", _tensor("rewards", with_nan(rewards), None, function))
    device = values.device
    group_size, ids, offsets = grouping(function, device, *groups, everywhere)
    if not by_reward and not torch.compiler.is_compiling():
        warn_of_completions(function, tuple(values.shape), group_size)
    tensors = {name: _ids(function, name, array, device) if name.endswith("_ids") else
               _tensor(name, array, device, function) for name, array in columns.items()}
    check_tensors(function, {"rewards": values, "group_ids": ids, "group_offsets": offsets,
                             **tensors})
    return values, (group_size, ids, offsets), list(tensors.values())


def check_keys(function: str, keys: Any, ranks: Optional["Ranks"]) -> None:
    """Raises ValueError for keys without ranks."""
    if keys is not None and ranks is None:
        raise ValueError(f"{function}: keys: given, without ranks; needed: keys beside ranks only, "
                         "over which they order the rows")


def _like(array: Any, result: torch.Tensor) -> Any:
    """The result as an array of the library that `array` is of."""
    if isinstance(array, torch.Tensor) or not hasattr(array, "__dlpack__"):
        return result
    if type(array).__module__ == "numpy":  # before 2.0 it has no __array_namespace__
        return result.numpy()
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__().from_dlpack(result)
    return sys.modules[type(array).__module__.split(".")[0]].from_dlpack(result)


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
    limits = limits_of(constraints)
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
    return AdvantagesAndReport(result, Report(numbers, reward_count(values)))
