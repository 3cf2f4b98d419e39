"""Rewards before the estimator: rules that shape them, and state over the steps of a run."""
import math
from typing import (TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple,
                    TypedDict, Union, overload)

import torch

from ._advantages import _like, _tensor, grouping
from ._library import check_tensors
from ._load import ops
from ._names import names, our_errors
from ._numbers import shown
from ._ranks import Ranks, in_call, over
from ._rows import required, with_nan
from ._settings import described, line

if TYPE_CHECKING:
    import numpy
    from typing_extensions import Unpack

    from ._advantages import _Array, _Numpy
    from ._keywords import EmaBaselineSettings, ReturnScaleSettings, RunningMomentsSettings

_EMPTY = (0.0, 0.0, 0.0, 0.0, 0.0, float("inf"), -float("inf"))  # the moments of no numbers


def shapings() -> List[str]:
    """The names of the rules that `shape_rewards` takes, such as "soft_overlong".

        print(gdpo.shapings())
    """
    return list(names("shapings"))


if TYPE_CHECKING:
    class _OfRows(TypedDict, total=False):
        group_size: int
        group_ids: Any
        group_offsets: Any
        lengths: Any
        valid: Any
        input_lengths: Any
        turns: Any

if TYPE_CHECKING:  # mypy wants overloads alone
    @overload
    def shape_rewards(rewards: Union[torch.Tensor, Sequence[Any]],
                      rules: Union[str, Sequence[str]], **arguments: "Unpack[_OfRows]"
                      ) -> torch.Tensor: ...

    @overload
    def shape_rewards(rewards: "numpy.ndarray[Any, Any]", rules: Union[str, Sequence[str]],
                      **arguments: "Unpack[_OfRows]") -> _Numpy: ...

    @overload
    def shape_rewards(rewards: _Array, rules: Union[str, Sequence[str]],
                      **arguments: "Unpack[_OfRows]") -> _Array: ...


def shape_rewards(rewards: Any, rules: Union[str, Sequence[str]], *, group_size: int = 0,
                  group_ids: Any = None, group_offsets: Any = None, lengths: Any = None,
                  valid: Any = None, input_lengths: Any = None, turns: Any = None) -> Any:
    """Rewards as rules make them, before an estimator.

        gdpo.shape_rewards(scores, "soft_overlong max_length=6 buffer=2", lengths=lengths)
        gdpo.shape_rewards(scores, ["clip min=-1 max=1", "relative_length"], group_size=8,
                           lengths=lengths)

    rewards: (rows); a NaN, or None in a list, is missing and stays so.
    rules: one, or several that are applied in their order. Each is one of `gdpo.shapings()` with
      its settings; include/gdpo/update/README.md has what they compute.
    group_size, group_ids, group_offsets: who belongs together, as in `gdpo.advantages`; needed by
      the rules that see the group of a row: relative_cost, relative_length, length_among_right,
      solve_rate_length, prime_rl::length_penalty.
    lengths: (rows) tokens of each completion. valid: (rows) 0 leaves a row out of the statistics.
      input_lengths: (rows) tokens that were read. turns: (rows).

    Returns the shaped rewards, a new array of the type of `rewards`; float64 for integers and for a
    list of numbers. It is computed on the CPU. Errors: ValueError for unknown rules and settings,
    and for arrays that do not fit.
    """
    function = "gdpo::shape_rewards"
    values = required(function, "rewards",
                      _tensor("rewards", with_nan(rewards), function=function))
    columns = {name: _tensor(name, array, values.device, function) for name, array in (
        ("lengths", lengths), ("valid", valid), ("input_lengths", input_lengths),
        ("turns", turns))}
    groups = grouping(function, values.device, group_size, group_ids, group_offsets)
    check_tensors(function, {"rewards": values, **columns, "group_ids": groups[1],
                             "group_offsets": groups[2]})
    lines = [rules] if isinstance(rules, str) else list(rules)
    with our_errors():
        shaped = ops.shape_rewards(values.cpu(), "\n".join(lines), groups[0], *(
            None if a is None else a.cpu() for a in (*groups[1:], *columns.values())))
    if values.is_floating_point():
        shaped = shaped.to(values.dtype)
    return _like(rewards, shaped.reshape(values.shape).to(values.device))


def _row(state: Sequence[float]) -> torch.Tensor:
    return torch.tensor([list(state)], dtype=torch.float64)


def _of_all_ranks(function: str, text: str, measure: Callable[[], torch.Tensor],
                  ranks: Optional[Ranks]) -> torch.Tensor:
    """The moments of all ranks, merged in rank order.

    text: the line of the settings. measure: gives those of this rank. What it refuses is raised on
    every rank, and none waits.
    """
    if ranks is None:
        return measure()
    over(function, ranks)
    own, error = None, None
    try:
        own = measure()
    except Exception as refused:
        error = refused
    return ranks._moments(own, function, text, error)


def _cpu(function: str, name: str, array: Any) -> Optional[torch.Tensor]:
    tensor = _tensor(name, with_nan(array), function=function)
    return None if tensor is None else tensor.cpu()


def _restored(function: str, state: Mapping[str, Any], **shapes: int) -> List[torch.Tensor]:
    """The lists of a state, float64. shapes: how many numbers each has; -1: any."""
    where = f"{function}.load_state_dict: state"
    missing = sorted(set(shapes) - set(state))
    if missing:
        raise ValueError(f"{where}: given none of {', '.join(missing)}; needed: what state_dict "
                         "has returned")
    tensors = []
    for name, size in shapes.items():
        try:
            tensor = torch.tensor(list(state[name]), dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            tensor = None
        if tensor is None or tensor.dim() != 1 or (size >= 0 and len(tensor) != size):
            raise ValueError(f"{where}[{name!r}]: given {state[name]!r}; needed: a list of "
                             f"{size if size >= 0 else ''} numbers".replace("  ", " "))
        tensors.append(tensor)
    return tensors


class _Normalizes:
    """What RunningMoments and ReturnScale share: moments so far, and the rule that they give."""

    _line: str
    _moments: torch.Tensor
    _rule: Tuple[float, float, float]

    def _go_on(self, operator: Any, state: torch.Tensor, step: torch.Tensor) -> None:
        with our_errors():
            row = operator(self._line, state, step)
        self._moments, self._rule = row[:, :7].contiguous(), tuple(row[0, 7:].tolist())

    @property
    def count(self) -> int:
        """How many numbers have been taken in."""
        return int(self._moments[0, 0])

    if TYPE_CHECKING:
        @overload
        def normalize(self, rewards: Union[torch.Tensor, Sequence[Any]]) -> torch.Tensor: ...

        @overload
        def normalize(self, rewards: "numpy.ndarray[Any, Any]") -> _Numpy: ...

        @overload
        def normalize(self, rewards: _Array) -> _Array: ...

    def normalize(self, rewards: Any) -> Any:
        """The rewards as the numbers so far normalize them, a new array."""
        mean, std, bound = self._rule
        return shape_rewards(rewards, f"standardize mean={mean!r} std={std!r} bound={bound!r}")


class RunningMoments(_Normalizes):
    """The running mean and std of numbers over the steps of a run.

        running = gdpo.RunningMoments()
        running.update(scores, ranks=gdpo.Ranks())                        # once a step
        advantages = gdpo.advantages(running.normalize(scores), group_size=8)

    It is the reward normalization "running" of ROLL and AReaL: (r - mean) / (std + eps).

    settings: decay (1: every number of the run counts the same; below it the past counts so much
      less after each step), eps (1e-8), ddof (0) and bound (infinity), the largest magnitude of a
      normalized reward.

    `state_dict` and `load_state_dict` save and restore it; a run that goes on has the same bits.
    Errors: ValueError for settings that are unknown or out of range.
    """

    def __init__(self, **settings: "Unpack[RunningMomentsSettings]") -> None:
        self._line = line("gdpo.RunningMoments", ("running_moments",), settings)
        self._go_on(ops.running_moments, _row(_EMPTY), _row(_EMPTY))

    def update(self, values: Any, valid: Any = None, ranks: Optional[Ranks] = None) -> None:
        """Takes the numbers of a step in.

        values: (rows); NaN is missing. valid: (rows) 0: not used. ranks: a `gdpo.Ranks`, over which
        the numbers are; every rank gets the same state. A step with a number that is not finite
        changes nothing. What one rank refuses is raised on all.
        """
        def measure() -> torch.Tensor:
            function = "gdpo::RunningMoments"
            rows = required(function, "values", values)
            with our_errors(in_call(function)):
                return ops.measure(_cpu(function, "values", rows), _cpu(function, "valid", valid))
        self._go_on(ops.running_moments, self._moments, _of_all_ranks(
            "gdpo::RunningMoments", self._line, measure, ranks))

    @property
    def mean(self) -> float:
        """The mean of the numbers so far; 0 before the first."""
        return float(self._moments[0, 2])

    @property
    def divisor(self) -> float:
        """What rewards are divided by: std + eps; 1 before the first number and where that is 0."""
        return self._rule[1]

    def state_dict(self) -> Dict[str, List[float]]:
        """The moments of the numbers so far."""
        return {"moments": self._moments[0].tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state that state_dict has returned."""
        moments, = _restored("gdpo.RunningMoments", state, moments=7)
        self._go_on(ops.running_moments, moments[None], _row(_EMPTY))

    def __repr__(self) -> str:
        return shown("gdpo.RunningMoments", described("running", self._line)[1:],
                     f"): {self.count} numbers, mean {self.mean:g}, divisor {self.divisor:g}")


class EmaBaseline:
    """A moving average of the rewards of each role, as the baseline of its next reward.

        ema = gdpo.EmaBaseline("prime_rl::rae", decay=0.95)
        advantages = scores - ema(scores, agents)                  # once a step

    For each row in order: its baseline is b of its role, and then b = decay b + (1 - decay) r.
    Role-conditioned advantage estimation (RAE, arXiv 2506.24119), prime-rl's RAEAlgorithm. Over
    ranks give every rank the rows of all, in the same order.

    name: "ema_baseline", or a trainer's such as "prime_rl::rae". settings: decay (0.95) and start
      (0), the baseline before the first reward.

    `state_dict` and `load_state_dict` save and restore it; a run that goes on has the same bits.
    Errors: ValueError for settings that are unknown or out of range.
    """

    def __init__(self, name: str = "ema_baseline",
                 **settings: "Unpack[EmaBaselineSettings]") -> None:
        self._line = line("gdpo.EmaBaseline", (name,), settings)
        self._state = torch.empty((0, 2), dtype=torch.float64)
        self._check()

    def _check(self) -> None:
        """Checks the settings and the state: a step without rows."""
        self(torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.int64))

    def __call__(self, rewards: Any, roles: Any, valid: Any = None) -> torch.Tensor:
        """The baselines (rows), float64 on the CPU, and moves the averages.

        rewards: (rows). roles: (rows) integers from 0 on. valid: (rows) flags. A missing reward
        (NaN), one that is infinite and a row whose flag is 0 get a baseline and move nothing.
        """
        function = "gdpo::EmaBaseline"
        with our_errors():
            self._state, baselines = ops.ema_baseline(self._line, self._state, *(
                _cpu(function, n, a) for n, a in (("rewards", rewards), ("roles", roles),
                                                  ("valid", valid))))
        return baselines

    @property
    def baselines(self) -> List[float]:
        """The average of each role."""
        return self._state[:, 0].tolist()

    def state_dict(self) -> Dict[str, List[float]]:
        """The average of each role, and how many rewards are in it."""
        return {"baseline": self.baselines, "updates": [int(n) for n in self._state[:, 1]]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state that state_dict has returned."""
        baseline, updates = _restored("gdpo.EmaBaseline", state, baseline=-1, updates=-1)
        if len(baseline) != len(updates):
            raise ValueError(f"gdpo.EmaBaseline.load_state_dict: state: given {len(baseline)} "
                             f"baselines and {len(updates)} counts; needed: one of each for every "
                             "role")
        before, self._state = self._state, torch.stack((baseline, updates), dim=1).contiguous()
        try:
            self._check()
        except ValueError:
            self._state = before
            raise

    def __repr__(self) -> str:
        return shown("gdpo.EmaBaseline", described("running", self._line),
                     f"): {len(self._state)} roles")


class ReturnScale(_Normalizes):
    """Divides rewards by the running std of their discounted returns.

        scale = gdpo.ReturnScale(gamma=0.99)
        scaled = scale(scores, ended, ranks=gdpo.Ranks())                      # once a step

    The reward normalization of VecNormalize: for each episode G = gamma G + r, of which the moments
    are taken in; r / sqrt(var + eps), within +-bound; G = 0 where the episode has ended.

    settings: gamma (0.99), eps (1e-8), prior (1e-4), the weight of the mean 0 and the variance 1
      before the first number, and bound (10).

    `state_dict` and `load_state_dict` save and restore it; a run that goes on has the same bits.
    Errors: ValueError for settings that are unknown or out of range.
    """

    def __init__(self, **settings: "Unpack[ReturnScaleSettings]") -> None:
        self._line = line("gdpo.ReturnScale", ("return_scale",), settings)
        self._returns = torch.empty(0, dtype=torch.float64)
        self._go_on(ops.return_scale, _row(_EMPTY), _row(_EMPTY))

    if TYPE_CHECKING:
        @overload
        def __call__(self, rewards: Union[torch.Tensor, Sequence[Any]], ended: Any = ...,
                     ranks: Optional[Ranks] = ...) -> torch.Tensor: ...

        @overload
        def __call__(self, rewards: "numpy.ndarray[Any, Any]", ended: Any = ...,
                     ranks: Optional[Ranks] = ...) -> _Numpy: ...

        @overload
        def __call__(self, rewards: _Array, ended: Any = ...,
                     ranks: Optional[Ranks] = ...) -> _Array: ...

    def __call__(self, rewards: Any, ended: Any = None,
                 ranks: Optional[Ranks] = None) -> Any:
        """Takes a step of the episodes of this rank in, and returns its rewards divided.

        rewards: (episodes), as many in every call; NaN is missing. ended: (episodes) not 0 where
        the episode ends with this reward. ranks: a `gdpo.Ranks`, which have other episodes; every
        rank gets the same scale. What one rank refuses is raised on all, and changes nothing.
        """
        returns = self._returns

        def observe() -> torch.Tensor:
            nonlocal returns
            with our_errors(in_call("gdpo::ReturnScale")):
                returns, step = ops.observe_returns(self._line, self._returns, *(
                    _cpu("gdpo::ReturnScale", n, a) for n, a in (("rewards", rewards),
                                                                 ("ended", ended))))
            return step
        self._go_on(ops.return_scale, self._moments, _of_all_ranks(
            "gdpo::ReturnScale", self._line, observe, ranks))
        self._returns = returns
        return self.normalize(rewards)

    @property
    def divisor(self) -> float:
        """What rewards are divided by: sqrt(var + eps)."""
        return self._rule[1]

    def state_dict(self) -> Dict[str, List[float]]:
        """The moments of the returns so far, and the return of each episode that goes on."""
        return {"moments": self._moments[0].tolist(), "returns": self._returns.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state that state_dict has returned."""
        moments, returns = _restored("gdpo.ReturnScale", state, moments=7, returns=-1)
        with our_errors():  # rewards that are missing leave the returns as they are
            ops.observe_returns(self._line, returns, torch.full_like(returns, math.nan), None)
        self._go_on(ops.return_scale, moments[None], _row(_EMPTY))
        self._returns = returns

    def __repr__(self) -> str:
        return shown("gdpo.ReturnScale", described("running", self._line)[1:],
                     f"): {self.count} numbers, divisor {self.divisor:g}")
