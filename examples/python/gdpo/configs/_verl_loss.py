"""verl's options of the actor as a loss of this library with its settings."""
from typing import Any, Dict, NamedTuple, Optional

from .._names import losses
from .._settings import is_cispo, ratio_bounds, refuse_teacher, said, values_of

# verl's own losses that are one call of a loss of this library, by loss_mode.
OF_VERL = {mode: f"verl::{mode}" for mode in ("vanilla", "gspo", "cispo", "sapo", "geo_mean",
                                             "dro")}
# Those that the plug-in leaves to verl: all but gpg need a pre-pass, of the same name.
LEFT_TO_VERL = {mode: f"verl::{mode}" for mode in ("gpg", "dppo_tv", "dppo_kl", "clip_cov",
                                                   "kl_cov")}
# The aggregate of those that do not read loss_agg_mode; None is the preset's.
OWN_AGGREGATES = {"verl::sapo": "seq-mean-token-mean", "verl::geo_mean": None}


class LossMode(NamedTuple):
    """A loss_mode that begins with "gdpo": a loss of `gdpo.losses()` with settings."""

    name: str  #: In `gdpo.losses()`.
    level: Optional[str]  #: Whose ratio it compares; None: the loss's own.
    own: bool  #: Whether the settings that the line leaves out are the loss's own, not the actor's.
    said: Dict[str, str]  #: What the line sets, by the names in the library.

    @property
    def is_of_tokens(self) -> bool:
        """Whether the ratios are those of tokens."""
        return (self.level or values_of(self.name)["level"]) == "token"

    def settings(self, loss_agg_mode: str, actor: Any, length: Optional[float]) -> Dict[str, Any]:
        """The settings that verl's configuration has for the loss.

        actor: verl's configuration of the actor. length: its loss_scale_factor, in tokens; None:
        the padded width of the batch.
        Errors: ValueError for "verl::dro" without a dro_beta.
        """
        if self.own:
            return {}
        low, high = (actor.clip_ratio if end is None else end
                     for end in (actor.clip_ratio_low, actor.clip_ratio_high))
        known = values_of(" ".join([self.name, *([self.level] if self.level else [])]))
        settings: Dict[str, Any] = ratio_bounds(low, high) if is_cispo(self.name) else {}
        clip = "level.map" if "level.map.low" in known else "surrogate"
        settings.update({name: value for name, value in (
            (f"{clip}.low", low), (f"{clip}.high", high)) if name in known})
        if "surrogate.tau_pos" in known:
            settings.update({"surrogate.tau_pos": actor.tau_pos,
                             "surrogate.tau_neg": actor.tau_neg})
        if self.name == "verl::dro":
            settings["kl.beta"] = _dro_beta(actor)
        settings["aggregate"] = self.said.get(
            "aggregate", OWN_AGGREGATES.get(self.name, loss_agg_mode))
        most = actor.get("clip_ratio_c", 3.0)
        if "surrogate.dual" in known and self.is_of_tokens:  # verl has no other dual clip
            settings["surrogate.dual"] = most
        if self.name in ("verl::dppo_tv", "verl::dppo_kl"):
            settings["factor.max_ratio"] = most
        if settings["aggregate"] == "seq-mean-token-sum-norm" and length is not None:
            settings["aggregate.constant"] = length
        return settings


def loss_mode(mode: str) -> LossMode:
    """The loss of a loss_mode: "gdpo", "gdpo:vanilla" or "gdpo:NAME [LEVEL] [own] [SETTING=...]".

    Errors: ValueError for a line that is not of this form, for settings of the KL term, and for a
    loss that reads a teacher's log-probs.
    """
    words = (mode.partition(":")[2] or "vanilla").split()
    own = "own" in words
    words = [one for one in words if one != "own"]
    settings = [one for one in words if "=" in one]
    words = [one for one in words if "=" not in one]
    if not 1 <= len(words) <= 2:
        raise ValueError(f"gdpo.integrations.verl: loss_mode: given {mode!r}; needed: gdpo:NAME"
                         " [LEVEL] [own] [SETTING=VALUE ...], with the name of one of "
                         f"{', '.join(losses())}")
    name = "verl::vanilla" if words[0] == "vanilla" else words[0]
    refuse_teacher("verl", "loss_mode", name)
    line_says = said("loss", " ".join([name, *words[1:], *settings]))
    for setting in line_says:
        if setting.split(".")[0] == "kl":
            raise ValueError(f"gdpo.integrations.verl: loss_mode: given {mode!r}, with the "
                             f"setting {setting}; needed: none of the KL term, because verl "
                             "adds that itself (actor.use_kl_loss), and hands no reference "
                             "log-probs to a loss")
    return LossMode(name, words[1] if len(words) == 2 else None, own, line_says)


def _dro_beta(actor: Any) -> float:
    """The coefficient of the penalty of DRO, for which verl has no default."""
    beta = actor.policy_loss.get("dro_beta", None)
    if beta is None or beta <= 0:
        raise ValueError(f"gdpo.integrations.verl: policy_loss.dro_beta: given {beta}; needed: a "
                         "number above 0, because verl has no default (the word own: that of the "
                         "preset)")
    return beta
