"""The stages of an estimator in words and formulas."""
import math
from typing import Dict, List, Optional

from .._settings import estimator_settings

# What the baseline is, by the last part of an estimator's name; else the mean of the group.
_BASELINES = {
    "rloo": "the mean of the others in its group", "leave_one_out":
    "the mean of the others in its group", "opo":
    "the mean of its group, weighted by the rows' lengths", "opmd_logavgexp":
    "tau log of the mean of e^(R / tau) in its group", "asymre":
    "the shifted mean of its group", "batch_norm": "the mean of the batch"}
# Estimators without a baseline.
_WITHOUT_BASELINE = ("trinity::reinforce", "areal::batch_std_norm")
_SPREADS = {"group": "the group's std", "batch": "the std of the batch",
            "batch_centered": "the std of these differences over the batch",
            "within": "the std within the groups of the batch",
            "group_others": "the group's std about the means of the others",
            "group_rms": "the group's root mean square",
            "batch_rms": "the root mean square of the batch"}
_OVER = {"batch": "the rows of the batch", "group": "the group", "tokens":
         "the valid tokens of the batch"}
_SINGLES = {"zero": "gets 0", "exclude": "gets 0 and is not normalized", "raw":
            "keeps its reward", "nan": "gets NaN", "error": "is an error"}
_MISSING = {"skip": "counts for nothing in the statistics", "zero": "counts as 0",
            "propagate": "makes the advantages of its group NaN", "reject": "is an error"}


def divisor(spread: str, eps: str, eps_at: str) -> Optional[str]:
    """The denominator; None where there is none."""
    eps = f"{float(eps):g}"
    bare = float(eps) == 0
    return {"std": spread if bare else f"({spread} + {eps})",
            "var": f"sqrt({spread}^2 + {eps})", "clamp_std": f"max({spread}, {eps})",
            "clamp_var": f"sqrt(max({spread}^2, {eps}))", "none": None,
            "std_or_one": f"({spread} + {eps}, or 1 where it is 0)"}[eps_at]


def stages(line: str, weights: Optional[tuple]) -> List[str]:
    """The stages of an estimator, one after the other."""
    name = line.split(" ")[0]
    values = {s.name: s.value for s in estimator_settings(line) if s.value}
    each = name.split("::")[-1].startswith(("gdpo", "mo_grpo"))
    steps = [_sum(each, weights)]
    if _bounds(values, "reward_clip"):
        steps.append(f"clamped to {_bounds(values, 'reward_clip')} (reward_clip)")
    coef = float(values["penalty.coef"])
    if coef:
        steps.append(f"minus {coef:g} times the KL of the row, in nats (penalty)")
    steps += _centered(name, each, values)
    if each:
        steps.append("the sum of these over the rewards" + (
            "" if weights is None else f", with the weights {_numbers(weights)}"))
    if values["renorm.over"] != "none":
        spread = divisor("std", values["renorm.eps"], values["renorm.eps_at"])
        steps.append(f"minus the mean over {_OVER[values['renorm.over']]}" + (
            "" if spread is None else f", / {spread} of these, {_ddof(values['renorm.ddof'])}"))
    if _bounds(values, "clip"):
        steps.append(f"clamped to {_bounds(values, 'clip')} (clip)")
    return steps


def edges(line: str) -> str:
    """What becomes of a missing reward and of a group of one."""
    values = {s.name: s.value for s in estimator_settings(line) if s.value}
    return (f"a group of one {_SINGLES[values['singleton']]}; a reward that is missing (NaN) "
            f"{_MISSING[values['missing.entry']]}")


def _bounds(values: Dict[str, str], name: str) -> str:
    """The bounds of that name; empty where they are off."""
    low, high = (float(values[f"{name}.{end}"]) for end in ("lo", "hi"))
    return "" if low == -math.inf and high == math.inf else f"[{low:g}, {high:g}]"


def _numbers(values: tuple) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _sum(each: bool, weights: Optional[tuple]) -> str:
    """The first stage."""
    if each:
        return "each reward of a row by itself"
    if weights is None:
        return "R, the sum of a row's rewards"
    return f"R, the sum of a row's rewards with the weights {_numbers(weights)}"


def _ddof(ddof: str) -> str:
    return {"0": "the population's", "1": "with n - 1"}.get(ddof, f"with n - {ddof}")


def _centered(name: str, each: bool, values: Dict[str, str]) -> List[str]:
    """The baseline and the first scale."""
    last, what = name.split("::")[-1], "reward" if each else "R"
    if last.startswith("grpo_passk"):
        return ["of the best row of a group R - R of the second best, of the others 0"] + _scale(
            values)
    if last == "gpg":
        return ["R - the mean of its group, * the rows of the batch / those with a reward that is "
                "not 0"]
    if name in _WITHOUT_BASELINE:
        return _scale(values)
    kind = next((text for key, text in _BASELINES.items() if last.startswith(key)),
                "the mean of its group")
    return [f"{what} - {kind}"] + _scale(values)


def _scale(values: Dict[str, str]) -> List[str]:
    """The first scale, if any."""
    if "scale.divide_by" in values:
        eps = float(values["scale.eps"])
        mean = "the mean of its group" if eps == 0 else f"(the mean of its group + {eps:g})"
        return [f"/ {mean}" + ("" if values["scale.divide_by"] == "any_mean" else
                               ", 0 where that is not above 0")]
    if "scale.of" not in values:
        return []
    spread = divisor(_SPREADS[values["scale.of"]], values["scale.eps"], values["scale.eps_at"])
    return [] if spread is None else [f"/ {spread}, {_ddof(values['scale.ddof'])}"]
