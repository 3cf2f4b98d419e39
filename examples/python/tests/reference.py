"""The losses written from their definition in plain PyTorch, for autograd in float64.

Nothing here calls gdpo, so that a mistake of the library cannot be in the reference as well.
Batches are padded, (rows, tokens); what masked positions hold is not read.
"""
import dataclasses
import math
from typing import Dict, NamedTuple, Optional, Tuple

import torch

INF = math.inf
Bounds = Tuple[float, float]
OFF: Bounds = (-INF, INF)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a loss, with the names of gdpo.PolicyLoss where it has them."""

    level: str = "token"
    map_clamp: Bounds = OFF      # of the log ratio of each token, in nats
    level_bounds: Bounds = OFF   # of the log ratio of a segment, in nats
    level_eps: float = 0.0       # added to the number of tokens of a segment
    low: float = 0.2
    high: float = 0.2
    delta: float = INF
    dual: float = INF
    cispo: bool = False          # whether the surrogate is -A clip(r) logp, with clip(r) detached
    reinforce: bool = False      # whether it is -A logp
    no_surrogate: bool = False   # whether there is none
    min_ratio: float = 0.0
    max_ratio: float = INF
    beta: float = 0.04
    kl: str = "k3"
    against: str = "ref"
    kl_input: Bounds = OFF       # of other - logp, in nats
    kl_output: Bounds = OFF      # of the estimate, in nats
    gate_beta: float = INF       # of the teacher's gate on the KL term; infinity: no gate
    aggregate: str = "seq-mean-token-mean"
    over: str = "rows"
    count_eps: float = 0.0
    row_count_eps: float = 0.0
    constant: float = 0.0
    padded_width: bool = False
    scale: float = 1.0


class Counts(NamedTuple):
    """The counts of a step, in the order of gdpo.count."""

    tokens: float
    rows: float
    non_empty_rows: float
    given: float = 0.0


class Result(NamedTuple):
    """The loss, and the sum of the absolute values of its terms, which bounds its rounding."""

    loss: torch.Tensor
    absolute: float


def count(mask: torch.Tensor, given: float = 0.0) -> Counts:
    """The counts of one batch with a mask (rows, tokens)."""
    a_row = mask.sum(1)
    return Counts(float(a_row.sum()), float(len(a_row)), float((a_row > 0).sum()), given)


def segments_of(mask: torch.Tensor, ids: Optional[torch.Tensor]) -> list:
    """(row, positions) of each segment: a run of valid tokens with equal ids, or the whole row.

    A masked token does not end a run.
    """
    found = []
    for row, valid in enumerate(mask):
        run, last = [], None
        for t in valid.nonzero().flatten().tolist():
            here = None if ids is None else int(ids[row, t])
            if run and here != last:
                found.append((row, run))
                run = []
            run, last = run + [t], here
        if run:
            found.append((row, run))
    return found


def log_ratio(settings: Settings, x: torch.Tensor, mask: torch.Tensor,
              ids: Optional[torch.Tensor]) -> torch.Tensor:
    """The log ratio that the surrogate sees, from logp - old_logp of each token."""
    x = x.clamp(*settings.map_clamp)
    if settings.level == "token":
        return x
    rows, tokens, values = [], [], []
    for row, run in segments_of(mask, ids):
        mean = x[row, run].sum() / (len(run) + settings.level_eps)
        for t in run:
            own = x[row, t]
            value = mean if settings.level == "sequence" else mean.detach() + own - own.detach()
            rows.append(row), tokens.append(t), values.append(value.clamp(*settings.level_bounds))
    if not values:
        return x * 0
    place = torch.tensor(rows), torch.tensor(tokens)
    return torch.zeros_like(x).index_put(place, torch.stack(values))


def surrogate(settings: Settings, ratio: torch.Tensor, advantage: torch.Tensor,
              logp: torch.Tensor) -> torch.Tensor:
    """max(-A min(r, delta), -A clip(r, 1 - low, 1 + high)), and at most -A dual where A < 0.

    CISPO: -A clip(r, min_ratio, max_ratio) logp, without a gradient through r. REINFORCE: -A logp.
    """
    if settings.no_surrogate:
        return torch.zeros_like(logp)
    if settings.reinforce:
        return -advantage * logp
    if settings.cispo:
        return -advantage * ratio.clamp(settings.min_ratio, settings.max_ratio).detach() * logp
    unclipped = -advantage * ratio.clamp(max=settings.delta)
    clipped = -advantage * ratio.clamp(1 - settings.low, 1 + settings.high)
    # On a tie, inside of the clip range, the gradient is that of the unclipped branch.
    value = torch.where(unclipped >= clipped, unclipped, clipped)
    if settings.dual < INF:
        most = -advantage * settings.dual
        value = torch.where((advantage < 0) & (value > most), most, value)
    return value


def kl_estimate(settings: Settings, logp: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The estimate of KL(policy || other) at each token; a "+" brings the gradient of k2.

    A "*", which multiplies it by the ratio of the level, is for the caller.
    """
    name = settings.kl.rstrip("+*")
    x = (other - logp).clamp(*settings.kl_input)
    if name == "k1":
        value = -x
    elif name == "forward_k1":
        value = x
    elif name == "abs":
        value = x.abs()
    elif name == "k2":
        value = x * x / 2
    else:
        value = torch.expm1(x) - x
    value = value.clamp(*settings.kl_output)
    if settings.kl.endswith("+"):
        k2 = (logp - other) ** 2 / 2
        value = value.detach() + k2 - k2.detach()
    return value


def row_weights(settings: Settings, mask: torch.Tensor, counts: Counts) -> torch.Tensor:
    """The weight W_i of each row; empty rows weigh 0, and so do all where the count is 0."""
    n = mask.sum(1).double()
    if settings.aggregate == "token-sum":
        weights = torch.full_like(n, settings.scale)
    else:
        divisor = getattr(counts, settings.over) + settings.count_eps
        weights = torch.full_like(n, settings.scale / divisor if divisor > 0 else 0.0)
    if settings.aggregate == "seq-mean-token-mean":
        weights = weights / (n + settings.row_count_eps).clamp(min=1e-300)
    if settings.aggregate == "seq-mean-token-sum-norm":
        by_width = settings.padded_width and settings.constant == 0
        weights = weights / (mask.shape[1] if by_width else settings.constant)
    return torch.where(n > 0, weights, torch.zeros_like(n))


def policy_loss(settings: Settings, counts: Counts, mask: torch.Tensor, logp: torch.Tensor, *,
                advantages: Optional[torch.Tensor] = None, **arrays: torch.Tensor) -> Result:
    """The loss of a padded batch, (rows, tokens), in float64; `arrays` as gdpo.PolicyLoss."""
    mask = mask.bool()

    def tokens(name: str) -> Optional[torch.Tensor]:
        array = arrays.get(name)
        return None if array is None else array.double().masked_fill(~mask, 0.0)

    logp = logp.double().masked_fill(~mask, 0.0)
    old = tokens("old_logp")
    old = logp.detach() if old is None else old
    advantage = tokens("token_advantages")
    if advantage is None:
        advantage = advantages.double().reshape(-1, 1).expand_as(logp)
    ratio = log_ratio(settings, logp - old, mask, arrays.get("segments")).exp()
    terms = surrogate(settings, ratio, advantage, logp)
    if arrays.get("weights") is not None:
        terms = terms * tokens("weights")
    absolute = terms.abs()
    if settings.beta:
        other = old if settings.against == "old" else tokens(settings.against + "_logp")
        kl = settings.beta * kl_estimate(settings, logp, other)
        if settings.kl.endswith("*"):
            kl = kl * ratio
        if arrays.get("kl_weights") is not None:
            kl = kl * tokens("kl_weights")
        if settings.gate_beta < INF:
            gate = torch.sigmoid(settings.gate_beta * (tokens("teacher_logp") - logp))
            kl = kl * gate.detach()
        terms, absolute = terms + kl, absolute + kl.abs()
    weight = row_weights(settings, mask, counts)
    if arrays.get("row_weights") is not None:
        weight = weight * arrays["row_weights"].double().reshape(-1)
    weight = weight[:, None] * mask
    return Result((weight * terms).sum(), float((weight.abs() * absolute).sum().detach()))


def with_aggregate(settings: Settings, mode: str) -> Settings:
    """The settings with verl's aggregate of that name, which replaces all of the aggregate."""
    changed = {
        "token-mean": dict(over="tokens"),
        "token-sum": dict(),
        "seq-mean-token-sum": dict(over="non_empty_rows"),
        "seq-mean-token-mean": dict(over="non_empty_rows", row_count_eps=1e-8),
        "seq-mean-token-sum-norm": dict(over="non_empty_rows", padded_width=True),
    }[mode]
    fresh = dict(over="rows", count_eps=0.0, row_count_eps=0.0, constant=0.0, padded_width=False,
                 scale=1.0)
    return dataclasses.replace(settings, aggregate=mode, **{**fresh, **changed})


def with_level(settings: Settings, level: str) -> Settings:
    """The settings at a level; one that is not the loss's own has no clamp of log ratios."""
    if level == settings.level:
        return settings
    return dataclasses.replace(settings, level=level, map_clamp=OFF, level_bounds=OFF,
                               level_eps=0.0)


#: Where the settings of the library stand in Settings.
_PLACES = {
    "level": "level", "level.map": "map_clamp", "level.bounds": "level_bounds",
    "level.statistic.count_eps": "level_eps",
    **{f"surrogate.{name}": name for name in ("low", "high", "delta", "dual")},
    **{f"factor.{name}": name for name in ("min_ratio", "max_ratio")},
    "kl.beta": "beta", "kl.estimator": "kl", "kl.against": "against", "kl.input": "kl_input",
    "kl.output": "kl_output", "kl.gate_beta": "gate_beta", "aggregate.mode": "aggregate",
    **{f"aggregate.{name}": name for name in ("over", "count_eps", "row_count_eps", "constant",
                                              "padded_width", "scale")},
}


def settings_from(values: Dict[str, str]) -> Optional[Settings]:
    """The settings of a loss, from the names and values that the library lists.

    None where there is a setting, such as that of another surrogate, that is not known here. What
    they must be for each name, the library's own tests say.
    """
    given, bounds = {"cispo": "factor.max_ratio" in values}, {}
    gated = values.get("kl.factor") == "teacher_gate"
    given["no_surrogate"] = gated and values.get("kl.estimator") == "forward_k1"
    given["reinforce"] = (not given["cispo"] and not given["no_surrogate"]
                          and "surrogate.low" not in values)
    for name, value in values.items():
        if name == "kl.gradient" and value == "direct":
            continue
        if name in ("kl.factor", "kl.max_weight") or name == "kl.gate_beta" and not gated:
            continue  # max_weight is of a gradient that is not known here
        owner, _, end = name.rpartition(".")
        if end in ("lo", "hi") and owner in _PLACES:
            bounds.setdefault(_PLACES[owner], {})[end] = float(value)
            continue
        if name not in _PLACES:
            return None
        kind = type(getattr(Settings, _PLACES[name]))
        given[_PLACES[name]] = value if kind is str else (
            value == "true" if kind is bool else float(value))
    given.update({name: (ends["lo"], ends["hi"]) for name, ends in bounds.items()})
    return Settings(**given)
