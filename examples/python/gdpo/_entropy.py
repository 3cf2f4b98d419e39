"""A controller of the coefficient of an entropy bonus."""
import math
from typing import Dict, List, Mapping

from ._load import doubles, ops
from ._names import our_errors
from ._numbers import shown
from ._settings import word


class AdaptiveEntropy:
    """Moves the coefficient of an entropy bonus until the entropy is at its target.

        controller = gdpo.AdaptiveEntropy(0.0, target=0.2)
        loss = gdpo.PolicyLoss("dapo", entropy_coef=controller.coef, entropy_mean="tokens")
        controller.update(metrics.mean("entropy"))            # once a step, of all ranks

    It is TRL's use_adaptive_entropy, from Skywork-OR1 (arXiv 2505.22312): after each step the
    coefficient rises by delta where the entropy is at most the target, and falls by it elsewhere;
    `coef`, what acts in the next step, is 0 while the entropy is above the target.

    initial: the coefficient to begin with, at least 0.
    settings: target (0.2, in nats), delta (0.005), min_coef (0) and max_coef (1).

    `state_dict` and `load_state_dict` save and restore it. Errors: ValueError for settings that are
    unknown or out of range.
    """

    def __init__(self, initial: float = 0.0, **settings: float) -> None:
        self._settings = " ".join(f"{name}={word(value)}" for name, value in settings.items())
        try:
            initial = float(initial)
        except (TypeError, ValueError):
            raise ValueError(f"gdpo.AdaptiveEntropy: initial: given {initial!r}; needed: a number"
                             ) from None
        self._step([initial, math.inf])

    def _step(self, state: List[float], *entropy: float) -> None:
        numbers = [doubles([row]) for row in (state, *([e] for e in entropy))]
        with our_errors():
            self._coef, self._last, self._applied = ops.adaptive_entropy(
                self._settings, *numbers)[0].tolist()

    @property
    def coef(self) -> float:
        """The coefficient of the bonus in this step: entropy_coef of PolicyLoss."""
        return self._applied

    def update(self, entropy: float) -> float:
        """Moves the coefficient by the mean entropy of a step, and returns that of the next.

        entropy: in nats, over the tokens of all ranks; one that is not finite changes nothing.
        """
        self._step([self._coef, self._last], float(entropy))
        return self._applied

    def state_dict(self) -> Dict[str, float]:
        """The coefficient, whether it acts or not, and the entropy of the last step."""
        return {"coef": self._coef, "last_entropy": self._last}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Goes on from a state that state_dict has returned."""
        missing = {"coef", "last_entropy"} - set(state)
        if missing:
            raise ValueError(f"gdpo.AdaptiveEntropy.load_state_dict: state: given none of "
                             f"{', '.join(sorted(missing))}; needed: what state_dict has returned")
        self._step([float(state["coef"]), float(state["last_entropy"])])

    def __repr__(self) -> str:
        return shown("gdpo.AdaptiveEntropy", self._settings.split(),
                     f"): coef {self._applied:g}")
