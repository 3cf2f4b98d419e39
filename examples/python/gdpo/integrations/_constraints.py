"""Limits on the means of a trainer's reward functions, by the names that they have there."""
import contextlib
import copy
import re
from typing import Any, Dict, Iterator, List, Sequence, Tuple, Union

import torch

from .. import PidLagrangian

_LINE = re.compile(r"^\s*(?P<name>\S+?)\s*(?P<bound>>=|<=)\s*(?P<limit>\S+)(?P<settings>.*)$")


class Constraints:
    """Reward functions that are not maximized, but kept at a limit by `gdpo.PidLagrangian`.

        Constraints(["format>=0.9 scale=0.3", "length<=512 scale=100 kp=1"])

    limits: for each constrained reward function a line of its name, ">=" or "<=", its limit, and
      settings as name=value: scale, the unit of a violation (1), and the gains of
      `gdpo.PidLagrangian`. One line alone may be given as it is.

    Errors: ValueError for lines and settings that are not of this form.
    """

    def __init__(self, limits: Union[str, Sequence[str]]) -> None:
        lines = [limits] if isinstance(limits, str) else list(limits)
        #: The names of the constrained reward functions.
        self.names: List[str] = []
        self._controllers: List[PidLagrangian] = []
        for line in lines:
            name, bound, limit, settings = _parts(line)
            if name in self.names:
                raise ValueError(f"gdpo.integrations: constraints: given {name} twice; needed: one "
                                 "limit for each reward function")
            self.names.append(name)
            with _about(line):
                self._controllers.append(PidLagrangian([limit], bound=bound, **settings))

    def move(self, line: str) -> None:
        """Gives a constraint another limit during a run: `move("format>=0.95")`.

        line: name, bound and limit as for a new one, and perhaps its scale, which else stays. The
        multiplier stays and goes on from there, see `gdpo.PidLagrangian.move`.

        Errors: ValueError for a line that is not of this form, for a name without a constraint, for
        another bound, and for gains, which cannot be changed. Nothing has changed then.
        """
        name, bound, limit, settings = _parts(line)
        if name not in self.names:
            raise ValueError(f"gdpo.integrations: constraints: given {name}; needed: one of "
                             f"{', '.join(self.names) or 'none'}")
        others = [setting for setting in settings if setting != "scale"]
        if others:
            raise ValueError(f"gdpo.integrations: constraints: given {line!r}, with the setting "
                             f"{others[0]}; needed: scale, or none, because gains do not move")
        controller = self._controllers[self.names.index(name)]
        own = controller.constraints([0])[0][4]
        if bound != own:
            raise ValueError(f"gdpo.integrations: constraints: given {line!r}, which is {bound}; "
                             f"needed: {own}, because the multiplier of the other bound says "
                             "nothing about this one")
        with _about(line):
            controller.move([limit], **settings)

    def update(self, rewards: torch.Tensor, names: Sequence[str]
               ) -> List[Tuple[int, float, float, float, str]]:
        """Moves the multipliers by the rewards of a step, and gives what `gdpo.advantages` takes.

        rewards: (rows, reward functions) of all ranks, NaN where one is missing. names: those of
          the reward functions.

        Errors: ValueError where a constrained reward function is not among the names.
        """
        result = []
        for name, controller in zip(self.names, self._controllers):
            if name not in names:
                raise ValueError(f"gdpo.integrations: constraints: given {name}; needed: one of "
                                 f"the reward functions {', '.join(names)}")
            column = rewards[:, list(names).index(name)].double()
            present = ~column.isnan()
            controller.update(sums=[column[present].sum().item()], counts=[int(present.sum())])
            result += controller.constraints([list(names).index(name)])
        return result

    def unconstrained(self, weights: Sequence[float], names: Sequence[str]) -> List[float]:
        """The weights of the reward functions with 0 for the constrained ones.

        Any other weight would maximize what is to be kept at its limit.
        """
        return [0.0 if name in self.names else float(weight)
                for name, weight in zip(names, weights)]

    def metrics(self, prefix: str = "") -> Dict[str, float]:
        """The multipliers, as constraint/NAME/multiplier, each after `prefix`."""
        return {f"{prefix}constraint/{name}/multiplier": controller.multipliers[0]
                for name, controller in zip(self.names, self._controllers)}

    def state_dict(self) -> Dict[str, Any]:
        """The states of the controllers, for a checkpoint."""
        return {name: c.state_dict() for name, c in zip(self.names, self._controllers)}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes on from a state, with the limits and gains of this object and its multipliers.

        Where a limit or a scale is another than when the state was made, the multiplier goes on
        from where it was, see `gdpo.PidLagrangian.load_state_dict`.

        Errors: ValueError for a state of other constraints, or with ">=" for "<=". The object is
        then as before.
        """
        if sorted(state) != sorted(self.names):
            raise ValueError("gdpo.integrations: constraints: given the state of "
                             f"{', '.join(state) or 'none'}; needed: that of "
                             f"{', '.join(self.names)}")
        loaded = [copy.copy(controller) for controller in self._controllers]
        for name, controller in zip(self.names, loaded):
            with _about(f"the state of {name}"):
                controller.load_state_dict(state[name])
        self._controllers = loaded


def _parts(line: str) -> Tuple[str, str, float, Dict[str, Any]]:
    """Name, bound, limit and settings of a line."""
    found = _LINE.match(line)
    try:
        if found is None:
            raise ValueError(line)
        limit = float(found["limit"])
        settings = dict(_setting(word) for word in found["settings"].split())
    except (TypeError, ValueError):
        raise ValueError(f"gdpo.integrations: constraints: given {line!r}; needed: a line "
                         'such as "format>=0.9 scale=0.3 kp=1"') from None
    if isinstance(settings.get("scale"), str):
        raise ValueError(f"gdpo.integrations: constraints: given {line!r}; needed: a number as "
                         "scale")
    if "bound" in settings or "limits" in settings:
        raise ValueError(f"gdpo.integrations: constraints: given {line!r}, with bound or limits; "
                         'needed: ">=" or "<=" and a number behind the name, and no such setting')
    return found["name"], "at_least" if found["bound"] == ">=" else "at_most", limit, settings


@contextlib.contextmanager
def _about(what: str) -> Iterator[None]:
    """Says in errors within it what they are about."""
    try:
        yield
    except ValueError as error:
        # A line has one setting more than the gains.
        said = str(error).replace("needed: one of form, ", "needed: one of scale, form, ")
        raise ValueError(f"gdpo.integrations: constraints: {what}: {said}") from None


def _setting(word: str) -> Tuple[str, Any]:
    """A setting of name=value; numbers as numbers."""
    name, value = word.split("=")
    try:
        return name, float(value)
    except ValueError:
        return name, value
