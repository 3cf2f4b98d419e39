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
    map: str = "none"            # of the log ratio of each token: none, clamp, trust_region
    map_bounds: Bounds = OFF     # of clamp, in nats
    map_low: float = 0.4         # of trust_region, in nats: at least -map_low where A < 0
    map_high: float = 0.4        # and at most map_high where A > 0
    statistic: str = "mean"      # from the log ratios of a segment to its own: mean, sum
    level_bounds: Bounds = OFF   # of the log ratio of a segment, in nats
    level_eps: float = 0.0       # added to the number of tokens of a mean
    surrogate: str = "ratio"     # ratio, reinforce, soft, clipped, positive_reinforce, log_ratio,
                                 # likelihood, none
    low: float = 0.2
    high: float = 0.2
    delta: float = INF
    dual: float = INF
    tau_pos: float = 1.0
    tau_neg: float = 1.05
    epsilon: float = 0.3         # of log_ratio
    floor: float = 0.0           # of likelihood, in nats; 0: off
    factor: str = "none"         # detached: none, clipped_ratio, signed_ratio, gamma, soft_gate,
                                 # ring, probability
    low_prime: float = INF       # of ring, whose range is low and high
    high_prime: float = INF
    temp: float = INF
    decay: float = 0.0           # of probability
    min_ratio: float = 0.0
    max_ratio: float = INF
    positive_min: float = 1.0
    positive_max: float = 1.0
    negative_min: float = 0.0
    negative_max: float = 1.0
    threshold: float = 0.0       # an advantage above it is positive
    k_pos: float = 2.0
    lambda_pos: float = 3.0
    k_neg: float = 3.0
    lambda_neg: float = 2.0
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
    entropy_coef: float = 0.0
    entropy_mean: str = "loss"   # loss: as the terms are; tokens: over the tokens of the step


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


def mapped(settings: Settings, x: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """What the level's map makes of the log ratio of each token."""
    if settings.map == "clamp":
        return x.clamp(*settings.map_bounds)
    if settings.map == "trust_region":  # each side where the advantage pushes there; 0 where A is 0
        pushed_down = torch.where(advantage < 0, x.clamp(min=-settings.map_low),
                                  torch.zeros_like(x))
        return torch.where(advantage > 0, x.clamp(max=settings.map_high), pushed_down)
    return x


def log_ratio(settings: Settings, x: torch.Tensor, mask: torch.Tensor,
              ids: Optional[torch.Tensor]) -> torch.Tensor:
    """The log ratio that the surrogate sees, from the mapped log ratio of each token."""
    if settings.level == "token":
        return x
    rows, tokens, values = [], [], []
    for row, run in segments_of(mask, ids):
        whole = x[row, run].sum()
        if settings.statistic == "mean":
            whole = whole / (len(run) + settings.level_eps)
        for t in run:
            own = x[row, t]
            value = whole if settings.level == "sequence" else whole.detach() + own - own.detach()
            rows.append(row), tokens.append(t), values.append(value.clamp(*settings.level_bounds))
    if not values:
        return x * 0
    place = torch.tensor(rows), torch.tensor(tokens)
    return torch.zeros_like(x).index_put(place, torch.stack(values))


def clipped_ratio(settings: Settings, ratio: torch.Tensor, advantage: torch.Tensor, high: float,
                  delta: float) -> torch.Tensor:
    """max(-A min(r, delta), -A clip(r, 1 - low, 1 + high)), and at most -A dual where A < 0."""
    unclipped = -advantage * ratio.clamp(max=delta)
    clipped = -advantage * ratio.clamp(1 - settings.low, 1 + high)
    # On a tie, inside of the clip range, the gradient is that of the unclipped branch.
    value = torch.where(unclipped >= clipped, unclipped, clipped)
    if settings.dual < INF:
        most = -advantage * settings.dual
        value = torch.where((advantage < 0) & (value > most), most, value)
    return value


def chosen(where: torch.Tensor, there: float, elsewhere: float) -> torch.Tensor:
    """One of two numbers at each token, in float64."""
    return torch.where(where, torch.tensor(there, dtype=torch.float64),
                       torch.tensor(elsewhere, dtype=torch.float64))


def surrogate(settings: Settings, ratio: torch.Tensor, advantage: torch.Tensor,
              logp: torch.Tensor) -> torch.Tensor:
    """The term of each token that its advantage weighs, without the factor.

    reinforce: -A logp. clipped: -A clip(r, 1 - low, 1 + high). positive_reinforce: reinforce where
    A > 0, else ratio. soft: -A sigmoid(tau (r - 1)) 4 / tau, with the tau of the sign of A.
    log_ratio: -A log r between 1 / (1 + epsilon) and 1 + epsilon, else 0. likelihood: -logp, at
    least floor.
    """
    if settings.surrogate == "likelihood":
        return (-logp).clamp(min=settings.floor if settings.floor > 0 else -INF)
    if settings.surrogate == "log_ratio":
        most = 1 + settings.epsilon
        return torch.where((ratio >= 1 / most) & (ratio <= most), -advantage * ratio.log(),
                           torch.zeros_like(ratio))
    if settings.surrogate == "none":
        return 0 * logp
    if settings.surrogate == "reinforce":
        return -advantage * logp
    if settings.surrogate == "clipped":
        return -advantage * ratio.clamp(1 - settings.low, 1 + settings.high)
    if settings.surrogate == "soft":
        tau = chosen(advantage > 0, settings.tau_pos, settings.tau_neg)
        return -advantage * torch.sigmoid(tau * (ratio - 1)) * 4 / tau
    if settings.surrogate == "positive_reinforce":
        return torch.where(advantage > 0, -advantage * logp,
                           clipped_ratio(settings, ratio, advantage, INF, INF))
    return clipped_ratio(settings, ratio, advantage, settings.high, settings.delta)


def factor(settings: Settings, log_ratio: torch.Tensor, advantage: torch.Tensor,
           logp: torch.Tensor) -> torch.Tensor:
    """The factor of each token's surrogate, without a gradient.

    clipped_ratio: clip(r, min_ratio, max_ratio). signed_ratio: the same with the bounds of the
    advantage's sign. gamma: r^k e^(lambda - lambda r) with the k and lambda of that sign.
    soft_gate: sigmoid(tau (r - 1)) 4 / tau with the tau of that sign. ring: the clipped ratio times
    e^(A / temp) for r from 1 - low to 1 + high, to 1 - low_prime where A >= 0, and from
    1 + high_prime where A <= 0; 0 elsewhere. probability: p (1 - decay p).
    """
    log_ratio = log_ratio.detach()
    ratio = log_ratio.exp()
    if settings.factor == "clipped_ratio":
        return ratio.clamp(settings.min_ratio, settings.max_ratio)
    if settings.factor == "signed_ratio":
        return torch.where(advantage > settings.threshold,
                           ratio.clamp(settings.positive_min, settings.positive_max),
                           ratio.clamp(settings.negative_min, settings.negative_max))
    if settings.factor == "soft_gate":
        tau = chosen(advantage > 0, settings.tau_pos, settings.tau_neg)
        return torch.sigmoid(tau * (ratio - 1)) * 4 / tau
    if settings.factor == "ring":
        stays = (ratio >= 1 - settings.low) & (ratio <= 1 + settings.high)
        stays |= (advantage >= 0) & (ratio <= 1 - settings.low_prime)
        stays |= (advantage <= 0) & (ratio >= 1 + settings.high_prime)
        weight = ratio.clamp(settings.min_ratio, settings.max_ratio)
        return stays * weight * (advantage / settings.temp).exp()
    if settings.factor == "probability":
        p = logp.detach().exp()
        return p * (1 - settings.decay * p)
    if settings.factor == "gamma":
        k = chosen(advantage < 0, settings.k_neg, settings.k_pos)
        decay = chosen(advantage < 0, settings.lambda_neg, settings.lambda_pos)
        return (decay + k * log_ratio - decay * ratio).exp()
    return torch.ones_like(ratio)


def kl_estimate(settings: Settings, logp: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The estimate of KL(policy || other) at each token; a "+" brings the gradient of k2.

    A "~" multiplies it by e^(logp - detach(logp)), the estimator of a gradient by its score. A "*",
    which multiplies it by the ratio of the level, is for the caller.
    """
    name = settings.kl.rstrip("+*~")
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
    if settings.kl.endswith("~"):
        value = value * (logp - logp.detach()).exp()
    value = value.clamp(*settings.kl_output)
    if settings.kl.endswith("+"):
        k2 = (logp - other) ** 2 / 2
        value = value.detach() + k2 - k2.detach()
    return value


def row_weights(settings: Settings, mask: torch.Tensor, counts: Counts,
                group_tokens: Optional[torch.Tensor]) -> torch.Tensor:
    """The weight W_i of each row; empty rows weigh 0, and so do all where the count is 0."""
    n = mask.sum(1).double()
    if settings.aggregate == "token-sum":
        weights = torch.full_like(n, settings.scale)
    else:
        divisor = getattr(counts, settings.over) + settings.count_eps
        weights = torch.full_like(n, settings.scale / divisor if divisor > 0 else 0.0)
    if settings.aggregate == "seq-mean-token-mean":
        weights = weights / (n + settings.row_count_eps).clamp(min=1e-300)
    if settings.aggregate == "group-mean-token-mean":
        weights = weights / (group_tokens + settings.row_count_eps).clamp(min=1e-300)
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
    x = log_ratio(settings, mapped(settings, logp - old, advantage), mask, arrays.get("segments"))
    ratio = x.exp()
    terms = surrogate(settings, ratio, advantage, logp) * factor(settings, x, advantage, logp)
    if arrays.get("weights") is not None:
        terms = terms * tokens("weights")
    absolute = terms.abs()
    if settings.beta:
        other = (old if settings.against == "old" else
                 torch.zeros_like(logp) if settings.against == "data" else
                 tokens(settings.against + "_logp"))
        kl = settings.beta * kl_estimate(settings, logp, other)
        if settings.kl.endswith("*"):
            kl = kl * ratio
        if arrays.get("kl_weights") is not None:
            kl = kl * tokens("kl_weights")
        if settings.gate_beta < INF:
            gate = torch.sigmoid(settings.gate_beta * (tokens("teacher_logp") - logp))
            kl = kl * gate.detach()
        terms, absolute = terms + kl, absolute + kl.abs()
    weight = row_weights(settings, mask, counts, arrays.get("group_tokens"))
    if arrays.get("row_weights") is not None:
        weight = weight * arrays["row_weights"].double().reshape(-1)
    each = weight[:, None] * mask
    loss, size = (each * terms).sum(), (each.abs() * absolute).sum()
    if settings.entropy_coef:
        if settings.entropy_mean == "tokens":
            of_rows = arrays.get("row_weights")
            weight = torch.full_like(weight, 1 / max(counts.tokens, 1e-300))
            weight = weight if of_rows is None else weight * of_rows.double().reshape(-1)
        bonus = settings.entropy_coef * weight[:, None] * mask * tokens("entropies")
        if arrays.get("entropy_weights") is not None:
            bonus = bonus * tokens("entropy_weights")
        loss, size = loss - bonus.sum(), size + bonus.abs().sum()
    return Result(loss, float(size.detach()))


def value_loss(settings: Settings, counts: Counts, mask: torch.Tensor, values: torch.Tensor,
               returns: torch.Tensor, old_values: Optional[torch.Tensor] = None, *,
               clip: float = INF, half: bool = True, delta: float = INF,
               row_weights_given: Optional[torch.Tensor] = None,
               group_tokens: Optional[torch.Tensor] = None) -> Result:
    """The loss of a critic over a padded batch, in float64; of `settings` the aggregate is read.

    h max(square(v - R), square(clip(v, v_old - clip, v_old + clip) - R)), where from |e| = delta on
    square(e) = 2 delta (|e| - delta / 2). A tie has the gradient of the first.
    """
    mask = mask.bool()
    v, target = (a.double().masked_fill(~mask, 0.0) for a in (values, returns))

    def square(error: torch.Tensor) -> torch.Tensor:
        if delta == INF:
            return error ** 2
        return torch.where(error.abs() <= delta, error ** 2, 2 * delta * (error.abs() - delta / 2))

    terms = square(v - target)
    if clip < INF:
        old = old_values.double().masked_fill(~mask, 0.0)
        clipped = square(torch.minimum(torch.maximum(v, old - clip), old + clip) - target)
        terms = torch.where(clipped > terms, clipped, terms)
    weight = row_weights(settings, mask, counts, group_tokens) * (0.5 if half else 1.0)
    if row_weights_given is not None:
        weight = weight * row_weights_given.double()
    loss = (weight[:, None] * mask * terms).sum()
    return Result(loss, float(loss.detach()))


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
    """The settings at a level; one that is not the loss's own has neither map nor bounds."""
    if level == settings.level:
        return settings
    fresh = {field: getattr(Settings, field) for field in (
        "map", "map_bounds", "map_low", "map_high", "statistic", "level_bounds", "level_eps")}
    return dataclasses.replace(settings, level=level, **fresh)


#: Which surrogate, factor and map a loss has: that with the settings which the library lists.
_KINDS = {
    "surrogate": {
        "ratio": {"low", "high", "delta", "dual"}, "reinforce": set(),
        "soft": {"tau_pos", "tau_neg"}, "clipped": {"low", "high"},
        "positive_reinforce": {"low", "dual"}, "log_ratio": {"epsilon"}, "likelihood": {"floor"}},
    "factor": {
        "none": set(), "clipped_ratio": {"min_ratio", "max_ratio"},
        "signed_ratio": {"positive_min", "positive_max", "negative_min", "negative_max",
                         "threshold"},
        "gamma": {"k_pos", "lambda_pos", "k_neg", "lambda_neg"},
        "soft_gate": {"tau_pos", "tau_neg"},
        "ring": {"low", "high", "low_prime", "high_prime", "min_ratio", "max_ratio", "temp"},
        "probability": {"decay"}},
    "level.map": {"none": set(), "clamp": {"lo", "hi"}, "trust_region": {"low", "high"}},
}

#: Where the settings of the library stand in Settings.
_PLACES = {
    "level": "level", "level.map": "map_bounds", "level.map.low": "map_low",
    "level.map.high": "map_high", "level.statistic.kind": "statistic",
    "level.statistic.count_eps": "level_eps", "level.bounds": "level_bounds",
    **{f"{part}.{name}": name for part in ("surrogate", "factor")
       for names in _KINDS[part].values() for name in names},
    "kl.beta": "beta", "kl.estimator": "kl", "kl.against": "against", "kl.input": "kl_input",
    "kl.output": "kl_output", "kl.gate_beta": "gate_beta", "aggregate.mode": "aggregate",
    "entropy.coef": "entropy_coef", "entropy.mean": "entropy_mean",
    **{f"aggregate.{name}": name for name in ("over", "count_eps", "row_count_eps", "constant",
                                              "padded_width", "scale")},
}

#: What stands behind the estimator for each rule of its gradient.
_GRADIENTS = {"direct": "", "straight_through_k2": "+", "importance_weighted": "*",
              "score_function": "~"}


def _kind_of(part: str, values: Dict[str, str]) -> str:
    """Which of _KINDS[part] has the settings that are listed."""
    listed = {name[len(part) + 1:] for name in values if name.startswith(part + ".")}
    for kind, settings in _KINDS[part].items():
        if settings == listed:
            return kind
    raise ValueError(f"reference.py knows no {part} with the settings {sorted(listed)}")


def settings_from(values: Dict[str, str]) -> Settings:
    """The settings of a loss, from the names and values that the library lists.

    What they must be for each name, the library's own tests say.

    Errors: ValueError for a setting, or a list of them, that is not known here.
    """
    given = {part.rpartition(".")[2]: _kind_of(part, values) for part in _KINDS}
    if values["level"] != "token" and "level.statistic.kind" not in values and (
            "level.statistic.count_eps" not in values):
        given["statistic"] = "sum"  # which has no setting
    gated = values["kl.factor"] == "teacher_gate"
    if values["kl.against"] == "teacher" and given["surrogate"] == "reinforce":
        given["surrogate"] = "none"  # distillation and SDAR, a KL term alone; neither has a setting
    bounds: Dict[str, Dict[str, float]] = {}
    for name, value in values.items():
        if name in ("kl.factor", "kl.max_weight") or name == "kl.gate_beta" and not gated:
            continue  # max_weight is of a gradient that is not known here
        owner, _, end = name.rpartition(".")
        if end in ("lo", "hi") and owner in _PLACES:
            bounds.setdefault(_PLACES[owner], {})[end] = float(value)
        elif name in _PLACES:
            kind = type(getattr(Settings, _PLACES[name]))
            given[_PLACES[name]] = value if kind is str else (
                value == "true" if kind is bool else float(value))
        elif name != "kl.gradient":
            raise ValueError(f"reference.py does not know the setting {name}={value}")
    given["kl"] += _GRADIENTS[values["kl.gradient"]]
    given.update({name: (ends["lo"], ends["hi"]) for name, ends in bounds.items()})
    return Settings(**given)
