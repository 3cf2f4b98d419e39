"""What the configurations of trainers mean in calls of this library."""
import difflib
import importlib
from types import ModuleType
from typing import Any

from .._names import did_you_mean
from ._configured import Configured, Draft, Entropy, Kl
from ._options import Options, flat

__all__ = ["TRAINERS", "Configured", "Entropy", "Kl", "from_config"]

#: The trainers whose configurations are known.
TRAINERS = ("verl", "trl", "ms_swift", "openrlhf")


def from_config(trainer: str, config: Any, *, strict: bool = False) -> Configured:
    """A trainer's configuration as an estimator, pre-passes and a loss of this library.

        given = gdpo.from_config("verl", {"algorithm": {"adv_estimator": "rloo"}})
        print(given.explain())

    trainer: "verl", "trl" (GRPOTrainer and RLOOTrainer), "ms_swift" (rlhf_type grpo) or "openrlhf"
      (train_ppo_ray). It need not be installed.
    config: the trainer's own object (verl's DictConfig, a GRPOConfig, a Namespace), or a dict of
      its options: nested, or with dots in the names; dashes in them count as "_". What it leaves
      out has the trainer's default. The options are those of the releases that `release` names.
    strict: raise where an option changes the numbers and this library lacks it.

    The options that do not concern the loss are ignored. One that the trainer does not have is
    named in `unsupported`, with those that it may be a slip of.

    Errors: ValueError for an unknown trainer, for a config that is none of these, and for values
    that are not what the trainer takes; with strict, for all of `unsupported`.
    """
    if trainer not in TRAINERS:
        raise ValueError(f"gdpo.from_config: trainer: given {trainer!r}; needed: one of "
                         f"{', '.join(TRAINERS)}{did_you_mean(str(trainer), TRAINERS)}")
    module = importlib.import_module(f".{trainer}", __name__)
    given = flat(config)
    if hasattr(module, "renamed"):
        given = module.renamed(given, config)
    options = Options(given, module.DEFAULTS)
    try:
        draft = module.configured(options)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"gdpo.from_config: {trainer}: {error}; needed: values that the trainer "
                         "takes") from error
    _name_unknown(draft, module, options)
    result = draft.done()
    if strict and result.unsupported:
        lines = [f"  {name}: {why}" for name, why in result.unsupported.items()]
        raise ValueError("\n".join([f"gdpo.from_config: {trainer}: this library does not compute "
                                    "what these options say:", *lines]))
    return result


def _name_unknown(draft: Draft, module: ModuleType, options: Options) -> None:
    """Names the options that the trainer does not have, as far as they could be of the loss."""
    for name in options.given:
        if options.known(name) or options.has_section(name) or name in draft.unsupported:
            continue
        if "." not in name and hasattr(module, "WITHOUT_SECTION"):
            if name not in module.WITHOUT_SECTION:
                draft.unknown(name)
            continue
        inside = [section for section in module.SECTIONS
                  if not section or name.startswith(section + ".")]
        if inside:
            rest = name[len(inside[0]) + 1:] if inside[0] else name
            parts = rest.split(".")
            if any(".".join(parts[:length]) in module.IGNORED
                   for length in range(1, len(parts) + 1)) or parts[-1].startswith("_"):
                continue
            draft.unknown(name, module.IGNORED)
        elif difflib.get_close_matches(name, module.DEFAULTS, 1, 0.9):
            draft.unknown(name)
