"""ms-swift: its GRPO trainer with the losses, estimators and constraints of this library.

A plug-in file of two lines, given to `swift rlhf` as --external_plugins, puts it in place:

    from gdpo.integrations import ms_swift
    ms_swift.install(loss="dapo", estimator="gdpo", constraints=["format>=0.9 scale=0.3"])

Without the file the trainer is as it was, because `install` changes one entry of a table of
ms-swift in the memory of that process and nothing else. This module imports ms-swift only when
`install` is called or `GRPOTrainer` is asked for.
"""
import functools
import inspect
import os
import warnings
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from .. import ContrastiveLoss, PolicyLoss, advantages, count, estimators, losses, prepare
from .._names import did_you_mean
from .._policy_loss import dividing_by_given
from .._prepare import made
from .._settings import all_words, has_clip, has_kl, is_cispo, keywords, line, said, value_of
from ..configs._ms_swift_loss import (BY_FUTURE, OVER_GROUPS, estimator_of, future_lines,
                                      loss_settings, no_loss_because)
from ._constraints import Constraints
from ._known import knows

#: The release whose functions this plug-in replaces and calls.
VERSION = "ms-swift 4.6.0"

# The functions that have to be as in that release, with their parameters: those that advantages
# depend on, and those that the loss does. "self" means a method of ms-swift's GRPOTrainer.
_FOR_ADVANTAGES = {
    "_compute_advantages": "self samples rewards_per_func batch_encoded_inputs",
    "compute_advantages": "rewards_per_func reward_weights num_generations advantage_estimator "
                          "scale_rewards kl_in_reward beta kl_values",
    "compute_advantages_dynamic": "rewards_per_func reward_weights prompt_ids request_ids "
                                  "advantage_estimator scale_rewards kl_in_reward beta kl_values",
}
_FOR_LOSS = {
    "_compute_loss_and_metrics": "self model model_inputs grpo_batch",
    "_get_per_token_logps_and_entropies": "self model model_inputs grpo_batch compute_entropy "
                                          "origin_data",
    "_undo_gradient_accumulation_scaling": "self loss",
    "_get_rollout_is_correction": "self old_per_token_logps rollout_per_token_logps "
                                  "completion_mask",
    "_compute_rollout_offpolicy_metrics": "self per_token_logps rollout_per_token_logps "
                                          "completion_mask",
    "_compute_is_correction_metrics": "self rollout_log_ratio is_weights completion_mask",
    "_compute_off_policy_sequence_mask": "self per_token_logps old_policy_per_token_logps "
                                         "completion_mask advantages",
}

# What the log shows of a loss under gdpo/, with the name that it has in gdpo.Metrics.
_EXTRA = {"policy_loss": "policy_loss", "kl_loss": "kl_loss", "ratio/mean": "ratio",
          "approx_kl": "approx_kl_k3"}


class Choices(NamedTuple):
    """What `install` was given; None stands for what ms-swift's own options say."""

    loss: Optional[str] = None  #: A name of gdpo.losses(), perhaps with level and settings.
    loss_settings: Dict[str, Any] = {}  #: Keyword arguments of gdpo.PolicyLoss.
    estimator: Optional[str] = None  #: A name of gdpo.estimators(), perhaps with settings.
    estimator_settings: Dict[str, Any] = {}  #: Keyword arguments of gdpo.advantages.
    constraints: Tuple[str, ...] = ()  #: Lines of Constraints.

    def about_loss(self) -> bool:
        """Whether the loss was chosen, so that ms-swift's own one would not be what is wanted."""
        return self.loss is not None or bool(self.loss_settings)

    def about_advantages(self) -> bool:
        """The same of advantages."""
        return bool(self.estimator is not None or self.estimator_settings or self.constraints)


_choices = Choices()


def install(*, loss: Optional[str] = None, loss_settings: Optional[Dict[str, Any]] = None,
            estimator: Optional[str] = None, estimator_settings: Optional[Dict[str, Any]] = None,
            constraints: Union[str, Sequence[str]] = ()) -> None:
    """Makes `swift rlhf --rlhf_type grpo` use this library for advantages and for the loss.

    loss: one of `gdpo.losses()`, as `gdpo.PolicyLoss` takes it ("dapo high=0.3"). It brings its own
      settings, and ms-swift's loss_type, epsilon, epsilon_high, delta, beta and
      importance_sampling_level are not read. Without it they are translated, so that the numbers
      are those of ms-swift.
    loss_settings: keyword arguments of `gdpo.PolicyLoss`, which replace settings of either; with
      loss_type="real" and no loss, those of `gdpo.ContrastiveLoss`.
    estimator: one of `gdpo.estimators()`, as `gdpo.advantages` takes it ("trl::gdpo
      singleton=raw"), in place of advantage_estimator and scale_rewards.
    estimator_settings: keyword arguments of `gdpo.advantages`, such as scale_eps, missing or gates.
    constraints: reward functions to be kept at a limit, as lines of `Constraints`.

    Errors: ValueError for unknown names and for settings that do not fit.
    """
    choices = Choices(loss, dict(loss_settings or {}), estimator, dict(estimator_settings or {}),
                      (constraints,) if isinstance(constraints, str) else tuple(constraints))
    _check(choices)
    from swift.trainers.trainer_factory import TrainerFactory
    mapping = getattr(TrainerFactory, "TRAINER_MAPPING", {})
    ours = f"{__name__}.GRPOTrainer"
    if mapping.get("grpo") not in ("swift.rlhf_trainers.GRPOTrainer", ours):
        _fall_back(f"TrainerFactory.TRAINER_MAPPING has {mapping.get('grpo')!r} for grpo, and this "
                   f"plug-in knows that of {VERSION}", choices != Choices())
        return
    global _choices
    _choices = choices
    mapping["grpo"] = ours


def _check(choices: Choices) -> None:
    """Raises ValueError for names and settings that do not fit."""
    for what, name, known in (("loss", choices.loss, losses()),
                              ("estimator", choices.estimator, estimators())):
        if name is not None and name.split(" ")[0] not in known:
            raise ValueError(f"gdpo.integrations.ms_swift: {what}: given {name!r}; needed: one of "
                             f"{', '.join(known)}{did_you_mean(name.split(' ')[0], known)}")
    if choices.loss is None:  # whose settings they are, ms-swift's loss_type will say
        known_settings = all_words("loss") | all_words("contrastive") | {"level"}
        for name in choices.loss_settings.keys() - known_settings:
            raise ValueError(f"gdpo.integrations.ms_swift: loss_settings: given {name}; needed: "
                             "settings of gdpo.PolicyLoss, or of gdpo.ContrastiveLoss"
                             f"{did_you_mean(name, sorted(known_settings))}")
    try:
        if choices.loss is not None:
            PolicyLoss(choices.loss, **choices.loss_settings)
        if choices.estimator_settings or choices.estimator is not None:
            settings = {"weights": None, "gates": (), **choices.estimator_settings}
            columns = max([len(settings["weights"] or [0]),
                           *(gate[0] + 1 for gate in settings["gates"]),
                           *(gate[1] + 1 for gate in settings["gates"])])
            advantages(torch.zeros(2, columns), group_size=2, tokens=torch.ones(2),
                       estimator=choices.estimator or "ms_swift::grpo", **settings)
    except TypeError as error:
        raise ValueError(f"gdpo.integrations.ms_swift: loss_settings, estimator_settings: {error}; "
                         "needed: keyword arguments of gdpo.PolicyLoss and gdpo.advantages"
                         ) from None
    Constraints(choices.constraints)


def _fall_back(reason: str, chosen: bool) -> None:
    """Warns that ms-swift's own code runs, or raises where that is not what the user chose."""
    if chosen:
        raise ValueError(f"gdpo.integrations.ms_swift: {reason}; needed: to leave out what "
                         "ms_swift.install() was given for it")
    warnings.warn(f"gdpo.integrations.ms_swift: {reason}; ms-swift's own code is used",
                  stacklevel=3)


class PluggedIn:
    """The methods that replace those of ms-swift's GRPOTrainer, as a class to stand before it."""

    advantage_estimator: str  # these are the trainer's
    scale_rewards: str
    add_callback: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prepare_gdpo(_choices)

    @property
    def gdpo_constraints(self) -> Constraints:
        """The constraints of this run; its `move("Short>=0.7")` moves a limit, on every rank."""
        return self._gdpo_constraints

    def prepare_gdpo(self, choices: Choices) -> None:
        """Decides what is replaced in this run, warns of what is not, and makes the loss."""
        self._gdpo_choices = choices
        #: The loss, or None where ms-swift's own runs.
        self._gdpo_loss = None
        if _all_known(_FOR_LOSS, "ms-swift's own loss is used", choices.about_loss()):
            reason = _no_loss_because(self, choices)
            if reason:
                _fall_back(reason, choices.about_loss())
            else:
                self._gdpo_loss = _loss_of(self, choices)
        #: The estimator's name, or None where ms-swift's own runs.
        self._gdpo_estimator = None
        self._gdpo_constraints = Constraints(choices.constraints)
        if _all_known(_FOR_ADVANTAGES, "ms-swift's own advantages are used",
                      choices.about_advantages()):
            self._gdpo_estimator = choices.estimator or _own_estimator(self)
            if self._gdpo_estimator is None:
                _fall_back(f"advantage_estimator={self.advantage_estimator} with scale_rewards="
                           f"{self.scale_rewards} has no counterpart", choices.about_advantages())
        if choices.constraints:
            self.add_callback(_constraint_callback(self._gdpo_constraints))

    def _compute_advantages(self, samples, rewards_per_func, batch_encoded_inputs):
        # ms-swift's own function logs the rewards; what it returns is used where ours is not.
        own = super()._compute_advantages(samples, rewards_per_func, batch_encoded_inputs)
        if self._gdpo_estimator is None:
            return own
        choices = self._gdpo_choices
        training = self.model.training
        arrays = {}
        if self.kl_in_reward and self.beta != 0.0:
            arrays["penalty"] = _gathered_rows(batch_encoded_inputs, _kl_of_rows)
        if choices.estimator is not None:
            arrays["tokens"] = _gathered_rows(batch_encoded_inputs,
                                              lambda batch: batch.completion_mask.sum(-1))
        arrays = {name: values.to(rewards_per_func.device) for name, values in arrays.items()
                  if len(values) == len(rewards_per_func)}
        # A constrained reward is not maximized as well, so ms-swift's weight of it does not count.
        weights = self._gdpo_constraints.unconstrained(self.reward_weights.tolist(),
                                                       self.reward_func_names)
        settings = {"weights": weights, **choices.estimator_settings}
        if "penalty" in arrays and not _sets_penalty(self._gdpo_estimator,
                                                     choices.estimator_settings):
            settings["penalty_coef"] = self.beta
        rewards, groups, back = rewards_per_func, {}, None
        if self.dynamic_num_samples:
            at, group_ids, back = _requests(samples, rewards.device)
            rewards, groups = rewards[at], {"group_ids": group_ids}
            arrays = {name: values[at] for name, values in arrays.items()}
        else:
            groups = {"group_size": (self.num_generations if training
                                     else self.num_generations_eval)}
        if training and choices.constraints:  # an evaluation does not move the multipliers
            settings["constraints"] = self._gdpo_constraints.update(rewards, self.reward_func_names)
        result, report = advantages(rewards, estimator=self._gdpo_estimator, report=True, **groups,
                                    **arrays, **settings)
        log = self._metrics["train" if training else "eval"]
        log["gdpo/degenerate_groups"].append(report["degenerate_groups"] / report["groups"])
        log["gdpo/missing_rewards"].append(report["excluded_rewards"])
        if training:
            for name, value in self._gdpo_constraints.metrics("gdpo/").items():
                log[name].append(value)
        result = result.to(own.dtype)
        return result if back is None else result[back]

    def _compute_loss_and_metrics(self, model, model_inputs, grpo_batch):
        if self._gdpo_loss is None:
            return super()._compute_loss_and_metrics(model, model_inputs, grpo_batch)
        mode = "train" if self.model.training else "eval"
        logp, entropies = self._get_per_token_logps_and_entropies(
            model, model_inputs, grpo_batch, compute_entropy=self.compute_entropy)
        old_logp = grpo_batch.old_per_token_logps
        old_logp = logp.detach() if old_logp is None else old_logp
        mask = grpo_batch.completion_mask.bool()
        weights, entropy_metrics = _entropy_of(self, logp.detach(), entropies, mask)
        if self.overlong_filter:
            mask = mask & ~grpo_batch.truncated_mask.bool().unsqueeze(-1)
        by_future = self._gdpo_choices.loss is None and self.loss_type == BY_FUTURE
        of_tokens = {}
        if by_future:
            of_tokens = _future_of(self, logp.detach(), old_logp, mask, grpo_batch)
            weights = (of_tokens["influence_weight"] if weights is None
                       else weights * of_tokens["influence_weight"])
        wide = torch.promote_types(logp.dtype, torch.float32)  # corrections are not in 16 bits
        sampled = grpo_batch.rollout_per_token_logps
        sampled = None if sampled is None else sampled.to(wide)
        rollout_weights, rollout_metrics = _rollout_of(self, old_logp.to(wide), sampled, mask)
        if rollout_weights is not None:
            weights = rollout_weights if weights is None else weights * rollout_weights
        mask = _without_off_policy_rows(
            self, logp.detach().to(wide), old_logp.to(wide) if sampled is None else sampled,
            grpo_batch.advantages, mask)
        more = {"weights": weights, "kl_weights": rollout_weights}
        if isinstance(self._gdpo_loss, ContrastiveLoss):  # which no weights of ms-swift reach
            more = {"group_size": self.num_generations}
            _refuse_teacher(grpo_batch, OVER_GROUPS, "the sign of their mean")
        distills = self.sdar_loss_coef > 0 and grpo_batch.teacher_per_token_logps is not None
        if distills:  # so that the sum of two gradients is rounded to 16 bits, and not each of them
            logp = logp.to(wide)
        loss, metrics = self._gdpo_loss(
            logp, old_logp=old_logp, ref_logp=grpo_batch.ref_per_token_logps,
            rollout_logp=sampled,
            teacher_logp=grpo_batch.teacher_per_token_logps, mask=mask,
            token_advantages=grpo_batch.advantages.contiguous(), entropies=entropies,
            counts=_counts(self, grpo_batch, mask), **more)
        if distills:
            loss = loss + _distilled(self, logp, grpo_batch.teacher_per_token_logps, mask, mode)
        clip, kl, extra = _numbers_of(self, metrics)
        for name, value in extra.items():
            self._metrics[mode][f"gdpo/{name}"].append(value)
        data = {"mode": mode, "entropy": entropy_metrics, "completion_mask": mask,
                "completion_token_count": mask.sum().clamp(min=1.0)}
        if clip:
            data["clipping"] = clip
        if kl is not None:
            data["kl"] = kl
        if rollout_metrics:
            data["rollout_correction"] = rollout_metrics
        if by_future:
            data["fipo"] = _means_of(self, of_tokens, mask)
        return loss, data


@functools.lru_cache(maxsize=None)
def _trainer_class() -> type:
    """The subclass of ms-swift's GRPOTrainer, made when it is first asked for."""
    return type("GRPOTrainer", (PluggedIn, _swift().GRPOTrainer), {
        "__module__": __name__, "__doc__": "ms-swift's GRPOTrainer with losses of this library."})


def __getattr__(name: str) -> Any:
    """`GRPOTrainer`, by the name that ms-swift looks it up by."""
    if name == "GRPOTrainer":
        return _trainer_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _swift() -> Any:
    """The module of ms-swift that has its trainer and the functions which that calls."""
    from swift.rlhf_trainers import grpo_trainer
    return grpo_trainer


def _all_known(functions: Dict[str, str], instead: str, chosen: bool) -> bool:
    """Whether these functions of ms-swift are those that this plug-in was written for."""
    known = True
    for name, parameters in functions.items():
        owner = _swift().GRPOTrainer if parameters.startswith("self ") else _swift()
        known = knows(getattr(owner, name), parameters.split(), plugin="ms_swift", version=VERSION,
                      instead=instead) and known
    if not known and chosen:
        _fall_back(f"the functions of this release are not those of {VERSION}", chosen)
    return known


def _no_loss_because(trainer: Any, choices: Choices) -> Optional[str]:
    """Why ms-swift's loss cannot be replaced in this run, or None."""
    return no_loss_because(trainer, chosen=choices.loss is not None)


def _loss_of(trainer: Any, choices: Choices) -> Union[PolicyLoss, ContrastiveLoss]:
    """The loss that was chosen, or the one that ms-swift's options describe."""
    if choices.loss is not None:
        chosen = PolicyLoss(choices.loss, **choices.loss_settings)
        return chosen if choices.loss.startswith("ms_swift::") else dividing_by_given(chosen)
    name, settings = loss_settings(trainer)
    own_settings = dict(choices.loss_settings)
    if trainer.loss_type == OVER_GROUPS:
        own = said("contrastive", line("gdpo.ContrastiveLoss", (name,), own_settings))
        return ContrastiveLoss(name, **own_settings, **{
            setting: value for setting, value in settings.items() if setting not in own})
    level = own_settings.pop("level", trainer.importance_sampling_level)
    own = said("loss", line("gdpo.PolicyLoss", (name, level), own_settings))
    return PolicyLoss(name, level, **own_settings, **{
        setting: value for setting, value in settings.items() if setting not in own})


#: The arguments of `advantages` that are no settings.
_ARRAYS_OF_ADVANTAGES = inspect.signature(advantages).parameters.keys() - keywords("estimator")


def _sets_penalty(estimator: str, settings: Dict[str, Any]) -> bool:
    """Whether these arguments of advantages set the coefficient of the KL inside the reward."""
    text = line("gdpo::advantages", (estimator,), {name: value for name, value in settings.items()
                                                   if name not in _ARRAYS_OF_ADVANTAGES})
    return "penalty.coef" in said("estimator", text)


def _own_estimator(trainer: Any) -> Optional[str]:
    """The estimator that ms-swift's options describe, or None for one that is not known."""
    return estimator_of(trainer.advantage_estimator, trainer.scale_rewards,
                        trainer.dynamic_num_samples)


def _gathered_rows(batch_encoded_inputs: List[Dict[str, Any]], of: Any) -> torch.Tensor:
    """A number of each row of all processes, in the order of the rewards."""
    from accelerate.utils import gather_object
    local = [value for inputs in batch_encoded_inputs
             for value in of(inputs["grpo_batch"]).tolist()]
    return torch.tensor(gather_object(local), dtype=torch.float64)


def _kl_of_rows(grpo_batch: Any) -> torch.Tensor:
    """The KL of each row that kl_in_reward takes off its reward; not in 16 bits, which round it."""
    old_logp, ref_logp = grpo_batch.old_per_token_logps, grpo_batch.ref_per_token_logps
    wide = torch.promote_types(old_logp.dtype, torch.float32)
    return ((old_logp.to(wide) - ref_logp.to(wide)) * grpo_batch.completion_mask).sum(-1)


def _requests(samples: Sequence[Any], device: torch.device
              ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The last row of each request, the prompts of these rows, and where each row finds its own."""
    from accelerate.utils import gather_object
    prompts = gather_object([sample.prompt_id for sample in samples])
    requests = gather_object([sample.request_id for sample in samples])
    at = sorted({request: row for row, request in enumerate(requests)}.values())
    number = {request: index for index, request in enumerate(requests[row] for row in at)}
    prompt = {name: index for index, name in enumerate(dict.fromkeys(prompts))}
    return (torch.tensor(at, device=device),
            torch.tensor([prompt[prompts[row]] for row in at], device=device),
            torch.tensor([number[request] for request in requests], device=device))


def _counts(trainer: Any, grpo_batch: Any, mask: torch.Tensor) -> torch.Tensor:
    """The counts that the loss of a micro-batch divides by, before the Trainer's own division.

    The Trainer averages the micro-batches of a step and the processes. ms-swift's losses, by its
    options or by name, divide by the counts that it takes. Others that divide by tokens, or by the
    last of the counts, divide by the average number
    of tokens in a micro-batch of the whole rollout, so that their average divides by all tokens.
    """
    if isinstance(trainer._gdpo_loss, ContrastiveLoss):
        counts = count(mask=mask, group_size=trainer.num_generations)
        counts[:3].clamp_(min=1.0)
        return counts
    counts = count(mask=mask)
    counts[:3].clamp_(min=1.0)
    tokens = grpo_batch.num_items_in_batch / trainer.accelerator.num_processes
    chosen = trainer._gdpo_choices.loss
    if chosen is None:
        one = torch.ones((), dtype=torch.float64)
        counts[3] = tokens / trainer._undo_gradient_accumulation_scaling(one).item()
        return counts
    batches = 1
    if trainer.model.training:
        parallel = trainer.template.sequence_parallel_size
        batches = trainer.args.steps_per_generation * parallel
    counts[3] = tokens / batches
    return counts


def _entropy_of(trainer: Any, logp: torch.Tensor, entropies: Optional[torch.Tensor],
                mask: torch.Tensor) -> Tuple[Optional[torch.Tensor], Dict[str, Any]]:
    """The weights of top_entropy_quantile, or None, and the metrics that ms-swift logs."""
    metrics: Dict[str, Any] = {}
    if not trainer.compute_entropy or entropies is None:
        return None, metrics
    if trainer.args.log_entropy:
        from accelerate.utils import gather
        wide = entropies.to(torch.promote_types(entropies.dtype, torch.float32))
        rows = gather(wide.masked_fill(~mask, float("nan")).nanmean(dim=1))
        known = rows[~rows.isnan()]
        known = known if len(known) else rows
        metrics = {"entropy_logs": rows.tolist(), "entropy_mean": known.mean().item(),
                   "entropy_max": known.max().item(), "entropy_min": known.min().item()}
    if trainer.top_entropy_quantile >= 1.0:
        return None, metrics
    prepared = prepare(f"top_entropy {1 - trainer.top_entropy_quantile!r}", logp=logp,
                       entropies=entropies.detach(), mask=mask)
    metrics["entropy_threshold"] = prepared.entropy_threshold.item()
    return prepared.weights, metrics


def _refuse_teacher(grpo_batch: Any, loss_type: str, reads: str) -> None:
    """Raises ValueError where a teacher made advantages of tokens, of which a loss reads less."""
    if grpo_batch.teacher_per_token_logps is not None:
        raise ValueError(f"gdpo.integrations.ms_swift: loss_type: given {loss_type} with log-probs "
                         f"of a teacher; needed: none, as of a row's advantages this loss reads "
                         f"{reads} alone")


def _future_of(trainer: Any, logp: torch.Tensor, old_logp: torch.Tensor, mask: torch.Tensor,
               grpo_batch: Any) -> Dict[str, torch.Tensor]:
    """The weights of loss_type="fipo", and what else ms-swift logs a mean of, each of tokens."""
    _refuse_teacher(grpo_batch, BY_FUTURE, "their sign")
    safety = trainer.fipo_safety_threshold
    bounded, unbounded = future_lines(trainer, value_of(trainer._gdpo_loss, "surrogate.delta"))
    advantages = grpo_batch.advantages.contiguous()
    weights = made(prepare(bounded, logp=logp, old_logp=old_logp, mask=mask,
                           token_advantages=advantages).weights)
    # The sum is the log of a weight without bounds, which float64 has up to 709.
    future_kl = made(prepare(unbounded, logp=logp.double(), old_logp=old_logp.double(),
                             mask=mask).weights).log()
    unsafe = torch.zeros_like(mask)
    if safety is not None:
        wide = torch.promote_types(logp.dtype, torch.float32)
        unsafe = ((logp.to(wide) - old_logp.to(wide)).exp() > safety) & (advantages < 0)
    return {"future_kl": future_kl, "influence_weight": weights,
            "safety_keep": (~unsafe).to(torch.float32)}


def _means_of(trainer: Any, of_tokens: Dict[str, torch.Tensor], mask: torch.Tensor
              ) -> Dict[str, float]:
    """The means over the tokens of a mask, by ms-swift's names, gathered over the ranks."""
    tokens = mask.sum().clamp(min=1.0)
    local = torch.stack([torch.where(mask, values, torch.zeros_like(values)).double().sum() / tokens
                         for values in of_tokens.values()]).unsqueeze(0)
    means = trainer.accelerator.gather_for_metrics(local).nanmean(0).tolist()
    return dict(zip(("future_kl_mean", "influence_weight_mean", "safety_keep_ratio"), means))


def _distilled(trainer: Any, logp: torch.Tensor, teacher_logp: torch.Tensor, mask: torch.Tensor,
               mode: str) -> torch.Tensor:
    """The term that sdar_loss_coef adds to the loss; its metrics go into ms-swift's log."""
    counts = count(mask=mask)
    counts[:3].clamp_(min=1.0)
    coef, gate_beta = trainer.sdar_loss_coef, trainer.sdar_gate_beta
    term, metrics = PolicyLoss("ms_swift::sdar", beta=coef, gate_beta=gate_beta)(
        logp, teacher_logp=teacher_logp, mask=mask, counts=counts)
    gap = teacher_logp.to(logp.dtype) - logp.detach()
    gate = torch.where(mask, torch.sigmoid(gate_beta * gap), torch.zeros_like(gap))
    tokens = mask.sum().clamp(min=1.0)
    for name, value in (("gate_mean", (gate.sum() / tokens).item()),
                        ("gate_active_ratio", ((gate > 0.5).sum() / tokens).item()),
                        ("teacher_gap_mean", metrics.mean("kl")),
                        ("loss", metrics["kl_loss"] / coef), ("coef", coef)):
        trainer._metrics[mode][f"sdar/{name}"].append(value)
    return term


def _rollout_of(trainer: Any, old_logp: torch.Tensor, rollout_logp: Optional[torch.Tensor],
                mask: torch.Tensor) -> Tuple[Optional[torch.Tensor], Dict[str, torch.Tensor]]:
    """The weights of rollout_importance_sampling_mode, or None, and their metrics over ranks.

    They are ms-swift's own functions, because its metrics are made from the weights and because the
    threshold is an option there.
    """
    from accelerate.utils import gather_object
    wanted = (trainer.rollout_importance_sampling_mode is not None
              or trainer.log_rollout_offpolicy_metrics)
    if not (wanted and all(gather_object([rollout_logp is not None]))):
        return None, {}
    if trainer.disable_rollout_importance_sampling:
        return None, {}
    metrics = trainer._compute_rollout_offpolicy_metrics(old_logp, rollout_logp, mask)
    log_ratio, weights = trainer._get_rollout_is_correction(old_logp, rollout_logp, mask)
    if log_ratio is not None:
        metrics.update(trainer._compute_is_correction_metrics(log_ratio, weights, mask))
        weights = weights.contiguous()
    ranks = trainer.accelerator.gather_for_metrics(
        torch.stack(list(metrics.values())).detach().unsqueeze(0))
    result = dict(zip(metrics, ranks.nanmean(0).unbind()))
    names = list(metrics)
    result["log_ppl_diff_max"] = ranks[:, names.index("log_ppl_diff_max")].max()
    result["log_ppl_diff_min"] = ranks[:, names.index("log_ppl_diff_min")].min()
    return weights, result


def _without_off_policy_rows(trainer: Any, logp: torch.Tensor, sampled: torch.Tensor,
                             token_advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mask without the rows that off_policy_sequence_mask_delta leaves out."""
    if trainer.off_policy_sequence_mask_delta is None:
        return mask
    tokens = mask.sum(-1).clamp(min=1.0)
    keep = trainer._compute_off_policy_sequence_mask(
        logp, sampled, mask, (token_advantages * mask).sum(-1) / tokens)
    return mask & keep.unsqueeze(-1)


def _numbers_of(trainer: Any, metrics: Any) -> Tuple[Dict[str, float], Optional[float],
                                                     Dict[str, float]]:
    """The clip fractions, the KL and what is extra, all gathered over the ranks in one call."""
    metrics = type(metrics)(metrics.result.detach().cpu())  # one copy, not one for each number
    local = [metrics.mean(name) for name in ("clip_fraction_low", "clip_fraction_high",
                                             "clip_fraction", "kl")]
    local += [metrics[name] if name in metrics else metrics.mean(name) for name in _EXTRA.values()]
    ranks = trainer.accelerator.gather_for_metrics(
        torch.tensor([local], dtype=torch.float64, device=trainer.accelerator.device))
    means = ranks.nanmean(0).tolist()
    clip = {"low_clip_mean": means[0], "low_clip_min": ranks[:, 0].min().item(),
            "high_clip_mean": means[1], "high_clip_max": ranks[:, 1].max().item(),
            "region_clip_mean": means[2]}
    if is_cispo(trainer._gdpo_loss.line):
        clip = {"cispo_clip_ratio": means[1]}
    elif isinstance(trainer._gdpo_loss, ContrastiveLoss) or not has_clip(trainer._gdpo_loss):
        clip = {}
    return clip, means[3] if has_kl(trainer._gdpo_loss) else None, dict(zip(_EXTRA, means[4:]))


def _constraint_callback(constraints: Constraints) -> Any:
    """A callback that keeps the state of the constraints in the trainer's checkpoints."""
    from transformers import TrainerCallback

    class ConstraintCallback(TrainerCallback):
        """Saves beside the model, and loads where training is resumed."""

        def on_save(self, args, state, control, **kwargs):
            folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
            if state.is_world_process_zero and os.path.isdir(folder):
                torch.save(constraints.state_dict(), os.path.join(folder, "gdpo_constraints.pt"))

        def on_train_begin(self, args, state, control, **kwargs):
            path = os.path.join(args.resume_from_checkpoint or "", "gdpo_constraints.pt")
            if args.resume_from_checkpoint and os.path.exists(path):
                constraints.load_state_dict(torch.load(path, weights_only=True))

    return ConstraintCallback()
