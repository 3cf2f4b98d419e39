"""Limits on the means of a trainer's reward functions, by the names that they have there."""
import re
from typing import Any, Dict, List, Sequence, Tuple, Union

import torch

from .. import PidLagrangian

_LINE = re.compile(r"^\s*(?P<name>\S+?)\s*(?P<bound>>=|<=)\s*(?P<limit>\S+)(?P<gains>.*)$")


class Constraints:
    """Reward functions that are not maximised, but kept at a limit by `gdpo.PidLagrangian`.

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
            found = _LINE.match(line)
            try:
                limit = float(found["limit"])
                gains = dict(_setting(word) for word in found["gains"].split())
            except (TypeError, ValueError):
                raise ValueError(f"gdpo.integrations: constraints: given {line!r}; needed: a line "
                                 'such as "format>=0.9 scale=0.3 kp=1"') from None
            if found["name"] in self.names:
                raise ValueError(f"gdpo.integrations: constraints: given {found['name']} twice; "
                                 "needed: one limit for each reward function")
            self.names.append(found["name"])
            self._controllers.append(PidLagrangian(
                [limit], bound="at_least" if found["bound"] == ">=" else "at_most", **gains))

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

        Any other weight would maximise what is to be kept at its limit.
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
        """Goes on from a state. Errors: ValueError for one of other constraints."""
        if sorted(state) != sorted(self.names):
            raise ValueError("gdpo.integrations: constraints: given the state of "
                             f"{', '.join(state) or 'none'}; needed: that of "
                             f"{', '.join(self.names)}")
        for name, controller in zip(self.names, self._controllers):
            controller.load_state_dict(state[name])


def _setting(word: str) -> Tuple[str, Any]:
    """A setting of name=value; numbers as numbers."""
    name, value = word.split("=")
    try:
        return name, float(value)
    except ValueError:
        return name, value
