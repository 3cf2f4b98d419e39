"""The losses and estimators of this library by names in SkyRL's configuration.

    python -m skyrl.train.entrypoints.main_base ... \\
        trainer.override_entrypoint=gdpo.integrations.skyrl \\
        trainer.algorithm.policy_loss_type=gdpo:skyrl::regular

`main` is what SkyRL calls then: it registers the names that begin with "gdpo:" and goes on with
SkyRL's entry point. In another script, call `register` before SkyRL's main. SkyRL's
registries hand the functions over to its workers, which need this package too. Nothing of SkyRL is
replaced, and other names are SkyRL's own code. examples/python/trainers/skyrl/README.md is the page
for users.
"""
import functools
import math
import sys
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple, Union

import torch

import gdpo

from .._names import did_you_mean
from .._policy_loss import clamped_ratio, outside
from .._prepare import made
from .._settings import ratio_bounds, said, values_of
from ._known import knows
from ._named import named

__all__ = ["Estimator", "Loss", "VERSION", "main", "register"]

#: The release that the signatures below are of.
VERSION = "SkyRL 0.3.0"
_LOSS_PARAMETERS = ("log_probs", "old_log_probs", "advantages", "config", "loss_mask",
                    "rollout_logprobs")
_PREFIX = "gdpo:"

# SkyRL's own losses by policy_loss_type, and the loss of this library that each is.
_OF_SKYRL = {"regular": "skyrl::regular", "dual_clip": "skyrl::regular", "gspo": "skyrl::gspo",
             "cispo": "skyrl::cispo", "sapo": "verl::sapo", "rollout_is": "skyrl::rollout_is",
             "dppo": "skyrl::dppo", "clip_cov": "skyrl::clip_cov", "kl_cov": "skyrl::kl_cov",
             "importance_sampling": "trl::bnpo", "cross_entropy": "skyrl::cross_entropy"}
# Those whose ratio is against the sampler, and those on which SkyRL has no correction.
_AGAINST_SAMPLER = ("rollout_is", "dppo")
_WITHOUT_CORRECTION = ("clip_cov", "kl_cov", "importance_sampling", "cross_entropy")


class Loss:
    """A loss of this library with the signature of SkyRL's losses.

    line: "skyrl::TYPE [SETTING=VALUE ...]" with a policy_loss_type of SkyRL, whose options
      (eps_clip_low, eps_clip_high, clip_ratio_c, cispo, sapo, dppo, clip_cov, kl_cov) are read
      unless the line sets them; or "NAME [LEVEL] [SETTING=VALUE ...]" with a name of
      `gdpo.losses()`, which has its own settings.

    SkyRL has divided the advantages by the counts of its loss_reduction, so the loss is a sum over
    tokens and settings of the aggregate are refused, as are settings of a KL term against the
    reference, which SkyRL adds. Corrections (off_policy_correction) are computed here, and multiply
    any loss but clip_cov, kl_cov, importance_sampling and cross_entropy.

    Errors: ValueError for unknown names and settings, with a list of the known ones.
    """

    def __init__(self, line: str) -> None:
        words = line.split()
        kind = words[0][len("skyrl::"):] if words and words[0].startswith("skyrl::") else None
        if kind is not None and kind not in _OF_SKYRL:
            raise ValueError(f"gdpo.integrations.skyrl: policy_loss_type: given {line!r}; needed: "
                             f"one of {', '.join(f'skyrl::{name}' for name in _OF_SKYRL)}, or of "
                             f"{', '.join(name for name in gdpo.losses() if name[:5] != 'skyrl')}"
                             f"{did_you_mean(words[0], [f'skyrl::{each}' for each in _OF_SKYRL])}")
        #: The policy_loss_type of SkyRL that the loss is, or None.
        self.kind = kind
        self._name = line if kind is None else " ".join([_OF_SKYRL[kind], *words[1:]])
        if kind in ("clip_cov", "kl_cov") and len(words) > 1:
            raise ValueError(f"gdpo.integrations.skyrl: policy_loss_type: given {line!r}; needed: "
                             f"skyrl::{kind} alone, because SkyRL has its options")
        self._said = said("loss", self._name) if kind is not None else {}
        self._loss(())  # mistakes in the line are to be found now, and not in the first step

    def _loss(self, settings: Tuple[Tuple[str, Any], ...]) -> gdpo.PolicyLoss:
        unsaid = tuple((name, value) for name, value in settings if name not in self._said)
        return _make(self._name, unsaid)

    def __call__(self, log_probs: torch.Tensor, old_log_probs: torch.Tensor,
                 advantages: torch.Tensor, config: Any, loss_mask: Optional[torch.Tensor] = None,
                 rollout_logprobs: Optional[torch.Tensor] = None
                 ) -> Tuple[torch.Tensor, Dict[str, float]]:
        """The loss of one micro-batch and its metrics, as SkyRL's workers ask for them."""
        if loss_mask is None:
            loss_mask = torch.ones_like(log_probs, dtype=torch.bool)
        arrays = {"old_logp": old_log_probs, "rollout_logp": rollout_logprobs, "mask": loss_mask,
                  "token_advantages": advantages}
        if self.kind == "rollout_is" and rollout_logprobs is None:
            raise ValueError("gdpo.integrations.skyrl: rollout_logprobs: given none; needed: those "
                             "of the sampler, because of policy_loss_type rollout_is")
        correction = _correction(self.kind, config.off_policy_correction, log_probs, arrays)
        if self.kind in _AGAINST_SAMPLER and rollout_logprobs is not None:
            arrays["old_logp"] = rollout_logprobs
        weights, kl_weights = correction.weights, correction.kept
        picked = None
        own = _own_pass(self.kind, config)
        if own is not None:
            # dppo without the sampler's log-probs compares with the old ones.
            passed = gdpo.prepare(own, logp=log_probs.detach(), **{
                **arrays, "rollout_logp": arrays["old_logp"]})
            weights = _product(weights, passed.weights)
            kl_weights, picked = _product(kl_weights, passed.kl_weights), passed.weights
        options = _options(self.kind, config)
        loss, metrics = self._loss(options)(
            log_probs, weights=weights, kl_weights=kl_weights,
            counts=torch.ones(4, dtype=torch.float64), **arrays)
        log = self._metrics(metrics, picked, loss_mask)
        if self.kind == "cispo":
            bounds = {**dict(options), **self._said}
            beyond = outside(clamped_ratio(log_probs, old_log_probs), bounds)
            log["clip_ratio"] = _share(beyond, loss_mask)
        return loss, {**log, **correction.metrics}

    def _metrics(self, metrics: gdpo.Metrics, picked: Optional[torch.Tensor], mask: torch.Tensor
                 ) -> Dict[str, float]:
        """SkyRL's metrics of a loss, and more of ours after gdpo/."""
        numbers = dict(zip(metrics.names(), metrics.result.tolist()))

        def mean(name: str) -> float:
            return numbers[f"{name}.sum"] / max(numbers[f"{name}.count"], 1.0)

        if self.kind == "importance_sampling":
            log = {"importance_ratio": mean("ratio")}
        elif self.kind in ("sapo", "kl_cov", "cross_entropy"):  # they clip nothing
            log = {"clip_ratio": 0.0}
        elif picked is not None:
            log = {"clip_ratio": _share(picked == 0, mask)}
        else:
            log = {"clip_ratio": mean("clip_fraction")}
        return {**log, "gdpo/ratio": mean("ratio"), "gdpo/approx_kl_k3": mean("approx_kl_k3"),
                "gdpo/non_finite": sum(value for name, value in numbers.items()
                                       if name.startswith("non_finite.")
                                       and name.endswith(".count"))}


@functools.lru_cache(maxsize=256)
def _make(name: str, settings: Tuple[Tuple[str, Any], ...]) -> gdpo.PolicyLoss:
    if name.startswith("skyrl::kl_cov"):  # its KL term is part of the loss
        return gdpo.PolicyLoss(name, aggregate="token-sum", **dict(settings))
    return named("skyrl", "policy_loss_type", name, None, {}, aggregate="token-sum",
                 **dict(settings))


def _options(kind: Optional[str], config: Any) -> Tuple[Tuple[str, Any], ...]:
    """The settings that SkyRL's configuration has for its own loss."""
    clip = {"surrogate.low": config.eps_clip_low, "surrogate.high": config.eps_clip_high}
    options: Dict[str, Any] = {}
    if kind in ("regular", "gspo", "clip_cov"):
        options = clip
    elif kind == "dual_clip":
        options = {**clip, "surrogate.dual": config.clip_ratio_c}
    elif kind == "cispo":
        options = ratio_bounds(config.cispo.cispo_eps_clip_low, config.cispo.cispo_eps_clip_high)
    elif kind == "sapo":
        options = {"surrogate.tau_pos": config.sapo.tau_pos,
                   "surrogate.tau_neg": config.sapo.tau_neg}
    elif kind == "kl_cov":
        options = {"kl.beta": config.kl_cov.ppo_kl_coef}
    elif kind == "importance_sampling":
        options = {"surrogate.low": 1.0, "surrogate.high": math.inf}
    return tuple(options.items())


def _own_pass(kind: Optional[str], config: Any) -> Optional[str]:
    """The line of `gdpo.prepare` that is part of SkyRL's own loss."""
    if kind == "rollout_is":
        low, high = 1 - config.eps_clip_low, 1 + config.eps_clip_high
        return f"skyrl::rollout_is min={low!r} max={high!r}"
    if kind == "dppo":
        of = config.dppo
        return f"skyrl::dppo_{of.dppo_type} min={-of.delta_low!r} max={of.delta_high!r}"
    if kind == "clip_cov":
        of, seed = config.clip_cov, int(torch.randint(2**31, ()))
        return (f"skyrl::clip_cov share={of.clip_ratio!r} min={of.clip_cov_lb!r} "
                f"max={of.clip_cov_ub!r} low={config.eps_clip_low!r} "
                f"high={config.eps_clip_high!r} seed={seed}")
    if kind == "kl_cov":
        return f"skyrl::kl_cov share={config.kl_cov.kl_cov_frac!r}"
    return None


class _Correction(NamedTuple):
    """What off_policy_correction decided."""

    weights: Optional[torch.Tensor] = None  #: Of the surrogate, 0 at what a mask drops.
    kept: Optional[torch.Tensor] = None  #: 0 at what a mask drops, else 1.
    metrics: Dict[str, float] = {}  #: SkyRL's.


def _correction(kind: Optional[str], options: Any, logp: torch.Tensor, arrays: Dict[str, Any]
                ) -> _Correction:
    """SkyRL's corrections in its order: outlier rows, tokens, weights, rows.

    Without log-probs of the sampler there is none, as in SkyRL. What its masks drop stays in the
    mask of the loss, whose ratios of rows and metrics are over all tokens, with the weight 0.
    """
    low, high = options.outlier_token_is_threshold_low, options.outlier_token_is_threshold_high
    least, most = options.token_mask_is_threshold_low, options.token_mask_is_threshold_high
    tis, rows = options.tis_ratio_type, options.sequence_mask_metric
    outliers, tokens = not (low is None and high is None), not (least is None or most is None)
    if not (outliers or tokens or tis is not None or rows is not None):
        return _Correction()
    if kind in _WITHOUT_CORRECTION:
        raise ValueError("gdpo.integrations.skyrl: off_policy_correction: given one; needed: none "
                         f"with policy_loss_type skyrl::{kind}, on which SkyRL has none")
    if arrays["rollout_logp"] is None:
        return _Correction()
    mask, shape = arrays["mask"] != 0, arrays["mask"].shape

    def prepared(line: str) -> gdpo.Prepared:
        return gdpo.prepare(line, logp=logp.detach(), **{**arrays, "mask": mask})

    report = gdpo.mismatch(old_logp=arrays["old_logp"], rollout_logp=arrays["rollout_logp"],
                           mask=mask, keys="skyrl")
    log = report.to_dict("skyrl", positions=shape.numel())
    weights = None
    if outliers:
        ratio = made(prepared("importance clamp=-20,20").weights)
        above = mask & (ratio > (math.inf if high is None else high))
        below = mask & (ratio < (-math.inf if low is None else low))
        log.update(_of_rows("outlier_seq", above.any(-1), below.any(-1)))
        if high is not None:
            mask = prepared(f"skyrl::outlier_token_high max={float(high)!r}").mask != 0
        if low is not None:
            # No ratio is below 0, and e^-20 is the smallest.
            most_k1 = -math.log(low) if low > 0 else math.inf
            mask = prepared(f"skyrl::outlier_token_low max={most_k1!r}").mask != 0
    if tokens:
        before = mask
        mask = prepared(f"skyrl::token_mask min={float(least)!r} max={float(most)!r}").mask != 0
        log["token_mask_ratio"] = _share(~mask, before)
    if tis is not None:
        of_rows = _one_of("tis_ratio_type", tis, ("token", "sequence")) == "sequence"
        cap = float(options.sequence_tis_ratio_clip_high if of_rows else
                    options.token_tis_ratio_clip_high)
        line = f"skyrl::{tis}_tis clip.hi="
        ratio = made(prepared(f"{line}inf").weights)
        if of_rows:
            beyond = _ratio_of_rows(ratio, mask) > cap
            log["tis_seq_clip_high_ratio"] = beyond.float().mean().item()
        else:
            log["tis_token_clip_high_ratio"] = _share(ratio > cap, mask)
        weights = prepared(f"{line}{cap!r}").weights
    if rows is not None:
        product = _one_of("sequence_mask_metric", rows, ("geometric", "product")) == "product"
        name, short = ("product", "product") if product else ("geometric", "geo")
        low, high = (float(getattr(options, f"{short}_mask_{end}")) for end in ("low", "high"))
        statistic = "sequence_sum" if product else "sequence_mean"
        ratio = _ratio_of_rows(
            made(prepared(f"importance statistic={statistic} clamp=-20,20").weights), mask)
        log.update(_of_rows(f"{short}_sequence_mask", ratio > high, ratio < low))
        mask = prepared(f"skyrl::{name}_mask min={low!r} max={high!r}").mask != 0
    kept = mask.to(logp.dtype)
    return _Correction(_product(weights, kept), kept, log)


def _of_rows(name: str, above: torch.Tensor, below: torch.Tensor) -> Dict[str, float]:
    """SkyRL's metrics of a mask of rows: the shares above, below, and of both."""
    shares = {"over_high_ratio": above, "under_low_ratio": below,
              "masked_ratio": above | below}
    return {f"{name}_{key}": rows.float().mean().item() for key, rows in shares.items()}


def _ratio_of_rows(weights: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The ratio of each row from weights that are equal at its tokens; 1 without tokens."""
    largest = weights.masked_fill(~mask, -math.inf).amax(-1)
    return torch.where(mask.any(-1), largest, torch.ones_like(largest))


def _share(tokens: torch.Tensor, mask: torch.Tensor) -> float:
    """The share of the tokens of a mask that these are; 0 where there are none."""
    valid = mask != 0
    return ((tokens & valid).sum() / valid.sum().clamp(min=1)).item()


def _product(first: Optional[torch.Tensor], second: Optional[torch.Tensor]
             ) -> Optional[torch.Tensor]:
    """The product of weights; None is 1."""
    if first is None or second is None:
        return second if first is None else first
    return first * second


def _one_of(option: str, given: str, known: Tuple[str, ...]) -> str:
    if given not in known:
        raise ValueError(f"gdpo.integrations.skyrl: off_policy_correction.{option}: given "
                         f"{given!r}; needed: one of {', '.join(known)}")
    return given


class Estimator:
    """An estimator of this library with the signature of SkyRL's, over the sum of the rewards.

    line: one of `gdpo.estimators()`, and perhaps settings of `gdpo.advantages` behind it.

    Errors: ValueError for unknown names and settings, with a list of the known ones.
    """

    def __init__(self, line: str) -> None:
        gdpo.estimator_settings(line)
        self.line = line

    def __call__(self, token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any,
                 grpo_norm_by_std: bool = True, **_: Any) -> Tuple[torch.Tensor, torch.Tensor]:
        """Advantages and returns, both (rows, tokens), of one reward for each row."""
        if not grpo_norm_by_std:
            raise ValueError("gdpo.integrations.skyrl: grpo_norm_by_std: given False; needed: True "
                             f"with the estimator {self.line!r}, whose name says what it divides "
                             "by (verl::grpo_no_std is SkyRL's grpo without the std)")
        numbers: Dict[Any, int] = {}
        groups = torch.tensor([numbers.setdefault(name, len(numbers)) for name in index],
                              device=token_level_rewards.device)
        result = gdpo.advantages(token_level_rewards.sum(-1, keepdim=True), estimator=self.line,
                                 group_ids=groups, tokens=(response_mask != 0).sum(-1))
        of_tokens = result.unsqueeze(-1) * response_mask
        return of_tokens, of_tokens


Lines = Union[str, Iterable[str]]


def register(losses: Optional[Lines] = None, estimators: Optional[Lines] = None) -> List[str]:
    """Makes names known to SkyRL's registries, and returns them; they begin with "gdpo:".

    losses: lines as Loss takes them, such as "dapo high=0.3", which is then the policy_loss_type
      "gdpo:dapo high=0.3". estimators: lines as Estimator takes them. Without either, all losses
      and estimators are registered by their names. What is registered already stays.

    Call it where SkyRL's configuration is checked, before SkyRL's main. Where SkyRL's losses have
    other parameters, a warning says so and no loss is registered.

    Errors: ImportError without SkyRL; ValueError for unknown names and settings.
    """
    from skyrl.backends.skyrl_train.utils import ppo_utils
    if losses is None and estimators is None:
        losses = [*(f"skyrl::{kind}" for kind in _OF_SKYRL), *_by_name()]
        estimators = gdpo.estimators()
    found: List[str] = []
    if knows(ppo_utils.gspo_policy_loss, _LOSS_PARAMETERS, plugin="skyrl", version=VERSION,
             instead="no loss is registered"):
        found += _register(ppo_utils.PolicyLossRegistry, Loss, losses)
    return found + _register(ppo_utils.AdvantageEstimatorRegistry, Estimator, estimators)


def _by_name() -> List[str]:
    """The losses that SkyRL can be given by their names: no term of a teacher, nor SkyRL's."""
    return [name for name in gdpo.losses() if not name.startswith("skyrl::")
            and values_of(name).get("kl.against") != "teacher"]


def _register(registry: Any, kind: Any, lines: Optional[Lines]) -> List[str]:
    """Registers these lines; SkyRL refuses a name that is there already."""
    lines = [lines] if isinstance(lines, str) else list(lines or ())
    names = {_PREFIX + line: kind(line) for line in lines}
    known = registry.list_available()
    for name, function in names.items():
        if name not in known:
            registry.register(name, function)
    return list(names)


def main() -> None:
    """SkyRL's entry point with the names that the command line asks for.

    SkyRL calls it for trainer.override_entrypoint=gdpo.integrations.skyrl. It registers the
    policy_loss_type and the advantage_estimator of the command line that begin with "gdpo:".

    Errors: ValueError for unknown names and settings.
    """
    chosen: Dict[str, List[str]] = {"policy_loss_type": [], "advantage_estimator": []}
    for argument in sys.argv[1:]:
        option, _, value = argument.partition("=")
        value = value.strip("'\"")
        for name, lines in chosen.items():
            if option == f"trainer.algorithm.{name}" and value.startswith(_PREFIX):
                lines.append(value[len(_PREFIX):])
    register(chosen["policy_loss_type"], chosen["advantage_estimator"])
    from skyrl.train.entrypoints import main_base
    sys.argv[1:] = [argument for argument in sys.argv[1:]
                    if not argument.startswith("trainer.override_entrypoint=")]
    main_base.main()
