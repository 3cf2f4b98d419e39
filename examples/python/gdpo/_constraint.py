"""A controller of Lagrange multipliers, which keeps the means of rewards at their limits."""
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Sequence, Tuple, Union

import torch

from ._load import ops
from ._names import our_errors
from ._numbers import shown
from ._settings import described, word

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._keywords import PidSettings

_BOUNDS = {"at_most": 0.0, "at_least": 1.0}
_WORDS = {number: name for name, number in _BOUNDS.items()}


class PidStep(NamedTuple):
    """What an update did to one constraint; p, i, d, raw and multiplier in units of the latter.

        step, = gdpo.PidLagrangian(limits=[0.9]).update(sums=[4.0], counts=[8])
        print(step.multiplier, step.saturated)
    """

    p: float  #: The proportional term.
    i: float  #: The integral, or the step that it makes.
    d: float  #: The derivative term.
    raw: float  #: The multiplier before its bounds.
    multiplier: float  #: The multiplier after the call.
    saturated_steps: int  #: How many updates in a row have left it at lambda_max.
    saturated: bool  #: It is at lambda_max.
    held: bool  #: The measurement was refused, and nothing has changed.


def _as_loading(message: str) -> str:
    """A message of the library's PidLagrangian::restore in the words of load_state_dict."""
    for theirs, ours in (("gdpo::PidLagrangian::restore", "gdpo.PidLagrangian.load_state_dict"),
                         ("AtMost", "at_most"), ("AtLeast", "at_least")):
        message = message.replace(theirs, ours)
    return message


def _list(function: str, name: str, numbers: Any) -> List[float]:
    """One number or several, of any kind, in a list."""
    try:
        return torch.as_tensor(numbers, dtype=torch.float64).detach().reshape(-1).tolist()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{function}: {name}: given {numbers!r}; needed: a number, or several"
                         ) from None


# Nothing was measured.
_NOTHING = torch.empty((0, 2), dtype=torch.float64)


def _set_points(function: str, limits: List[float], scale: Union[float, Sequence[float]],
                bounds: List[float]) -> torch.Tensor:
    """The set-points as the operator takes them: (limits, 3)."""
    count = len(limits)
    scales = [scale] * count if isinstance(scale, (int, float)) else list(scale)
    if len(scales) != count or len(bounds) != count:
        raise ValueError(f"{function}: scale, bound: given {len(scales)} and {len(bounds)}; needed:"
                         f" one for each of the {count} limits")
    return torch.tensor([[limit, float(s), b] for limit, s, b in zip(limits, scales, bounds)],
                        dtype=torch.float64).reshape(count, 3)


class PidLagrangian:
    """Multipliers that keep the means of some rewards at their limits.

        pid = gdpo.PidLagrangian(limits=[0.9], scale=0.3)     # reward 1 at 0.9 or more on average
        pid.update(sums=rewards[:, 1:].sum(0), counts=[len(rewards)])  # all-reduce both first
        advantages = gdpo.advantages(rewards, group_size=8, constraints=pid.constraints([1]))

    limits: one, or one for each constraint, in units of its reward. scale: the unit of a violation,
      above 0, one for all or one for each: the standard deviation of a baseline run, say. bound:
      "at_least" or "at_most", one for all or one for each.
    gains: settings of the controller, all of them members of PidGains in
      include/gdpo/constraint/pid_gains.hpp: form ("positional", "velocity", "adam", "rms_prop",
      "log"), kp (2), ki (0.05), kd (0), p_ema, p_start ("zero", "bias_corrected", "first_value",
      "after_first"), d_ema, d_delay (at most 65536), d_start, integral_max, anti_windup ("none",
      "conditional"), lambda_init, lambda_max (10), beta1, beta2, adam_eps. The forms adam, rms_prop
      and log have no proportional term: give kp=0, and to log a lambda_init above 0.

    The arithmetic is in float64 on the CPU, so that every rank that is given the same sums has the
    same multipliers. Errors: ValueError for settings that are unknown or out of range.
    """

    def __init__(self, limits: Union[float, Sequence[float]], *,
                 scale: Union[float, Sequence[float]] = 1.0,
                 bound: Union[str, Sequence[str]] = "at_least",
                 **gains: "Unpack[PidSettings]") -> None:
        limits = _list("gdpo.PidLagrangian", "limits", limits)
        count = len(limits)
        bounds = [bound] * count if isinstance(bound, str) else list(bound)
        unknown = [b for b in bounds if b not in _BOUNDS]
        if unknown:
            raise ValueError(f"gdpo.PidLagrangian: bound: given {unknown[0]!r}; needed: one of "
                             "at_least, at_most")
        self._gains = " ".join(f"{name}={word(value)}" for name, value in gains.items())
        self._set_points = _set_points("gdpo.PidLagrangian", limits, scale,
                                       [_BOUNDS[b] for b in bounds])
        self._state = torch.empty((1, 0), dtype=torch.float64)
        with our_errors():
            self._state, self._steps = ops.pid(self._gains, self._set_points, self._state, _NOTHING)

    @property
    def multipliers(self) -> List[float]:
        """The multiplier of each constraint, at least 0."""
        return [step.multiplier for step in self.last]

    @property
    def last(self) -> List[PidStep]:
        """What the last update did to each constraint."""
        return [PidStep(p, i, d, raw, multiplier, int(steps), bool(saturated), bool(held))
                for p, i, d, raw, multiplier, steps, saturated, held in self._steps.tolist()]

    def update(self, *, sums: Any, counts: Any) -> List[PidStep]:
        """Moves the multipliers by what was measured in this step, and returns `last`.

        sums, counts: for each constraint the sum of its reward over all samples of all ranks, and
          their number. A constraint whose sum is not finite or whose count is 0 is held.

        Errors: ValueError for another number of them.
        """
        function = "gdpo.PidLagrangian.update"
        sums, counts = _list(function, "sums", sums), _list(function, "counts", counts)
        if not len(sums) == len(counts) == len(self._set_points):
            raise ValueError(f"gdpo.PidLagrangian.update: sums, counts: given {len(sums)} and "
                             f"{len(counts)}; needed: one for each of the "
                             f"{len(self._set_points)} constraints")
        measured = torch.tensor([sums, counts], dtype=torch.float64).T.contiguous()
        with our_errors():
            self._state, self._steps = ops.pid(self._gains, self._set_points, self._state, measured)
        return self.last

    def move(self, limits: Union[float, Sequence[float]], *,
             scale: Union[None, float, Sequence[float]] = None) -> None:
        """Gives the constraints other limits, and scales where they are given, during a run.

            pid.move(limits=[0.95])

        The multipliers stay and go on from there, without a jump now or in the next update: what
        the controller remembers of errors and measurements becomes what it would remember under
        the new limits, and the integral takes over the difference (PidLagrangian::move in
        include/gdpo/constraint/pid.hpp). The bounds cannot change: a multiplier of "at_least" says
        nothing about "at_most", for which a new controller starts.

        limits, scale: as for a new controller. Errors: ValueError for another number of them, and
        for numbers out of range. The object is then as before.
        """
        limits = _list("gdpo.PidLagrangian.move", "limits", limits)
        count = len(self._set_points)
        if len(limits) != count:
            raise ValueError(f"gdpo.PidLagrangian.move: limits: given {len(limits)}; needed: one "
                             f"for each of the {count} constraints")
        _, scales, bounds = self._set_points.T.tolist()
        points = _set_points("gdpo.PidLagrangian.move", limits, scales if scale is None else scale,
                             bounds)
        self._go_on(points, self._state, self._set_points,
                    lambda message: message.replace("gdpo::PidLagrangian::restore",
                                                    "gdpo.PidLagrangian.move"))

    def _go_on(self, set_points: torch.Tensor, state: torch.Tensor, before: torch.Tensor,
               translate: Callable[[str], str]) -> None:
        """Goes on under these set-points from a state that was made under others."""
        with our_errors(translate):
            self._state, self._steps = ops.pid(self._gains, set_points, state, _NOTHING, before)
        self._set_points = set_points

    def constraints(self, rewards: Sequence[int]) -> List[Tuple[int, float, float, float, str]]:
        """The constraints as `advantages` takes them.

        rewards: for each constraint the number of the reward that it limits.
        """
        if len(rewards) != len(self._set_points):
            raise ValueError(f"gdpo.PidLagrangian.constraints: rewards: given {len(rewards)}; "
                             f"needed: one for each of the {len(self._set_points)} constraints")
        return [(reward, multiplier, limit, scale, _WORDS[bound]) for reward, multiplier,
                (limit, scale, bound) in zip(rewards, self.multipliers, self._set_points.tolist())]

    def state_dict(self) -> Dict[str, torch.Tensor]:
        """The state, for a checkpoint: what the controller remembers, and under which limits."""
        return {"set_points": self._set_points.clone(), "state": self._state.clone()}

    def load_state_dict(self, state: Dict[str, torch.Tensor]) -> None:
        """Goes on from a state, with the limits, scales, bounds and gains of this object.

        The multipliers are those of the state. Where a limit or a scale is another than when the
        state was made, what else it holds changes as in `move`.

        Errors: ValueError for a state of another number of constraints, of another bound, or one
        that no controller leaves behind. The object is then as before.
        """
        missing = [name for name in ("set_points", "state") if name not in state]
        if missing or len(state["set_points"]) != len(self._set_points):
            given = f"no {missing[0]}" if missing else f"{len(state['set_points'])} constraints"
            raise ValueError(f"gdpo.PidLagrangian.load_state_dict: state: given {given}; needed: "
                             f"what state_dict() gave, of {len(self._set_points)}")
        self._go_on(self._set_points, state["state"].clone(), state["set_points"], _as_loading)

    def __repr__(self) -> str:
        limits, scales, bounds = self._set_points.T.tolist()
        gains = dict(each.split("=", 1) for each in self._gains.split())
        return shown("gdpo.PidLagrangian", (
            f"limits={limits}", f"scale={scales}", f"bound={[_WORDS[b] for b in bounds]}",
            *described("pid", "", gains)),
            f"): multipliers {[float(f'{m:.6g}') for m in self.multipliers]}")
