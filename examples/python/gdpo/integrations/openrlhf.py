"""OpenRLHF: its losses and advantages by this library, in every process that trains.

    from gdpo.integrations import openrlhf
    openrlhf.install()          # or openrlhf.install("dapo"), a loss by its name
    openrlhf.install_critic()   # advantages, returns and the value loss

OpenRLHF has no option for a loss: its trainer of the actor makes a `PolicyLoss` of
openrlhf.models, in workers that Ray starts. `install` puts a class of this library in the place of
that one, and Ray calls it in every worker, as `worker_process_setup_hook` of the runtime
environment; `install_critic` does so with its ValueLoss and with what makes advantages. Neither
imports anything of OpenRLHF: a class is replaced once OpenRLHF has imported it, so a worker that
trains nothing stays as it is. examples/python/trainers/openrlhf/README.md is the page for users.
"""
import importlib.abc
import importlib.machinery
import math
import sys
from types import ModuleType
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

from .. import PolicyLoss, count, outcome_advantages, prepare, token_advantages
from .. import ValueLoss as CriticLoss
from .._prepare import made
from ._known import knows
from ._named import named

__all__ = ["VERSION", "install", "install_critic"]

#: The release that the signatures below are of.
VERSION = "OpenRLHF 0.11.2"
_MODULE = "openrlhf.models.loss"
_MAKER = "openrlhf.trainer.ppo_utils.experience_maker"
_OPTIONS = ("self", "clip_eps_low", "clip_eps_high", "dual_clip", "token_level_loss",
            "policy_loss_type", "is_correction_level", "is_correction_mode",
            "is_correction_gating", "is_correction_threshold")
_ARRAYS = ("self", "log_probs", "old_log_probs", "advantages", "action_mask", "rollout_log_probs",
           "dp_size", "batch_num_tokens", "global_batch_size")


_VALUE_OPTIONS = ("self", "clip_eps", "token_level_loss")
_VALUE_ARRAYS = ("self", "values", "old_values", "returns", "action_mask", "dp_size",
                 "batch_num_tokens", "global_batch_size")
_MAKER_METHODS = {"compute_advantages_and_returns": ("self", "experiences"),
                  "get_advantages_and_returns": ("self", "values", "rewards", "action_mask",
                                                 "gamma", "lambd"),
                  "get_cumulative_returns": ("self", "rewards", "action_mask", "gamma")}
# The values of advantage.estimator whose advantages are whitened over the tokens.
_WHITENED = ("gae", "reinforce", "reinforce_baseline")


class _Choice(NamedTuple):
    """What `install` was given; without a name the loss is that of OpenRLHF's options."""

    name: Optional[str]
    level: Optional[str]
    settings: Dict[str, Any]

    def loss(self, options: Any) -> PolicyLoss:
        """The loss for a PolicyLoss of OpenRLHF with these options, divided by counts[3]."""
        aggregate = _aggregate(options)
        if self.name is not None:
            _refuse_options(self.name, options)
            return named("openrlhf", "loss", self.name, self.level, self.settings, **aggregate)
        name, level = (("trl::grpo", "sequence") if options.policy_loss_type == "gspo" else
                       ("verl::vanilla", "token"))
        dual = math.inf if options.dual_clip is None else options.dual_clip
        return PolicyLoss(name, level, low=options.clip_eps_low, high=options.clip_eps_high,
                          dual=dual, **aggregate)


def _aggregate(options: Any) -> Dict[str, Any]:
    """How OpenRLHF averages tokens, divided by counts[3]."""
    return {"aggregate": "token-mean" if options.token_level_loss else "seq-mean-token-mean",
            "aggregate.over": "given"}


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
    _after_import(_MODULE, "PolicyLoss", lambda module: _replace(module, choice))


def install_critic() -> None:
    """Computes OpenRLHF's advantages, returns and value loss by this library, in this process.

    They are those of OpenRLHF's options (advantage.estimator, gamma, lambd, no_std_norm,
    reward.clip_range, the KL coefficient, critic.value_clip), with the same numbers: all of its
    estimators, of GAE and of the REINFORCE family. Length penalties stay OpenRLHF's. Where its
    functions have other parameters, a warning says so and they stay.
    """
    _after_import(_MODULE, "ValueLoss", _replace_value_loss)
    _after_import(_MAKER, "advantages", _replace_advantages)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls functions of a module of OpenRLHF as soon as that has been imported."""

    def __init__(self) -> None:
        #: By the names of modules, and then by what they replace there.
        self.pending: Dict[str, Dict[str, Callable[[ModuleType], None]]] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None
                  ) -> Optional[importlib.machinery.ModuleSpec]:
        """The spec of one of these modules, whose loader calls the functions afterwards."""
        if name not in self.pending:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_replace(module: ModuleType) -> None:
            execute(module)
            for replace in self.pending[name].values():
                replace(module)

        spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec


def _after_import(module: str, what: str, replace: Callable[[ModuleType], None]) -> None:
    """Calls replace(module) now or when it is imported; `what` stands for a former choice."""
    if module in sys.modules:
        replace(sys.modules[module])
        return
    hook = next((finder for finder in sys.meta_path if isinstance(finder, _AfterImport)), None)
    if hook is None:
        hook = _AfterImport()
        sys.meta_path.insert(0, hook)
    hook.pending.setdefault(module, {})[what] = replace


def _replace(module: ModuleType, choice: _Choice) -> None:
    """Puts our class wherever OpenRLHF's modules hold its own, or that of a former choice."""
    former = module.PolicyLoss
    base = getattr(former, "of_openrlhf", former)
    instead = "its own loss is used"
    if not (knows(base.__init__, _OPTIONS, plugin="openrlhf", version=VERSION, instead=instead) and
            knows(base.forward, _ARRAYS, plugin="openrlhf", version=VERSION, instead=instead)):
        return
    _put(former, _class_of(base, choice))


def _put(former: Any, ours: Any) -> None:
    """Puts our class wherever OpenRLHF's modules hold another of its name."""
    for name, other in list(sys.modules.items()):
        if name.split(".")[0] == "openrlhf" and vars(other).get(ours.__name__) is former:
            setattr(other, ours.__name__, ours)


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
    if own.gdpo_correction is not None and rollout_logp is not None:
        weights = made(prepare(own.gdpo_correction, logp=logp.detach(), **arrays).weights)
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


def _replace_value_loss(module: ModuleType) -> None:
    """Puts our value loss in the place of OpenRLHF's."""
    former = module.ValueLoss
    base = getattr(former, "of_openrlhf", former)
    instead = "its own value loss is used"
    if not (knows(base.__init__, _VALUE_OPTIONS, plugin="openrlhf", version=VERSION,
                  instead=instead) and
            knows(base.forward, _VALUE_ARRAYS, plugin="openrlhf", version=VERSION,
                  instead=instead)):
        return

    class ValueLoss(base):  # type: ignore[misc, valid-type]
        """OpenRLHF's ValueLoss, computed by gdpo."""

        of_openrlhf = base

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            clip = math.inf if self.clip_eps is None else self.clip_eps
            self.gdpo = CriticLoss("openrlhf::value_loss", clip=clip, **_aggregate(self))

        def forward(self, values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor,
                    action_mask: Optional[torch.Tensor] = None, dp_size: int = 1,
                    batch_num_tokens: Optional[Any] = None,
                    global_batch_size: Optional[Any] = None) -> torch.Tensor:
            """The loss, as OpenRLHF's class."""
            mask = torch.ones_like(values, dtype=torch.bool) if action_mask is None else action_mask
            divisor = batch_num_tokens if self.token_level_loss else global_batch_size
            return self.gdpo(values, old_values=old_values, returns=returns, mask=mask,
                             counts=_counts(self, mask, divisor, dp_size)).loss

    _put(former, ValueLoss)


def _replace_advantages(module: ModuleType) -> None:
    """Puts our advantages and returns in the place of those of OpenRLHF's experience maker."""
    maker = module.RemoteExperienceMaker
    former = maker.compute_advantages_and_returns
    if getattr(former, "is_of_gdpo", False) or not all(
            knows(getattr(maker, method), parameters, plugin="openrlhf", version=VERSION,
                  instead="its own advantages are used")
            for method, parameters in _MAKER_METHODS.items()):
        return

    @torch.no_grad()
    def compute_advantages_and_returns(self: Any, experiences: List[Any]) -> List[Any]:
        """Advantages and returns of the tokens of all experiences, computed by gdpo."""
        for e in experiences:
            e.rewards = e.rewards.to(torch.promote_types(e.rewards.dtype, torch.float32))
        module.apply_length_penalties(experiences, self.strategy.args)
        _set_advantages(experiences, self.strategy.args, self.advantage_estimator,
                        max(0.0, float(self.kl_ctl.value)))
        return experiences

    compute_advantages_and_returns.is_of_gdpo = True  # type: ignore[attr-defined]
    maker.compute_advantages_and_returns = compute_advantages_and_returns


def _set_advantages(experiences: List[Any], args: Any, kind: str, kl_coef: float) -> None:
    """What OpenRLHF's compute_advantages_and_returns sets in each experience."""
    size, options = args.rollout.n_samples_per_prompt, args.algo.advantage
    places = torch.tensor([place for e in experiences for place in e.index])
    rewards = torch.cat([e.rewards for e in experiences])
    if size > 1:
        in_order = torch.empty_like(rewards)
        in_order[places] = rewards
        stds = in_order.reshape(-1, size).std(-1).repeat_interleave(size)[places]
        for e, std in zip(experiences, stds.split([len(e.index) for e in experiences])):
            e.info["group_reward_std"] = std
    if kind not in ("gae", "reinforce"):
        options.gamma = 1.0  # as OpenRLHF sets it
    clip: Any = {}
    if args.reward.clip_range:
        clip["tokens_reward_clip"] = tuple(args.reward.clip_range)
    of_rows = outcome_advantages(  # of rows with one token each: their rewards
        rewards, estimator=f"openrlhf::{'reinforce' if kind == 'gae' else kind}",
        group_ids=places // size, mask=torch.ones_like(rewards)[:, None], tokens_renorm="none",
        **clip).returns[:, 0]
    settings = {"gamma": options.gamma, "penalty_coef": kl_coef}
    values = None
    if kind == "gae":
        settings["returns_lambda"] = options.lambd
        values = _packed(torch.where(e.action_mask.bool(), e.values, 0) for e in experiences)
    if kind not in _WHITENED:
        settings["renorm"] = "none"
    elif options.no_std_norm:
        settings["renorm_eps_at"] = "none"
    kl = _packed(e.kl for e in experiences)
    widths = torch.tensor([width for e in experiences for width in
                           [e.action_mask.shape[1]] * len(e.action_mask)])
    out = token_advantages(
        estimator="openrlhf::gae" if kind == "gae" else "openrlhf::reinforce", row_rewards=of_rows,
        values=values, logp=kl, ref_logp=torch.zeros_like(kl),  # K1 of these is that KL
        mask=_packed(e.action_mask for e in experiences), **settings,
        offsets=torch.cat([widths.new_zeros(1), widths.cumsum(0)]).to(kl.device))
    shapes = [e.action_mask.shape for e in experiences]
    parts = [array.split([shape.numel() for shape in shapes]) for array in out]
    rows = of_rows.split([len(e.rewards) for e in experiences])
    for e, shape, advantages, returns, reward in zip(experiences, shapes, *parts, rows):
        e.advantages, e.returns = advantages.reshape(shape), returns.reshape(shape)
        e.info["return"] = reward - kl_coef * e.kl.sum(-1)
        e.kl = None


def _packed(arrays: Any) -> torch.Tensor:
    return torch.cat([array.flatten() for array in arrays])
