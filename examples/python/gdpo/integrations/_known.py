"""Whether a trainer's function is still the one that a plug-in was written for."""
import inspect
import warnings
from typing import Any, Callable, Sequence


def knows(function: Callable[..., Any], parameters: Sequence[str], *, plugin: str, version: str,
          instead: str) -> bool:
    """Whether `function` has exactly these parameters; where it has others, it warns.

    function: the trainer's function that the plug-in replaces or calls. parameters: their names in
    order, "self" included, as in the release `version`. plugin: the plug-in's name. instead: what
    happens now, such as "TRL's own loss is used".
    """
    given = list(inspect.signature(function).parameters)
    if given == list(parameters):
        return True
    warnings.warn(
        f"gdpo.integrations.{plugin}: {function.__qualname__} takes ({', '.join(given)}), and this "
        f"plug-in knows that of {version}, which takes ({', '.join(parameters)}); {instead}",
        stacklevel=3)
    return False
