"""verl's options of the critic's side as lines of this library."""
from typing import Any, Dict, NamedTuple, Optional

from .._names import token_estimators
from .._settings import said, settings_of, word

#: What stands before what is computed here.
PREFIX = "gdpo:"


def is_of_tokens(line: Optional[str]) -> bool:
    """Whether a gdpo_estimator is one over tokens."""
    return (line or "").split()[:1] in [[name] for name in token_estimators()]


def settings_of_tokens(line: str) -> Dict[str, str]:
    """The settings of an estimator over tokens with their values."""
    return {s.name: s.value for s in settings_of("token_advantages", line)}


def token_line(line: str, gamma: float, lam: float) -> str:
    """An estimator over tokens with verl's gamma and lam, unless the line sets them itself.

    Errors: ValueError for unknown names and settings, with a list of the known ones.
    """
    has, says = settings_of_tokens(line), said("token_advantages", line)
    of_run = {"returns.gamma": gamma, "returns.lambda": lam}
    return " ".join([line, *(f"{name.split('.')[1]}={word(value)}" for name, value in of_run.items()
                             if name in has and name not in says)])


class CriticLoss(NamedTuple):
    """A critic.loss_agg_mode that begins with "gdpo:": a value loss with settings."""

    mode: str  #: How tokens are averaged, one of verl's modes.
    said: Dict[str, str]  #: What the line sets, by the names in the library.

    def settings(self, clip: float, length: Optional[float]) -> Dict[str, Any]:
        """The settings of "verl::value_loss" with verl's configuration of the critic.

        clip: cliprange_value. length: loss_scale_factor, in tokens; None: the padded width.
        """
        settings: Dict[str, Any] = {"clip": clip, "aggregate": self.mode, **self.said}
        if settings["aggregate"] == "seq-mean-token-sum-norm" and length is not None:
            settings.setdefault("aggregate.constant", length)
        return settings


def critic_loss(mode: str) -> CriticLoss:
    """The loss of "gdpo:MODE [SETTING=VALUE ...]", such as "gdpo:token-mean delta=10".

    Errors: ValueError for a line that is not of this form, and for unknown modes and settings, with
    a list of the known ones.
    """
    words = mode[len(PREFIX):].split()
    if not words or "=" in words[0] or not all("=" in one for one in words[1:]):
        raise ValueError(f"gdpo.integrations.verl: critic.loss_agg_mode: given {mode!r}; needed: "
                         "gdpo:MODE [SETTING=VALUE ...], with a mode such as token-mean and "
                         "settings of gdpo.ValueLoss")
    says = said("value_loss", " ".join(["verl::value_loss", f"aggregate={words[0]}", *words[1:]]))
    return CriticLoss(says.pop("aggregate"), says)
