"""OpenRLHF: its policy loss as one of this library, in every process that trains.

    from gdpo.integrations import openrlhf
    openrlhf.install()          # or openrlhf.install("dapo"), a loss by its name

OpenRLHF has no option for a loss: its trainer of the actor makes a `PolicyLoss` of
openrlhf.models, in workers that Ray starts. `install` puts a class of this library in the place of
that one, and Ray calls it in every worker, as `worker_process_setup_hook` of the runtime
environment. It imports nothing of OpenRLHF: the class is replaced once OpenRLHF has imported it,
so a worker that trains nothing stays as it is. examples/python/trainers/openrlhf/README.md is the
page for users.
"""
import importlib.abc
import importlib.machinery
import math
import sys
from types import ModuleType
from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch

from .. import PolicyLoss, count, prepare
from ._known import knows
from ._named import named

__all__ = ["VERSION", "install"]

#: The release that the signatures below are of.
VERSION = "OpenRLHF 0.11.2"
_MODULE = "openrlhf.models.loss"
_OPTIONS = ("self", "clip_eps_low", "clip_eps_high", "dual_clip", "token_level_loss",
            "policy_loss_type", "is_correction_level", "is_correction_mode",
            "is_correction_gating", "is_correction_threshold")
_ARRAYS = ("self", "log_probs", "old_log_probs", "advantages", "action_mask", "rollout_log_probs",
           "dp_size", "batch_num_tokens", "global_batch_size")


class _Choice(NamedTuple):
    """What `install` was given; without a name the loss is that of OpenRLHF's options."""

    name: Optional[str]
    level: Optional[str]
    settings: Dict[str, Any]

    def loss(self, options: Any) -> PolicyLoss:
        """The loss for a PolicyLoss of OpenRLHF with these options, divided by counts[3]."""
        aggregate = {"aggregate": "token-mean" if options.token_level_loss
                     else "seq-mean-token-mean", "aggregate.over": "given"}
        if self.name is not None:
            _refuse_options(self.name, options)
            return named("openrlhf", "loss", self.name, self.level, self.settings, **aggregate)
        name, level = (("trl::grpo", "sequence") if options.policy_loss_type == "gspo" else
                       ("verl::vanilla", "token"))
        dual = math.inf if options.dual_clip is None else options.dual_clip
        return PolicyLoss(name, level, low=options.clip_eps_low, high=options.clip_eps_high,
                          dual=dual, **aggregate)


def install(loss: Optional[str] = None, level: Optional[str] = None, **settings: Any) -> None:
    """Puts a loss of this library in the place of OpenRLHF's PolicyLoss, in this process.

    loss: one of `gdpo.losses()`, with `level` and `settings` of `gdpo.PolicyLoss` or with these
      behind its name. It has its own clip; OpenRLHF averages the tokens (loss_agg_mode) and adds
      the KL term to the reference. Without it the loss is that of OpenRLHF's options
      (policy_loss_type, eps_clip_low_high, dual_clip), with the same numbers.

    In either case the corrections between sampler and trainer (is_correction_level, _mode, _gating
    and _threshold) are computed here. Called again, it replaces the former choice. Where OpenRLHF's
    class has other parameters, a warning says so and it stays.

    Errors: ValueError for unknown names and settings, at once; for OpenRLHF's options that do not
    fit to a loss by its name, when the trainer makes the loss.
    """
    if loss is None and (level is not None or settings):
        raise ValueError("gdpo.integrations.openrlhf: loss: given none, with a level or settings; "
                         "needed: the name of a loss, because without one OpenRLHF's options are "
                         "read")
    choice = _Choice(loss, level, settings)
    if loss is not None:
        named("openrlhf", "loss", loss, level, settings, aggregate="token-mean")
    sys.meta_path[:] = [finder for finder in sys.meta_path
                        if not isinstance(finder, _AfterImport)]
    if _MODULE in sys.modules:
        _replace(sys.modules[_MODULE], choice)
    else:
        sys.meta_path.insert(0, _AfterImport(choice))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Replaces the class as soon as OpenRLHF's module has been imported."""

    def __init__(self, choice: _Choice) -> None:
        self._choice = choice

    def find_spec(self, name: str, path: Any = None, target: Any = None
                  ) -> Optional[importlib.machinery.ModuleSpec]:
        """The spec of that one module, whose loader replaces the class afterwards."""
        if name != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_replace(module: ModuleType) -> None:
            execute(module)
            _replace(module, self._choice)

        spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec


def _replace(module: ModuleType, choice: _Choice) -> None:
    """Puts our class wherever OpenRLHF's modules hold its own, or that of a former choice."""
    former = module.PolicyLoss
    base = getattr(former, "of_openrlhf", former)
    instead = "its own loss is used"
    if not (knows(base.__init__, _OPTIONS, plugin="openrlhf", version=VERSION, instead=instead) and
            knows(base.forward, _ARRAYS, plugin="openrlhf", version=VERSION, instead=instead)):
        return
    ours = _class_of(base, choice)
    for name, other in list(sys.modules.items()):
        if name.split(".")[0] == "openrlhf" and vars(other).get("PolicyLoss") is former:
            other.PolicyLoss = ours  # type: ignore[attr-defined]


def _class_of(base: Any, choice: _Choice) -> Any:
    """OpenRLHF's class with our forward."""

    class PolicyLoss(base):  # type: ignore[misc, valid-type]
        """OpenRLHF's PolicyLoss, computed by gdpo."""

        of_openrlhf = base

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)  # which refuses what OpenRLHF refuses
            self.gdpo = choice.loss(self)
            self.gdpo_correction = _correction(self)

        def forward(self, log_probs: torch.Tensor, old_log_probs: torch.Tensor,
                    advantages: torch.Tensor, action_mask: Optional[torch.Tensor] = None,
                    rollout_log_probs: Optional[torch.Tensor] = None, dp_size: int = 1,
                    batch_num_tokens: Optional[Any] = None,
                    global_batch_size: Optional[Any] = None) -> Tuple[Any, ...]:
            """Loss, clip_ratio, ppo_kl, vllm_kl and is_filter_ratio, as OpenRLHF's class."""
            divisor = batch_num_tokens if self.token_level_loss else global_batch_size
            return _forward(self, log_probs, old_log_probs, advantages, action_mask,
                            rollout_log_probs, divisor, dp_size)

    return PolicyLoss


def _forward(own: Any, logp: torch.Tensor, old_logp: torch.Tensor, advantages: torch.Tensor,
             mask: Optional[torch.Tensor], rollout_logp: Optional[torch.Tensor], divisor: Any,
             dp_size: int) -> Tuple[Any, ...]:
    """What OpenRLHF's class returns; the last two are None without a correction by weights."""
    if mask is None:
        mask = torch.ones_like(logp, dtype=torch.bool)
    if own.is_correction_level != "off" and rollout_logp is None:
        raise ValueError("gdpo.integrations.openrlhf: rollout_log_probs: given none; needed: those "
                         f"of the sampler, because is_correction_level is "
                         f"{own.is_correction_level}")
    arrays = {"old_logp": old_logp, "mask": mask, "token_advantages": advantages,
              "rollout_logp": rollout_logp}
    weights = vllm_kl = filtered = None
    if own.gdpo_correction is not None:
        weights = prepare(own.gdpo_correction, logp=logp.detach(), **arrays).weights
        vllm_kl = _mean(_minus(rollout_logp, old_logp), mask)
        filtered = _filtered(own, weights, old_logp, rollout_logp, mask)
    elif own.is_correction_level != "off":  # of gspo: its ratio is against the sampler
        arrays["old_logp"] = rollout_logp
    loss, metrics = own.gdpo(logp, weights=weights, counts=_counts(own, mask, divisor, dp_size),
                             **arrays)
    clipped, tokens = (metrics.result[metrics.names().index(f"clip_fraction.{part}")]
                       for part in ("sum", "count"))  # nothing waits for a device here
    clip_ratio = (clipped / tokens.clamp(min=1)).to(torch.float32)
    return loss, clip_ratio, _mean(_minus(old_logp, logp), mask), vllm_kl, filtered


def _counts(own: Any, mask: torch.Tensor, divisor: Any, dp_size: int) -> torch.Tensor:
    """OpenRLHF's divisor as counts[3], or the tokens or rows of this batch; at least one of these.

    The ranks' gradients are averaged afterwards, for which dp_size makes up.
    """
    counts = count(mask=mask)
    given = counts[0 if own.token_level_loss else 2].clamp(min=1) if divisor is None else divisor
    counts[3] = given / dp_size
    return counts


def _refuse_options(name: str, options: Any) -> None:
    """Raises ValueError where OpenRLHF's options ask for a loss, and it has been named."""
    for option, off in (("dual_clip", None), ("policy_loss_type", "ppo")):
        given = getattr(options, option)
        if given != off:
            instead = ("dual=... behind the name" if option == "dual_clip" else
                       "the level \"sequence\" behind the name, and loss_agg_mode")
            raise ValueError(f"gdpo.integrations.openrlhf: {option}: given {given}; needed: {off} "
                             f"with the loss {name!r}, which does not read it ({instead})")


def _correction(options: Any) -> Optional[str]:
    """The weights of is_correction_* as a line of `gdpo.prepare`, or None."""
    level, gating = options.is_correction_level, options.is_correction_gating
    if level == "off" or options.policy_loss_type == "gspo":
        return None
    low, high = (float(bound) for bound in options.is_correction_threshold)
    if options.is_correction_mode == "clip":
        return f"openrlhf::token_clip clip.lo={low!r} clip.hi={high!r}"
    bounds = f"gate.max={high!r}" + (f" gate.min={low!r}" if gating == "ratio" else "")
    return f"openrlhf::{level}_mask_{gating} {bounds}"


def _filtered(own: Any, weights: torch.Tensor, old_logp: torch.Tensor, rollout_logp: torch.Tensor,
              mask: torch.Tensor) -> torch.Tensor:
    """is_filter_ratio: the share of tokens, or of rows at level "seq", beyond the threshold.

    A row without tokens counts as filtered, as in OpenRLHF.
    """
    valid = mask.bool()
    if own.is_correction_mode == "clip":
        low, high = own.is_correction_threshold
        ratio = _minus(old_logp, rollout_logp).exp()
        return _mean(((ratio < low) | (ratio > high)).to(torch.float32), mask)
    dropped = weights == 0
    if own.is_correction_level == "seq":
        return 1 - (valid & ~dropped).any(-1).to(torch.float32).mean()
    return _mean(dropped.to(torch.float32), mask)


def _minus(logp: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The difference of log-probs, without a gradient and not in 16 bits."""
    wide = torch.promote_types(torch.promote_types(logp.dtype, other.dtype), torch.float32)
    return logp.detach().to(wide) - other.detach().to(wide)


def _mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean over the tokens of the mask; 0 where there are none."""
    valid = mask.bool()
    return values.masked_fill(~valid, 0.0).sum() / valid.sum().clamp(min=1)
