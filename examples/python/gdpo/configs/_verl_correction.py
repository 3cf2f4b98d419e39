"""verl's options of its rollout correction as lines of `gdpo.prepare`."""
import math
import re
from typing import Dict, List, Optional, Sequence, Tuple, Union

from .._settings import makes

#: The options, and what they are where the configuration has none.
DEFAULTS = {"rollout_is": None, "rollout_is_threshold": 2.0, "rollout_is_batch_normalize": False,
            "rollout_rs": None, "rollout_rs_threshold": None}

# verl's rollout_is, and what a mean of such weights is a mean of.
_WEIGHTS = {"token": "tokens", "sequence": "rows"}
# verl's rollout_rs is one of these, "_", and one of k1, k2, k3, of which seq_max has no k1.
_REJECTIONS = ("token", "seq_sum", "seq_max", "seq_mean")
_ESTIMATORS = ("k1", "k2", "k3")


def names_in(option: Union[str, Sequence[str], None]) -> List[str]:
    """The names in an option: one, several with commas between, or a list of such."""
    listed = [option] if isinstance(option, str) else list(option or ())
    # A comma before a number stands between two ends, as in "clamp=-20,20".
    return [name.strip() for names in listed
            for name in re.split(r",(?!\s*[-+]?(?:[\d.]|inf\b))", names) if name.strip()]


def _plain(name: str) -> str:
    return name[len("gdpo:"):].strip() if name.startswith("gdpo:") else name


def weight_lines(name: str, threshold: Union[str, float]) -> Tuple[List[str], str]:
    """The lines for a rollout_is, and what a mean of the weights is a mean of.

    Errors: ValueError for unknown names, and for a threshold that does not fit.
    """
    name = _plain(name)
    if name not in _WEIGHTS:
        if " " in name or "::" in name or name == "importance":
            _refuse_level("rollout_is", name)
            return [name], "tokens"
        raise ValueError(f"gdpo.integrations.verl: rollout_is: given {name!r}; needed: one of "
                         f"{', '.join(_WEIGHTS)}, or a line of gdpo.prepare")
    low, high = bounds("rollout_is_threshold", threshold)
    if low is None:
        return [f"verl::{name}_is clip.hi={high!r}"], _WEIGHTS[name]
    return [f"verl::{name}_icepop gate.min={low!r} gate.max={high!r}"], _WEIGHTS[name]


def rejection_lines(option: Union[str, Sequence[str], None], threshold: Union[str, float, None]
                    ) -> Dict[str, str]:
    """The lines for a rollout_rs, by the names in it; give each reach=mask.

    Errors: ValueError for unknown names, and for thresholds that are missing or do not fit.
    """
    names = list(dict.fromkeys(_plain(name) for name in names_in(option)))
    of_verl = [name for name in names if " " not in name and "::" not in name]
    for name in names:
        if name not in of_verl:
            _refuse_level("rollout_rs", name)
    given = [part.strip() for part in str("" if threshold is None else threshold).split(",")
             if part.strip()]
    if of_verl and len(given) not in (1, len(of_verl)):
        raise ValueError(f"gdpo.integrations.verl: rollout_rs_threshold: given {threshold!r}; "
                         f"needed: one number, or one for each of {', '.join(of_verl)}")
    thresholds = dict(zip(of_verl, given * len(of_verl) if len(given) == 1 else given))
    return {name: _rejection(name, thresholds[name]) if name in thresholds else name
            for name in names}


def _refuse_level(option: str, line: str) -> None:
    """Raises ValueError for a line whose weights would be part of a ratio."""
    if makes("level_log_weights", (line,)):
        raise ValueError(f"gdpo.integrations.verl: {option}: given {line!r}; needed: a line "
                         "without reach=level, because verl's weights multiply the loss, and its "
                         "rejections are a mask")


def _rejection(name: str, threshold: str) -> str:
    """The line for one of verl's rejections."""
    of, _, estimator = name.rpartition("_")
    if of not in _REJECTIONS or estimator not in _ESTIMATORS or name == "seq_max_k1":
        known = [f"{of}_{k}" for of in _REJECTIONS for k in _ESTIMATORS]
        raise ValueError(f"gdpo.integrations.verl: rollout_rs: given {name!r}; needed: some of "
                         f"{', '.join(k for k in known if k != 'seq_max_k1')}, or a line of "
                         "gdpo.prepare")
    low, high = bounds("rollout_rs_threshold", threshold)
    if estimator == "k1":
        low = 1 / high if low is None else low
        ends = f"min={math.log(low)!r} max={math.log(high)!r}"
    elif low is None:
        ends = f"max={high!r}"
    else:
        raise ValueError(f"gdpo.integrations.verl: rollout_rs_threshold: given {threshold!r}; "
                         f"needed: one number, the largest {estimator}, for {name}")
    return f"verl::{name} {ends}"


def bounds(option: str, threshold: Union[str, float]) -> Tuple[Optional[float], float]:
    """The bounds of "LOW_HIGH", or none and HIGH.

    Errors: ValueError for anything else.
    """
    try:
        if isinstance(threshold, bool):
            raise ValueError
        low, _, high = str(threshold).rpartition("_")
        ends = float(low) if low else None, float(high)
    except ValueError:
        ends = None, math.nan
    if not (0 < (ends[1] if ends[0] is None else ends[0]) <= ends[1]):
        raise ValueError(f"gdpo.integrations.verl: {option}: given {threshold!r}; needed: a number "
                         "above 0, or two as LOW_HIGH")
    return ends
