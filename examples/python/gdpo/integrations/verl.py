"""The losses, estimators and constraints of this library by names in verl's configuration.

The wheel has an entry point of the group verl.plugins, by which verl imports this module in each of
its processes, and so nothing else has to be installed or imported. Importing it

- lets `actor.policy_loss.loss_mode` be "gdpo", or "gdpo:" and one of `gdpo.losses()`, see Loss;
- puts `advantages` in the place of verl's estimator "gdpo", with the same numbers until
  `algorithm.gdpo_estimator`, `.gdpo_gates` or `.gdpo_constraints` say something else, and lets
  "remax" read `algorithm.gdpo_estimator` too;
- lets `critic.loss_agg_mode` begin with "gdpo:", see `value_loss`;
- lets `algorithm.rollout_correction.rollout_is` and `.rollout_rs` begin with "gdpo:", see
  `rollout_correction`, and computes the loss of bypass mode with them, see BypassLoss;
- lets verl's check of the configuration refuse what is wrong with these, see `check`.

Nothing else of verl is touched, and another loss_mode or adv_estimator is verl's own code. Without
verl the import does nothing. examples/python/trainers/verl/README.md is the page for users.
"""
import functools
import importlib.util
import sys
import warnings
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple, Union

import numpy as np
import torch

import gdpo

from .._names import did_you_mean, near
from .._policy_loss import clamped_ratio, outside
from .._prepare import check_lines
from .._settings import configured, settings_of, values_of
from ..configs._verl_correction import DEFAULTS as CORRECTION
from ..configs._verl_correction import rejection_lines, weight_lines
from ..configs._verl_critic import (PREFIX, critic_loss, is_of_tokens, settings_of_tokens,
                                    token_line)
from ..configs._verl_loss import OF_VERL, loss_mode
from ._constraints import Constraints
from ._known import knows
from ._rollout_correction import Correction, is_ours, rollout_correction

__all__ = ["BypassLoss", "Correction", "Loss", "VERSION", "advantages", "check", "constraints",
           "register", "rollout_correction", "value_loss"]

#: The release that the signatures below are of.
VERSION = "verl 0.9.1"
_LOSS_PARAMETERS = ("old_log_prob", "log_prob", "advantages", "response_mask", "loss_agg_mode",
                    "config", "rollout_is_weights")
_GDPO_PARAMETERS = ("token_level_rewards", "response_mask", "index", "epsilon",
                    "norm_adv_by_std_in_grpo", "config", "non_tensor_batch", "batch", "kwargs")
_CHECK_PARAMETERS = ("config", "use_reference_policy", "use_critic")
_REMAX_PARAMETERS = ("token_level_rewards", "reward_baselines", "response_mask", "config", "kwargs")
_VALUE_PARAMETERS = ("vpreds", "returns", "values", "response_mask", "cliprange_value",
                     "loss_agg_mode", "dp_size", "batch_num_tokens", "global_batch_size",
                     "loss_scale_factor")
_LOG_PARAMETERS = ("self", "data", "step", "backend")
_CORRECTION_PARAMETERS = (
    "old_log_prob", "rollout_log_prob", "response_mask", "rollout_is", "rollout_is_threshold",
    "rollout_is_batch_normalize", "rollout_rs", "rollout_rs_threshold")


class Loss:
    """A loss of this library with the signature of verl's losses.

    mode: "gdpo" or "gdpo:vanilla" (both "verl::vanilla"), or "gdpo:NAME [LEVEL] [own]
      [SETTING=VALUE ...]" with a name, a level and settings of `gdpo.PolicyLoss`, such as
      "gdpo:trl::dapo sequence high=0.28" or "... surrogate.high=0.28". verl adds the KL term, so
      those of the KL are not taken.

    As with verl's losses, the clip range (clip_ratio_low, clip_ratio_high; of a loss called cispo
    it is that of min_ratio and max_ratio, and of GMPO that of log ratios), the dual clip
    (clip_ratio_c, of ratios of tokens), the temperatures of SAPO (tau_pos, tau_neg), the penalty of
    "verl::dro" (policy_loss.dro_beta) and the aggregate (loss_agg_mode, loss_scale_factor; not of
    "verl::sapo" and "verl::geo_mean") are those of the actor's configuration, unless the line sets
    them. With the word "own" they are the loss's own. The counts that divide are those of
    config.global_batch_info; of "verl::geo_mean" without "own" they are, as in verl, the rows of
    the micro-batch.

    Errors: ValueError for unknown names and settings, with a list of the known ones.
    """

    def __init__(self, mode: str) -> None:
        self._mode = loss_mode(mode)
        #: The name of the loss in `gdpo.losses()`.
        self.name = self._mode.name
        self._level, self._own, self._said = self._mode[1:]
        # Mistakes in the line are to be found now, and not in the first step.
        default = {} if self._own else {"aggregate": "token-mean"}
        self._policy_loss(default, 1)

    def check(self, actor: Any) -> None:
        """Raises ValueError where the settings do not fit to verl's configuration of the actor."""
        self._policy_loss(self._mode.settings(actor.loss_agg_mode, actor, None), 1)

    @property
    def _is_of_tokens(self) -> bool:
        """Whether the ratios are those of tokens."""
        return self._mode.is_of_tokens

    @property
    def _is_dro(self) -> bool:
        """Whether the loss has a penalty against the old policy, which is no KL term of verl's."""
        return self.name == "verl::dro"

    @property
    def _is_geo_mean(self) -> bool:
        """Whether the loss is the mean over the rows of a micro-batch, as verl's geo_mean."""
        return (self.name == "verl::geo_mean" and not self._own
                and not any(setting.startswith("aggregate") for setting in self._said))

    @property
    def is_plain(self) -> bool:
        """Whether the mode is the name of a loss and nothing else."""
        return not self._said and self._level is None and not self._own

    def _policy_loss(self, default: Dict[str, Any], dp_size: int) -> gdpo.PolicyLoss:
        """The loss with these settings, named as in the library, unless it has its own."""
        settings = {**default, **self._said}
        if not self._is_dro:
            settings["kl.beta"] = 0.0
        own = 1.0 if "aggregate" in settings else values_of(self.name)["aggregate.scale"]
        settings["aggregate.scale"] = float(settings.get("aggregate.scale", own)) * dp_size
        return _make(self.name, self._level, tuple(sorted(settings.items())))

    def __call__(self, old_log_prob: torch.Tensor, log_prob: torch.Tensor, advantages: torch.Tensor,
                 response_mask: torch.Tensor, loss_agg_mode: str = "token-mean", config: Any = None,
                 rollout_is_weights: Optional[torch.Tensor] = None
                 ) -> Tuple[torch.Tensor, Dict[str, float]]:
        """The loss of one micro-batch and its metrics, as verl's ppo_loss asks for them."""
        info = {} if self._is_geo_mean else config.global_batch_info
        length = None if self._own else config.global_batch_info.get("loss_scale_factor")
        default = self._mode.settings(loss_agg_mode, config, length)
        settings = {**default, **self._said}
        loss, metrics = self._policy_loss(default, info.get("dp_size", 1))(
            log_prob, old_logp=old_log_prob, mask=response_mask, token_advantages=advantages,
            counts=_counts(response_mask, info, settings.get("aggregate")),
            **self._weights(rollout_is_weights, response_mask))
        result = _metrics(metrics)
        if {"factor.min_ratio", "factor.max_ratio"} <= settings.keys() and self._is_of_tokens:
            beyond = outside(clamped_ratio(log_prob, old_log_prob), settings)
            result["actor/pg_clipfrac"] = _share(beyond, response_mask)
        if "surrogate.dual" not in settings and not self._own:
            result["actor/pg_clipfrac_lower"] = 0.0
        elif "surrogate.dual" in settings and self._is_of_tokens:
            result["actor/pg_clipfrac_lower"] = _dual_clip_fraction(
                old_log_prob, log_prob.detach(), advantages, response_mask,
                float(settings["surrogate.dual"]))
        if "level.map.low" in settings:
            result.update(_metrics_of_map(old_log_prob, log_prob.detach(), advantages,
                                          response_mask, settings))
        return loss, result

    def _weights(self, weights: Optional[torch.Tensor], mask: torch.Tensor
                 ) -> Dict[str, torch.Tensor]:
        """What rollout_is_weights multiply: the surrogate, of DRO all, of geo_mean whole rows."""
        if weights is None:
            return {}
        if self.name == "verl::geo_mean":
            wide = weights.to(torch.promote_types(weights.dtype, torch.float32))
            logs = (wide + 1e-10).log().masked_fill(mask == 0, 0.0)
            return {"row_weights": (logs.sum(-1) / ((mask != 0).sum(-1) + 1e-8)).exp()}
        return {"weights": weights, **({"kl_weights": weights} if self._is_dro else {})}


class BypassLoss:
    """The loss of verl's bypass mode, where the sampler's log-probs are the old ones.

    mode: "gdpo:bypass", or "gdpo:bypass NAME [LEVEL] [own] [SETTING=VALUE ...]" with what Loss
      takes.

    Weights and mask are those of `rollout_correction` with the options of
    policy_loss.rollout_correction, of the current log-probs in each call. The mask is that of the
    loss. With loss_type=ppo_clip the loss is the named one, by default verl's, without the weights,
    because its ratio corrects for the sampler. With loss_type=reinforce it is -w A logp for the
    weights w, and no name is taken.

    Errors: ValueError for unknown names and settings, and as `rollout_correction`.
    """

    def __init__(self, mode: str) -> None:
        line = mode.partition(":")[2].strip()[len("bypass"):].strip()
        self._named = bool(line)
        self._loss = Loss(f"gdpo:{line or 'vanilla'}")
        self._reinforce = Loss("gdpo:verl::cispo")

    def __call__(self, old_log_prob: torch.Tensor, log_prob: torch.Tensor, advantages: torch.Tensor,
                 response_mask: torch.Tensor, loss_agg_mode: str = "token-mean", config: Any = None,
                 rollout_is_weights: Optional[torch.Tensor] = None
                 ) -> Tuple[torch.Tensor, Dict[str, float]]:
        """The loss of one micro-batch and its metrics; rollout_is_weights are not read."""
        options = _correction_of(config)
        if options is None:
            raise ValueError("gdpo.integrations.verl: policy_loss.rollout_correction: given none; "
                             "needed: the options of bypass mode")
        kind = options.get("loss_type", "ppo_clip")
        if kind not in ("ppo_clip", "reinforce"):
            raise ValueError(f"gdpo.integrations.verl: loss_type: given {kind!r}; needed: one of "
                             "ppo_clip, reinforce")
        if kind == "reinforce" and self._named:
            raise ValueError("gdpo.integrations.verl: loss_mode: given a loss by its name; needed: "
                             "gdpo:bypass alone with loss_type=reinforce, which is a loss itself")
        corrected = rollout_correction(
            log_prob, old_log_prob, response_mask, **{
                name: options.get(name, default) for name, default in CORRECTION.items()})
        shared = {"advantages": advantages, "response_mask": corrected.mask, "config": config,
                  "loss_agg_mode": loss_agg_mode}
        if kind == "ppo_clip":
            loss, metrics = self._loss(old_log_prob, log_prob, **shared)
        else:  # a ratio of 1 leaves -A logp of CISPO
            loss, metrics = self._reinforce(log_prob.detach(), log_prob, **shared,
                                            rollout_is_weights=corrected.weights)
            moved = torch.where(corrected.mask != 0, old_log_prob - log_prob.detach(), 0.0)
            metrics = {"actor/ppo_kl": (moved.sum() / (corrected.mask.sum() + 1e-8)).item(),
                       "gdpo/non_finite": metrics["gdpo/non_finite"]}
        return loss, {**metrics, **corrected.metrics}


def _correction_of(config: Any) -> Any:
    """policy_loss.rollout_correction of the actor's configuration."""
    policy_loss = getattr(config, "policy_loss", None)
    return None if policy_loss is None else policy_loss.get("rollout_correction", None)


@functools.lru_cache(maxsize=256)
def _make(name: str, level: Optional[str], settings: Tuple[Tuple[str, Any], ...]
          ) -> gdpo.PolicyLoss:
    return gdpo.PolicyLoss(name, level, **dict(settings))


def _counts(mask: torch.Tensor, info: Dict[str, Any], aggregate: Optional[str]) -> torch.Tensor:
    """The counts of the global batch, or of this micro-batch where verl gives none."""
    needed = {"token-mean": ["batch_num_tokens"], "token-sum": [],
              None: ["batch_num_tokens", "global_batch_size"]}.get(aggregate, ["global_batch_size"])
    if info.get("dp_size", 1) > 1 and any(info.get(name) is None for name in needed):
        raise ValueError(f"gdpo.integrations.verl: global_batch_info: given no "
                         f"{' and '.join(needed)}; needed: it where dp_size is above 1, because a "
                         "rank does not see the tokens of the others")
    counts = gdpo.count(mask=mask)
    if info.get("batch_num_tokens") is not None:
        counts[0] = info["batch_num_tokens"]
    if info.get("global_batch_size") is not None:
        counts[1] = counts[2] = info["global_batch_size"]
    counts[3] = counts[0]  # what "trl::dapo" and its kind divide by
    return counts


def _dual_clip_fraction(old_logp: torch.Tensor, logp: torch.Tensor, advantages: torch.Tensor,
                        mask: torch.Tensor, dual: float) -> float:
    """The share of tokens at the dual clip, which `gdpo.Metrics` does not measure."""
    return _share((clamped_ratio(logp, old_logp) > dual) & (advantages < 0), mask)


def _metrics_of_map(old_logp: torch.Tensor, logp: torch.Tensor, advantages: torch.Tensor,
                    mask: torch.Tensor, settings: Dict[str, Any]) -> Dict[str, float]:
    """verl's metrics of GMPO, which bounds log ratios before the ratio of the row is taken."""
    wide = torch.promote_types(logp.dtype, torch.float32)
    moved = logp.to(wide) - old_logp.to(wide)
    beyond = ((moved < -float(settings["level.map.low"])) |
              (moved > float(settings["level.map.high"])))
    valid = mask.bool()
    kl = (-moved).masked_fill(~valid, 0.0).sum() / (valid.sum() + 1e-8)
    return {"actor/pg_clipfrac": _share(beyond & (advantages > 0), mask),
            "actor/pg_clipfrac_lower": _share(beyond & (advantages < 0), mask),
            "actor/ppo_kl": kl.item()}


def _share(tokens: torch.Tensor, mask: torch.Tensor) -> float:
    """The share of the tokens of a mask that these are; verl adds 1e-8 to their number."""
    mask = mask.bool()
    return ((tokens & mask).sum() / (mask.sum() + 1e-8)).item()


def _metrics(metrics: gdpo.Metrics) -> Dict[str, float]:
    """The metrics of a loss under verl's keys, and more of ours after gdpo/."""
    numbers = dict(zip(metrics.names(), metrics.result.tolist()))

    def mean(name: str) -> float:  # verl adds 1e-8 to the number of tokens
        return numbers[f"{name}.sum"] / (numbers[f"{name}.count"] + 1e-8)

    return {
        "actor/pg_clipfrac": mean("clip_fraction"),
        "actor/ppo_kl": mean("approx_kl_k1"),
        "gdpo/clip_fraction_low": mean("clip_fraction_low"),
        "gdpo/clip_fraction_high": mean("clip_fraction_high"),
        "gdpo/ratio": mean("ratio"),
        "gdpo/approx_kl_k3": mean("approx_kl_k3"),
        "gdpo/non_finite": sum(value for name, value in numbers.items()
                               if name.startswith("non_finite.") and name.endswith(".count")),
    }


class _Losses(dict):
    """verl's registry of losses, which also answers the names that begin with "gdpo"."""

    def __init__(self, registry: Dict[str, Callable], is_known: bool) -> None:
        super().__init__(registry)
        self._is_known = is_known
        if is_known and "bypass_mode" in registry:  # what verl's trainer sets for any loss_mode
            self["bypass_mode"] = _bypass_mode(registry["bypass_mode"])

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or _is_ours(name)

    def __missing__(self, name: str) -> Callable:
        if not _is_ours(name):
            raise KeyError(name)
        loss = _loss(name)
        if self._is_known:
            return loss
        of_verl = [mode for mode, preset in OF_VERL.items()
                   if isinstance(loss, Loss) and preset == loss.name and loss.is_plain]
        if not of_verl:
            raise ValueError(f"gdpo.integrations.verl: loss_mode: given {name!r}; needed: {VERSION}"
                             ", because the losses of this release have another signature")
        return self[of_verl[0]]


def _bypass_mode(verls: Callable) -> Callable:
    """verl's loss of bypass mode, or ours where its options begin with "gdpo:"."""
    @functools.wraps(verls)
    def loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean",
             config=None, rollout_is_weights=None):
        options = _correction_of(config)
        ours = options is not None and is_ours(options.get("rollout_is", None),
                                               options.get("rollout_rs", None))
        return (_loss("gdpo:bypass") if ours else verls)(
            old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config,
            rollout_is_weights)

    return loss


def _is_ours(name: object) -> bool:
    return isinstance(name, str) and (name == "gdpo" or name.startswith("gdpo:"))


@functools.lru_cache(maxsize=None)
def _loss(mode: str) -> Union[Loss, BypassLoss]:
    return (BypassLoss if mode.partition(":")[2].split()[:1] == ["bypass"] else Loss)(mode)



# The controllers by their lines, and what the advantages of this step measured. Both are kept in
# the process that computes advantages, which is the one that logs.
_controllers: Dict[Tuple[str, ...], Constraints] = {}
_measured: Dict[str, float] = {}


def constraints() -> List[Constraints]:
    """The constraints of this process, such as for `metrics()` and `state_dict()`."""
    return list(_controllers.values())


def advantages(token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any,
               epsilon: float = 1e-6, norm_adv_by_std_in_grpo: bool = True, config: Any = None,
               non_tensor_batch: Optional[Dict[str, Any]] = None, batch: Any = None, **kwargs: Any
               ) -> Tuple[torch.Tensor, torch.Tensor]:
    """What verl calls for adv_estimator=gdpo: advantages and returns, both (rows, tokens).

    config: verl's configuration `algorithm`. Of it are read
      gdpo_reward_keys and gdpo_reward_weights, as verl reads them;
      gdpo_estimator, one of `gdpo.estimators()` with settings of `gdpo.advantages`, such as
        "trl::gdpo scale.eps=1e-6"; without it "verl::gdpo". Without gdpo_reward_keys it is that of
        one reward, the sum of token_level_rewards. One of `gdpo.token_estimators()` or
        `gdpo.token_baselines()` takes token_level_rewards themselves, gamma and lam unless the line
        sets them, and of the batch what it reads: values, old_log_probs, sum_pi_squared;
      gdpo_gates, a list of [reward, condition, threshold] with reward keys: the reward counts only
        where the condition is at least the threshold;
      gdpo_constraints, lines such as "format>=0.9 scale=0.3", see Constraints.
    The others are verl's.

    Errors: ValueError for unknown names, and for reward keys that were not handed over.
    """
    line = _option(config, "gdpo_estimator")
    if is_of_tokens(line) or _is_baseline(line):
        return _of_tokens(line, token_level_rewards, response_mask, index, config, batch)
    lines = tuple(_option(config, "gdpo_constraints") or ())
    rewards, names, weights = _rewards(token_level_rewards, config, non_tensor_batch, batch,
                                       needs_keys=line is None)
    if line is None:
        estimator = "verl::gdpo" if norm_adv_by_std_in_grpo else "verl::gdpo_no_std"
        settings: Dict[str, Any] = {"scale.eps": epsilon} if norm_adv_by_std_in_grpo else {}
    else:
        estimator, settings = line, {}
    limits = _limits(lines, rewards, names)
    if lines and weights is not None:
        weights = _controllers[lines].unconstrained(weights, names)
    result = gdpo.advantages(
        rewards, estimator=estimator, weights=weights, gates=_gates(config, names),
        group_ids=_group_ids(index, rewards.device),
        tokens=response_mask.sum(-1), constraints=limits,
        report=bool(line or lines), **settings)
    if line or lines:
        result, report = result
        _measured.update(report.to_dict("gdpo/", names))
        _log_what_was_measured()
    if line is None:  # whatever their weight, verl's formulas pass on what is not finite
        result = result + (0 * rewards).sum().to(result.dtype)
    of_tokens = result.unsqueeze(-1) * response_mask
    return of_tokens, of_tokens


def _group_ids(index: Any, device: torch.device) -> torch.Tensor:
    """The prompts of the rows by numbers."""
    groups: Dict[Any, int] = {}
    return torch.tensor([groups.setdefault(i, len(groups)) for i in index], device=device)


def _is_baseline(line: Optional[str]) -> bool:
    """Whether a gdpo_estimator is a baseline of tokens."""
    return (line or "").split()[:1] in [[name] for name in gdpo.token_baselines()]


def _of_tokens(line: str, rewards: torch.Tensor, mask: torch.Tensor, index: Any, config: Any,
               batch: Any) -> Tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns by an estimator over tokens, or by a baseline of tokens."""
    for name in ("gdpo_reward_keys", "gdpo_gates", "gdpo_constraints"):
        if _option(config, name):
            raise ValueError(f"gdpo.integrations.verl: algorithm.{name}: given "
                             f"{_option(config, name)}, with gdpo_estimator={line!r}; needed: "
                             "none, because an estimator over tokens takes verl's rewards of "
                             "tokens")

    def of_batch(name: str, where: str) -> torch.Tensor:
        if batch is None or name not in batch.keys():  # noqa: SIM118 (a TensorDict has no "in")
            raise ValueError(f"gdpo.integrations.verl: algorithm.gdpo_estimator: given {line!r}, "
                             f"and no {name} in the batch; needed: {where}")
        return batch[name]

    if _is_baseline(line):
        _, returns = gdpo.token_advantages(estimator="verl::reinforce_plus_plus", renorm="none",
                                           rewards=rewards, mask=mask)
        ours = gdpo.optimal_token_baseline(
            returns, name=line, logp=of_batch("old_log_probs", "those of the actor"),
            sum_pi_squared=of_batch("sum_pi_squared", "actor.calculate_sum_pi_squared=True"),
            weights=(batch["rollout_is_weights"]
                     if "rollout_is_weights" in batch.keys() else None),  # noqa: SIM118
            group_ids=_group_ids(index, rewards.device), mask=mask)
        return ours, returns
    values = None
    if "returns.lambda" in settings_of_tokens(line):
        values = of_batch("values", "critic.enable=True, whose values it reads")
    return gdpo.token_advantages(estimator=token_line(line, config.gamma, config.lam),
                                 rewards=rewards, values=values, mask=mask)


def _remax(verls: Callable) -> Callable:
    """verl's ReMax, or ours where algorithm.gdpo_estimator has an estimator over tokens.

    verl computes the rewards of the greedy completions for adv_estimator=remax alone.
    """
    @functools.wraps(verls)
    def remax(token_level_rewards, reward_baselines, response_mask, config=None, **kwargs):
        line = _option(config, "gdpo_estimator")
        if line is None:
            return verls(token_level_rewards, reward_baselines, response_mask, config=config,
                         **kwargs)
        return tuple(gdpo.token_advantages(
            estimator=line, rewards=token_level_rewards, mask=response_mask,
            values=reward_baselines.unsqueeze(-1).expand_as(token_level_rewards)))

    return remax


def value_loss(vpreds: torch.Tensor, returns: torch.Tensor, values: torch.Tensor,
               response_mask: torch.Tensor, cliprange_value: float,
               loss_agg_mode: str = PREFIX + "token-mean", dp_size: int = 1,
               batch_num_tokens: Optional[int] = None, global_batch_size: Optional[int] = None,
               loss_scale_factor: Optional[int] = None) -> Tuple[torch.Tensor, torch.Tensor]:
    """What verl calls where critic.loss_agg_mode begins with "gdpo:": the loss and vf_clipfrac.

    loss_agg_mode: "gdpo:MODE [SETTING=VALUE ...]" with one of verl's modes and settings of
      `gdpo.ValueLoss`, such as "gdpo:token-mean delta=10". The clip is cliprange_value unless the
      line sets it.
    The counts that divide are those of the global batch, as in verl.

    Errors: ValueError for unknown modes and settings, with a list of the known ones.
    """
    settings = critic_loss(loss_agg_mode).settings(cliprange_value, loss_scale_factor)
    settings["aggregate.scale"] = float(settings.get("aggregate.scale", 1.0)) * dp_size
    info = {"dp_size": dp_size, "batch_num_tokens": batch_num_tokens,
            "global_batch_size": global_batch_size}
    loss, metrics = _make_value_loss(tuple(settings.items()))(
        vpreds, old_values=values, returns=returns, mask=response_mask,
        counts=_counts(response_mask, info, settings["aggregate"]))
    clipped, tokens = (metrics.result[metrics.names().index(f"clip_fraction.{part}")]
                       for part in ("sum", "count"))  # nothing waits for a device here
    return loss, (clipped / (tokens + 1e-8)).to(loss.dtype)  # verl adds that to the number


@functools.lru_cache(maxsize=256)
def _make_value_loss(settings: Tuple[Tuple[str, Any], ...]) -> gdpo.ValueLoss:
    return gdpo.ValueLoss("verl::value_loss", **dict(settings))


def _option(config: Any, name: str) -> Any:
    return None if config is None else config.get(name, None)


def _rewards(token_level_rewards: torch.Tensor, config: Any, columns: Any, batch: Any, *,
             needs_keys: bool) -> Tuple[torch.Tensor, List[str], Optional[List[float]]]:
    """The rewards (rows, rewards), their names and weights, as verl takes them."""
    handed_over = config is not None and columns is not None and batch is not None
    keys = list(_option(config, "gdpo_reward_keys") or ()) if handed_over else []
    if not keys:
        if handed_over and needs_keys:
            _refuse_no_keys()
        return token_level_rewards.sum(dim=-1).unsqueeze(-1), [_SUM], None
    missing = [key for key in keys if key not in columns]
    if missing:
        raise ValueError(f"gdpo.integrations.verl: algorithm.gdpo_reward_keys: given {missing[0]}; "
                         f"needed: one of {', '.join(columns) or 'none'}, which the trainer hands "
                         "over (verl's trainer v1 hands over none: trainer.use_v1=False)")
    rewards = [np.asarray(columns[key], dtype=np.float32) for key in keys]
    weights = _option(config, "gdpo_reward_weights")
    return (torch.tensor(np.stack(rewards, axis=1), device=token_level_rewards.device), keys,
            None if weights is None else list(weights))


_SUM = "token_level_rewards"  # the name of the sum of the rewards


def _refuse_no_keys() -> NoReturn:
    raise ValueError("gdpo.integrations.verl: algorithm.gdpo_reward_keys: given none; needed: the "
                     "keys of the rewards that compute_score returns, such as [format, accuracy], "
                     "or an algorithm.gdpo_estimator for their sum")


def _gates(config: Any, names: Sequence[str]) -> List[Tuple[int, int, float]]:
    """The gates by the numbers of their rewards."""
    gates = []
    for reward, condition, threshold in _option(config, "gdpo_gates") or ():
        for name in (reward, condition):
            if name not in names:
                raise ValueError(f"gdpo.integrations.verl: algorithm.gdpo_gates: given {name}; "
                                 f"needed: one of the rewards {', '.join(names)}"
                                 f"{did_you_mean(name, names)}")
        gates.append((names.index(reward), names.index(condition), float(threshold)))
    return gates


def _limits(lines: Tuple[str, ...], rewards: torch.Tensor, names: Sequence[str]) -> list:
    """Moves the multipliers of the constraints by the rewards of this step."""
    if not lines:
        return []
    if lines not in _controllers:
        _controllers[lines] = Constraints(lines)
    limits = _controllers[lines].update(rewards, names)
    _measured.update(_controllers[lines].metrics("gdpo/"))
    return limits


@functools.lru_cache(maxsize=None)
def _log_what_was_measured() -> None:
    """Adds what the advantages measured to the next line of verl's log, from now on.

    An estimator of verl returns no metrics, so they are added where the trainer logs the others.
    """
    from verl.utils.tracking import Tracking
    if not knows(Tracking.log, _LOG_PARAMETERS, plugin="verl", version=VERSION,
                 instead="the rewards and multipliers of gdpo are not logged"):
        return
    verls = Tracking.log

    @functools.wraps(verls)
    def log(self, data, step, backend=None):
        data = {**data, **_measured}
        _measured.clear()
        return verls(self, data, step, backend)

    Tracking.log = log


def register() -> None:
    """Makes the names known to verl; importing this module has done it where verl is installed.

    Errors: ImportError without verl.
    """
    from verl.trainer.ppo import core_algos
    is_known = knows(
        core_algos.compute_policy_loss_vanilla, _LOSS_PARAMETERS, plugin="verl", version=VERSION,
        instead="verl's own losses are used, and loss_mode=gdpo:... is for those of its own")
    core_algos.POLICY_LOSS_REGISTRY = _Losses(core_algos.POLICY_LOSS_REGISTRY, is_known)
    if knows(core_algos.compute_gdpo_outcome_advantage, _GDPO_PARAMETERS, plugin="verl",
             version=VERSION, instead="verl's own advantages are used, and algorithm."
             "gdpo_estimator, gdpo_gates and gdpo_constraints are not read"):
        core_algos.ADV_ESTIMATOR_REGISTRY["gdpo"] = advantages
    if knows(core_algos.compute_remax_outcome_advantage, _REMAX_PARAMETERS, plugin="verl",
             version=VERSION, instead="adv_estimator=remax does not read gdpo_estimator"):
        core_algos.ADV_ESTIMATOR_REGISTRY["remax"] = _remax(
            core_algos.compute_remax_outcome_advantage)
    _install_value_loss(core_algos)
    _install_correction()
    _install_check()


# The options of `advantages`, all of them in verl's section algorithm.
_OPTIONS = ("gdpo_reward_keys", "gdpo_reward_weights", "gdpo_estimator", "gdpo_gates",
            "gdpo_constraints")


def check(config: Any) -> None:
    """Refuses names and settings of this library in verl's whole configuration that do not fit.

    verl's validate_config calls it, before any model is loaded; else the first step would tell.

    Errors: ValueError, as from Loss, `advantages` and `rollout_correction`, and for options of
    algorithm that begin with "gdpo_" and are none.
    """
    actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
    mode = (actor.get("policy_loss") or {}).get("loss_mode", "vanilla")
    if _is_ours(mode):
        loss = _loss(mode)
        if isinstance(loss, Loss):
            loss.check(actor)
    elif mode.partition(":")[0] != "gdpo" and near(mode.partition(":")[0], ["gdpo"]):
        raise ValueError(f'gdpo.integrations.verl: loss_mode: given {mode!r}; did you mean '
                         f'"gdpo{mode[mode.find(":"):] if ":" in mode else ""}"?')
    averaged = (config.get("critic") or {}).get("loss_agg_mode", None)
    if isinstance(averaged, str) and averaged.startswith(PREFIX):
        critic_loss(averaged)
    _check_advantages(algorithm, v1=bool(config.trainer.get("use_v1", False)))
    options = {**CORRECTION, **(algorithm.get("rollout_correction") or {})}
    if is_ours(options["rollout_is"], options["rollout_rs"]):
        if options["rollout_is"] is not None and options["rollout_is_threshold"] is not None:
            check_lines(weight_lines(options["rollout_is"], options["rollout_is_threshold"])[0])
        check_lines(rejection_lines(options["rollout_rs"],
                                    options["rollout_rs_threshold"]).values())


def _check_advantages(algorithm: Any, v1: bool) -> None:
    """Refuses options of `advantages` that do not fit."""
    for name in algorithm:
        if str(name).startswith("gdpo_") and name not in _OPTIONS:
            raise ValueError(f"gdpo.integrations.verl: algorithm.{name}: given, and no option; "
                             f"needed: one of {', '.join(_OPTIONS)}"
                             f"{did_you_mean(str(name), _OPTIONS)}")
    given = [name for name in _OPTIONS[2:] if algorithm.get(name)]
    if algorithm.get("adv_estimator") == "remax" and algorithm.get("gdpo_estimator"):
        configured("token_advantages", algorithm.get("gdpo_estimator"))
        given.remove("gdpo_estimator")
    if algorithm.get("adv_estimator") != "gdpo":
        if given:
            warnings.warn(f"gdpo.integrations.verl: algorithm.{given[0]} is not read, because "
                          f"algorithm.adv_estimator is {algorithm.get('adv_estimator')!r}, not "
                          "gdpo", stacklevel=3)
        return
    names = list(algorithm.get("gdpo_reward_keys") or ())
    if names and v1:
        raise ValueError("gdpo.integrations.verl: algorithm.gdpo_reward_keys: given with verl's "
                         "trainer v1, which hands no rewards over; needed: trainer.use_v1=False, "
                         "or no keys and an algorithm.gdpo_estimator for the sum of the rewards")
    estimator = algorithm.get("gdpo_estimator")
    if not names and estimator is None:
        _refuse_no_keys()
    if _is_baseline(estimator):
        settings_of("token_baseline", estimator)
    elif estimator is not None:
        configured("token_advantages" if is_of_tokens(estimator) else "estimator", estimator)
    names = names or [_SUM]
    _gates(algorithm, names)
    for name in Constraints(tuple(algorithm.get("gdpo_constraints") or ())).names:
        if name not in names:
            raise ValueError(f"gdpo.integrations.verl: algorithm.gdpo_constraints: given {name}; "
                             f"needed: one of the rewards {', '.join(names)}"
                             f"{did_you_mean(name, names)}")


def _install_check() -> None:
    """Lets verl's check of the configuration call ours, wherever verl's modules hold it."""
    from verl.utils import config as module
    verls = module.validate_config
    if getattr(verls, "is_of_gdpo", False) or not knows(
            verls, _CHECK_PARAMETERS, plugin="verl", version=VERSION,
            instead="what is wrong with the names of gdpo is said in the first step"):
        return

    @functools.wraps(verls)
    def validate_config(config, *args, **kwargs):
        check(config)
        return verls(config, *args, **kwargs)

    validate_config.is_of_gdpo = True  # type: ignore[attr-defined]
    for name, other in list(sys.modules.items()):
        if name.split(".")[0] == "verl" and vars(other).get("validate_config") is verls:
            other.validate_config = validate_config  # type: ignore[attr-defined]


def _install_value_loss(core_algos: Any) -> None:
    """Computes the critic's loss here where critic.loss_agg_mode begins with "gdpo:"."""
    verls = core_algos.compute_value_loss
    if getattr(verls, "is_of_gdpo", False) or not knows(
            verls, _VALUE_PARAMETERS, plugin="verl", version=VERSION,
            instead="verl's own value loss is used, which takes no names with gdpo:"):
        return

    @functools.wraps(verls)
    def compute(vpreds, returns, values, response_mask, cliprange_value,
                loss_agg_mode="token-mean", *args, **kwargs):
        ours = isinstance(loss_agg_mode, str) and loss_agg_mode.startswith(PREFIX)
        return (value_loss if ours else verls)(vpreds, returns, values, response_mask,
                                               cliprange_value, loss_agg_mode, *args, **kwargs)

    compute.is_of_gdpo = True  # type: ignore[attr-defined]
    core_algos.compute_value_loss = compute  # type: ignore[attr-defined]
    losses = sys.modules.get("verl.workers.utils.losses")  # which imports it by its name
    if losses is not None:
        losses.compute_value_loss = compute  # type: ignore[attr-defined]


def _install_correction() -> None:
    """Computes the rollout correction here where rollout_is or rollout_rs begins with "gdpo:"."""
    if importlib.util.find_spec("verl.trainer.ppo.rollout_corr_helper") is None:
        return  # a release without a rollout correction
    from verl.trainer.ppo import rollout_corr_helper as helper
    verls = helper.compute_rollout_correction_and_rejection_mask
    if getattr(verls, "is_of_gdpo", False) or not knows(
            verls, _CORRECTION_PARAMETERS, plugin="verl", version=VERSION,
            instead="verl's own rollout correction is used, which takes no names with gdpo:"):
        return

    @functools.wraps(verls)
    def correct(old_log_prob, rollout_log_prob, response_mask, *args, **kwargs):
        options = {**CORRECTION, **dict(zip(CORRECTION, args)), **kwargs}
        if not is_ours(options["rollout_is"], options["rollout_rs"]):
            return verls(old_log_prob, rollout_log_prob, response_mask, *args, **kwargs)
        corrected = rollout_correction(old_log_prob, rollout_log_prob, response_mask, **options)
        weights = corrected.weights
        if weights is not None:
            weights = helper.DataProto.from_dict(tensors={"rollout_is_weights": weights})
        return weights, corrected.mask, corrected.metrics

    correct.is_of_gdpo = True  # type: ignore[attr-defined]
    helper.compute_rollout_correction_and_rejection_mask = correct


def _register_or_warn() -> None:
    """verl logs what a plug-in raises only for debugging, so it is said here."""
    try:
        register()
    except Exception as error:
        warnings.warn(f"gdpo.integrations.verl: verl does not know the names of gdpo: {error!r}",
                      stacklevel=2)
        raise


if importlib.util.find_spec("verl") is not None:
    _register_or_warn()
