"""A loss by its name, for trainers that average the tokens and add the KL term themselves."""
from typing import Any, Dict, Optional

from .. import PolicyLoss, losses
from .._names import did_you_mean
from .._settings import line, refuse_teacher, said, values_of


def named(door: str, argument: str, name: str, level: Optional[str], settings: Dict[str, Any],
          **of_trainer: Any) -> PolicyLoss:
    """The loss `name` with these settings of PolicyLoss, and those that the trainer decides.

    door: the plug-in's name. argument: what the name was given as. of_trainer: `aggregate` and what
    belongs to it. A KL term against the reference is switched off; one against the old policy or
    the sampler is part of the loss.

    Errors: ValueError for an unknown name, with a list of the known ones, for settings of the
    aggregate or the KL term, and for a loss that is nothing but a teacher's term.
    """
    words = name.split()
    if not words or words[0] not in losses():
        raise ValueError(f"gdpo.integrations.{door}: {argument}: given {name!r}; needed: one of "
                         f"{', '.join(losses())}, and perhaps settings behind it"
                         f"{did_you_mean(words[0], losses()) if words else ''}")
    refuse_teacher(door, argument, words[0])
    level_word = () if level is None else (level,)
    text = line(f"gdpo.integrations.{door}", (name, *level_word), settings)
    values = values_of(words[0])
    is_of_ref = values.get("kl.against") == "ref"
    for setting in said("loss", text):
        part = setting.split(".")[0]
        if part == "aggregate" or (part == "kl" and is_of_ref):
            does = ("averages the tokens" if part == "aggregate" else
                    "adds the KL term to the reference")
            raise ValueError(f"gdpo.integrations.{door}: {argument}: given {text!r}, with the "
                             f"setting {setting}; needed: none of that, because the trainer {does}")
    if is_of_ref and float(values["kl.beta"]) != 0:
        of_trainer = {**of_trainer, "kl.beta": 0.0}
    return PolicyLoss(text, **of_trainer)
