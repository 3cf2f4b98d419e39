"""The losses written from their definition in plain PyTorch, for autograd in float64.

Nothing here calls gdpo, so that a mistake of the library cannot be in the reference as well.
Batches are padded, (rows, tokens); what masked positions hold is not read. NAMED says by hand what
each name of gdpo.losses() sets, from include/gdpo/presets and include/gdpo/loss/named.hpp.
"""
import dataclasses
import math
from typing import NamedTuple, Optional, Tuple

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
    min_ratio: float = 0.0
    max_ratio: float = INF
    beta: float = 0.04
    kl: str = "k3"
    against: str = "ref"
    kl_input: Bounds = OFF       # of other - logp, in nats
    kl_output: Bounds = OFF      # of the estimate, in nats
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

    CISPO: -A clip(r, min_ratio, max_ratio) logp, without a gradient through r.
    """
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


def _rows(**changed) -> Settings:
    return Settings(**changed)


def _tokens(**changed) -> Settings:
    return Settings(aggregate="token-mean", **{"over": "tokens", **changed})


def _norm(**changed) -> Settings:
    return Settings(aggregate="seq-mean-token-sum-norm", **changed)


def _cispo(**changed) -> Settings:
    return _tokens(cispo=True, **{"max_ratio": 5.0, **changed})


_GSPO = dict(low=3e-4, high=4e-4, beta=0.0)
_CLAMPED_KL = dict(kl_input=(-20.0, 20.0), kl_output=(-10.0, 10.0))

#: What each name of gdpo.losses() sets.
NAMED = {
    # The papers. Where a paper names no clip range it is 0.2.
    "grpo": _rows(),
    "dapo": _tokens(high=0.28, beta=0.0),
    "dr_grpo": _norm(beta=0.0),
    "gspo": _rows(level="sequence", **_GSPO),
    "gspo_token": _rows(level="sequence_token", **_GSPO),
    "cispo": _cispo(beta=0.0),
    # TRL has beta 0 by default.
    "trl::grpo": _rows(beta=0.0),
    "trl::bnpo": _tokens(beta=0.0),
    "trl::dr_grpo": _norm(beta=0.0),
    "trl::dapo": _tokens(beta=0.0, over="given"),
    "trl::cispo": _cispo(beta=0.0, over="given"),
    "trl::luspo": _rows(level="sequence", aggregate="seq-mean-token-sum", beta=0.0),
    # verl clamps the log ratio and the KL term, which is off by default.
    "verl::vanilla": _tokens(beta=0.0, dual=3.0, map_clamp=(-20.0, 20.0), **_CLAMPED_KL),
    "verl::gspo": _tokens(level="sequence_token", beta=0.0, level_bounds=(-INF, 10.0),
                          **_CLAMPED_KL),
    "verl::v0_9_0::gspo": _rows(level="sequence_token", beta=0.0, level_bounds=(-INF, 10.0),
                                over="non_empty_rows", row_count_eps=1e-8, **_CLAMPED_KL),
    "verl::cispo": _cispo(min_ratio=0.8, max_ratio=1.2, beta=0.0, map_clamp=(-20.0, 20.0),
                          **_CLAMPED_KL),
    # The GDPO paper's authors: a fork of TRL with beta 0.04, and one of an older verl.
    "nvlabs::trl_grpo": _rows(),
    "nvlabs::trl_bnpo": _tokens(),
    "nvlabs::trl_dr_grpo": _norm(),
    "nvlabs::verl": _tokens(beta=0.0, kl_output=(-10.0, 10.0)),
    # ms-swift is TRL with beta 0.04 and a KL term between clamps.
    "ms_swift::grpo": _rows(**_CLAMPED_KL),
    "ms_swift::bnpo": _tokens(**_CLAMPED_KL),
    "ms_swift::dr_grpo": _norm(**_CLAMPED_KL),
    "ms_swift::dapo": _tokens(over="given", **_CLAMPED_KL),
    "ms_swift::cispo": _cispo(over="given", **_CLAMPED_KL),
    "ms_swift::megatron_bnpo": _tokens(over="given", **_CLAMPED_KL),
    "open_instruct::dapo": _tokens(high=0.272, beta=0.05, over="given", kl_input=(-40.0, 40.0)),
    "open_instruct::cispo": _cispo(max_ratio=1.272, beta=0.05, over="given",
                                   kl_input=(-40.0, 40.0)),
    "nemo_rl::cispo": _cispo(min_ratio=0.8, max_ratio=1.2, beta=0.01, **_CLAMPED_KL),
    # slime: a row counts by its own tokens, and its KL estimate is k1.
    "slime::cispo": _rows(cispo=True, min_ratio=0.8, max_ratio=1.2, beta=0.0, kl="k1",
                          over="given"),
    # Liger: beta 0.04 without clamps.
    "liger::grpo": _rows(),
    "liger::bnpo": _tokens(),
    "liger::dr_grpo": _norm(),
    "liger::dapo": _tokens(),
    "liger::cispo": _cispo(),
    # unsloth-zoo is TRL with a KL term between clamps.
    "unsloth_zoo::grpo": _rows(beta=0.0, **_CLAMPED_KL),
    "unsloth_zoo::bnpo": _tokens(beta=0.0, **_CLAMPED_KL),
    "unsloth_zoo::dr_grpo": _norm(beta=0.0, **_CLAMPED_KL),
    "unsloth_zoo::dapo": _tokens(beta=0.0, over="given", **_CLAMPED_KL),
    "unsloth_zoo::cispo": _cispo(beta=0.0, over="given", **_CLAMPED_KL),
    "unsloth_zoo::luspo": _rows(level="sequence", aggregate="seq-mean-token-sum", beta=0.0,
                                **_CLAMPED_KL),
    # SkyRL sums: its advantages have been divided before.
    "skyrl::regular": _rows(aggregate="token-sum", beta=0.0, map_clamp=(-20.0, 20.0)),
    "skyrl::gspo": _rows(level="sequence_token", aggregate="token-sum", beta=0.0,
                         level_bounds=(-INF, 10.0)),
    "skyrl::cispo": _rows(aggregate="token-sum", cispo=True, min_ratio=1.0, max_ratio=6.0,
                          beta=0.0, map_clamp=(-20.0, 20.0)),
    # Trinity-RFT adds 1e-8 to every number of tokens.
    "trinity::ppo": _tokens(beta=0.0, dual=3.0, map_clamp=(-20.0, 20.0), count_eps=1e-8),
    "trinity::gspo": _rows(level="sequence_token", low=3e-4, high=4e-4, beta=0.0, level_eps=1e-8,
                           row_count_eps=1e-8),
    "trinity::cispo": _cispo(max_ratio=1.28, beta=0.0, count_eps=1e-8),
    "textbook::grpo": _rows(),
}
